// One change in a list, and the head of a group. Both take an old element of their kind and say only what is new in it.

import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { count, plural, said } from '../core/text.js';
import { time, until } from '../core/time.js';
import { operationGlyph, proposerLine, stateBadge } from './badges.js';

const SOON = 3600_000;
// What each element says now, part by part.
const says = new WeakMap();

/** Fills a part only if it says something else than before; `key` is all that it depends on. */
function part(element, name, key, build) {
  const { keys, parts } = says.get(element);
  if (keys[name] === key) return;
  keys[name] = key;
  fill(parts[name], build());
}

/** A link to the change at `href`. `quietState` is the state that goes without saying. */
export function changeRow(change, href, quietState, old = null) {
  const link = old ?? blankRow();
  if (link.getAttribute('href') !== href) link.setAttribute('href', href);
  if (link.dataset.id !== change.id) link.dataset.id = change.id;
  if (link.dataset.state !== change.state) link.dataset.state = change.state;
  const waits = change.state === 'pending' || change.state === 'stale';
  const soon = waits && until(change.expiresAt) < SOON;
  const voting = change.state === 'pending' && change.quorum > 1;
  const failed = waits && change.previewFailed;
  part(link, 'glyph', `${change.operation}\n${change.summary}`, () => operationGlyph(change.operation, change.summary));
  part(link, 'title', change.summary, () => said(change.summary, 240));
  part(link, 'marks', [change.state, quietState, voting && `${change.approvals}/${change.quorum}`, change.duplicateOf && 1, change.edited, failed, change.waitsFor, soon && change.expiresAt].join(), () => [
    change.state !== quietState && stateBadge(change.state),
    voting && mark('accent', 'check', `${change.approvals}/${change.quorum}`, ' approvals'),
    change.duplicateOf && mark('accent', 'duplicate', 'Duplicate', ' of another pending change'),
    change.edited && mark('grey', 'pencil', 'Edited', ' by a reviewer'),
    change.waitsFor && mark('grey', 'clock', `Waits for ${change.waitsFor}`, ', which has the same target'),
    failed && mark('red', 'alert', 'No preview', ': it failed'),
    soon && h('span', { class: 'expiring' }, icon('clock'), 'expires ', time(change.expiresAt))]);
  part(link, 'who', `${change.proposer.principal}\n${change.proposer.clientName ?? ''}`, () => proposerLine(change.proposer));
  part(link, 'time', change.createdAt, () => time(change.createdAt, 'brief'));
  return link;
}

function blankRow() {
  const span = (name) => h('span', { class: name });
  const parts = { glyph: span('row-glyph'), title: span('row-title'), marks: span('row-marks'), who: span('row-who'), time: span('row-time') };
  const link = h('a', { class: 'row' }, parts.glyph, h('span', { class: 'row-body' }, parts.title, h('span', { class: 'row-meta' }, parts.marks, parts.who, parts.time)));
  says.set(link, { parts, keys: {} });
  return link;
}

const mark = (tone, name, text, more) => h('span', { class: `badge tone-${tone}`, title: `${text}${more}` }, icon(name), text, h('span', { class: 'sr-only' }, more));

/** The head of a group: how many of which tool by whom. A button that opens and closes it with `turn(id)`. */
export function groupRow({ id, rows, open }, turn, old = null) {
  const button = old ?? blankHead(turn);
  says.get(button).id = id;
  button.setAttribute('aria-expanded', String(open));
  const [first] = rows;
  const duplicates = rows.reduce((n, r) => n + (r.duplicateOf ? 1 : 0), 0);
  part(button, 'count', rows.length, () => count(rows.length));
  part(button, 'title', `${first.toolTitle || first.tool}\n${first.provider}`, () => [said(first.toolTitle || first.tool, 60), h('span', { class: 'quiet' }, ' · ', said(first.provider, 40))]);
  part(button, 'who', `${first.proposer.principal}\n${first.proposer.clientName ?? ''}`, () => proposerLine(first.proposer));
  part(button, 'marks', duplicates, () => duplicates > 0 && mark('accent', 'duplicate', plural(duplicates, 'duplicate'), ' among them'));
  part(button, 'time', first.createdAt, () => time(first.createdAt, 'brief'));
  return button;
}

function blankHead(turn) {
  const span = (name) => h('span', { class: name });
  const parts = { count: span('group-count'), title: span('group-title'), who: span('row-who'), marks: span('row-marks'), time: span('row-time') };
  const button = h('button', { type: 'button', class: 'group-row', title: 'Expand or collapse the group (c)', onclick: () => turn(says.get(button).id) },
    h('span', { class: 'turn' }, icon('chevron')), parts.count,
    h('span', { class: 'row-body' }, parts.title, h('span', { class: 'row-meta' }, parts.who, parts.marks, parts.time)));
  says.set(button, { parts, keys: {}, id: null });
  return button;
}
