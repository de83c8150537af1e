// Long text, line by line: in one column or in two, with what is the same folded away and what is long in pages.

import { choice, choose } from '../core/prefs.js';
import { fill, h } from '../core/dom.js';
import { count, linesOf, plural, said, short, visible, visibleString } from '../core/text.js';
import { columns, foldEqual, pairUp } from './difflines.js';
import { longText } from './longtext.js';

const FIRST_ROWS = 120;
const STEP_ROWS = 600;
const FOLD_STEP = 200;
const LAYOUTS = ['unified', 'split'];
const SIGNS = { insert: '+', delete: '−', equal: ' ' };
const TAGS = { insert: 'ins', delete: 'del', equal: 'span' };
// Two columns need room; below this there is one whatever was chosen.
const roomy = () => matchMedia('(min-width: 48rem)').matches;

/** Text with what differs marked; `parts` are in turn the same and different. */
export function emphasized(text, parts, options) {
  const holder = h('span', { class: 'said', dir: 'auto' });
  if (!parts) holder.append(visible(text, options));
  else parts.forEach((part, n) => part !== '' && holder.append(n % 2 ? h('mark', null, visible(part, options)) : visible(part, options)));
  return holder;
}

/** One field, line by line. `note` stands beside its name. */
export function lineDiff(field, note = null) {
  const lines = field.lines?.length ? field.lines : wholeText(field);
  const rows = pairUp(foldEqual(lines, field.before));
  const added = lines.filter((l) => l.op === 'insert').length;
  const removed = lines.filter((l) => l.op === 'delete').length;
  // What only tells of the target is no text with lines to count.
  const tells = added === 0 && removed === 0 && field.before === null && field.after === null;
  const body = h('div', { class: `lines${tells ? ' told' : ''}`, role: 'group', 'aria-label': visibleString(`${short(field.label || field.field, 80)}, line by line`), tabindex: '0' });
  // With nothing on one side there is nothing to put beside the other.
  const layouts = added > 0 && removed > 0 ? switcher(() => paint()) : null;
  const paint = () => {
    const split = layouts !== null && roomy() && choice('diff', LAYOUTS) === 'split';
    body.classList.toggle('split-lines', split);
    paged(body, split ? columns(rows) : rows, split ? pairOf : rowOf);
  };
  paint();
  return h('section', { class: 'line-diff' },
    h('h4', null, h('span', { class: 'line-name' }, said(field.label || field.field, 80), note),
      h('span', { class: 'stat' },
        added > 0 && h('span', { class: 'plus' }, `+${count(added)}`), added > 0 && h('span', { class: 'sr-only' }, ' added '),
        removed > 0 && h('span', { class: 'minus' }, `−${count(removed)}`), removed > 0 && h('span', { class: 'sr-only' }, ' removed'), layouts)),
    body);
}

/** The text of a field that nothing stands beside: no line of it is added or removed. */
export function plainText(field) {
  const lines = known(field.after) ? linesOf(field.after) : (field.lines ?? []).map(({ text }) => text);
  const body = h('div', { class: 'lines told', role: 'group', 'aria-label': visibleString(short(field.label || field.field, 80)), tabindex: '0' });
  paged(body, lines.map((text) => ({ op: 'equal', text, oldNo: null, newNo: null })), rowOf);
  return h('section', { class: 'line-diff' }, h('h4', null, h('span', { class: 'line-name' }, said(field.label || field.field, 80)), h('span', { class: 'stat quiet' }, plural(lines.length, 'line'))), body);
}

// Which layout; all diffs of the page follow.
function switcher(changed) {
  const group = h('span', { class: 'layouts', role: 'group', 'aria-label': 'Layout of diffs' });
  const paint = () => {
    const chosen = choice('diff', LAYOUTS);
    const had = group.contains(document.activeElement);
    fill(group, LAYOUTS.map((name) => h('button', {
      type: 'button', class: 'layout', 'aria-pressed': String(name === chosen), data: { layout: name },
      onclick: () => {
        choose('diff', name);
        document.dispatchEvent(new Event('difflayout'));
      },
    }, name === 'split' ? 'Side by side' : 'Unified')));
    if (had) group.querySelector('[aria-pressed=true]')?.focus();
  };
  // Listens for as long as it is in the page.
  const follow = () => {
    if (!group.isConnected) return document.removeEventListener('difflayout', follow);
    paint();
    return changed();
  };
  document.addEventListener('difflayout', follow);
  paint();
  return group;
}

/** The key `d`: the other layout, wherever there is a choice. */
export function otherLayout() {
  if (!document.querySelector('.layouts:not(.arg-layouts)')) return false;
  choose('diff', choice('diff', LAYOUTS) === 'split' ? 'unified' : 'split');
  document.dispatchEvent(new Event('difflayout'));
  return true;
}

// Rows in pages, so that a large text costs what somebody reads of it.
function paged(body, rows, render) {
  const more = h('button', { type: 'button', class: 'link more' });
  let shown = 0;
  body.replaceChildren();
  const show = (n) => {
    const page = document.createDocumentFragment();
    for (const row of rows.slice(shown, shown + n)) page.append(row.op === 'fold' ? foldOf(row, render) : row.op === 'note' ? noteOf(row) : render(row));
    shown = Math.min(rows.length, shown + n);
    if (more.isConnected) more.before(page);
    else body.append(page);
    if (shown < rows.length) more.textContent = `Show more (${plural(rows.length - shown, 'line')})`;
    else more.remove();
  };
  more.addEventListener('click', () => show(STEP_ROWS));
  show(rows.length <= FIRST_ROWS + 10 ? rows.length : FIRST_ROWS);
  if (shown < rows.length) body.append(more);
}

function wholeText({ before, after }) {
  const part = (text, op) => (known(text) ? linesOf(text).map((line) => ({ op, text: line })) : []);
  return [...part(before, 'delete'), ...part(after, 'insert')];
}

const known = (value) => value !== null && value !== undefined;

function textOf(row) {
  const text = row.parts ? emphasized(row.text, row.parts, { tabs: true }) : longText(row.text, { chars: 800, lines: 10, inline: true, tabs: true });
  return h(TAGS[row.op], { class: 'code' }, text);
}

function rowOf(row) {
  return h('div', { class: `line ${row.op}` },
    h('span', { class: 'no', 'aria-hidden': 'true' }, row.oldNo ?? ''),
    h('span', { class: 'no', 'aria-hidden': 'true' }, row.newNo ?? ''),
    h('span', { class: 'sign', 'aria-hidden': row.op === 'equal' ? 'true' : null }, SIGNS[row.op]),
    textOf(row));
}

function pairOf(pair) {
  // Folded lines come as they are: the same on both sides.
  const { left, right } = pair.op === 'equal' ? { left: pair, right: pair } : pair;
  const side = (row, no) => (row
    ? h('div', { class: `side ${row.op}` }, h('span', { class: 'no', 'aria-hidden': 'true' }, row[no] ?? ''),
      h('span', { class: 'sign', 'aria-hidden': row.op === 'equal' ? 'true' : null }, SIGNS[row.op]), textOf(row))
    : h('div', { class: 'side nothing', 'aria-hidden': 'true' }));
  return h('div', { class: 'pair' }, side(left, 'oldNo'), side(right, 'newNo'));
}

// Said of the lines, and none of them: it has no number and no side.
const noteOf = (row) => h('div', { class: 'line note' }, h('span', { class: 'code' }, longText(row.text, { chars: 800, lines: 10, inline: true, tabs: true })));

function foldOf(row, render) {
  const fold = h('div', { class: 'line fold' });
  const paint = (rows) => {
    const label = plural(rows ? rows.length : row.size, 'unchanged line');
    if (!rows) return fill(fold, h('span', { class: 'fold-label' }, `⋯ ${label}`));
    return fill(fold, h('button', {
      type: 'button', class: 'link fold-label', 'aria-label': rows.length > FOLD_STEP ? `Show ${FOLD_STEP} of ${label}` : `Show ${label}`,
      onclick: () => {
        fold.before(...rows.slice(0, FOLD_STEP).map(render));
        if (rows.length > FOLD_STEP) paint(rows.slice(FOLD_STEP));
        else fold.remove();
      },
    }, `⋯ ${label}`));
  };
  paint(row.rows);
  return fold;
}
