// Shows rows before and after a write as one table, with the changed cells marked.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { compareItems, itemTexts, itemsOf } from '../core/lists.js';
import { t } from '../core/locale.js';
import { cellText, MAX_ROWS } from '../core/rowtable.js';
import { count, quote, visibleString } from '../core/text.js';
import { longText } from './longtext.js';

const OPS = { insert: ['+', 'diff.rowAdded'], delete: ['−', 'diff.rowRemoved'], update: ['~', 'diff.rowChanged'], equal: ['', 'diff.rowUnchanged'] };
const CELL = { chars: 160, lines: 4, inline: true };

/** Creates the numbers of added, removed and changed rows. */
export function rowCounts({ counts, rows, beyond }, isArgument) {
  if (isArgument) return h('span', { class: 'quiet' }, t('diff.rowCount', { count: rows.length + beyond }));
  const part = (op, tone) => counts[op] > 0 && h('span', { class: tone }, OPS[op][0], count(counts[op]), h('span', { class: 'sr-only' }, ` ${t(OPS[op][1])} `));
  return [part('insert', 'plus'), part('delete', 'minus'), part('update', 'changed-rows')];
}

/** Shows the table, and how many rows it does not compare. */
export function rowsView({ columns, rows, beyond }, isArgument) {
  const marks = !isArgument && rows.some(({ op }) => op !== 'equal');
  const table = h('table', { class: 'rows-table' },
    h('thead', null, h('tr', null, marks && h('th', { scope: 'col' }, h('span', { class: 'sr-only' }, t('diff.effect'))), columns.map((name) => h('th', { scope: 'col' }, quote(name, 80))))),
    h('tbody', null, rows.map((row) => createRow(row, columns, marks))));
  return h('div', { class: 'rows-body' },
    h('div', { class: 'rows-scroll', role: 'group', 'aria-label': t('diff.rows'), tabindex: '0' }, table),
    beyond > 0 && h('p', { class: 'rows-beyond' }, icon('alert'), h('span', null, t('diff.rowsBeyond', { limit: MAX_ROWS, count: beyond }))));
}

function createRow({ op, cells }, columns, marks) {
  const [sign, key] = OPS[op];
  return h('tr', { class: marks ? op : null },
    marks && h('td', { class: 'row-sign' }, h('span', { 'aria-hidden': 'true' }, sign), h('span', { class: 'sr-only' }, t(key))),
    cells.map((cell, n) => h('td', { class: op === 'update' && cell.was !== cell.now ? 'changed' : null, data: { label: visibleString(columns[n]) } }, h('span', { class: 'cell' }, createCell(op, cell, marks)))));
}

function createCell(op, { was, now, isText }, marks) {
  if (op !== 'update' || was === now) {
    const value = createValue(now ?? was, isText);
    return !marks || op === 'equal' || op === 'update' ? value : h(op === 'insert' ? 'ins' : 'del', null, value);
  }
  const items = was !== null && now !== null ? compareItems(was, now) : null;
  if (items) return items.map((item) => h({ insert: 'ins', delete: 'del' }[item.op] ?? 'span', { class: 'item' }, item.op !== 'equal' && h('span', { 'aria-hidden': 'true' }, OPS[item.op][0], ' '), longText(item.text, CELL)));
  return [was !== null && [h('del', null, createValue(was, isText)), ' ', h('span', { 'aria-hidden': 'true' }, '→ ')], h('ins', null, createValue(now, isText))];
}

function createValue(source, isText) {
  const items = source === null ? [] : itemsOf(source);
  if (items?.length === 0) return h('span', { class: 'quiet' }, t('diff.none'));
  if (items) return itemTexts(items).map((item) => h('span', { class: 'item' }, longText(item, CELL)));
  const text = cellText(source, { isText });
  return text === source && !source.startsWith('"') ? h('span', { class: 'cell-value' }, longText(text, CELL)) : longText(text, CELL);
}
