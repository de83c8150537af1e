// Shows diffs: short fields side by side, long text line by line. Additions and removals differ by sign and place first,
// and by colour last.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { quote } from '../core/text.js';
import { emphasis } from './difflines.js';
import { comesFirst, specialForm, textForm } from './forms.js';
import { emphasized } from './lines.js';
import { longText } from './longtext.js';

// A longer text is shown line by line.
const MAX_SHORT_LENGTH = 100;

/**
 * Shows the whole diff of a change: recipients first, then short fields, then long ones. With the `operation` `ARGUMENTS`,
 * fields without an earlier value are arguments, and `source` is their JSON; with `VERIFICATION`, the diff leads from what
 * was approved to what was found.
 */
export function diffView(diff, operation, source) {
  const view = h('div', { class: 'diff' });
  const options = (field) => ({ isArgument: isArgument(field, operation), note: restricted(field), source });
  const shown = diff.fields.map((field) => ({ field, form: specialForm(field, options(field)) }));
  view.append(...shown.filter(({ field, form }) => form && comesFirst(field)).map(({ form }) => form));
  const shortFields = shown.filter(({ field, form }) => !form && !isLong(field)).map(({ field }) => field);
  if (shortFields.length) view.append(fieldTable(shortFields, operation));
  for (const { field, form } of shown) {
    if (form && !comesFirst(field)) view.append(form);
    else if (!form && isLong(field)) view.append(textForm(field, options(field)));
  }
  if (!diff.fields.length) view.append(h('p', { class: 'quiet pad' }, 'No field differs.'));
  if (diff.truncated) {
    view.append(h('p', { class: 'banner tone-amber' }, icon('alert'),
      h('span', null, 'The diff was too large and has been cut.', operation !== 'VERIFICATION' && ' The arguments are complete; read them before you approve.')));
  }
  return view;
}

// Marks a value that reviewers see but the proposer could not read.
function restricted(field) {
  return field.restricted ? h('span', { class: 'restricted', title: 'The agent that proposed this change was not shown the current value.' }, icon('hidden'), 'not shown to the agent') : null;
}

// Returns true for an argument of the call, as opposed to a current or resulting value.
const isArgument = ({ field, before, after, format }, operation) => operation === 'ARGUMENTS' && !isKnown(before) && (isKnown(after) || format === 'image') && field !== '$content';

function isLong({ before, after, lines }) {
  if (lines?.length) return true;
  return [before, after].some((text) => text !== null && text !== undefined && (text.length > MAX_SHORT_LENGTH || text.includes('\n')));
}

/** Shows short fields in a table with one row each. */
function fieldTable(fields, operation) {
  const hasBothSides = operation === 'UPDATE' || operation === 'VERIFICATION' || fields.some((f) => isKnown(f.before) && isKnown(f.after));
  const columns = operation === 'VERIFICATION' ? ['Approved', 'Found'] : hasBothSides ? ['Before', 'After'] : [{ DELETE: 'Removed', ARGUMENTS: 'Value' }[operation] ?? 'Added'];
  const body = fields.map((field) => {
    const [was, now] = emphasis(field.before, field.after);
    if (isArgument(field, operation)) return h('tr', null, h('th', { scope: 'row' }, quote(field.label || field.field, 80)), hasBothSides && h('td', { class: 'none' }), h('td', { class: 'argument' }, value(field.after ?? '')));
    const cells = hasBothSides
      ? [valueCell(field.before, was, 'delete', isKnown(field.after)), valueCell(field.after, now, 'insert', operation !== 'VERIFICATION' && isKnown(field.before))]
      : [isKnown(field.after) ? valueCell(field.after, now, 'insert', false) : valueCell(field.before, was, 'delete', false)];
    return h('tr', null, h('th', { scope: 'row' }, quote(field.label || field.field, 80), restricted(field)), cells);
  });
  return h('table', { class: `fields ${hasBothSides ? 'both' : 'one'}` },
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Field'), columns.map((c) => h('th', { scope: 'col' }, c)))),
    h('tbody', null, body));
}

const isKnown = (value) => value !== null && value !== undefined;

function valueCell(text, parts, op, otherKnown) {
  if (!isKnown(text)) {
    return h('td', { class: 'none' }, h('span', { class: 'quiet' }, otherKnown && op === 'insert' ? 'removed' : 'none'));
  }
  const tag = op === 'insert' ? 'ins' : 'del';
  return h('td', { class: op }, h('span', { class: 'sign', 'aria-hidden': 'true' }, op === 'insert' ? '+' : '−'), h(tag, null, value(text, parts)));
}

const value = (text, parts = null) => (text === '' ? h('span', { class: 'quiet' }, 'empty') : emphasized(text, parts));

/** Shows the values that a reviewer has seen beside the current ones. */
export function comparison(list) {
  return h('table', { class: 'fields both compare' },
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, h('span', { class: 'sr-only' }, 'Field')), h('th', { scope: 'col' }, 'You saw'), h('th', { scope: 'col' }, 'Now'))),
    h('tbody', null, list.map(({ label, was, now }) => {
      const cell = (text, op) => (isKnown(text)
        ? h('td', { class: op }, h('span', { class: 'sign', 'aria-hidden': 'true' }, op === 'insert' ? '+' : '−'),
          longText(text, { chars: 240, lines: 5 }))
        : h('td', { class: 'none' }, h('span', { class: 'quiet' }, 'none')));
      return h('tr', null, h('th', { scope: 'row' }, quote(label, 90)), cell(was, 'delete'), cell(now, 'insert'));
    })));
}
