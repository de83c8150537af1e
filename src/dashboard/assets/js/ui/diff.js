// Before and after: short fields side by side, long text line by line. Added and removed are told apart by sign,
// by place and by colour, in this order.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { count, plural, said, short, visible, visibleString } from '../core/text.js';
import { emphasis, foldEqual, pairUp } from './difflines.js';
import { longText } from './longtext.js';

const LONG = 100;
const FIRST_ROWS = 120;
const STEP_ROWS = 600;

/** The whole diff of a change. */
export function diffView(diff, operation) {
  const view = h('div', { class: 'diff' });
  const brief = diff.fields.filter((field) => !isLong(field));
  if (brief.length) view.append(fieldTable(brief, operation));
  for (const field of diff.fields) if (isLong(field)) view.append(lineDiff(field));
  if (!diff.fields.length) view.append(h('p', { class: 'quiet pad' }, 'No field differs.'));
  if (diff.truncated) {
    view.append(h('p', { class: 'banner tone-amber' }, icon('alert'),
      h('span', null, 'The diff was too large and has been cut. The arguments below are complete; read them before you approve.')));
  }
  return view;
}

function isLong({ before, after, lines }) {
  if (lines?.length) return true;
  return [before, after].some((text) => text !== null && text !== undefined && (text.length > LONG || text.includes('\n')));
}

/** A diff that can be told in a table: one row per field. */
function fieldTable(fields, operation) {
  const both = operation === 'UPDATE' || fields.some((f) => known(f.before) && known(f.after));
  const columns = both ? ['Before', 'After'] : [operation === 'DELETE' ? 'Removed' : 'Added'];
  const body = fields.map((field) => {
    const [was, now] = emphasis(field.before, field.after);
    const cells = both
      ? [valueCell(field.before, was, 'delete', known(field.after)), valueCell(field.after, now, 'insert', known(field.before))]
      : [known(field.after) ? valueCell(field.after, now, 'insert', false) : valueCell(field.before, was, 'delete', false)];
    return h('tr', null, h('th', { scope: 'row' }, said(field.label || field.field, 80)), cells);
  });
  return h('table', { class: `fields ${both ? 'both' : 'one'}` },
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Field'), columns.map((c) => h('th', { scope: 'col' }, c)))),
    h('tbody', null, body));
}

const known = (value) => value !== null && value !== undefined;

function valueCell(value, parts, op, otherKnown) {
  if (!known(value)) {
    return h('td', { class: 'none' }, h('span', { class: 'quiet' }, otherKnown && op === 'insert' ? 'removed' : 'none'));
  }
  const tag = op === 'insert' ? 'ins' : 'del';
  const text = value === '' ? h('span', { class: 'quiet' }, 'empty') : emphasized(value, parts);
  return h('td', { class: op }, h('span', { class: 'sign', 'aria-hidden': 'true' }, op === 'insert' ? '+' : '−'), h(tag, null, text));
}

function emphasized(value, parts, options) {
  const holder = h('span', { class: 'said', dir: 'auto' });
  if (!parts) holder.append(visible(value, options));
  else holder.append(visible(parts[0], options), h('mark', null, visible(parts[1], options)), visible(parts[2], options));
  return holder;
}

/** One field, line by line. */
function lineDiff(field) {
  const lines = field.lines?.length ? field.lines : wholeText(field);
  const rows = pairUp(foldEqual(lines, field.before));
  const added = lines.filter((l) => l.op === 'insert').length;
  const removed = lines.filter((l) => l.op === 'delete').length;
  const body = h('div', { class: 'lines', role: 'group', 'aria-label': visibleString(`${short(field.label || field.field, 80)}, line by line`), tabindex: '0' });
  const more = h('button', { type: 'button', class: 'link more' });
  let shown = 0;
  const show = (n) => {
    for (const row of rows.slice(shown, shown + n)) more.isConnected ? more.before(rowOf(row)) : body.append(rowOf(row));
    shown = Math.min(rows.length, shown + n);
    if (shown < rows.length) more.textContent = `Show more (${count(rows.length - shown)} lines)`;
    else more.remove();
  };
  more.addEventListener('click', () => show(STEP_ROWS));
  show(rows.length <= FIRST_ROWS + 10 ? rows.length : FIRST_ROWS);
  if (shown < rows.length) body.append(more);
  return h('section', { class: 'line-diff' },
    h('h4', null, said(field.label || field.field, 80),
      h('span', { class: 'stat' },
        added > 0 && h('span', { class: 'plus' }, `+${count(added)}`), added > 0 && h('span', { class: 'sr-only' }, ' added '),
        removed > 0 && h('span', { class: 'minus' }, `−${count(removed)}`), removed > 0 && h('span', { class: 'sr-only' }, ' removed'))),
    body);
}

function wholeText({ before, after }) {
  const part = (text, op) => (known(text) ? text.split('\n').map((line) => ({ op, text: line })) : []);
  return [...part(before, 'delete'), ...part(after, 'insert')];
}

const SIGNS = { insert: '+', delete: '−', equal: ' ' };
const TAGS = { insert: 'ins', delete: 'del', equal: 'span' };

function rowOf(row) {
  if (row.op === 'fold') return foldOf(row);
  const text = row.parts ? emphasized(row.text, row.parts, { tabs: true }) : longText(row.text, { chars: 800, lines: 10, inline: true, tabs: true });
  return h('div', { class: `line ${row.op}` },
    h('span', { class: 'no', 'aria-hidden': 'true' }, row.oldNo ?? ''),
    h('span', { class: 'no', 'aria-hidden': 'true' }, row.newNo ?? ''),
    h('span', { class: 'sign', 'aria-hidden': row.op === 'equal' ? 'true' : null }, SIGNS[row.op]),
    h(TAGS[row.op], { class: 'code' }, text));
}

function foldOf(row) {
  const label = `${plural(row.size, 'unchanged line')}`;
  if (!row.rows) return h('div', { class: 'line fold' }, h('span', { class: 'fold-label' }, `⋯ ${label}`));
  const fold = h('div', { class: 'line fold' });
  fold.append(h('button', {
    type: 'button', class: 'link fold-label', 'aria-label': `Show ${label}`,
    onclick: () => fold.replaceWith(...row.rows.map(rowOf)),
  }, `⋯ ${label}`));
  return fold;
}

/** What a reviewer had seen, beside what is there now. */
export function comparison(list) {
  return h('table', { class: 'fields both compare' },
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, ''), h('th', { scope: 'col' }, 'You saw'), h('th', { scope: 'col' }, 'Now'))),
    h('tbody', null, list.map(({ label, was, now }) => {
      const cell = (text, op) => (known(text)
        ? h('td', { class: op }, h('span', { class: 'sign', 'aria-hidden': 'true' }, op === 'insert' ? '+' : '−'),
          longText(text, { chars: 240, lines: 5 }))
        : h('td', { class: 'none' }, h('span', { class: 'quiet' }, 'none')));
      return h('tr', null, h('th', { scope: 'row' }, said(label, 90)), cell(was, 'delete'), cell(now, 'insert'));
    })));
}
