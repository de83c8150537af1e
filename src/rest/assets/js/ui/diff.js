// Before and after: short fields side by side, long text line by line. Added and removed are told apart by sign,
// by place and by colour, in this order.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { said } from '../core/text.js';
import { emphasis } from './difflines.js';
import { emphasized, lineDiff, plainText } from './lines.js';
import { longText } from './longtext.js';

const LONG = 100;

/** The whole diff of a change; for an `operation` of `ASKED` fields without a before are arguments: nothing is added. */
export function diffView(diff, operation) {
  const view = h('div', { class: 'diff' });
  const brief = diff.fields.filter((field) => !isLong(field));
  if (brief.length) view.append(fieldTable(brief, operation));
  for (const field of diff.fields) if (isLong(field)) view.append(isArgument(field, operation) ? plainText(field) : lineDiff(field, restricted(field)));
  if (!diff.fields.length) view.append(h('p', { class: 'quiet pad' }, 'No field differs.'));
  if (diff.truncated) {
    view.append(h('p', { class: 'banner tone-amber' }, icon('alert'),
      h('span', null, 'The diff was too large and has been cut. The arguments are complete; read them before you approve.')));
  }
  return view;
}

// What the proposer could not have read is shown to reviewers only.
function restricted(field) {
  return field.restricted ? h('span', { class: 'restricted', title: 'The agent that proposed this change was not shown the current value.' }, icon('hidden'), 'not shown to the agent') : null;
}

// What the call was asked with, beside what is there or would be.
const isArgument = ({ field, before, after }, operation) => operation === 'ASKED' && !known(before) && known(after) && field !== '$content';

function isLong({ before, after, lines }) {
  if (lines?.length) return true;
  return [before, after].some((text) => text !== null && text !== undefined && (text.length > LONG || text.includes('\n')));
}

/** A diff that can be told in a table: one row per field. */
function fieldTable(fields, operation) {
  const both = operation === 'UPDATE' || fields.some((f) => known(f.before) && known(f.after));
  const columns = both ? ['Before', 'After'] : [{ DELETE: 'Removed', ASKED: 'Value' }[operation] ?? 'Added'];
  const body = fields.map((field) => {
    const [was, now] = emphasis(field.before, field.after);
    if (isArgument(field, operation)) return h('tr', null, h('th', { scope: 'row' }, said(field.label || field.field, 80)), both && h('td', { class: 'none' }), h('td', { class: 'asked' }, value(field.after ?? '')));
    const cells = both
      ? [valueCell(field.before, was, 'delete', known(field.after)), valueCell(field.after, now, 'insert', known(field.before))]
      : [known(field.after) ? valueCell(field.after, now, 'insert', false) : valueCell(field.before, was, 'delete', false)];
    return h('tr', null, h('th', { scope: 'row' }, said(field.label || field.field, 80), restricted(field)), cells);
  });
  return h('table', { class: `fields ${both ? 'both' : 'one'}` },
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Field'), columns.map((c) => h('th', { scope: 'col' }, c)))),
    h('tbody', null, body));
}

const known = (value) => value !== null && value !== undefined;

function valueCell(text, parts, op, otherKnown) {
  if (!known(text)) {
    return h('td', { class: 'none' }, h('span', { class: 'quiet' }, otherKnown && op === 'insert' ? 'removed' : 'none'));
  }
  const tag = op === 'insert' ? 'ins' : 'del';
  return h('td', { class: op }, h('span', { class: 'sign', 'aria-hidden': 'true' }, op === 'insert' ? '+' : '−'), h(tag, null, value(text, parts)));
}

const value = (text, parts = null) => (text === '' ? h('span', { class: 'quiet' }, 'empty') : emphasized(text, parts));

/** What a reviewer had seen, beside what is there now. */
export function comparison(list) {
  return h('table', { class: 'fields both compare' },
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, h('span', { class: 'sr-only' }, 'Field')), h('th', { scope: 'col' }, 'You saw'), h('th', { scope: 'col' }, 'Now'))),
    h('tbody', null, list.map(({ label, was, now }) => {
      const cell = (text, op) => (known(text)
        ? h('td', { class: op }, h('span', { class: 'sign', 'aria-hidden': 'true' }, op === 'insert' ? '+' : '−'),
          longText(text, { chars: 240, lines: 5 }))
        : h('td', { class: 'none' }, h('span', { class: 'quiet' }, 'none')));
      return h('tr', null, h('th', { scope: 'row' }, said(label, 90)), cell(was, 'delete'), cell(now, 'insert'));
    })));
}
