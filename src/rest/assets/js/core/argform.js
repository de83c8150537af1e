// The arguments of a call as fields of a form, by the tool's schema, and back. What is not touched keeps its exact text:
// a parser would round long numbers. Pure.

import { compose, members, pretty } from './rawjson.js';

const MOST_FIELDS = 60;

/**
 * `[{key, kind, title, help, required, options, source, text}]`, or null where a form cannot stand for the text (no
 * object, a key twice, too much). Kinds are `text`, `long`, `number`, `flag`, `choice` and `json`.
 */
export function formOf(source, schema) {
  const present = members(source);
  if (!present || new Set(present.map((m) => m.key)).size !== present.length) return null;
  const properties = schema?.properties && typeof schema.properties === 'object' ? schema.properties : {};
  const keys = [...new Set([...present.map((m) => m.key), ...Object.keys(properties)])];
  if (keys.length > MOST_FIELDS) return null;
  const order = Object.keys(properties);
  const place = (key) => (order.includes(key) ? order.indexOf(key) : order.length);
  keys.sort((a, b) => place(a) - place(b));
  return keys.map((key) => {
    const about = properties[key] && typeof properties[key] === 'object' ? properties[key] : {};
    const was = present.find((m) => m.key === key)?.source ?? null;
    const { kind, options } = kindOf(about, was);
    return {
      key, kind, options, source: was, text: was === null ? '' : textOf(kind, was), known: !schema || key in properties,
      title: typeof about.title === 'string' ? about.title : key, help: typeof about.description === 'string' ? about.description : '',
      required: Array.isArray(schema?.required) && schema.required.includes(key),
    };
  });
}

function kindOf(about, source) {
  const value = source === null ? undefined : JSON.parse(source);
  const given = value === undefined ? about.type : value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
  // The value that is there rules: a form must be able to show it.
  if (Array.isArray(about.enum) && about.enum.length <= 40 && about.enum.every((e) => typeof e === 'string') && (given === 'string' || value === undefined)) {
    const options = [...about.enum];
    if (typeof value === 'string' && !options.includes(value)) options.unshift(value);
    return { kind: 'choice', options };
  }
  if (given === 'string') return { kind: typeof value === 'string' && (value.length > 80 || value.includes('\n')) || about.maxLength > 300 ? 'long' : 'text' };
  if (given === 'number' || given === 'integer') return { kind: 'number' };
  if (given === 'boolean') return { kind: 'flag', options: ['true', 'false'] };
  return { kind: 'json' };
}

function textOf(kind, source) {
  if (kind === 'text' || kind === 'long' || kind === 'choice') return JSON.parse(source);
  return kind === 'json' ? pretty(source) : source;
}

/** The source of a field whose text somebody has written; null where the field is to be left out. Throws where it is no value. */
export function sourceOfField({ kind }, text) {
  if (kind === 'text' || kind === 'long') return JSON.stringify(text);
  if (kind === 'choice') return text === '' ? null : JSON.stringify(text);
  const trimmed = text.trim();
  if (trimmed === '') return null;
  try {
    JSON.parse(trimmed);
  } catch {
    throw new SyntaxError(kind === 'number' ? 'This is not a number.' : 'This is not JSON.');
  }
  if (kind === 'number' && !/^-?\d/.test(trimmed)) throw new SyntaxError('This is not a number.');
  return trimmed;
}

/** The whole text again. `entries` is `[{field, text, absent}]`; an untouched field keeps its source. */
export function sourceOfForm(entries) {
  const present = [];
  for (const { field, text, absent } of entries) {
    if (absent) continue;
    const source = field.source !== null && text === field.text ? field.source : sourceOfField(field, text);
    if (source !== null) present.push({ key: field.key, source });
  }
  return compose(present);
}

/** Where a fault belongs: the name of the field out of its JSON pointer, or null. */
export function fieldOf(pointer) {
  const first = /^\/([^/]*)/.exec(pointer ?? '')?.[1];
  return first === undefined ? null : first.replaceAll('~1', '/').replaceAll('~0', '~');
}
