// Shows long text line by line, in one column or two. Equal lines are folded and long text is shown in pages.

import { t } from '../core/locale.js';
import { preference, setPreference } from '../core/prefs.js';
import { fill, h, notifyAll } from '../core/dom.js';
import { count, linesOf, quote, short, visible, visibleString } from '../core/text.js';
import { addTokens, isKnownLanguage, tokensOfParts } from '../core/tokens.js';
import { columns, foldEqual, joinFileHeaders, pairUp } from './difflines.js';
import { longText } from './longtext.js';
import { fillPaged } from './paged.js';

const FIRST_ROWS = 120;
const STEP_ROWS = 600;
const FOLD_STEP = 200;
// A longer description of the target is folded after so many lines.
const FIRST_DESCRIPTION_LINES = 14;
// Longer lines are shown in parts.
const MAX_HIGHLIGHTED = 800;
const LAYOUTS = ['unified', 'split'];
// The event that announces another layout.
const LAYOUT_CHANGED = 'difflayout';
const SWITCHERS = '.diff-layouts';
const SIGNS = { insert: '+', delete: '−', equal: ' ' };
const TAGS = { insert: 'ins', delete: 'del', equal: 'span' };
// A narrower screen always shows one column.
const isWide = () => matchMedia('(min-width: 48rem)').matches;

/** Shows text with the differing parts marked; `parts` alternate between equal and different. */
export function emphasized(text, parts, options) {
  const holder = h('span', { class: 'quote', dir: 'auto' });
  if (!parts) holder.append(visible(text, options));
  else parts.forEach((part, n) => part !== '' && holder.append(n % 2 ? h('mark', null, visible(part, options)) : visible(part, options)));
  return holder;
}

/** Shows one field line by line; `note` stands beside its name. */
export function lineDiff(field, note = null) {
  const lines = field.lines?.length ? field.lines : wholeText(field);
  const added = lines.filter((l) => l.op === 'insert').length;
  const removed = lines.filter((l) => l.op === 'delete').length;
  // A mere description of the target has no lines to count.
  const isDescription = added === 0 && removed === 0 && field.before === null && field.after === null;
  const folded = isDescription ? foldDescription(lines) : foldEqual(joinFileHeaders(lines), field.before);
  const rows = withTokens(pairUp(folded), field);
  const body = h('div', { class: `lines${isDescription ? ' description' : ''}`, role: 'group', 'aria-label': visibleString(t('diff.lineByLine', { field: short(field.label || field.field, 80) })), tabindex: '0' });
  // Two columns need lines on both sides.
  const layouts = added > 0 && removed > 0 ? switcher(() => paint()) : null;
  const paint = () => {
    const split = layouts !== null && isWide() && preference('diff', LAYOUTS) === 'split';
    body.classList.toggle('split-lines', split);
    fillRows(body, split ? columns(rows) : rows, split ? createPair : createRow);
  };
  paint();
  return h('section', { class: 'line-diff' },
    h('h4', null, h('span', { class: 'line-name' }, quote(field.label || field.field, 80), note),
      h('span', { class: 'stat' },
        added > 0 && h('span', { class: 'plus' }, `+${count(added)}`), added > 0 && h('span', { class: 'sr-only' }, ` ${t('diff.linesAdded')} `),
        removed > 0 && h('span', { class: 'minus' }, `−${count(removed)}`), removed > 0 && h('span', { class: 'sr-only' }, ` ${t('diff.linesRemoved')}`), layouts)),
    body);
}

// Numbers no lines, and folds what comes after the first ones.
function foldDescription(lines) {
  const rows = lines.map(({ op, text }) => (op === 'skip' ? { op: 'fold', size: Number.parseInt(text, 10) || 0, rows: null } : { op, text, oldNo: null, newNo: null }));
  if (rows.length <= FIRST_DESCRIPTION_LINES + 4) return rows;
  const rest = rows.slice(FIRST_DESCRIPTION_LINES);
  return [...rows.slice(0, FIRST_DESCRIPTION_LINES), { op: 'fold', size: rest.length, rows: rest, texts: MORE_LINES }];
}

/** Shows a field of one line without its frame. */
export function singleLine(field) {
  const [row] = withTokens([{ op: 'equal', text: field.lines[0].text }], field);
  return createText(row);
}

/** Shows the text of a field without marking lines as added or removed. */
export function plainText(field) {
  const lines = isKnown(field.after) ? linesOf(field.after) : (field.lines ?? []).map(({ text }) => text);
  const isDiff = field.format === 'diff';
  const rows = lines.map((text) => (isDiff ? rowOfDiff(text) : { op: 'equal', text, oldNo: null, newNo: null }));
  const body = h('div', { class: `lines ${isDiff ? 'patch' : 'description'}`, role: 'group', 'aria-label': visibleString(short(field.label || field.field, 80)), tabindex: '0' });
  fillRows(body, withTokens(isDiff ? pairUp(rows) : rows, field), createRow);
  return h('section', { class: 'line-diff' }, h('h4', null, h('span', { class: 'line-name' }, quote(field.label || field.field, 80)), h('span', { class: 'stat quiet' }, t('diff.lines', { count: lines.length }))), body);
}

// Reads a line of a unified diff. Its first character becomes the sign.
function rowOfDiff(text) {
  const op = /^(?:\+\+\+ |--- )/.test(text) ? null : { '+': 'insert', '-': 'delete', ' ': 'equal' }[text[0]];
  return op ? { op, text: text.slice(1), oldNo: null, newNo: null } : { op: 'note', text };
}

// Adds what the rows need to be highlighted, if the language is known.
function withTokens(rows, { format, language }) {
  const name = ['json', 'yaml', 'sql'].includes(format) ? format : language;
  return isKnownLanguage(name) ? addTokens(rows, name) : rows;
}

// Creates the buttons for the layout, which applies to all diffs of the page.
function switcher(changed) {
  const group = h('span', { class: 'layouts diff-layouts', role: 'group', 'aria-label': t('diff.layout') });
  const paint = () => {
    const chosen = preference('diff', LAYOUTS);
    const hadFocus = group.contains(document.activeElement);
    fill(group, LAYOUTS.map((name) => h('button', {
      type: 'button', class: 'layout', 'aria-pressed': String(name === chosen), data: { layout: name },
      onclick: () => {
        setPreference('diff', name);
        notifyAll(SWITCHERS, LAYOUT_CHANGED);
      },
    }, t(name === 'split' ? 'diff.split' : 'diff.unified'))));
    if (hadFocus) group.querySelector('[aria-pressed=true]')?.focus();
  };
  group.addEventListener(LAYOUT_CHANGED, () => {
    paint();
    changed();
  });
  paint();
  return group;
}

/** Handles the key `d`, which switches the layout. Returns false if no diff offers a choice. */
export function switchLayout() {
  if (!document.querySelector(SWITCHERS)) return false;
  setPreference('diff', preference('diff', LAYOUTS) === 'split' ? 'unified' : 'split');
  notifyAll(SWITCHERS, LAYOUT_CHANGED);
  return true;
}

// Shows rows in parts, so that a large text is rendered only as far as it is read.
const fillRows = (body, rows, render) => fillPaged(body, rows, (row) => (row.op === 'fold' ? createFold(row, render) : row.op === 'note' ? createNote(row) : render(row)),
  { first: FIRST_ROWS, step: STEP_ROWS, label: (n) => t('diff.showLines', { count: n }) });

function wholeText({ before, after }) {
  const part = (text, op) => (isKnown(text) ? linesOf(text).map((line) => ({ op, text: line })) : []);
  return [...part(before, 'delete'), ...part(after, 'insert')];
}

/** Returns true for a value that a field has, which may be empty. */
export const isKnown = (value) => value !== null && value !== undefined;

// Shows the tokens of a line, with its differing parts marked.
function highlighted({ text, parts, tokens }) {
  const all = parts ?? [text];
  const shown = tokensOfParts(tokens, all).map((list) => list.map((token) => (token.kind ? h('span', { class: `t-${token.kind}` }, visible(token.text, { tabs: true })) : visible(token.text, { tabs: true }))));
  return h('span', { class: 'quote', dir: 'auto' }, all.map((part, n) => part !== '' && (n % 2 ? h('mark', null, shown[n]) : shown[n])));
}

function createText(row) {
  if (row.tokens && row.text.length <= MAX_HIGHLIGHTED) return h(TAGS[row.op], { class: 'code' }, highlighted(row));
  const text = row.parts ? emphasized(row.text, row.parts, { tabs: true }) : longText(row.text, { chars: 800, lines: 10, inline: true, tabs: true });
  return h(TAGS[row.op], { class: 'code' }, text);
}

function createRow(row) {
  return h('div', { class: `line ${row.op}` },
    h('span', { class: 'no', 'aria-hidden': 'true' }, row.oldNo ?? ''),
    h('span', { class: 'no', 'aria-hidden': 'true' }, row.newNo ?? ''),
    h('span', { class: 'sign', 'aria-hidden': row.op === 'equal' ? 'true' : null }, SIGNS[row.op]),
    createText(row));
}

function createPair(pair) {
  // Folded lines are not paired yet; they are equal on both sides.
  const { left, right } = pair.op === 'equal' ? { left: pair, right: pair } : pair;
  const side = (row, no) => (row
    ? h('div', { class: `side ${row.op}` }, h('span', { class: 'no', 'aria-hidden': 'true' }, row[no] ?? ''),
      h('span', { class: 'sign', 'aria-hidden': row.op === 'equal' ? 'true' : null }, SIGNS[row.op]), createText(row))
    : h('div', { class: 'side nothing', 'aria-hidden': 'true' }));
  return h('div', { class: 'pair' }, side(left, 'oldNo'), side(right, 'newNo'));
}

// A note is about the lines and has no number and no side.
const createNote = (row) => h('div', { class: `line note${row.file ? ' file' : ''}` }, h('span', { class: 'code' }, longText(row.text, { chars: 800, lines: 10, inline: true, tabs: true })));

// The texts of folded lines: their number, how to show them all, and how to show some.
const EQUAL_LINES = ['diff.equalLines', 'diff.showEqual', 'diff.showSomeEqual'];
const MORE_LINES = ['diff.moreLines', 'diff.showMore', 'diff.showSomeMore'];

function createFold(row, render) {
  const fold = h('div', { class: 'line fold' });
  const paint = (rows) => {
    const [name, showAll, showSome] = row.texts ?? EQUAL_LINES;
    const size = rows ? rows.length : row.size;
    const label = `⋯ ${t(name, { count: size })}`;
    if (!rows) return fill(fold, h('span', { class: 'fold-label' }, label));
    return fill(fold, h('button', {
      type: 'button', class: 'link fold-label', 'aria-label': t(size > FOLD_STEP ? showSome : showAll, { shown: FOLD_STEP, count: size }),
      onclick: () => {
        fold.before(...rows.slice(0, FOLD_STEP).map(render));
        if (rows.length > FOLD_STEP) paint(rows.slice(FOLD_STEP));
        else fold.remove();
      },
    }, label));
  };
  paint(row.rows);
  return fold;
}
