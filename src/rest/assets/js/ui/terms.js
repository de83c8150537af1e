// Shows the requirements of the rule and the progress of the review.

import { h, separated } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { count, quote, visibleString } from '../core/text.js';
import { now, time } from '../core/time.js';
import { reviewerName } from '../core/vocab.js';

const UNITS = [[86_400, 'core.time.amount.d'], [3600, 'core.time.amount.h'], [60, 'core.time.amount.min'], [1, 'core.time.amount.s']];

/** Formats `90` as `90 s` and `3600` as `1 h`. */
function formatDuration(seconds) {
  const [unit, key] = UNITS.find(([size]) => seconds >= size && seconds % size === 0) ?? UNITS.at(-1);
  return t(key, { count: seconds / unit });
}

export const approvalsOf = (change) => change.decisions.filter((d) => d.verdict === 'approve');

/** Returns how many more people have to approve the change. */
export const missingApprovals = (change) => change.terms.quorum - approvalsOf(change).length;

/** Returns true if the change may be approved although its rule requires a preview: it shows its effect, or does so after a fill. */
export const permitsApproval = ({ preview }) => (!preview?.failed && preview?.kind !== 'arguments') || Boolean(preview.awaitsResults);

/** Returns true if an account may be one of the user's, judged by name, owner, key, creator of the key or another claim of the identity provider. */
function mayBeUser({ name, owner, keyId, otherNames }, me) {
  const names = [owner ?? name, ...(otherNames ?? [])];
  const isName = (other) => names.includes(other);
  return name === me.name || [me.owner ?? me.name, ...(me.otherNames ?? [])].some(isName) || Boolean(keyId && me.keyId && keyId === me.keyId);
}

/** Returns true if the user may have proposed the change. */
function isOwn({ proposer: { principal, owner, keyId, claims, keyCreators } }, me) {
  return mayBeUser({ name: principal, owner, keyId, otherNames: claims?.otherNames ?? keyCreators }, me);
}

/** Returns true if the rule forbids the user to approve the change, because they or their own agent proposed it. */
export function isBarredAsProposer(change, me) {
  const { owner, keyId, claims } = change.proposer;
  const isOwnAgent = change.terms?.ownAgents && !keyId && claims && owner === me.name && me.keyId === `person:${me.name}`;
  return isOwn(change, me) && !isOwnAgent;
}

/** Returns the text that tells somebody whom `isBarredAsProposer` bars why they cannot approve. */
export function barredText({ proposer: { principal, claims } }, me) {
  if (principal === me.name) return t('core.api.ownChange');
  return t(claims ? 'decision.ownAgent' : 'decision.ownKey');
}

const ROLES = ['agent', 'viewer', 'reviewer', 'admin'];

/** Returns the time in milliseconds from which further reviewers may decide, or null if the rule names none. */
export function escalationTime({ terms, createdAt }) {
  if (!terms?.escalate || !terms.reviewers?.length) return null;
  const at = Date.parse(createdAt) + terms.escalate.after * 1000;
  return Number.isFinite(at) ? at : null;
}

/** Returns the roles and groups that may decide now. None means every reviewer. */
export function reviewersOf(change) {
  const reviewers = change.terms?.reviewers ?? [];
  const at = escalationTime(change);
  return at === null || at > now() ? reviewers : [...new Set([...reviewers, ...change.terms.escalate.to])];
}

/** Returns true if this user may decide now: the rule names no reviewers, or a role or group of the user or of an absent person whose deputy they are. */
export function isReviewerOf(change, me) {
  const reviewers = reviewersOf(change);
  if (!me.mayDecide) return false;
  return reviewers.length === 0 || reviewers.some((name) => isIn(name, me)) || representedBy(change, me).length > 0;
}

/** Returns true if this user may create a standing rule from the change: one of the rule's own reviewers, and no deputy. */
export const mayCreateRule = ({ terms }, me) => isReviewerOf({ terms }, { ...me, deputyFor: [] });

const isIn = (name, me) => (name === 'admin' ? me.role === 'admin' : ROLES.includes(name) || (me.groups ?? []).includes(name));

/** Returns the absent people in whose place the user may decide, because they may not decide themselves. */
export function representedBy(change, me) {
  const reviewers = reviewersOf(change);
  if (!me.mayDecide || reviewers.length === 0 || reviewers.some((name) => isIn(name, me))) return [];
  return (me.deputyFor ?? []).filter(({ name, groups, until }) => Date.parse(until) > now() && groups.some((group) => reviewers.includes(group)) && !isOwn(change, { name }));
}

/** Returns true if reviewers may edit the arguments. Events of older changes contain `false`. */
export const mayEdit = ({ edit }) => edit !== 'forbidden' && edit !== false;

const isVoter = ({ owner, reviewer, name = reviewer }, me) => (owner ?? name) === (me.owner ?? me.name) || name === me.name;

/** Returns true if the user has approved the change, even with another key. */
export const hasVoted = (change, me) => approvalsOf(change).some((d) => isVoter(d, me));

/** Returns true if a deputy has approved the change in place of the user. */
export const isApprovedByDeputy = (change, me) => approvalsOf(change).some(({ deputyFor }) => deputyFor && isVoter(deputyFor, me));

/** Returns true unless the user may have approved the change already, or may have edited it where editors may not approve. */
function mayStillApprove({ terms, edits, ...change }, me) {
  const mayBeOwnVote = ({ reviewer, deputyFor, ...vote }) => mayBeUser({ ...vote, name: reviewer }, me) || Boolean(deputyFor && mayBeUser(deputyFor, me));
  const barsEditors = terms.quorum > 1 || terms.edit === 'other' || !mayEdit(terms);
  return !approvalsOf(change).some(mayBeOwnVote) && !(barsEditors && edits?.some(({ by, ...edit }) => mayBeUser({ ...edit, name: by }, me)));
}

/** Returns true if an approval by this reviewer, or in the place of an absent person whose deputy they are, would count. */
export function countsApproval(change, me) {
  const absent = representedBy(change, me);
  return mayStillApprove(change, me) && (absent.length === 0 || absent.some((person) => mayStillApprove(change, person)));
}

/** Shows the requirements beyond one approval by any reviewer, or returns null. */
export function termsLine(change) {
  const { terms } = change;
  const items = [];
  const names = (all) => separated(all.slice(0, 8).map((name) => h('strong', null, quote(name, 60))));
  const escalation = escalationTime(change);
  if (terms.reviewers?.length) items.push(item('person', escalation === null ? parts('decision.decidedBy', { names: names(terms.reviewers) })
    : parts('decision.decidedByEscalation', { names: names(terms.reviewers), time: time(new Date(escalation).toISOString(), 'countdown'), others: names(terms.escalate.to) })));
  if (terms.quorum > 1) items.push(item('check', t('decision.quorum', { count: terms.quorum })));
  if (terms.requireComment) items.push(item('pencil', t('decision.needsComment')));
  if (terms.previewRequired) items.push(item('eye', t('decision.needsPreview')));
  if (!mayEdit(terms)) items.push(item('hidden', t('decision.noEdit')));
  else if (terms.edit === 'other') items.push(item('pencil', t('decision.editorCannotApprove')));
  if (terms.ownAgents) items.push(item('person', t('decision.ownAgents')));
  if (terms.signIn) items.push(item('person', signInText(terms.signIn)));
  if (terms.undoFor > 0) items.push(item('undo', t('decision.undoFor', { duration: formatDuration(terms.undoFor) })));
  if (terms.onExpiry === 'reject') items.push(item('clock', t('decision.expiryRejects')));
  return items.length ? h('ul', { class: 'terms', 'aria-label': t('decision.terms') }, items) : null;
}

function signInText({ maxAge, acr }) {
  const duration = maxAge ? formatDuration(maxAge) : null;
  if (!acr?.length) return maxAge ? t('decision.signInWithin', { duration }) : t('decision.signIn');
  const methods = acr.slice(0, 8).map((name) => quote(name, 60)).reduce((one, other) => parts('decision.or', { one, other }));
  return parts(maxAge ? 'decision.signInWithinBy' : 'decision.signInBy', { duration, methods });
}

const item = (name, text) => h('li', null, icon(name), h('span', null, text));

/** Shows who has approved and how many are missing, or returns null if one approval is enough. */
export function quorumLine(change) {
  const { quorum } = change.terms;
  if (!(quorum > 1)) return null;
  const votes = approvalsOf(change);
  const marks = Array.from({ length: Math.min(quorum, 12) }, (_, n) => h('span', { class: `vote${n < votes.length ? ' given' : ''}` }, n < votes.length ? icon('check') : null));
  return h('div', { class: 'quorum', role: 'group', 'aria-label': t('decision.approvals') },
    h('span', { class: 'votes', 'aria-hidden': 'true' }, marks),
    h('span', null, parts(votes.length > 0 ? 'decision.givenBy' : 'decision.given', {
      number: h('strong', null, t('decision.givenOf', { given: count(Math.min(votes.length, quorum)), quorum: count(quorum) })),
      people: separated(votes.map((vote) => [quote(reviewerName(vote), 60), deputyNote(vote), h('span', { class: 'quiet' }, ' ', time(vote.at))])),
    })));
}

/** Names the absent person in whose place a reviewer decided, or returns null. */
export const deputyNote = ({ deputyFor }) => (deputyFor ? [' ', parts('absence.for', { name: quote(deputyFor.displayName ?? deputyFor.owner ?? deputyFor.name, 60) })] : null);

/** Returns true if the preview has the state after the call, and not only the state now. */
export const computesEffect = ({ preview, diff }) => preview?.kind !== 'before_after' || (diff?.fields ?? []).some(({ field }) => /^\$(?:content|rows)/.test(field));

const KINDS = {
  dry_run: 'decision.dryRun',
  before_after: 'decision.beforeAfter',
};

/** Tells which packages and versions the recipe of the preview was tried with. */
const tried = (preview) => (preview.tried ? [' ', t('decision.tried', { versions: visibleString(preview.tried) })] : null);

/** Tells how the preview was made, with a warning if there is none. */
export function previewNote(change) {
  const { preview, terms } = change;
  if (!preview || preview.kind === 'module' && !preview.failed) return null;
  const obstacle = terms.previewRequired && !permitsApproval(change) && [' ', t('decision.previewObstacle')];
  if (preview.failed) {
    return h('p', { class: 'banner tone-red preview-note' }, icon('alert'), h('span', null, h('strong', null, t(preview.mustFail ? 'decision.mustFail' : 'decision.previewFailed')), ' ', t('decision.argumentsOnly'), obstacle, ' ',
      parts('decision.reason', { reason: [quote(preview.failed, 600), !/[.!?…]$/.test(preview.failed) && '.'] }), tried(preview)));
  }
  if (preview.kind === 'arguments') {
    return h('p', { class: obstacle ? 'banner tone-amber preview-note' : 'why quiet preview-note' }, icon('info'), h('span', null, t(preview.awaitsResults ? 'decision.awaitsResults' : 'decision.noPreview'), obstacle));
  }
  return h('p', { class: 'why quiet preview-note' }, icon('eye'), h('span', null, computesEffect(change) ? (KINDS[preview.kind] ? t(KINDS[preview.kind]) : visibleString(preview.kind)) : t('decision.stateOnly'), tried(preview)));
}
