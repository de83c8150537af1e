// Shows what a preview read beside the change: one line for each short fact, and records without the marks of JSON.

import { h } from '../core/dom.js';
import { itemTexts, itemsOf, recordOf } from '../core/lists.js';
import { t } from '../core/locale.js';
import { quote } from '../core/text.js';
import { singleLine } from './lines.js';
import { longText } from './longtext.js';

const MAX_FACTS = 12;
const MAX_LENGTH = 400;
const VALUE = { chars: MAX_LENGTH, lines: 6, inline: true };

/** Returns the text of a field that only describes the target, or null for any other field. */
function descriptionOf({ before = null, after = null, lines = [] }) {
  const isDescription = before === null && after === null && lines.length > 0 && lines.every(({ op }) => op === 'equal' || op === 'note');
  return isDescription ? lines.map(({ text }) => text).join('\n') : null;
}

// The fields by which records are called.
const NAMES = ['title', 'name', 'summary', 'subject'];

/**
 * Returns `{name, field}` if the preview has read what the target is called: an unchanged field of the target, or the name in what was
 * read under the name of the entity. `isWhole` means that the field holds nothing else.
 */
export function nameOfTarget({ target, diff }) {
  const fields = diff?.fields ?? [];
  const own = fields.find(({ field, label, lines }) => field.startsWith('$content.') && NAMES.includes(label) && lines?.length === 1 && lines[0].op === 'note');
  if (own) return { name: own.lines[0].text, field: own, isWhole: true };
  const read = fields.find(({ field, label }) => field.startsWith('$read') && label.toLowerCase() === target.entityType.toLowerCase());
  const text = read ? descriptionOf(read) : null;
  if (text === null || text.length > MAX_LENGTH * 2) return null;
  const record = recordOf(text);
  const name = record ? record.find((entry) => NAMES.includes(entry.name))?.items[0] : text;
  const isName = name !== undefined && !name.includes('\n') && read.lines[0].op !== 'note';
  return isName ? { name, field: read, isWhole: !record } : null;
}

/** Shows a description in few words, or returns null if it needs a section of its own. */
export function factOf(field) {
  const text = descriptionOf(field);
  if (text === null || text.length > MAX_LENGTH * 2) return null;
  const items = itemsOf(text);
  if (items) return items.length <= MAX_FACTS ? list(itemTexts(items)) : null;
  const record = recordOf(text);
  if (record) return record.length <= MAX_FACTS && record.every((entry) => entry.items.length <= MAX_FACTS) ? recordView(record) : null;
  if (text.includes('\n') || text.length > MAX_LENGTH) return null;
  return field.lines[0].op === 'note' ? h('span', { class: 'quiet' }, longText(text, VALUE)) : h('code', null, singleLine(field));
}

/** Shows a record: the name of each value beside the value. */
const recordView = (record) => h('dl', { class: 'record' }, record.map(({ name, items }) => [h('dt', null, quote(name, 80)), h('dd', null, list(items))]));

const list = (texts) => (texts.length === 0 ? h('span', { class: 'quiet' }, t('diff.none')) : texts.map((text) => h('span', { class: 'item' }, text === '""' ? h('span', { class: 'quiet' }, t('diff.empty')) : longText(text, VALUE))));

/** Shows facts in a table: `[{field, fact, note}]`. */
export function factsTable(facts) {
  return h('table', { class: 'fields read-facts' },
    h('tbody', null, facts.map(({ field, fact, note }) => h('tr', null, h('th', { scope: 'row' }, quote(field.label || field.field, 80), note), h('td', null, fact)))));
}
