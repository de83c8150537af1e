// One change in a list.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { said } from '../core/text.js';
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
        soon && h('span', { class: 'expiring' }, icon('clock'), 'expires ', time(change.expiresAt)),
        h('span', { class: 'row-who' }, proposerLine(change.proposer)),
        h('span', { class: 'row-time' }, time(change.createdAt, 'brief')))));
}
