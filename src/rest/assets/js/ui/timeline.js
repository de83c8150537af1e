// Shows the history of a change from its audit entries.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { routeTo } from '../core/router.js';
import { quote, short, visible, visibleString } from '../core/text.js';
import { COUNTDOWN_ENDED, exact, time, until } from '../core/time.js';
import { entryOf, eventName, isDecidable, stateOf } from '../core/vocab.js';
import { sessionMark } from './badges.js';
import { longText } from './longtext.js';
import { missingApprovals } from './terms.js';

// After these events, earlier approvals do not count.
const VOIDS_APPROVALS = ['edited', 'stale', 'refreshed'];
const ACTORS = { system: 'Countersign', gateway: 'Countersign' };

/** Shows `entries`, which the gateway sends newest first, in the order of time. */
export function timeline(entries, change) {
  // The number of approvals so far, or NaN if it is not known because some were undone.
  let given = 0;
  return h('ol', { class: 'timeline' }, entries.toReversed().map((entry) => {
    const { label: kind, icon: name, tone } = entryOf(entry);
    const event = eventName(entry.event);
    if (VOIDS_APPROVALS.includes(event)) given = 0;
    if (event === 'unapproved') given = NaN;
    if (event === 'voted') given += 1;
    const label = event === 'voted' && given < change.terms.quorum ? t('detail.votedOf', { given, quorum: change.terms.quorum }) : kind;
    const comment = entry.details?.comment;
    return h('li', { class: `tone-${tone}` },
      h('span', { class: 'dot' }, icon(name)),
      h('div', { class: 'timeline-body' },
        h('p', null, parts('detail.entry', {
          actor: h('strong', null, actor(entry.actor)),
          event: h('span', null, visibleString(label), entry.details?.deputyFor && [' ', parts('absence.for', { name: quote(String(entry.details.deputyFor), 60) })]),
          time: h('span', { class: 'quiet nowrap' }, time(entry.at)),
        })),
        entry.details?.rule?.id && h('p', { class: 'quiet' }, ruleLine(entry.details.rule)),
        comment && h('blockquote', null, longText(String(comment), { chars: 600, lines: 8 })),
        details(entry, entry.from ? null : change.proposer)));
  }), nextStep(change));
}

// Describes a standing rule that was made from this change.
function ruleLine(rule) {
  const uses = Number(rule.uses) > 0;
  const link = h('a', { class: 'mono', href: routeTo('rules', String(rule.id)) }, visible(short(String(rule.id), 14)), h('span', { class: 'sr-only' }, t('detail.theRule')));
  const key = rule.verdict === 'deny' ? (uses ? 'detail.ruleDeniesUsed' : 'detail.ruleDenies') : uses ? 'detail.ruleAllowsUsed' : 'detail.ruleAllows';
  return parts(key, { rule: link, tool: h('code', null, quote(rule.tool ?? '', 80)), count: Number(rule.uses) });
}

// Shows the next step of a change that has not ended.
function nextStep(change) {
  const missing = missingApprovals(change);
  const step = (name, ...text) => h('li', { class: 'tone-grey ahead' }, h('span', { class: 'dot' }, icon(name)), h('div', { class: 'timeline-body' }, h('p', { class: 'quiet' }, text)));
  if (isDecidable(change.state)) {
    const isVote = missing > 1 || (missing === 1 && change.terms.quorum > 1);
    const [onExpiry, onRejection] = change.state === 'stale' ? ['detail.waitsRefresh', 'detail.waitsRefreshReject']
      : isVote ? ['detail.waitsApprovals', 'detail.waitsApprovalsReject'] : ['detail.waitsDecision', 'detail.waitsDecisionReject'];
    return step('clock', parts(change.terms.onExpiry === 'reject' ? onRejection : onExpiry, { count: missing, time: time(change.expiresAt) }));
  }
  if (change.state === 'outcome_unknown') return step('question', t('detail.waitsSettle'));
  const start = whenItRuns(change);
  if (!start) return null;
  const next = step('clock', start);
  next.addEventListener(COUNTDOWN_ENDED, () => next.remove());
  return next;
}

/** Says when an approved change runs. Returns null if it is about to run, and for all other changes. */
export function whenItRuns({ state, waitsFor: blocking, plan, runAfter }) {
  if (state !== 'approved') return null;
  if (blocking) return waitsFor(blocking);
  if (plan) return t('detail.runsInPlan');
  return runAfter && until(runAfter) > 0 ? parts('detail.runs', { time: time(runAfter, 'countdown') }) : null;
}

// Names the change with the same target for which an approved change waits.
function waitsFor({ change, until: end }) {
  const other = h('a', { class: 'mono', href: routeTo('inbox', change) }, visible(change));
  return end ? parts('detail.waitsForUntil', { change: other, time: exact(end) }) : parts('detail.waitsFor', { change: other });
}

export const actor = (name) => (ACTORS[name] ? ACTORS[name] : quote(name ?? '', 60));

// Shows the other details of an entry. Empty values and what is shown elsewhere are omitted.
function details({ details: all, from, to, seq, at, hash }, proposer) {
  const facts = Object.entries(all ?? {}).filter(([key, value]) => key !== 'comment' && key !== 'rule' && value !== null && value !== '' && value !== undefined);
  const list = h('dl', { class: 'facts-small' });
  if (proposer?.session) list.append(h('dt', null, t('detail.session')), h('dd', null, sessionMark(proposer.session)));
  if (proposer?.keyId) list.append(h('dt', null, t('detail.key')), h('dd', null, quote(proposer.keyId, 60)));
  for (const [key, value] of facts.slice(0, 20)) {
    list.append(h('dt', null, visible(key)), h('dd', null, longText(typeof value === 'string' ? value : JSON.stringify(value), { chars: 400, lines: 6 })));
  }
  if (to && from !== to) list.append(h('dt', null, t('detail.state')), h('dd', null, `${from ? `${stateOf(from).label} → ` : ''}${stateOf(to).label}`));
  list.append(h('dt', null, t('detail.at')), h('dd', null, exact(at)));
  list.append(h('dt', null, t('detail.audit')), h('dd', null, `#${seq} `, h('code', null, visibleString(hash ?? ''))));
  return h('details', { class: 'more-facts' }, h('summary', null, t('detail.details')), list);
}
