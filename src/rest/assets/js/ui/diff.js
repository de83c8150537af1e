// Shows diffs: short fields side by side, long text line by line. Additions and removals differ by sign and place first,
// and by colour last.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { compareItems } from '../core/lists.js';
import { t } from '../core/locale.js';
import { quote } from '../core/text.js';
import { emphasis } from './difflines.js';
import { factOf, factsTable } from './facts.js';
import { comesFirst, specialForm, textForm } from './forms.js';
import { emphasized, isKnown } from './lines.js';
import { longText } from './longtext.js';

// A longer text is shown line by line.
const MAX_SHORT_LENGTH = 100;
// A longer list is compared line by line.
const MAX_SHORT_ITEMS = 12;
// The note of a target that does not exist yet. Its fields are marked as new instead.
const MISSING = '(does not exist)';

/**
 * Shows the whole diff of a change: recipients first, then short fields, then long ones. With the `operation` `ARGUMENTS`,
 * fields without an earlier value are arguments, and `source` is their JSON; with `VERIFICATION`, the diff leads from what
 * was approved to what was found. The field `omitted` is shown elsewhere.
 */
export function diffView(diff, operation, source, omitted = null) {
  const view = h('div', { class: 'diff' });
  const missing = diff.fields.filter(isMissingNote).map(({ field }) => field.replace(/\.before$/, ''));
  const isNew = (field) => !isMissingNote(field) && missing.some((name) => field.field === name || field.field.startsWith(`${name}.`));
  // Without fields that can be marked, the note itself is shown.
  const isMarked = diff.fields.some(isNew);
  const notes = (field) => [isNew(field) && h('span', { class: 'new-mark' }, t('diff.new')), restricted(field)];
  const options = (field) => ({ isArgument: isArgument(field, operation), note: notes(field), source });
  const shown = diff.fields.filter((field) => field !== omitted && (!isMarked || !isMissingNote(field)))
    .map((field) => {
      const form = isShortList(field) ? null : specialForm(field, options(field));
      return { field, form, fact: form ? null : factOf(field), isShort: !isLong(field) };
    });
  view.append(...shown.filter(({ field, form }) => form && comesFirst(field)).map(({ form }) => form));
  const shortFields = shown.filter(({ form, fact, isShort }) => !form && !fact && isShort).map(({ field }) => field);
  if (shortFields.length) view.append(fieldTable(shortFields, operation));
  let facts = [];
  const flush = () => {
    if (facts.length) view.append(factsTable(facts));
    facts = [];
  };
  for (const { field, form, fact, isShort } of shown) {
    if (fact) {
      facts.push({ field, fact, note: restricted(field) });
    } else if (form ? !comesFirst(field) : !isShort) {
      flush();
      view.append(form ?? textForm(field, options(field)));
    }
  }
  flush();
  if (!diff.fields.length) view.append(h('p', { class: 'quiet pad' }, t('diff.noField')));
  if (diff.truncated) {
    view.append(h('p', { class: 'banner tone-amber' }, icon('alert'),
      h('span', null, t('diff.cut'), operation !== 'VERIFICATION' && [' ', t('diff.argumentsComplete')])));
  }
  return view;
}

// Marks a value that reviewers see but the proposer could not read.
function restricted(field) {
  return field.restricted ? h('span', { class: 'restricted', title: t('diff.restrictedTitle') }, icon('hidden'), t('diff.restricted')) : null;
}

// Returns true for an argument of the call, as opposed to a current or resulting value.
const isArgument = ({ field, before, after, format }, operation) => operation === 'ARGUMENTS' && !isKnown(before) && (isKnown(after) || format === 'image') && !field.startsWith('$');

const isMissingNote = ({ field, lines }) => field.startsWith('$content') && field.endsWith('.before') && lines?.length === 1 && lines[0].text === MISSING;

// Returns the items of a short list before and after, or null.
function shortItems({ format, before = null, after = null }) {
  const items = format === 'json' && (before !== null || after !== null) ? compareItems(before, after) : null;
  return items && items.length > 0 && items.length <= MAX_SHORT_ITEMS && items.every(({ text }) => text.length <= MAX_SHORT_LENGTH) ? items : null;
}

const isShortList = (field) => shortItems(field) !== null;

function isLong(field) {
  if (isShortList(field)) return false;
  const { before, after, lines } = field;
  if (lines?.length) return true;
  return [before, after].some((text) => text !== null && text !== undefined && (text.length > MAX_SHORT_LENGTH || text.includes('\n')));
}

/** Shows short fields in a table with one row each. */
function fieldTable(fields, operation) {
  const hasBothSides = operation === 'UPDATE' || operation === 'VERIFICATION' || fields.some((f) => isKnown(f.before) && isKnown(f.after));
  const columns = operation === 'VERIFICATION' ? [t('diff.approved'), t('diff.found')] : hasBothSides ? [t('diff.before'), t('diff.after')] : [sideOf(fields, operation)];
  const body = fields.map((field) => {
    const [was, now] = emphasis(field.before, field.after);
    const items = shortItems(field);
    if (isArgument(field, operation)) return h('tr', null, h('th', { scope: 'row' }, nameOf(field)), hasBothSides && h('td', { class: 'none' }), h('td', { class: 'argument' }, items ? items.map((item) => createItem(item)) : value(field.after ?? '')));
    const before = items ? (otherKnown) => itemsCell(field.before, items, 'delete', otherKnown) : (otherKnown) => valueCell(field.before, was, 'delete', otherKnown);
    const after = items ? (otherKnown) => itemsCell(field.after, items, 'insert', otherKnown) : (otherKnown) => valueCell(field.after, now, 'insert', otherKnown);
    const cells = hasBothSides
      ? [before(isKnown(field.after)), after(operation !== 'VERIFICATION' && isKnown(field.before))]
      : [isKnown(field.after) ? after(false) : before(false)];
    return h('tr', null, h('th', { scope: 'row' }, nameOf(field), restricted(field)), cells);
  });
  return h('table', { class: `fields ${hasBothSides ? 'both' : 'one'}` },
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, t('diff.field')), columns.map((c) => h('th', { scope: 'col' }, c)))),
    h('tbody', null, body));
}

// Returns the heading of the only column.
function sideOf(fields, operation) {
  if (fields.some((field) => isArgument(field, operation))) return t('diff.value');
  if (fields.every(({ before }) => !isKnown(before))) return t('diff.added');
  return t(fields.every(({ after }) => !isKnown(after)) ? 'diff.removed' : 'diff.value');
}

// Long names of fields break after the names of the records that they are in.
function nameOf({ label, field }) {
  const name = quote(label || field, 80);
  for (const node of [...name.childNodes].filter(({ nodeType }) => nodeType === Node.TEXT_NODE)) {
    node.replaceWith(...node.data.split(/(?<=[._/:])(?=\w)|(?<=[a-z])(?=[A-Z])/).flatMap((part, n) => (n ? [document.createElement('wbr'), part] : [part])));
  }
  return name;
}

// Shows the items of a list on one side: those that stay, and those that are added or removed.
function itemsCell(text, items, op, otherKnown) {
  const shown = isKnown(text) ? items.filter((item) => item.op === op || item.op === 'equal') : [];
  if (!shown.length) return valueCell(null, null, op, isKnown(text) ? false : otherKnown);
  const isMixed = items.some((item) => item.op === 'equal');
  return h('td', { class: op }, signOf(op),
    shown.map((item) => createItem(item, isMixed)));
}

const createItem = ({ op, text }, isMixed = false) => h({ insert: 'ins', delete: 'del' }[op] ?? 'span', { class: 'item' }, emphasized(text, isMixed && op !== 'equal' ? ['', text] : null));

function valueCell(text, parts, op, otherKnown) {
  if (!isKnown(text)) {
    return h('td', { class: 'none' }, h('span', { class: 'quiet' }, t(otherKnown && op === 'insert' ? 'diff.removedValue' : 'diff.none')));
  }
  const tag = op === 'insert' ? 'ins' : 'del';
  return h('td', { class: op }, signOf(op), h(tag, null, value(text, parts)));
}

const signOf = (op) => h('span', { class: 'sign', 'aria-hidden': 'true' }, op === 'insert' ? '+' : '−');

const value = (text, parts = null) => (text === '' ? h('span', { class: 'quiet' }, t('diff.empty')) : emphasized(text, parts));

/** Shows the values that a reviewer has seen beside the current ones. */
export function comparison(list) {
  return h('table', { class: 'fields both compare' },
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, h('span', { class: 'sr-only' }, t('diff.field'))), h('th', { scope: 'col' }, t('diff.youSaw')), h('th', { scope: 'col' }, t('diff.now')))),
    h('tbody', null, list.map(({ label, was, now }) => {
      const cell = (text, op) => (isKnown(text)
        ? h('td', { class: op }, signOf(op),
          longText(text, { chars: 240, lines: 5 }))
        : h('td', { class: 'none' }, h('span', { class: 'quiet' }, t('diff.none'))));
      return h('tr', null, h('th', { scope: 'row' }, quote(label, 90)), cell(was, 'delete'), cell(now, 'insert'));
    })));
}
