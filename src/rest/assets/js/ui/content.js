// Builds the body of one change, such as its facts, diff, arguments and result, without keeping state.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { count, plural, quote, visibleString } from '../core/text.js';
import { compareLines } from '../core/linediff.js';
import { pretty } from '../core/rawjson.js';
import { routeTo } from '../core/router.js';
import { EXPIRY_WARNING_MS, time, until } from '../core/time.js';
import { isDecidable, proposerName, reviewerName, shownOperation, stateOf, toolName, VERIFICATIONS } from '../core/vocab.js';
import { copyButton, operationBadge, stateBadge, throughLine } from './badges.js';
import { callArguments, toolDescription } from './callargs.js';
import { diffView } from './diff.js';
import { factOf, nameOfTarget } from './facts.js';
import { jsonBlock } from './json.js';
import { lineDiff } from './lines.js';
import { longText } from './longtext.js';
import { computesEffect, previewNote, quorumLine, termsLine } from './terms.js';
import { waitsFor } from './timeline.js';

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
        copyButton(change.id, 'Copy the change’s id'), h('span', { class: 'nowrap' }, `version ${count(change.version)}`)), actions),
    h('h2', { id: 'change-title', tabindex: '-1' }, longText(change.summary, { chars: 280, lines: 3, inline: true })),
    targetName(change),
    h('dl', { class: 'facts' },
      fact('by', h('strong', null, quote(proposerName(proposer), 80)), !proposer.claims && proposer.owner && proposer.owner !== proposer.principal && h('span', { class: 'quiet' }, ' of ', quote(proposer.owner, 60))),
      proposer.clientName && fact('via', quote(proposer.clientName, 80), proposer.clientVersion && h('span', { class: 'quiet' }, ' ', quote(proposer.clientVersion, 40))),
      fact('over', throughLine(proposer)),
      fact('proposed', time(change.createdAt)),
      waits ? fact('expires', expires) : fact('updated', time(change.updatedAt))),
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
  return reason ? h('figure', { class: 'stated-reason' }, h('figcaption', { class: 'quiet' }, 'The agent’s reason, unchecked'), h('blockquote', null, longText(reason, { chars: 400, lines: 4 }))) : null;
}

const MARKS = { TOOL_NEW: 'New tool. ', TOOL_CHANGED: 'Changed tool. ', OPERATION_UNKNOWN: 'Unknown operation. ' };

/** Explains why the policy requires a review. */
export function review({ review: cause }) {
  if (!cause) return null;
  const mark = MARKS[cause.mark];
  const namesRule = cause.rule && cause.reason.startsWith(cause.rule);
  const rule = cause.rule && !namesRule && cause.rule;
  return h('p', { class: mark ? 'banner tone-amber' : 'why quiet' }, icon(mark ? 'alert' : 'info'),
    h('span', null, mark ? [h('strong', null, mark), cause.mark === 'OPERATION_UNKNOWN' && !cause.reason.startsWith('the tool') && 'Reviewed because '] : namesRule && !cause.reason.startsWith('rule ') ? 'Reviewed because the rule ' : 'Reviewed because ', quote(cause.reason, 400), '.',
      rule && [' Rule: ', quote(rule, 64), '.']));
}

/** Shows the requirements of the rule, the approvals so far and a hint about a duplicate. */
export function requirements(change) {
  const { plan } = change;
  const step = plan && h('p', { class: 'banner tone-accent in-plan' }, icon('stack'),
    h('span', null, `Step ${count(plan.index + 1)} of the plan “`, quote(plan.title, 200), '”. Nothing of it runs before all its steps are approved. ', h('a', { href: routeTo('plans', plan.id) }, 'Open the plan')));
  const duplicate = change.duplicateOf && h('p', { class: 'banner tone-accent duplicate' }, icon('duplicate'),
    h('span', null, 'The same agent had already proposed the same call: ', h('a', { href: routeTo('inbox', change.duplicateOf) }, 'open the other change'), '. Approving both runs it twice.'));
  return [step, duplicate, isDecidable(change.state) || change.state === 'approved' ? quorumLine(change) : null, isDecidable(change.state) ? termsLine(change) : null];
}

/** Shows the outcome or the current state, except of a pending change. */
export function outcome(change) {
  if (change.state === 'pending') return null;
  const { label, tone, icon: name, explanation: usual } = stateOf(change.state);
  const explanation = change.fault?.code === 'PLAN_STOPPED' ? 'Its plan stopped before it ran. Nothing was changed.' : usual;
  const last = change.decisions.at(-1);
  const earlierApprovals = last?.verdict === 'approve' ? change.decisions.filter((d) => d.verdict === 'approve' && d !== last) : [];
  return h('section', { class: `outcome tone-${tone}`, 'aria-label': 'Outcome' },
    h('div', { class: 'outcome-head' }, icon(name), h('strong', null, label), h('span', null, explanation)),
    change.waitsFor && h('p', null, waitsFor(change.waitsFor), '.'),
    change.fault && h('div', { class: 'outcome-fault' }, h('code', null, quote(change.fault.code, 60)), longText(change.fault.message, { chars: 800, lines: 10 })),
    last && h('p', { class: 'outcome-who' }, last.verdict === 'approve' ? 'Approved by ' : 'Rejected by ', earlierApprovals.map((d) => [h('strong', null, quote(reviewerName(d), 60)), ', ']), h('strong', null, quote(reviewerName(last), 60)), ' ', h('span', { class: 'quiet' }, time(last.at))),
    last?.comment && h('blockquote', null, longText(last.comment, { chars: 800, lines: 10 })),
    verification(change));
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
    : h('p', { class: 'quiet' }, `A content block of type ${visibleString(block?.type ?? 'unknown')}.`)));
  const isRepeated = content.some((block) => block?.type === 'text' && isSameJson(block.text, structuredContent));
  return section('Result', isError ? 'the tool reported an error' : null, texts,
    structuredContent !== undefined && structuredContent !== null && !isRepeated
      && h('details', { class: 'fold-section' }, h('summary', null, 'Structured content'), h('div', { class: 'args' }, jsonBlock(JSON.stringify(structuredContent), 'Structured content'))));
}

// Shows a text of the result: a short record by its values, other JSON with its structure, and everything else as text.
function resultText(text) {
  if (!isJson(text)) return longText(text, { chars: 2000, lines: 14, className: 'block' });
  const fact = factOf({ field: 'result', lines: [{ op: 'equal', text }] });
  return fact ? h('div', { class: 'args result-record' }, fact) : h('div', { class: 'args' }, jsonBlock(text, 'Result'));
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

const ASKED_FOR = { 'elicitation/create': 'input', 'sampling/createMessage': 'a model completion', 'roots/list': 'its root folders' };

/** Shows the tool's questions to the agent's client during the call, and the answers, which no reviewer has seen. */
export function questions({ dialogue }) {
  const all = dialogue?.questions ?? [];
  if (!all.length) return null;
  return section('Questions to the agent’s client', `${plural(all.length, 'question')}, answered without a reviewer`,
    h('ul', { class: 'edits' }, all.map((question) => h('li', null, icon('question'), h('div', null,
      h('span', null, 'For ', h('strong', null, quote(ASKED_FOR[question.method] ?? question.method, 60)), ' ', h('span', { class: 'quiet' }, time(question.at))),
      question.params?.message && h('blockquote', null, longText(String(question.params.message), { chars: 800, lines: 10 })),
      question.answer
        ? h('details', { class: 'fold-section' }, h('summary', null, quote(`The client’s answer${question.answer.action ? `: ${question.answer.action}` : ''}`, 60)), h('div', { class: 'args' }, jsonBlock(JSON.stringify(question.answer), 'Answer')))
        : h('p', { class: 'quiet' }, question.closedAt ? quote(`No answer: ${question.unanswered ?? 'the call has ended'}`, 300) : 'Waiting for an answer.'))))));
}

export function changes(change, source) {
  if (onlyArguments(change)) {
    const [switcher, ...parts] = callArguments(change, source);
    return section('Arguments', [h('span', null, toolNote(change)), switcher], previewNote(change),
      h('div', { class: 'beside' }, h('div', { class: 'beside-now' }, parts), previous(change)), toolDescription(change));
  }
  const note = previewNote(change);
  // The name of the target already stands below the title or in it.
  const named = nameOfTarget(change);
  const diff = h('div', { class: 'beside' }, h('div', { class: 'beside-now' }, diffView(change.diff, columnsOf(change), source, named?.isWhole ? named.field : null)), previous(change));
  // How an effect was computed comes after it; that it was not computed comes first.
  return section('Changes', null, computesEffect(change) ? [diff, note] : [note, diff]);
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
  const body = [h('p', { class: 'quiet' }, 'This diff is from before the target changed and is out of date. The other diff is current.'), diffView(change.previousDiff, columnsOf(change))];
  if (isDecidable(change.state)) return h('section', { class: 'previous' }, h('h4', null, 'The diff before the target changed'), body);
  return h('details', { class: 'fold-section previous' }, h('summary', null, 'The diff before the target changed'), body);
}

// Names the program that runs the call, if it is another one, because the approval is given to it.
const servedBy = ({ servedBy: by }) => (by?.fingerprint ? [' (', quote(by.label, 300), ')'] : null);

const toolNote = (change) => [h('code', null, quote(toolName(change), 120)), servedBy(change), isDecidable(change.state) ? ', exactly as they will run' : null];

/** Shows the exact arguments unless `changes` already does. */
export function args(change, source) {
  return onlyArguments(change) ? null : section('Arguments', toolNote(change), h('div', { class: 'args' }, copyButton(source, 'Copy the arguments'), jsonBlock(source, 'Arguments')));
}

const REPLACED_BY = { ...Object.fromEntries(['pending', 'stale', 'approved'].map((state) => [state, 'what will run instead'])), ...Object.fromEntries(['executing', 'applied', 'failed', 'outcome_unknown'].map((state) => [state, 'what ran instead'])) };

/** Shows the edits of reviewers beside the arguments that the agent proposed. */
export function edited(change, source, proposed) {
  const edits = change.edits ?? [];
  if (!edits.length) return null;
  return section('Edited by a reviewer', edits.length > 1 ? `${count(edits.length)} times` : null,
    h('ul', { class: 'edits' }, edits.map((edit) => h('li', null, icon('pencil'), h('span', null, h('strong', null, quote(edit.by, 60)), ' ', h('span', { class: 'quiet' }, time(edit.at)),
      edit.comment && h('blockquote', null, longText(edit.comment, { chars: 400, lines: 6 })))))),
    proposed && lineDiff({ field: 'arguments', label: `What the agent proposed, and ${REPLACED_BY[change.state] ?? 'what replaced it'}`, before: pretty(proposed), after: pretty(source), lines: compareLines(pretty(proposed), pretty(source)) }),
    proposed && h('details', { class: 'fold-section' }, h('summary', null, 'The arguments as the agent proposed them'), h('div', { class: 'args' }, copyButton(proposed, 'Copy the proposed arguments'), jsonBlock(proposed, 'Proposed arguments'))));
}

export function section(title, note, ...content) {
  return h('section', { class: 'block-section' }, h('h3', null, title, note && h('span', { class: 'quiet' }, note)), content);
}
