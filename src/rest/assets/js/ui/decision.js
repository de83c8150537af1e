// The bar where a reviewer approves, rejects or settles an unknown outcome. Approvals that could do harm by accident (a
// deletion, a change that was modified while being read, a truncated diff, rows that are not compared) need a second
// press. So do rejections, which cannot be undone: the first press asks for the reason.

import { announce } from '../core/announce.js';
import { isReachable, REACHABILITY_CHANGED } from '../core/connection.js';
import { fill, h, separated } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { shortcut } from '../core/keys.js';
import { parts, t } from '../core/locale.js';
import { hasRowsBeyond } from '../core/rowtable.js';
import { MAX_COMMENT, quote, visibleString } from '../core/text.js';
import { PRESS_GUARD_MS, time, until } from '../core/time.js';
import { isDecidable } from '../core/vocab.js';
import { barredText, hasVoted, isApprovedByDeputy, isBarredAsProposer, isReviewerOf, missingApprovals, permitsApproval, representedBy, reviewersOf } from './terms.js';
import { whenItRuns } from './timeline.js';
import { isUndoable } from './undo.js';

// A faster second press is part of a double click.
const MIN_PRESS_GAP = 500;

export class DecisionBar {
  element = h('footer', { class: 'decision', 'aria-label': t('decision.decision'), hidden: true, 'data-needs-gateway': true });
  #me;
  #selection;
  #submit;
  #back;
  #change = null;
  #altered = false;
  #afterConflict = false;
  #mode = 'idle';
  // The kind of the request that runs, or null.
  #sending = null;
  #armedAt = 0;
  #notBefore = 0;
  #guardTimer = null;
  #undoTimer = null;
  #error = '';
  #remedy = null;
  #drafts;
  #comment;
  // Tells if the focus was here when the request that runs was sent.
  #sentFromHere = false;

  /**
   * `selection` holds the changes to decide together: `size()`, `has(id)`, `toggle(id)`, `clear()`. While it is not empty,
   * this bar has no buttons to decide. `submit(kind, comment)` resolves when the gateway has answered; kinds are approve,
   * reject, undo, refresh (of the preview), applied and failed. `drafts` holds comments by the id of their change; it outlives
   * the bar. `back()` returns to the list.
   */
  constructor({ me, drafts, submit, selection, back }) {
    this.#me = me;
    this.#drafts = drafts;
    this.#selection = selection;
    this.#back = back;
    this.#submit = submit;
    this.element.addEventListener(REACHABILITY_CHANGED, () => this.refresh());
    this.#comment = h('textarea', {
      id: 'comment', rows: '1', maxlength: String(MAX_COMMENT), autocomplete: 'off', spellcheck: 'true',
      oninput: () => this.#saveDraft(), onkeydown: (event) => this.#commentKey(event), onblur: () => this.#keepFocus(), 'aria-keyshortcuts': 'Control+Enter',
    });
  }

  get mode() {
    return this.#mode;
  }

  /** Tells if the focus is here, or was until the bar was disabled for the request that runs. */
  get hasFocus() {
    return this.element.contains(document.activeElement) || (this.#mode === 'busy' && this.#sentFromHere && document.activeElement === document.body);
  }

  /**
   * `altered` means that the content changed while it was being read, `sudden` that it changed without an action of the
   * reader. `afterConflict` means that the reader's decision was refused because of that, so that the new content can be
   * approved with one press.
   */
  show(change, { altered = false, sudden = false, afterConflict = false } = {}) {
    const same = this.#change?.id === change.id;
    if (!same) this.#comment.value = this.#drafts.get(change.id) ?? '';
    if (!same || change.version !== this.#change.version) {
      this.#mode = same && this.#isRejecting() ? 'reject' : 'idle';
      if (!same) this.#setError('');
    }
    if (sudden) this.#guardPresses();
    this.#change = change;
    this.#altered = altered && !afterConflict;
    this.#afterConflict = afterConflict;
    this.#render();
  }

  /** Shows again what the user may do, which time may have changed. */
  refresh() {
    if (this.#change !== null) this.#render();
  }

  // Disables the button that would decide for a moment.
  #guardPresses() {
    this.#notBefore = Date.now() + PRESS_GUARD_MS;
    clearTimeout(this.#guardTimer);
    this.#guardTimer = setTimeout(() => {
      this.#notBefore = 0;
      const button = this.element.querySelector('[data-act=approve], [data-act=reject].armed');
      if (button && !this.#isBlocked()) button.disabled = false;
    }, PRESS_GUARD_MS);
  }

  hide() {
    this.#change = null;
    this.#mode = 'idle';
    this.#setError('');
    this.element.hidden = true;
    this.element.replaceChildren();
  }

  /** Shows why the decision was refused. `remedy` is a button that helps. */
  fail(message, remedy = null) {
    this.#mode = this.#isRejecting() ? 'reject' : 'idle';
    this.#sending = null;
    this.#setError(message, remedy);
    this.#render();
  }

  #setError(error, remedy = null) {
    this.#error = error;
    this.#remedy = remedy;
  }

  #errorLine() {
    return this.#error && h('p', { class: 'decision-error', role: 'alert' }, icon('alert'), h('span', null, visibleString(this.#error)), this.#remedy);
  }

  /** Repaints after changes were selected or deselected elsewhere. */
  selectionChanged() {
    if (this.#change === null || this.#mode === 'busy') return;
    if (this.#selection.size() > 0) this.#mode = 'idle';
    this.#render();
  }

  /** Handles the key `a`. If the preview failed, the key only moves the focus to the button. It does nothing during a rejection. */
  approveByKey() {
    if (this.#mode === 'reject') return;
    if (this.#change?.preview?.failed && this.#mode === 'idle') {
      const button = this.element.querySelector('[data-act=approve]:enabled');
      button?.focus();
      if (button) announce(t('decision.previewFailedKey'));
      return;
    }
    this.approve();
  }

  /** Approves, or asks for the second press if one is needed. */
  approve() {
    if (!this.#canAct() || this.#change.state !== 'pending' || this.#obstacle() || this.#selection.size() > 0) return;
    if (Date.now() < this.#notBefore) return;
    if (this.#lacksComment()) return;
    if (this.#mode === 'confirm') {
      if (Date.now() - this.#armedAt >= MIN_PRESS_GAP) this.#send('approve');
      return;
    }
    if (this.#confirmationReason()) {
      this.#mode = 'confirm';
      this.#armedAt = Date.now();
      this.#setError('');
      const hadFocus = this.element.contains(document.activeElement);
      this.#render();
      if (hadFocus) this.element.querySelector('[data-act=cancel]')?.focus();
      return;
    }
    this.#send('approve');
  }

  /** Handles the key `r` and the first press of the button, which move to the comment. */
  startReject() {
    if (!this.#canAct() || !isDecidable(this.#change.state) || !isReviewerOf(this.#change, this.#me) || this.#selection.size() > 0) return;
    this.#mode = 'reject';
    this.#setError('');
    this.#render();
    this.#comment.focus();
  }

  /** Handles Escape. Returns true if there was anything to cancel. */
  cancel() {
    if (this.#mode !== 'confirm' && this.#mode !== 'reject') return false;
    const hadFocus = this.element.contains(document.activeElement);
    const previousMode = this.#mode;
    this.#mode = 'idle';
    this.#render();
    if (hadFocus) this.element.querySelector(previousMode === 'confirm' ? '[data-act=approve]' : '[data-act=reject]')?.focus();
    return true;
  }

  #canAct() {
    return this.#me.mayDecide && this.#change !== null && !this.#isBlocked();
  }

  // Tells if a rejection was begun. It stays open until it is cancelled or made, so that no button that approves appears where
  // the reader presses *Reject*.
  #isRejecting() {
    return this.#mode === 'reject' || (this.#mode === 'busy' && this.#sending === 'reject');
  }

  #isBlocked() {
    return this.#mode === 'busy' || !isReachable();
  }

  // Returns the icon and text that tell why this person cannot approve, or null. The gateway enforces the same rules.
  #obstacle() {
    const change = this.#change;
    if (!isReviewerOf(change, this.#me)) return ['person', t('decision.notReviewer', { names: reviewersOf(change).join(', ') })];
    if (isBarredAsProposer(change, this.#me)) return ['person', barredText(change, this.#me)];
    if (isApprovedByDeputy(change, this.#me)) return ['check', t('absence.approvedForYou')];
    if (hasVoted(change, this.#me)) return ['check', t('decision.youApproved', { count: missingApprovals(change) })];
    if (change.terms.previewRequired && !permitsApproval(change)) return ['eye', t('decision.previewMissing')];
    return null;
  }

  #mayUndo() {
    return isUndoable(this.#change) && (this.#me.mayUndoAll || hasVoted(this.#change, this.#me) || isApprovedByDeputy(this.#change, this.#me));
  }

  // Returns true if a required comment is missing, and moves the focus there.
  #lacksComment() {
    if (!this.#change.terms.requireComment || this.#comment.value.trim() !== '') return false;
    this.#setError(t('decision.commentMissing'));
    this.#render();
    this.#comment.focus();
    return true;
  }

  /** Handles the key `u`. Returns false if the open change has no approval to undo. */
  undo() {
    if (!this.#canAct() || !this.#mayUndo()) return false;
    this.#send('undo');
    return true;
  }

  /** Handles the key `f`, which refreshes the preview. */
  refreshPreview() {
    if (!this.#canAct() || !isDecidable(this.#change.state)) return false;
    this.#send('refresh');
    return true;
  }

  #confirmationReason() {
    if (this.#altered) return t('decision.confirmUpdated');
    if (hasRowsBeyond(this.#change.diff)) return t('decision.confirmRows');
    if (this.#change.diff.truncated) return t('decision.confirmCut');
    return this.#change.operation === 'DELETE' ? 'delete' : null;
  }

  #saveDraft() {
    if (this.#change) this.#drafts.set(this.#change.id, this.#comment.value);
    const settle = this.element.querySelector('[data-act=applied]');
    if (settle) this.#settleButtons();
  }

  #commentKey(event) {
    if (event.key === 'Escape') {
      event.stopPropagation();
      event.preventDefault();
      if (!this.cancel()) this.#comment.blur();
    } else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && this.#mode === 'reject') {
      event.preventDefault();
      this.#reject();
    }
  }

  // The second press of a double click goes to the disabled button, and would take the focus away from the reason.
  #keepFocus() {
    if (this.#mode === 'reject' && Date.now() < this.#notBefore) setTimeout(() => this.#comment.focus());
  }

  // The first press asks for the reason, and a double click does not reject.
  #pressReject() {
    if (this.#mode === 'reject') return this.#reject();
    this.#guardPresses();
    return this.startReject();
  }

  // After a rejection, *Approve* takes the place of this button, and a double click must not press it.
  #pressCancel() {
    if (this.#isRejecting()) this.#guardPresses();
    this.cancel();
  }

  #reject() {
    if (!this.#lacksComment()) this.#send('reject');
  }

  async #send(kind) {
    if (!this.#canAct()) return;
    const { id } = this.#change;
    const comment = this.#comment.value.trim();
    this.#sentFromHere = this.hasFocus;
    this.#mode = 'busy';
    this.#sending = kind;
    this.#setError('');
    this.#render();
    const done = await this.#submit(kind, comment);
    this.#sending = null;
    if (done) this.#drafts.delete(id);
    if (this.#change?.id !== id) return;
    if (done) this.#comment.value = '';
    if (this.#mode === 'busy') {
      this.#mode = 'idle';
      this.#render();
    }
    // After a failure the same press tries again. No other button gets the focus, because a second press was not meant for it.
    if (this.#sentFromHere && document.activeElement === document.body) this.element.querySelector(`[data-act=${kind}]:enabled`)?.focus();
  }

  #render() {
    const change = this.#change;
    const { state } = change;
    const settling = state === 'outcome_unknown';
    // Without the gateway, nobody knows what became of the change when its time to undo is over.
    const undoing = isUndoable(change) || (state === 'approved' && Boolean(change.runAfter) && !isReachable());
    if (!isDecidable(state) && !settling && !undoing) {
      this.element.hidden = true;
      this.element.replaceChildren();
      return;
    }
    this.element.hidden = false;
    this.element.dataset.mode = this.#mode;
    if (!this.#me.mayDecide) {
      fill(this.element, h('p', { class: 'decision-note' }, icon('eye'), t('decision.viewer')));
      return;
    }
    if (undoing) {
      this.#undoRow();
      return;
    }
    if (!settling && !isReviewerOf(change, this.#me)) {
      this.#renderNoReviewer();
      return;
    }
    if (isDecidable(state) && this.#selection.size() > 0) {
      this.#renderSelection();
      return;
    }
    const typing = document.activeElement === this.#comment;
    const caret = [this.#comment.selectionStart, this.#comment.selectionEnd];
    fill(this.element,
      this.#errorLine(),
      this.#note(),
      this.#mode === 'confirm' ? this.#confirmation() : h('div', { class: 'decision-row' },
        h('label', { class: 'sr-only', for: 'comment' }, settling ? t('decision.howDoYouKnow') : t('controls.comment')),
        this.#comment,
        settling ? this.#settleRow() : this.#decideRow()));
    const isRequired = change.terms.requireComment;
    if (this.#mode === 'reject') this.#comment.placeholder = t(isRequired ? 'decision.whyRequired' : 'decision.whyOptional');
    else this.#comment.placeholder = t(settling ? 'decision.howRecorded' : isRequired ? 'decision.commentRequired' : 'decision.commentOptional');
    this.#comment.disabled = this.#mode === 'busy';
    if (settling) this.#settleButtons();
    if (typing && this.#comment.isConnected) {
      this.#comment.focus();
      this.#comment.setSelectionRange(...caret);
    }
  }

  #note() {
    const change = this.#change;
    if (change.state === 'stale') {
      return h('p', { class: 'decision-note' }, icon('refresh'), h('span', null, t('decision.stale')));
    }
    const obstacle = change.state === 'pending' && this.#obstacle();
    if (obstacle) return h('p', { class: 'decision-note' }, icon(obstacle[0]), h('span', null, obstacle[1]));
    const represented = this.#mode === 'idle' ? representedBy(change, this.#me) : [];
    if (represented.length) {
      return h('p', { class: 'decision-note' }, icon('person'), h('span', null, parts('absence.decidesFor', { names: separated(represented.slice(0, 8).map(({ name, displayName }) => h('strong', null, quote(displayName ?? name, 60))), t('absence.or')) })));
    }
    if (this.#mode === 'reject') {
      return h('p', { class: 'decision-note' }, icon('cross'), h('span', null, t('decision.agentReads'), ' ', h('span', { class: 'key-hint' }, parts('decision.rejectKeys', { send: separated(t('core.key.ctrlEnter').split(' ').map((key) => h('kbd', null, key)), ' '), cancel: h('kbd', null, 'Esc') }))));
    }
    if (this.#afterConflict && change.state === 'pending') {
      return h('p', { class: 'decision-note after-conflict' }, icon('refresh'), h('span', null, t('decision.newDiff'), ' ', h('span', { class: 'key-hint' }, parts('decision.newDiffKeys', { approve: h('kbd', null, 'a'), reject: h('kbd', null, 'r') }))));
    }
    return null;
  }

  // Selected changes are decided below the list, which small screens hide, so there is no second place to approve them.
  #renderSelection() {
    const { id, state } = this.#change;
    const has = this.#selection.has(id);
    fill(this.element, h('div', { class: 'confirm selecting' },
      h('p', null, icon('stack'), h('span', null, t('decision.selected', { count: this.#selection.size() }))),
      h('div', { class: 'buttons' },
        h('button', { type: 'button', class: 'small-only', onclick: this.#back }, t('decision.toList')),
        h('button', { type: 'button', data: { act: 'unselect' }, onclick: () => this.#selection.clear() }, t('decision.clearSelection'), h('kbd', { 'aria-hidden': 'true' }, 'Esc')),
        (has || state === 'pending') && h('button', { type: 'button', data: { act: 'select' }, 'aria-keyshortcuts': shortcut('x'), onclick: () => this.#selection.toggle(id) }, t(has ? 'decision.removeThis' : 'decision.addThis'), h('kbd', { 'aria-hidden': 'true' }, 'x')))));
  }

  // Shows what remains for somebody who may not decide this change: refreshing the preview.
  #renderNoReviewer() {
    fill(this.element, this.#errorLine(),
      h('p', { class: 'decision-note' }, icon('person'), h('span', null, visibleString(this.#obstacle()[1]))),
      this.#change.state === 'stale' && h('div', { class: 'buttons' }, this.#refreshButton()));
  }

  #refreshButton() {
    return h('button', { type: 'button', disabled: this.#isBlocked(), data: { act: 'refresh' }, 'aria-keyshortcuts': shortcut('f'), onclick: () => this.refreshPreview() },
      icon('refresh'), t(this.#sending === 'refresh' ? 'decision.refreshing' : 'decision.refresh'), h('kbd', { 'aria-hidden': 'true' }, 'f'));
  }

  #undoRow() {
    const { plan, waitsFor, runAfter } = this.#change;
    const ends = (plan || waitsFor) && [' ', parts('decision.undoEnds', { time: time(runAfter, 'countdown') })];
    fill(this.element, this.#errorLine(),
      h('div', { class: 'confirm' }, h('p', null, icon('clock'), h('span', null, t('detail.approved'), ' ', isReachable() ? [whenItRuns(this.#change), '.', ends] : t('decision.unknownIfRun'))),
        this.#mayUndo() && h('div', { class: 'buttons' }, h('button', { type: 'button', data: { act: 'undo' }, disabled: this.#isBlocked(), 'aria-keyshortcuts': shortcut('u'), onclick: () => this.undo() },
          icon('undo'), t(this.#sending === 'undo' ? 'decision.undoing' : 'decision.undo'), h('kbd', { 'aria-hidden': 'true' }, 'u')))));
    clearTimeout(this.#undoTimer);
    if (isUndoable(this.#change)) this.#undoTimer = setTimeout(() => this.#change && !isUndoable(this.#change) && this.#render(), Math.min(until(runAfter) + 50, 2 ** 31 - 1));
  }

  #decideRow() {
    const blocked = this.#isBlocked();
    const rejecting = this.#isRejecting();
    const guarded = Date.now() < this.#notBefore;
    const canApprove = !rejecting && this.#change.state === 'pending' && !this.#obstacle();
    // Approving without a preview uses a different button.
    const withoutPreview = Boolean(this.#change.preview?.failed);
    return h('div', { class: 'buttons' },
      !rejecting && this.#change.state === 'stale' && this.#refreshButton(),
      h('button', { type: 'button', class: `reject${rejecting ? ' armed' : ''}`, disabled: blocked || (rejecting && guarded), data: { act: 'reject' }, 'aria-keyshortcuts': shortcut('r'), onclick: () => this.#pressReject() },
        icon('cross'), t(this.#sending === 'reject' ? 'decision.rejecting' : 'decision.reject'), h('kbd', { 'aria-hidden': 'true' }, 'r')),
      canApprove && h('button', { type: 'button', class: withoutPreview ? 'no-preview' : 'approve', disabled: blocked || guarded, data: { act: 'approve' }, 'aria-keyshortcuts': withoutPreview ? null : shortcut('a'), onclick: () => this.approve() },
        icon(withoutPreview ? 'alert' : 'check'), t(this.#sending === 'approve' ? 'decision.approving' : withoutPreview ? 'decision.approveNoPreview' : 'decision.approve'), !withoutPreview && h('kbd', { 'aria-hidden': 'true' }, 'a')),
      rejecting && this.#cancelButton());
  }

  #confirmation() {
    const reason = this.#confirmationReason();
    const deletes = this.#change.operation === 'DELETE';
    const [withPreview, withoutPreview] = deletes ? ['decision.approveDeletion', 'decision.approveDeletionNoPreview'] : ['decision.approve', 'decision.approveNoPreview'];
    return h('div', { class: `confirm${deletes ? ' deletes' : ''}` },
      h('p', { role: 'alert' }, icon('alert'),
        reason === 'delete' ? h('span', null, parts('decision.confirmDeletion', { target: quote(this.#change.target.label, 80) })) : h('span', null, reason)),
      h('div', { class: 'buttons' },
        this.#cancelButton(),
        h('button', { type: 'button', class: deletes ? 'danger' : 'approve', disabled: !isReachable(), data: { act: 'confirm' }, onclick: () => this.approve() },
          icon(deletes ? 'trash' : 'check'), t(this.#change.preview?.failed ? withoutPreview : withPreview), h('kbd', { 'aria-hidden': 'true' }, 'a'))));
  }

  #cancelButton() {
    return h('button', { type: 'button', data: { act: 'cancel' }, disabled: this.#isBlocked(), onclick: () => this.#pressCancel() }, t('common.cancel'));
  }

  #settleRow() {
    return h('div', { class: 'buttons' },
      h('button', { type: 'button', class: 'reject', data: { act: 'failed' }, onclick: () => this.#send('failed') }, icon('cross'), t('decision.itFailed')),
      h('button', { type: 'button', class: 'approve', data: { act: 'applied' }, onclick: () => this.#send('applied') }, icon('check'), t('decision.itApplied')));
  }

  // Settling an outcome requires a reason.
  #settleButtons() {
    const blocked = this.#isBlocked() || this.#comment.value.trim() === '';
    for (const button of this.element.querySelectorAll('[data-act=applied], [data-act=failed]')) button.disabled = blocked;
  }
}
