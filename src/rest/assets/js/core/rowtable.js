// Compares JSON arrays of objects row by row. Pure. Values keep their text in the source, because parsing would round
// long numbers.

import { elementsOf, members } from './rawjson.js';

/** The most rows that are compared. */
export const MAX_ROWS = 50;
const MAX_COLUMNS = 40;

/**
 * Returns `{columns, rows, counts, beyond}`, or null if a text is not an array of objects. Rows are `{op, cells}` with the
 * ops `equal`, `update`, `insert` and `delete`; cells are `{was, now, isText}`, where a missing value is null and `isText`
 * means that the column has only strings. `beyond` is the number of rows that are not compared. Columns among `names` identify
 * rows if the first column does not.
 */
export function compareRows(before, after, names = []) {
  const old = before === null ? [] : parseRows(before);
  const current = after === null ? [] : parseRows(after);
  if (!old || !current || old.length + current.length === 0) return null;
  const columns = [...new Set([...old, ...current].flatMap((row) => [...row.keys()]))];
  if (columns.length === 0 || columns.length > MAX_COLUMNS) return null;
  const pairs = pairRows(old, current, names);
  const texts = columns.map((name) => [...old, ...current].every((row) => (row.get(name) ?? 'null') === 'null' || row.get(name).startsWith('"')));
  const rows = pairs.slice(0, MAX_ROWS).map(([was, now]) => {
    const cells = columns.map((name, n) => ({ was: was?.get(name) ?? null, now: now?.get(name) ?? null, isText: texts[n] }));
    const op = !was ? 'insert' : !now ? 'delete' : cells.some((cell) => cell.was !== cell.now) ? 'update' : 'equal';
    return { op, cells };
  });
  const counts = { insert: 0, delete: 0, update: 0, equal: 0 };
  for (const { op } of rows) counts[op] += 1;
  return { columns, rows, counts, beyond: pairs.length - rows.length };
}

// Returns a map from names to texts for each object. An object with the same name twice has no such map.
function parseRows(text) {
  try {
    const values = JSON.parse(text);
    if (!Array.isArray(values) || values.some((value) => value === null || typeof value !== 'object' || Array.isArray(value))) return null;
  } catch {
    return null;
  }
  const rows = elementsOf(text.trim()).map((source) => {
    const list = members(source);
    const row = new Map(list.map(({ key, source: value }) => [key, value]));
    return row.size === list.length ? row : null;
  });
  return rows.includes(null) ? null : rows;
}

// Pairs rows by their first value or one of `names` if that identifies them on both sides and they keep their order, or else by
// their position. An added row is where it is after the write.
function pairRows(old, current, names) {
  const positions = (rows, key) => new Map(rows.map((row, n) => [row.get(key), n]));
  const isIdentity = (key) => [old, current].every((rows) => rows.every((row) => row.has(key)) && positions(rows, key).size === rows.length);
  const key = [[...(old[0] ?? current[0]).keys()][0], ...names].find(isIdentity);
  const known = key === undefined ? null : positions(current, key);
  const partners = old.map((row) => known?.get(row.get(key)));
  const kept = partners.filter((n) => n !== undefined);
  if (!known || kept.some((n, at) => n < kept[at - 1])) return Array.from({ length: Math.max(old.length, current.length) }, (_, n) => [old[n] ?? null, current[n] ?? null]);
  const pairs = [];
  let next = 0;
  for (const [n, row] of old.entries()) {
    while (next < (partners[n] ?? 0)) pairs.push([null, current[next++]]);
    pairs.push([row, partners[n] === undefined ? null : current[next++]]);
  }
  return [...pairs, ...current.slice(next).map((row) => [null, row])];
}

/**
 * Returns the text of a cell: a string without quotes, unless it could be mistaken for another value. With `isText`, all values
 * beside it are strings or null.
 */
export function cellText(source, { isText = false } = {}) {
  if (!source.startsWith('"')) return source;
  const text = JSON.parse(source);
  const isAmbiguous = isText ? /^(?:null$|")/ : /^(?:-?\d|true$|false$|null$|[[{"])/;
  return text === '' || isAmbiguous.test(text) ? source : text;
}

/** Returns true if a table of the diff does not show all rows. */
export const hasRowsBeyond = ({ fields = [] }) => fields.some(({ format, before = null, after = null }) => format === 'rows' && compareRows(before, after)?.beyond > 0);
