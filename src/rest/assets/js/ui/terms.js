// Shows the requirements of the rule and the progress of the review.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { count, quote, visibleString } from '../core/text.js';
import { now, time } from '../core/time.js';
import { reviewerName } from '../core/vocab.js';

const UNITS = [[86_400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];

/** Formats `90` as `90 s` and `3600` as `1 h`. */
export function formatDuration(seconds) {
  const [unit, name] = UNITS.find(([size]) => seconds >= size && seconds % size === 0) ?? UNITS.at(-1);
  return `${count(seconds / unit)} ${name}`;
}

export const approvalsOf = (change) => change.decisions.filter((d) => d.verdict === 'approve');

/** Returns true if the preview shows the effect of the change and not only its arguments. */
export const showsEffect = ({ preview }) => !preview?.failed && preview?.kind !== 'arguments';

/** Returns true if the user proposed the change, judged by name, owner, key or another claim of the identity provider. */
function isOwn(change, me) {
  const { principal, owner, keyId, claims } = change.proposer;
  const names = [owner ?? principal, ...(claims?.otherNames ?? [])];
  const isName = (name) => names.includes(name);
  return principal === me.name || [me.owner ?? me.name, ...(me.otherNames ?? [])].some(isName) || Boolean(keyId && me.keyId && keyId === me.keyId);
}

/** Returns true if the rule forbids the user to approve the change, because they or their own agent proposed it. */
export function isBarredAsProposer(change, me) {
  const { owner, keyId, claims } = change.proposer;
  const isOwnAgent = change.terms?.ownAgents && !keyId && claims && owner === me.name && me.keyId === `person:${me.name}`;
  return isOwn(change, me) && !isOwnAgent;
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

/** Returns true if this user may decide now: the rule names no reviewers, or a role or group of the user. */
export function isReviewerOf(change, me) {
  const reviewers = reviewersOf(change);
  if (!me.mayDecide) return false;
  return reviewers.length === 0 || reviewers.some((name) => (name === 'admin' ? me.role === 'admin' : ROLES.includes(name) || (me.groups ?? []).includes(name)));
}

/** Returns true if reviewers may edit the arguments. Events of older changes contain `false`. */
export const mayEdit = ({ edit }) => edit !== 'forbidden' && edit !== false;

/** Returns true if the user has approved the change, even with another key. */
export const hasVoted = (change, me) => approvalsOf(change).some((d) => (d.owner ?? d.reviewer) === (me.owner ?? me.name) || d.reviewer === me.name);

/** Shows the requirements beyond one approval by any reviewer, or returns null. */
export function termsLine(change) {
  const { terms } = change;
  const parts = [];
  const names = (all) => all.slice(0, 8).map((name, n) => [n > 0 && ', ', h('strong', null, quote(name, 60))]);
  const escalation = escalationTime(change);
  if (terms.reviewers?.length) parts.push(part('person', 'Decided by ', names(terms.reviewers), escalation !== null && [', ', time(new Date(escalation).toISOString(), 'countdown'), ' also by ', names(terms.escalate.to)]));
  if (terms.quorum > 1) parts.push(part('check', `${count(terms.quorum)} people have to approve`));
  if (terms.requireComment) parts.push(part('pencil', 'Each decision needs a comment'));
  if (terms.previewRequired) parts.push(part('eye', 'Needs a preview'));
  if (!mayEdit(terms)) parts.push(part('hidden', 'Reviewers may not edit it'));
  else if (terms.edit === 'other') parts.push(part('pencil', 'A reviewer who edits it cannot approve it'));
  if (terms.ownAgents) parts.push(part('person', 'Whoever signed in may approve what their own agent proposed'));
  if (terms.signIn) parts.push(part('person', signInText(terms.signIn)));
  if (terms.undoFor > 0) parts.push(part('undo', `Runs ${formatDuration(terms.undoFor)} after approval and can be undone until then`));
  if (terms.onExpiry === 'reject') parts.push(part('clock', 'Rejected if nobody decides in time'));
  return parts.length ? h('ul', { class: 'terms', 'aria-label': 'What the rule requires' }, parts) : null;
}

function signInText({ maxAge, acr }) {
  const text = maxAge ? `Approved within ${formatDuration(maxAge)} of a sign-in with the identity provider` : 'Approved after a sign-in with the identity provider';
  return acr?.length ? [text, ' by ', acr.slice(0, 8).map((name, n) => [n > 0 && ' or ', quote(name, 60)])] : text;
}

const part = (name, ...text) => h('li', null, icon(name), h('span', null, text));

/** Shows who has approved and how many are missing, or returns null if one approval is enough. */
export function quorumLine(change) {
  const { quorum } = change.terms;
  if (!(quorum > 1)) return null;
  const votes = approvalsOf(change);
  const marks = Array.from({ length: Math.min(quorum, 12) }, (_, n) => h('span', { class: `vote${n < votes.length ? ' given' : ''}` }, n < votes.length ? icon('check') : null));
  return h('div', { class: 'quorum', role: 'group', 'aria-label': 'Approvals' },
    h('span', { class: 'votes', 'aria-hidden': 'true' }, marks),
    h('span', null, h('strong', null, `${count(Math.min(votes.length, quorum))} of ${count(quorum)}`), ' approvals',
      votes.length > 0 && [': ', votes.map((d, n) => [n > 0 && ', ', quote(reviewerName(d), 60), h('span', { class: 'quiet' }, ' ', time(d.at))])]));
}

/** Returns true if the preview has the state after the call, and not only the state now. */
export const computesEffect = ({ preview, diff }) => preview?.kind !== 'before_after' || (diff?.fields ?? []).some(({ field }) => /^\$(?:content|rows)/.test(field));

const KINDS = {
  dry_run: 'This preview is the result of the tool’s own dry run.',
  before_after: 'This preview compares the current state with the result of these arguments.',
};
const STATE_ONLY = 'This preview shows the current state. What the call changes in it is not computed.';

/** Tells which packages and versions the recipe of the preview was tried with. */
const tried = (preview) => (preview.tried ? [' Recipe tried: ', visibleString(preview.tried), '.'] : null);

/** Tells how the preview was made, with a warning if there is none. */
export function previewNote(change) {
  const { preview, terms } = change;
  if (!preview || preview.kind === 'module' && !preview.failed) return null;
  const obstacle = terms.previewRequired && !showsEffect(change) && ' The rule requires a preview, so this cannot be approved.';
  if (preview.failed) {
    return h('p', { class: 'banner tone-red preview-note' }, icon('alert'), h('span', null, h('strong', null, preview.mustFail ? 'This call must fail. ' : 'The preview failed. '), 'The arguments are shown below, but not what the call would change.', obstacle, ' Reason: ', quote(preview.failed, 600), !/[.!?…]$/.test(preview.failed) && '.', tried(preview)));
  }
  if (preview.kind === 'arguments') {
    return h('p', { class: obstacle ? 'banner tone-amber preview-note' : 'why quiet preview-note' }, icon('info'), h('span', null, 'No preview is available for this tool. Only its arguments are shown.', obstacle));
  }
  return h('p', { class: 'why quiet preview-note' }, icon('eye'), h('span', null, computesEffect(change) ? visibleString(KINDS[preview.kind] ?? preview.kind) : STATE_ONLY, tried(preview)));
}
