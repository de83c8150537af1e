// Shows a field in the best form for the format of its content. Each form also offers the text itself, which is what
// was compared.

import { fill, h } from '../core/dom.js';
import { argumentText, imageOf, wholeValue } from '../core/images.js';
import { compareItems, itemsOf } from '../core/lists.js';
import { t } from '../core/locale.js';
import { compareRecipients } from '../core/recipients.js';
import { compareRows } from '../core/rowtable.js';
import { quote } from '../core/text.js';
import { imageView } from './image.js';
import { lineDiff, plainText } from './lines.js';
import { markdownView } from './markdown.js';
import { recipientsView } from './recipients.js';
import { rowCounts, rowsView } from './rows.js';

const FORMS = { recipients: recipientsForm, rows: rowsForm, image: imageForm, json: listForm };
// The names of columns that identify a record in a list.
const IDENTITIES = ['name', 'id', 'key', 'path'];

/** Returns true for a field that is shown before all others. */
export const comesFirst = (field) => field.format === 'recipients' && compareRecipients(field.before, field.after) !== null;

/**
 * Shows a field in its own form, or returns null if it has none. `isArgument` means that the value neither replaces nor is
 * added to anything. `note` stands beside the name, and `source` is the JSON of the arguments.
 */
export function specialForm(field, { isArgument, note, source }) {
  return FORMS[field.format]?.(field, { isArgument, note, source }) ?? null;
}

/** Shows a long text line by line, with a second form for Markdown. */
export function textForm(field, { isArgument, note }) {
  const section = textOf(field, { isArgument, note });
  const text = field.after ?? field.before;
  if (field.format !== 'markdown' || typeof text !== 'string') return section;
  return withOtherForm(section, [t('diff.source'), t('diff.rendered')], () => markdownView(text, isArgument ? new Set() : addedLines(field)));
}

const textOf = (field, { isArgument, note }) => (isArgument ? plainText(field) : lineDiff(field, note));

// Returns the numbers of the lines of the text after the write that are new. Without a text before, none is marked.
function addedLines({ lines, before }) {
  const added = new Set();
  if (typeof before !== 'string' || !lines?.length) return added;
  let no = 1;
  for (const { op, text } of lines) {
    if (op === 'insert') added.add(no);
    if (op === 'skip') no += Number.parseInt(text, 10) || 0;
    else if (op === 'insert' || op === 'equal') no += 1;
  }
  return added;
}

// Adds buttons to the heading of a section that switch between its last part and another form of it.
function withOtherForm(section, names, build) {
  const first = section.lastElementChild;
  const forms = [() => first, build];
  const group = h('span', { class: 'layouts arg-layouts', role: 'group', 'aria-label': t('diff.contentForm') });
  const paint = (shown) => {
    const hadFocus = group.contains(document.activeElement);
    fill(group, names.map((name, n) => h('button', { type: 'button', class: 'layout', 'aria-pressed': String(n === shown), onclick: () => paint(n) }, name)));
    if (hadFocus) group.querySelector('[aria-pressed=true]').focus();
    section.classList.toggle('is-other-form', shown > 0);
    forms[shown] = ((form) => () => form)(forms[shown]());
    section.lastElementChild.replaceWith(forms[shown]());
  };
  section.querySelector('h4').append(group);
  paint(0);
  return section;
}

const namedSection = (field, note, stat, body, kind) => h('section', { class: `line-diff ${kind}` },
  h('h4', null, h('span', { class: 'line-name' }, quote(field.label || field.field, 80), note), h('span', { class: 'stat' }, stat)), body);

// The other form is the text as it was compared.
const orText = (section, field, options, name, textName) => withOtherForm(section, [name, textName], () => textOf(field, options).lastElementChild);

function recipientsForm(field, { isArgument, note }) {
  const list = compareRecipients(field.before, field.after);
  if (!list) return null;
  return h('section', { class: 'recipients' }, h('h4', null, quote(field.label || field.field, 80), note), recipientsView(list, isArgument));
}

function rowsForm(field, options) {
  const table = compareRows(field.before ?? null, field.after ?? null);
  if (!table) return null;
  return orText(namedSection(field, options.note, rowCounts(table, options.isArgument), rowsView(table, options.isArgument), 'rows-form'), field, options, t('diff.table'), 'JSON');
}

// Shows an array of values item by item, and an array of records whose values are lists at most as a table.
function listForm(field, options) {
  const [before, after] = [field.before ?? null, field.after ?? null];
  if (before === null && after === null) return null;
  const items = compareItems(before, after);
  if (items?.length) {
    const shown = { ...field, format: 'text', before: null, after: null, lines: items };
    return orText(options.isArgument ? plainText({ ...shown, after: items.map(({ text }) => text).join('\n') }) : lineDiff(shown, options.note), field, options, t('diff.list'), 'JSON');
  }
  const table = compareRows(before, after, IDENTITIES);
  if (!table || table.beyond > 0 || table.rows.some(({ cells }) => cells.some(({ was, now }) => !isCell(was) || !isCell(now)))) return null;
  return orText(namedSection(field, options.note, rowCounts(table, options.isArgument), rowsView(table, options.isArgument), 'rows-form'), field, options, t('diff.table'), 'JSON');
}

const isCell = (source) => source === null || !/^[[{]/.test(source) || itemsOf(source) !== null;

function imageForm(field, options) {
  const texts = field.before === null && field.after === null ? { after: argumentText(field.field, options.source) } : { before: wholeValue(field.before, options.source), after: wholeValue(field.after, options.source) };
  const sides = Object.entries(texts).filter(([, text]) => typeof text === 'string' && text !== '').map(([side, text]) => ({ side, image: imageOf(text) }));
  if (!sides.length || sides.some(({ image }) => image === null)) return null;
  return orText(namedSection(field, options.note, null, imageView(sides, options.isArgument), 'image-form'), field, options, t('diff.image'), t('diff.text'));
}
