// Converts the arguments of a call into form fields, guided by the tool's schema, and back. Untouched values keep their
// exact text, because a parser would round long numbers. Pure.

import { t } from './locale.js';
import { compose, members, pretty } from './rawjson.js';

const MAX_FIELDS = 60;

/**
 * Returns `[{key, kind, title, help, required, options, source, text, known}]`, or null if a form cannot represent the
 * text (not an object, a duplicate key, too many keys). Kinds are `text`, `long`, `number`, `flag`, `choice` and `json`.
 */
export function formOf(source, schema) {
  const present = members(source);
  if (!present || new Set(present.map((m) => m.key)).size !== present.length) return null;
  const properties = schema?.properties && typeof schema.properties === 'object' ? schema.properties : {};
  const keys = [...new Set([...present.map((m) => m.key), ...Object.keys(properties)])];
  if (keys.length > MAX_FIELDS) return null;
  const order = Object.keys(properties);
  const position = (key) => (order.includes(key) ? order.indexOf(key) : order.length);
  keys.sort((a, b) => position(a) - position(b));
  return keys.map((key) => {
    const property = properties[key] && typeof properties[key] === 'object' ? properties[key] : {};
    const current = present.find((m) => m.key === key)?.source ?? null;
    const { kind, options } = kindOf(property, current);
    return {
      key, kind, options, source: current, text: current === null ? '' : textOf(kind, current), known: !schema || key in properties,
      title: typeof property.title === 'string' ? property.title : key, help: typeof property.description === 'string' ? property.description : '',
      required: Array.isArray(schema?.required) && schema.required.includes(key),
    };
  });
}

function kindOf(property, source) {
  const value = source === null ? undefined : JSON.parse(source);
  const type = value === undefined ? property.type : value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
  // The present value decides the kind, because the form must be able to show it.
  if (Array.isArray(property.enum) && property.enum.length <= 40 && property.enum.every((e) => typeof e === 'string') && (type === 'string' || value === undefined)) {
    const options = [...property.enum];
    if (typeof value === 'string' && !options.includes(value)) options.unshift(value);
    return { kind: 'choice', options };
  }
  if (type === 'string') return { kind: typeof value === 'string' && (value.length > 80 || value.includes('\n')) || property.maxLength > 300 ? 'long' : 'text' };
  if (type === 'number' || type === 'integer') return { kind: 'number' };
  if (type === 'boolean') return { kind: 'flag', options: ['true', 'false'] };
  return { kind: 'json' };
}

function textOf(kind, source) {
  if (kind === 'text' || kind === 'long' || kind === 'choice') return JSON.parse(source);
  return kind === 'json' ? pretty(source) : source;
}

/** Returns the JSON text of an edited field, or null if the field is to be omitted. Throws if the text is not valid. */
function sourceOfField({ kind }, text) {
  if (kind === 'text' || kind === 'long') return JSON.stringify(text);
  if (kind === 'choice') return text === '' ? null : JSON.stringify(text);
  const trimmed = text.trim();
  if (trimmed === '') return null;
  try {
    JSON.parse(trimmed);
  } catch {
    throw new SyntaxError(t(kind === 'number' ? 'core.number' : 'core.json'));
  }
  if (kind === 'number' && !/^-?\d/.test(trimmed)) throw new SyntaxError(t('core.number'));
  return trimmed;
}

/** Returns the JSON text of all fields. `entries` is `[{field, text, absent}]`; an untouched field keeps its source. */
export function sourceOfForm(entries) {
  const present = [];
  for (const { field, text, absent } of entries) {
    if (absent) continue;
    const source = field.source !== null && text === field.text ? field.source : sourceOfField(field, text);
    if (source !== null) present.push({ key: field.key, source });
  }
  return compose(present);
}

/** Returns the name of the field that a JSON pointer addresses, or null. */
export function fieldOf(pointer) {
  const first = /^\/([^/]*)/.exec(pointer ?? '')?.[1];
  return first === undefined ? null : first.replaceAll('~1', '/').replaceAll('~0', '~');
}
