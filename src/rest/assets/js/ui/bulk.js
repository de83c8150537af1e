// Decides selected changes together. The user confirms once; the gateway decides each change on its own.

import { explain } from '../core/api.js';
import { announce } from '../core/announce.js';
import { needsGateway } from '../core/connection.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { MAX_COMMENT, quote, visibleString } from '../core/text.js';
import { stateOf } from '../core/vocab.js';
import { operationGlyph } from './badges.js';
import { openDialog } from './dialog.js';
import { needsSignIn } from './signinagain.js';

/** The bar below the list, which is visible while changes are selected. */
export class BulkBar {
  element = h('div', { class: 'bulk', role: 'region', 'aria-label': t('list.selectedChanges'), hidden: true });

  constructor({ approve, reject, clear }) {
    this.count = h('strong');
    fill(this.element, this.count, h('div', { class: 'buttons' },
      h('button', { type: 'button', class: 'ghost', onclick: clear }, t('list.clear')),
      h('button', { type: 'button', class: 'reject', data: { act: 'reject-all' }, onclick: reject, ...needsGateway() }, icon('cross'), t('list.reject'), h('kbd', { 'aria-hidden': 'true' }, 'r')),
      h('button', { type: 'button', class: 'approve', data: { act: 'approve-all' }, onclick: approve, ...needsGateway() }, icon('check'), t('list.approve'), h('kbd', { 'aria-hidden': 'true' }, 'a'))));
  }

  show(n) {
    this.element.hidden = n === 0;
    this.count.textContent = t('list.selected', { count: n });
  }
}

/**
 * Asks for confirmation, decides and shows each result. `selected` are `{id, version, digest, summary, operation,
 * truncated, previewFailed, requireComment}`; changes that could not be read completely are excluded from approval.
 * `decide(decision, comment, changes)` resolves to the gateway's results, `signIn(id)` to a button for the sign-in that the
 * decision on a change requires. `decided(change, isDecided)` is called for each change in the results, where `isDecided` is false
 * for one that somebody else has modified, and `done(ids)` with the decided ids when the dialog closes. `texts` are the `title` and
 * the `confirm` of the button, if not those for changes, and `draft` is the comment to begin with.
 */
export function openBulk({ decision, selected: all, decide, signIn, decided, done, texts = {}, draft = '' }) {
  const approving = decision === 'approve';
  const selected = all.filter((change) => !approving || !exclusionOf(change));
  const needsComment = selected.some((change) => change.requireComment);
  const deletions = selected.filter((change) => change.operation === 'DELETE').length;
  const rows = new Map();
  const list = h('ul', { class: 'bulk-list', tabindex: '0', 'aria-label': t('list.selectedChanges') }, all.map((change) => {
    const result = h('p', { class: 'bulk-result' }, approving && exclusionOf(change) && h('span', { class: 'bulk-mark tone-amber' }, icon('alert'), h('span', null, exclusionOf(change))));
    rows.set(change.id, result);
    return h('li', null, operationGlyph(change.operation, change.summary), h('div', null, h('p', null, quote(change.summary, 200)), result));
  }));
  const comment = h('textarea', { id: 'bulk-comment', rows: '2', maxlength: String(MAX_COMMENT), 'aria-required': String(needsComment), placeholder: t(needsComment ? 'list.commentRequired' : approving ? 'list.commentOptional' : 'list.commentForAgents') });
  comment.value = draft;
  const error = h('p', { class: 'edit-errors', role: 'alert' });
  const cancel = h('button', { type: 'button', onclick: () => dialog.close() }, t('common.cancel'));
  const go = h('button', { type: 'submit', disabled: selected.length === 0, class: approving ? (deletions ? 'danger' : 'approve') : 'reject armed', data: { act: 'confirm-all' } },
    icon(approving ? 'check' : 'cross'), texts.confirm ?? t(approving ? 'list.approveAll' : 'list.rejectAll', { count: selected.length }));
  const decidedIds = [];
  let busy = false;

  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    fill(error);
    if (needsComment && comment.value.trim() === '') {
      fill(error, icon('alert'), t('list.commentMissing'));
      comment.focus();
      return;
    }
    busy = true;
    go.disabled = true;
    cancel.disabled = true;
    fill(go, t('list.deciding'));
    try {
      results(await decide(decision, comment.value.trim(), selected.map(({ id, version, digest }) => ({ id, version, digest }))));
    } catch (problem) {
      fill(error, icon('alert'), visibleString(problem.status === undefined ? t('list.maybeDecided', { problem: explain(problem) }) : explain(problem)));
      fill(go, t('controls.tryAgain'));
      go.disabled = false;
    }
    busy = false;
    cancel.disabled = false;
  };

  const results = (all) => {
    let decidedCount = 0;
    for (const { id, change, problem } of all) {
      const row = rows.get(id);
      if (!row) continue;
      if (change) {
        decidedCount += 1;
        decidedIds.push(id);
        decided(change, true);
        const { label, icon: name, tone } = stateOf(change.state);
        const text = change.state === 'pending' ? t('list.voted') : label;
        fill(row, h('span', { class: `bulk-mark tone-${tone}` }, icon(name), text));
      } else {
        const conflict = problem?.change;
        if (conflict) decided(conflict, false);
        fill(row, h('span', { class: 'bulk-mark tone-red' }, icon('alert'), h('span', null, t('list.notDecided', { reason: visibleString(explainProblem(problem)) }))));
      }
    }
    const text = decidedCount < all.length ? t('list.someDecided', { decided: decidedCount, count: all.length }) : t('list.allDecided', { count: decidedCount });
    fill(error);
    fill(summary, icon(decidedCount === all.length ? 'check' : 'alert'), text);
    summary.className = `bulk-summary tone-${decidedCount === all.length ? 'green' : 'amber'}`;
    announce(text);
    go.remove();
    commentField.remove();
    fill(cancel, t('controls.close'));
    cancel.focus();
    offerSignIn(all.filter(({ problem }) => needsSignIn(problem)));
  };

  // A sign-in of the required kind also suffices for the changes that only require a recent one.
  const offerSignIn = async (refused) => {
    if (!refused.length) return;
    const { id } = refused.find(({ problem }) => problem.details?.acr?.length) ?? refused[0];
    const button = await signIn(id);
    if (button) cancel.before(button);
  };

  const summary = h('p', { class: 'bulk-summary', role: 'status' }, deletions > 0 && approving ? [icon('trash'), t('list.deletions', { count: deletions })] : null);
  if (deletions > 0 && approving) summary.classList.add('tone-red');
  const commentField = h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'bulk-comment' }, t('controls.comment')), comment);
  const form = h('form', { class: 'sheet-body', novalidate: true, onsubmit: submit }, list, commentField, summary, error,
    h('div', { class: 'sheet-foot' }, cancel, go));
  const dialog = openDialog({
    title: texts.title ?? t(approving ? 'list.approveAllTitle' : 'list.rejectAllTitle', { count: selected.length }), className: 'bulk-sheet', build: () => form,
    closing: () => !busy, closed: () => done(decidedIds),
  });
  (approving ? cancel : comment).focus();
  return dialog;
}

/** Returns why the gateway did not decide on one of several changes. */
export function explainProblem(problem) {
  if (problem?.code === 'SELF_APPROVAL') return t('list.ownProposal');
  if (problem?.code === 'CHANGE_STALE') return t('list.targetChanged');
  if (problem?.code === 'VERSION_CONFLICT') return t('list.updatedSince');
  return String(problem?.detail ?? problem?.title ?? t('list.noReason'));
}

/** Returns why a change cannot be approved together with others, or null. */
const exclusionOf = ({ truncated, previewFailed }) => (previewFailed ? t('list.leftOutNoPreview') : truncated ? t('list.leftOutIncomplete') : null);

/** The notices for changes that cannot be selected. */
export const SELECTION_REFUSALS = {
  unseen: t('list.refusedUnseen'),
  decided: t('list.refusedDecided'),
  full: t('list.refusedFull'),
};
