// Reads JSON arrays of single values, and records of such values. Pure. Values keep their text in the source, because
// parsing would round long numbers.

import { compareLines } from './linediff.js';
import { elementsOf, members } from './rawjson.js';
import { cellText } from './rowtable.js';

/** Returns the source texts of an array of single values, or null for anything else. */
export function itemsOf(text) {
  if (typeof text !== 'string' || !text.trim().startsWith('[')) return null;
  try {
    if (JSON.parse(text).some((value) => value !== null && typeof value === 'object')) return null;
  } catch {
    return null;
  }
  return elementsOf(text.trim());
}

/** Returns what people read in place of the source texts of values. The text of each stays within its line. */
export function itemTexts(sources) {
  const areTexts = sources.every((source) => source.startsWith('"'));
  return sources.map((source) => {
    const text = cellText(source, { isText: areTexts });
    return text.includes('\n') ? source : text;
  });
}

/**
 * Compares two arrays of single values; null stands for none. Returns `[{op, text}]` with the ops `equal`, `insert` and
 * `delete`, or null if a text is no such array.
 */
export function compareItems(before, after) {
  const [old, current] = [before, after].map((text) => (text === null ? [] : itemsOf(text)));
  if (!old || !current) return null;
  const texts = itemTexts([...old, ...current]);
  const [was, now] = [texts.slice(0, old.length), texts.slice(old.length)];
  if (was.length === 0 || now.length === 0) return [...was.map((text) => ({ op: 'delete', text })), ...now.map((text) => ({ op: 'insert', text }))];
  return compareLines(was.join('\n'), now.join('\n'));
}

/** Returns `[{name, items}]` of an object of single values and arrays of them, or null. A single value is one item. */
export function recordOf(text) {
  try {
    if (Array.isArray(JSON.parse(text))) return null;
  } catch {
    return null;
  }
  const list = members(text);
  if (!list?.length || new Set(list.map(({ key }) => key)).size < list.length) return null;
  const record = list.map(({ key, source }) => ({ name: key, items: source.startsWith('{') ? null : source.startsWith('[') ? itemsOf(source) : [source] }));
  return record.some(({ items }) => items === null) ? null : record.map(({ name, items }) => ({ name, items: itemTexts(items) }));
}
