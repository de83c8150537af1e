// Builds the body of one change, such as its facts, diff, arguments and result, without keeping state.

import { isReachable, REACHABILITY_CHANGED } from '../core/connection.js';
import { fill, h, separated } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { count, quote, visibleString } from '../core/text.js';
import { compareLines } from '../core/linediff.js';
import { pretty } from '../core/rawjson.js';
import { routeTo } from '../core/router.js';
import { COUNTDOWN_ENDED, EXPIRY_WARNING_MS, time, until } from '../core/time.js';
import { isDecidable, proposerName, reviewerName, shownOperation, stateOf, toolName, VERIFICATIONS } from '../core/vocab.js';
import { copyButton, operationBadge, stateBadge, throughLine } from './badges.js';
import { callArguments, toolDescription } from './callargs.js';
import { diffView } from './diff.js';
import { factOf, nameOfTarget } from './facts.js';
import { jsonBlock } from './json.js';
import { lineDiff } from './lines.js';
import { longText } from './longtext.js';
import { approvalsOf, computesEffect, deputyNote, previewNote, quorumLine, termsLine } from './terms.js';
import { whenItRuns } from './timeline.js';

/** Builds the badges, the title and the proposer. The heading takes the focus when a change is opened. */
export function head(change, actions = null) {
  const { proposer, target } = change;
  const waits = change.state === 'pending' || change.state === 'stale';
  const expires = time(change.expiresAt);
  expires.dataset.soon = String(EXPIRY_WARNING_MS);
  expires.classList.toggle('soon', until(change.expiresAt) < EXPIRY_WARNING_MS);
  return [
    h('div', { class: 'detail-marks' }, operationBadge(shownOperation(change), change.summary), stateBadge(change.state),
      h('span', { class: 'entity' }, target.entityType === 'tool' ? quote(toolName(change), 160) : [quote(target.entityType, 40), target.id !== null && [' · ', quote(target.label, 120)]]),
      h('span', { class: 'change-id' }, h('code', { class: 'id brief', title: visibleString(change.id) }, visibleString(change.id)),
        copyButton(change.id, t('detail.copyId')), h('span', { class: 'nowrap' }, t('detail.version', { version: count(change.version) }))), actions),
    h('h2', { id: 'change-title', tabindex: '-1' }, longText(change.summary, { chars: 280, lines: 3, inline: true })),
    targetName(change),
    h('dl', { class: 'facts' },
      fact(t('detail.by'), h('strong', null, quote(proposerName(proposer), 80)), !proposer.claims && proposer.owner && proposer.owner !== proposer.principal && h('span', { class: 'quiet' }, ' ', parts('detail.ofOwner', { owner: quote(proposer.owner, 60) }))),
      proposer.clientName && fact(t('detail.via'), quote(proposer.clientName, 80), proposer.clientVersion && h('span', { class: 'quiet' }, ' ', quote(proposer.clientVersion, 40))),
      fact(t('detail.over'), throughLine(proposer)),
      fact(t('detail.proposed'), time(change.createdAt)),
      waits ? fact(t('detail.expires'), expires) : fact(t('detail.updated'), time(change.updatedAt))),
  ];
}

const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// A title often has only the id or the number of the target.
function targetName(change) {
  const name = nameOfTarget(change)?.name;
  return name === undefined || change.summary.includes(name) ? null
    : h('p', { class: 'target-name' }, h('span', { class: 'quiet' }, quote(capitalized(change.target.entityType), 40), ': '), quote(name, 160));
}

// A fact reads as part of a sentence; screen readers get a list of terms.
const fact = (name, ...value) => h('div', { class: 'fact' }, h('dt', null, name), h('dd', null, value));

/** Shows the reason that the agent gave, apart from the facts that the gateway knows. */
export function statedReason({ statedReason: reason }) {
  return reason ? h('figure', { class: 'stated-reason' }, h('figcaption', { class: 'quiet' }, t('detail.statedReason')), h('blockquote', null, longText(reason, { chars: 400, lines: 4 }))) : null;
}

// The reasons that the policy gives where no rule decides. Any other is shown as the gateway wrote it.
const REASONS = {
  'it may write': 'detail.reason.mayWrite',
  'its read-only hint has not been accepted yet': 'detail.reason.notAccepted',
  'policy.default is review_all': 'detail.reason.reviewAll',
};
const MARKS = { TOOL_NEW: 'detail.newTool', TOOL_CHANGED: 'detail.changedTool', OPERATION_UNKNOWN: 'detail.unknownOperation' };

/** Explains why the policy requires a review. */
export function review({ review: cause }) {
  if (!cause) return null;
  const mark = MARKS[cause.mark];
  const namesRule = cause.rule && cause.reason.startsWith(cause.rule);
  const rule = cause.rule && !namesRule && cause.rule;
  const reason = Object.hasOwn(REASONS, cause.reason) ? t(REASONS[cause.reason]) : quote(cause.reason, 400);
  // Some reasons are whole sentences of their own.
  const isStatement = mark && (cause.mark !== 'OPERATION_UNKNOWN' || cause.reason.startsWith('the tool'));
  return h('p', { class: mark ? 'banner tone-amber' : 'why quiet' }, icon(mark ? 'alert' : 'info'),
    h('span', null, mark && [h('strong', null, t(mark)), ' '], isStatement ? [reason, '.'] : parts(namesRule && !mark && !cause.reason.startsWith('rule ') ? 'detail.reviewedBecauseRule' : 'detail.reviewedBecause', { reason }),
      rule && [' ', parts('detail.rule', { rule: quote(rule, 64) })]));
}

/** Shows the requirements of the rule, the approvals so far and a hint about a duplicate. */
export function requirements(change) {
  const { plan } = change;
  const step = plan && h('p', { class: 'banner tone-accent in-plan' }, icon('stack'),
    h('span', null, parts('detail.step', { number: count(plan.index + 1), plan: quote(plan.title, 200), link: h('a', { href: routeTo('plans', plan.id) }, t('detail.openPlan')) })));
  const duplicate = change.duplicateOf && h('p', { class: 'banner tone-accent duplicate' }, icon('duplicate'),
    h('span', null, parts('detail.duplicate', { link: h('a', { href: routeTo('inbox', change.duplicateOf) }, t('detail.openOther')) })));
  return [step, duplicate, isDecidable(change.state) || change.state === 'approved' ? quorumLine(change) : null, isDecidable(change.state) ? termsLine(change) : null];
}

/** Shows the outcome or the current state, except of a pending change. */
export function outcome(change) {
  if (change.state === 'pending') return null;
  const { label, tone, icon: name } = stateOf(change.state);
  const last = change.decisions.at(-1);
  const earlierApprovals = last?.verdict === 'approve' ? approvalsOf(change).filter((decision) => decision !== last) : [];
  return h('section', { class: `outcome tone-${tone}`, 'aria-label': t('detail.outcome') },
    h('div', { class: 'outcome-head' }, icon(name), h('strong', null, label), explanation(change)),
    change.fault && h('div', { class: 'outcome-fault' }, h('code', null, quote(change.fault.code, 60)), longText(change.fault.message, { chars: 800, lines: 10 })),
    last && h('p', { class: 'outcome-who' }, parts(last.verdict === 'approve' ? 'detail.approvedBy' : 'detail.rejectedBy', {
      people: separated([...earlierApprovals, last].map((decision) => [h('strong', null, quote(reviewerName(decision), 60)), deputyNote(decision)])), time: h('span', { class: 'quiet' }, time(last.at)),
    })),
    last?.comment && h('blockquote', null, longText(last.comment, { chars: 800, lines: 10 })),
    verification(change));
}

// Explains the state, which for an approved change depends on the time and on whether the gateway can be reached.
function explanation(change) {
  const text = () => {
    if (change.fault?.code === 'PLAN_STOPPED') return t('detail.planStopped');
    if (change.state === 'approved' && !isReachable()) return t('decision.unknownIfRun');
    const start = whenItRuns(change);
    return start ? [start, '.'] : stateOf(change.state).explanation;
  };
  const repaint = ({ currentTarget }) => fill(currentTarget, text());
  return h('span', { 'data-needs-gateway': true, [`on${REACHABILITY_CHANGED}`]: repaint, [`on${COUNTDOWN_ENDED}`]: repaint }, text());
}

// Shows if the target was as approved when it was read again after the run, and what differed.
function verification({ verification: found }) {
  if (!found) return null;
  const { explanation, icon: name, tone } = VERIFICATIONS[found.verified] ?? VERIFICATIONS.not_read;
  return h('div', { class: `verification tone-${tone}`, data: { verified: found.verified } },
    h('p', null, icon(name), h('span', null, h('strong', null, explanation), found.reason && [' ', longText(found.reason, { chars: 800, lines: 10, inline: true })])),
    found.diff && diffView(found.diff, 'VERIFICATION'));
}

export function result(change) {
  if (!change.result) return null;
  const { content = [], structuredContent, isError } = change.result;
  const texts = content.map((block) => (block?.type === 'text' ? resultText(String(block.text))
    : h('p', { class: 'quiet' }, t('detail.contentBlock', { type: visibleString(block?.type ?? t('detail.unknownType')) }))));
  const isRepeated = content.some((block) => block?.type === 'text' && isSameJson(block.text, structuredContent));
  return section(t('detail.result'), isError ? t('detail.toolError') : null, texts,
    structuredContent !== undefined && structuredContent !== null && !isRepeated
      && h('details', { class: 'fold-section' }, h('summary', null, t('detail.structuredContent')), h('div', { class: 'args' }, jsonBlock(JSON.stringify(structuredContent), t('detail.structuredContent')))));
}

// Shows a text of the result: a short record by its values, other JSON with its structure, and everything else as text.
function resultText(text) {
  if (!isJson(text)) return longText(text, { chars: 2000, lines: 14, className: 'block' });
  const fact = factOf({ field: 'result', lines: [{ op: 'equal', text }] });
  return fact ? h('div', { class: 'args result-record' }, fact) : h('div', { class: 'args' }, jsonBlock(text, t('detail.result')));
}

function isJson(text) {
  try {
    return typeof JSON.parse(text) === 'object';
  } catch {
    return false;
  }
}

const isSameJson = (text, value) => isJson(String(text)) && JSON.stringify(JSON.parse(text)) === JSON.stringify(value);

/** Returns true if the result says more about the outcome than the changes do. */
export const resultComesFirst = ({ state, result: found }) => state !== 'applied' || Boolean(found?.isError);

const ASKED_FOR = { 'elicitation/create': 'detail.askedInput', 'sampling/createMessage': 'detail.askedCompletion', 'roots/list': 'detail.askedRoots' };

/** Shows the tool's questions to the agent's client during the call, and the answers, which no reviewer has seen. */
export function questions({ dialogue }) {
  const all = dialogue?.questions ?? [];
  if (!all.length) return null;
  return section(t('detail.questions'), t('detail.questionsNote', { count: all.length }),
    h('ul', { class: 'edits' }, all.map((question) => h('li', null, icon('question'), h('div', null,
      h('span', null, parts('detail.questionFor', { what: h('strong', null, ASKED_FOR[question.method] ? t(ASKED_FOR[question.method]) : quote(question.method, 60)), time: h('span', { class: 'quiet' }, time(question.at)) })),
      question.params?.message && h('blockquote', null, longText(String(question.params.message), { chars: 800, lines: 10 })),
      question.answer
        ? h('details', { class: 'fold-section' }, h('summary', null, question.answer.action ? quote(t('detail.clientAnswerAction', { action: question.answer.action }), 60) : t('detail.clientAnswer')), h('div', { class: 'args' }, jsonBlock(JSON.stringify(question.answer), t('detail.answer'))))
        : h('p', { class: 'quiet' }, question.closedAt ? quote(t('detail.noAnswer', { reason: question.unanswered ?? t('detail.callEnded') }), 300) : t('detail.waitingForAnswer')))))));
}

export function changes(change, source) {
  if (onlyArguments(change)) {
    const [switcher, ...parts] = callArguments(change, source);
    return section(t('detail.arguments'), [h('span', null, toolNote(change)), switcher], previewNote(change),
      h('div', { class: 'beside' }, h('div', { class: 'beside-now' }, parts), previous(change)), toolDescription(change));
  }
  const note = previewNote(change);
  // The name of the target already stands below the title or in it.
  const named = nameOfTarget(change);
  const diff = h('div', { class: 'beside' }, h('div', { class: 'beside-now' }, diffView(change.diff, columnsOf(change), source, named?.isWhole ? named.field : null)), previous(change));
  // How an effect was computed comes after it; that it was not computed comes first.
  return section(t('detail.changes'), null, computesEffect(change) ? [diff, note] : [note, diff]);
}

// Only the arguments can be shown if there is no recipe or if it failed.
const onlyArguments = ({ preview }) => preview?.kind === 'arguments' || Boolean(preview?.failed);

// Values of a call that is not previewed by a module are arguments and have no earlier value, unless an effect is computed.
function columnsOf(change) {
  const { operation, preview } = change;
  if (!preview || preview.kind === 'module') return operation;
  return ['UPDATE', 'CALL'].includes(operation) || !computesEffect(change) ? 'ARGUMENTS' : operation;
}

// While a change can be decided, the outdated diff is shown beside the current one.
function previous(change) {
  if (!change.previousDiff) return null;
  const body = [h('p', { class: 'quiet' }, t('detail.previousNote')), diffView(change.previousDiff, columnsOf(change))];
  if (isDecidable(change.state)) return h('section', { class: 'previous' }, h('h4', null, t('detail.previousTitle')), body);
  return h('details', { class: 'fold-section previous' }, h('summary', null, t('detail.previousTitle')), body);
}

// Names the program that runs the call, if it is another one, because the approval is given to it.
const servedBy = ({ servedBy: by }) => (by?.fingerprint ? [' (', quote(by.label, 300), ')'] : null);

function toolNote(change) {
  const tool = [h('code', null, quote(toolName(change), 120)), servedBy(change)];
  return isDecidable(change.state) ? parts('detail.toolExactly', { tool }) : tool;
}

/** Shows the exact arguments unless `changes` already does. */
export function args(change, source) {
  return onlyArguments(change) ? null : section(t('detail.arguments'), toolNote(change), h('div', { class: 'args' }, copyButton(source, t('detail.copyArguments')), jsonBlock(source, t('detail.arguments'))));
}

function replacementTitle(state) {
  if (['pending', 'stale', 'approved'].includes(state)) return t('detail.replacedNext');
  return t(['executing', 'applied', 'failed', 'outcome_unknown'].includes(state) ? 'detail.replacedRan' : 'detail.replaced');
}

/** Shows the edits of reviewers beside the arguments that the agent proposed. */
export function edited(change, source, proposed) {
  const edits = change.edits ?? [];
  if (!edits.length) return null;
  return section(t('detail.editedTitle'), edits.length > 1 ? t('detail.editedTimes', { count: edits.length }) : null,
    h('ul', { class: 'edits' }, edits.map((edit) => h('li', null, icon('pencil'), h('span', null, h('strong', null, quote(edit.by, 60)), ' ', h('span', { class: 'quiet' }, time(edit.at)),
      edit.comment && h('blockquote', null, longText(edit.comment, { chars: 400, lines: 6 })))))),
    proposed && lineDiff({ field: 'arguments', label: replacementTitle(change.state), before: pretty(proposed), after: pretty(source), lines: compareLines(pretty(proposed), pretty(source)) }),
    proposed && h('details', { class: 'fold-section' }, h('summary', null, t('detail.asProposed')), h('div', { class: 'args' }, copyButton(proposed, t('detail.copyProposed')), jsonBlock(proposed, t('detail.proposedArguments')))));
}

export function section(title, note, ...content) {
  return h('section', { class: 'block-section' }, h('h3', null, title, note && h('span', { class: 'quiet' }, note)), content);
}
