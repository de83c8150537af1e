// The body of one change: facts, diff, arguments, result. Builds nodes out of data and keeps no state.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { count, said, short, visible, visibleString } from '../core/text.js';
import { time } from '../core/time.js';
import { stateOf } from '../core/vocab.js';
import { copyButton, operationBadge, stateBadge, throughLine } from './badges.js';
import { diffView } from './diff.js';
import { jsonBlock } from './json.js';
import { longText } from './longtext.js';

const SOON = 3600_000;

/** Badges, the sentence and who asked. The heading takes the focus when a change is opened. */
export function head(change) {
  const { proposer, target } = change;
  const waits = change.state === 'pending' || change.state === 'stale';
  const expires = time(change.expiresAt);
  expires.dataset.soon = String(SOON);
  expires.classList.toggle('soon', Date.parse(change.expiresAt) - Date.now() < SOON);
  return [
    h('div', { class: 'detail-marks' }, operationBadge(change.operation), stateBadge(change.state),
      h('span', { class: 'entity' }, said(target.entityType, 40), target.id !== null && [' · ', said(target.label, 120)]),
      h('span', { class: 'change-id' }, h('code', { title: visibleString(change.id) }, visibleString(short(change.id, 13))),
        copyButton(change.id, 'Copy the change’s id'), h('span', { class: 'nowrap' }, `version ${count(change.version)}`))),
    h('h2', { id: 'change-title', tabindex: '-1' }, longText(change.summary, { chars: 280, lines: 3, inline: true })),
    h('dl', { class: 'facts' },
      fact('by', h('strong', null, said(proposer.principal, 80))),
      proposer.clientName && fact('via', said(proposer.clientName, 80), proposer.clientVersion && h('span', { class: 'quiet' }, ' ', said(proposer.clientVersion, 40))),
      fact('over', throughLine(proposer)),
      fact('asked', time(change.createdAt)),
      waits ? fact('expires', expires) : fact('updated', time(change.updatedAt))),
  ];
}

// Reads as a sentence, and as a list of terms to whoever listens to it.
const fact = (name, ...value) => h('div', { class: 'fact' }, h('dt', null, name), h('dd', null, value));

/** Why the policy sent the call to a person. */
export function review({ review: why }) {
  if (!why) return null;
  const marked = why.mark === 'TOOL_CHANGED' || why.mark === 'TOOL_NEW';
  const rule = why.rule && !why.reason.startsWith(why.rule) && why.rule;
  return h('p', { class: marked ? 'banner tone-amber' : 'why quiet' }, icon(marked ? 'alert' : 'info'),
    h('span', null, marked ? h('strong', null, why.mark === 'TOOL_NEW' ? 'New tool. ' : 'Changed tool. ') : 'Reviewed because ', said(why.reason, 400), '.',
      rule && [' Rule: ', said(rule, 64), '.']));
}

/** How it ended or stands, for everything that does not simply wait. */
export function outcome(change) {
  if (change.state === 'pending') return null;
  const { label, tone, icon: name, says } = stateOf(change.state);
  const last = change.decisions.at(-1);
  return h('section', { class: `outcome tone-${tone}`, 'aria-label': 'Outcome' },
    h('div', { class: 'outcome-head' }, icon(name), h('strong', null, label), h('span', null, says)),
    change.fault && h('div', { class: 'outcome-fault' }, h('code', null, said(change.fault.code, 60)), longText(change.fault.message, { chars: 800, lines: 10 })),
    last && h('p', { class: 'outcome-who' }, last.verdict === 'approve' ? 'Approved by ' : 'Rejected by ', h('strong', null, said(last.reviewer, 60)), ' ', h('span', { class: 'quiet' }, time(last.at))),
    last?.comment && h('blockquote', null, longText(last.comment, { chars: 800, lines: 10 })));
}

/** What the tool answered. */
export function result(change) {
  if (!change.result) return null;
  const { content = [], structuredContent, isError } = change.result;
  const texts = content.map((block) => (block?.type === 'text' ? longText(String(block.text), { chars: 2000, lines: 14, className: 'block' })
    : h('p', { class: 'quiet' }, `A block of type ${visibleString(block?.type ?? 'unknown')}.`)));
  return section('Result', isError ? 'the tool says that it failed' : null, texts,
    structuredContent !== undefined && structuredContent !== null
      && h('details', { class: 'fold-section' }, h('summary', null, 'Structured content'), h('div', { class: 'args' }, jsonBlock(JSON.stringify(structuredContent), 'Structured content'))));
}

export function changes(change) {
  const n = change.diff.fields.length;
  return section('Changes', n ? `${count(n)} ${n === 1 ? 'field' : 'fields'}` : null, diffView(change.diff, change.operation));
}

export function previous(change) {
  if (!change.previousDiff) return null;
  return h('details', { class: 'fold-section previous' },
    h('summary', null, 'The diff before the target changed'),
    h('p', { class: 'quiet' }, 'This is what was proposed at first. It no longer holds; the diff above was computed anew.'),
    diffView(change.previousDiff, change.operation));
}

export function args(change, source) {
  const tool = h('code', null, said(`${change.provider}.${change.tool}`, 120));
  return section('Arguments', [tool, change.state === 'pending' ? ', exactly as they will run' : null], h('div', { class: 'args' }, copyButton(source, 'Copy the arguments'), jsonBlock(source, 'Arguments')));
}

export function section(title, note, ...content) {
  return h('section', { class: 'block-section' }, h('h3', null, title, note && h('span', { class: 'quiet' }, note)), content);
}
