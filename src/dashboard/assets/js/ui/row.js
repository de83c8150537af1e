// One change in a list.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { count, plural, said } from '../core/text.js';
import { time, until } from '../core/time.js';
import { operationGlyph, proposerLine, stateBadge } from './badges.js';

const SOON = 3600_000;

/** A link to the change at `href`. `quietState` is the state that goes without saying. */
export function changeRow(change, href, quietState) {
  const waits = change.state === 'pending' || change.state === 'stale';
  const soon = waits && until(change.expiresAt) < SOON;
  return h('a', { class: 'row', href, data: { id: change.id, state: change.state } },
    operationGlyph(change.operation),
    h('span', { class: 'row-body' },
      h('span', { class: 'row-title' }, said(change.summary, 240)),
      h('span', { class: 'row-meta' },
        change.state !== quietState && stateBadge(change.state),
        change.state === 'pending' && change.quorum > 1 && mark('accent', 'check', `${change.approvals}/${change.quorum}`, ' approvals'),
        change.twinOf && mark('accent', 'twin', 'Twin', ' of another change that waits'),
        change.edited && mark('grey', 'pencil', 'Edited', ' by a reviewer'),
        waits && change.previewFailed && mark('red', 'alert', 'No preview', ': it failed'),
        soon && h('span', { class: 'expiring' }, icon('clock'), 'expires ', time(change.expiresAt)),
        h('span', { class: 'row-who' }, proposerLine(change.proposer)),
        h('span', { class: 'row-time' }, time(change.createdAt, 'brief')))));
}

const mark = (tone, name, text, more) => h('span', { class: `badge tone-${tone}`, title: `${text}${more}` }, icon(name), text, h('span', { class: 'sr-only' }, more));

/** The head of a group: how many of which tool by whom. A button that opens and closes it. */
export function groupRow({ rows, open }, turn) {
  const [first] = rows;
  const twins = rows.filter((r) => r.twinOf).length;
  return h('button', { type: 'button', class: 'group-row', 'aria-expanded': String(open), title: 'Open or close the group (c)', onclick: turn },
    h('span', { class: 'turn' }, icon('chevron')),
    h('span', { class: 'group-count' }, count(rows.length)),
    h('span', { class: 'row-body' },
      h('span', { class: 'group-title' }, said(first.toolTitle || first.tool, 60), h('span', { class: 'quiet' }, ' · ', said(first.provider, 40))),
      h('span', { class: 'row-meta' }, h('span', { class: 'row-who' }, proposerLine(first.proposer)), twins > 0 && mark('accent', 'twin', plural(twins, 'twin'), ' among them'), h('span', { class: 'row-time' }, time(first.createdAt, 'brief')))));
}
