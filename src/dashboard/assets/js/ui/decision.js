// Where a person decides: a comment, approve, reject; or how an unknown outcome ended. What could do harm if it were
// pressed by accident (a deletion, a change that has just altered under the reader, a diff that was cut) asks twice.

import { h, fill } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { said, visibleString } from '../core/text.js';
import { decidable } from '../core/vocab.js';

// A second press that comes sooner is half of a double click.
const SECOND_PRESS = 500;
// What has altered by itself is not decided on by a press that was already under way.
const SETTLE_TIME = 600;
const MAX_COMMENT = 2000;

export class DecisionBar {
  element = h('footer', { class: 'decision', 'aria-label': 'Decision', hidden: true });
  #me;
  #submit;
  #change = null;
  #altered = false;
  #mode = 'idle';
  #armedAt = 0;
  #notBefore = 0;
  #timer = null;
  #error = '';
  #drafts = new Map();
  #comment;

  /** `submit(kind, comment)` resolves when the gateway has answered; kinds are approve, reject, applied and failed. */
  constructor({ me, submit }) {
    this.#me = me;
    this.#submit = submit;
    this.#comment = h('textarea', {
      id: 'comment', rows: '1', maxlength: String(MAX_COMMENT), autocomplete: 'off', spellcheck: 'true',
      oninput: () => this.#draft(), onkeydown: (event) => this.#commentKey(event), 'aria-keyshortcuts': 'Control+Enter',
    });
  }

  get mode() {
    return this.#mode;
  }

  /** `altered`: the content is not what was shown a moment ago, and the reader has not asked for that. */
  show(change, { altered = false, sudden = false } = {}) {
    const same = this.#change?.id === change.id;
    if (!same) this.#comment.value = this.#drafts.get(change.id) ?? '';
    if (!same || change.version !== this.#change.version) {
      this.#mode = 'idle';
      if (!same) this.#error = '';
    }
    if (sudden) this.#settle();
    this.#change = change;
    this.#altered = altered;
    this.#render();
  }

  // The button can be seen to wait; a press meanwhile would be for what stood there before.
  #settle() {
    this.#notBefore = Date.now() + SETTLE_TIME;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      const button = this.element.querySelector('[data-act=approve]');
      if (button && this.#mode !== 'busy') button.disabled = false;
    }, SETTLE_TIME);
  }

  hide() {
    this.#change = null;
    this.#mode = 'idle';
    this.#error = '';
    this.element.hidden = true;
    this.element.replaceChildren();
  }

  fail(message) {
    this.#mode = 'idle';
    this.#error = message;
    this.#render();
  }

  /** The key `a` or the button; the second press where one is asked for. */
  approve() {
    if (!this.#may() || this.#change.state !== 'pending' || this.#ownProposal()) return;
    if (Date.now() < this.#notBefore) return;
    if (this.#mode === 'confirm') {
      if (Date.now() - this.#armedAt >= SECOND_PRESS) this.#send('approve');
      return;
    }
    if (this.#doubt()) {
      this.#mode = 'confirm';
      this.#armedAt = Date.now();
      this.#error = '';
      const hadFocus = this.element.contains(document.activeElement);
      this.#render();
      if (hadFocus) this.element.querySelector('[data-act=cancel]')?.focus();
      return;
    }
    this.#send('approve');
  }

  /** The key `r`: the comment first. */
  startReject() {
    if (!this.#may() || !decidable(this.#change.state)) return;
    this.#mode = 'reject';
    this.#error = '';
    this.#render();
    this.#comment.focus();
  }

  /** Escape; returns whether there was anything to cancel. */
  cancel() {
    if (this.#mode !== 'confirm' && this.#mode !== 'reject') return false;
    const hadFocus = this.element.contains(document.activeElement);
    const was = this.#mode;
    this.#mode = 'idle';
    this.#render();
    if (hadFocus) this.element.querySelector(was === 'confirm' ? '[data-act=approve]' : '[data-act=reject]')?.focus();
    return true;
  }

  #may() {
    return this.#me.mayDecide && this.#change !== null && this.#mode !== 'busy';
  }

  #ownProposal() {
    return this.#change.proposer.principal === this.#me.name;
  }

  #doubt() {
    if (this.#altered) return 'It changed while you were reading. Have you seen the new version?';
    if (this.#change.diff.truncated) return 'The diff is not complete. Have you read the arguments?';
    return this.#change.operation === 'DELETE' ? 'delete' : null;
  }

  #draft() {
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
      this.#send('reject');
    }
  }

  async #send(kind) {
    if (!this.#may()) return;
    const { id } = this.#change;
    const comment = this.#comment.value.trim();
    this.#mode = 'busy';
    this.#error = '';
    this.#render(kind);
    const done = await this.#submit(kind, comment);
    if (done) this.#drafts.delete(id);
    if (this.#change?.id !== id) return;
    if (done) this.#comment.value = '';
    if (this.#mode === 'busy') {
      this.#mode = 'idle';
      this.#render();
    }
  }

  #render(busyWith = null) {
    const change = this.#change;
    const { state } = change;
    const settling = state === 'outcome_unknown';
    if (!decidable(state) && !settling) {
      this.element.hidden = true;
      this.element.replaceChildren();
      return;
    }
    this.element.hidden = false;
    this.element.dataset.mode = this.#mode;
    if (!this.#me.mayDecide) {
      fill(this.element, h('p', { class: 'decision-note' }, icon('eye'), 'You are signed in as a viewer: you can look at changes, and others decide on them.'));
      return;
    }
    const typing = document.activeElement === this.#comment;
    const caret = [this.#comment.selectionStart, this.#comment.selectionEnd];
    fill(this.element,
      this.#error && h('p', { class: 'decision-error', role: 'alert' }, icon('alert'), h('span', null, visibleString(this.#error))),
      this.#note(),
      this.#mode === 'confirm' ? this.#confirmation() : h('div', { class: 'decision-row' },
        h('label', { class: 'sr-only', for: 'comment' }, settling ? 'How do you know?' : 'Comment'),
        this.#comment,
        settling ? this.#settleRow() : this.#decideRow(busyWith)));
    this.#comment.placeholder = this.#mode === 'reject' ? 'Why? (optional)' : settling ? 'How do you know? (goes into the audit trail)' : 'Comment (optional)';
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
      return h('p', { class: 'decision-note' }, icon('refresh'), 'There is no valid preview any more, so it cannot be approved. Reject it, or leave it to its proposer.');
    }
    if (change.state === 'pending' && this.#ownProposal()) {
      return h('p', { class: 'decision-note' }, icon('person'), 'You proposed this change, so somebody else has to approve it.');
    }
    if (this.#mode === 'reject') {
      return h('p', { class: 'decision-note' }, icon('cross'), h('span', null, h('kbd', null, 'Ctrl'), ' ', h('kbd', null, 'Enter'), ' rejects, ', h('kbd', null, 'Esc'), ' cancels.'));
    }
    const approvals = change.decisions.filter((d) => d.verdict === 'approve').length;
    if (change.terms.quorum > 1 && change.state === 'pending') {
      return h('p', { class: 'decision-note' }, icon('check'), `${approvals} of ${change.terms.quorum} approvals so far.`);
    }
    return null;
  }

  #decideRow(busyWith) {
    const busy = this.#mode === 'busy';
    const canApprove = this.#change.state === 'pending' && !this.#ownProposal();
    return h('div', { class: 'buttons' },
      h('button', { type: 'button', class: `reject${this.#mode === 'reject' ? ' armed' : ''}`, disabled: busy, data: { act: 'reject' }, 'aria-keyshortcuts': 'r', onclick: () => this.#send('reject') },
        icon('cross'), busyWith === 'reject' ? 'Rejecting…' : 'Reject', h('kbd', { 'aria-hidden': 'true' }, 'R')),
      canApprove && h('button', { type: 'button', class: 'approve', disabled: busy || Date.now() < this.#notBefore, data: { act: 'approve' }, 'aria-keyshortcuts': 'a', onclick: () => this.approve() },
        icon('check'), busyWith === 'approve' ? 'Approving…' : 'Approve', h('kbd', { 'aria-hidden': 'true' }, 'A')));
  }

  #confirmation() {
    const doubt = this.#doubt();
    const deletes = this.#change.operation === 'DELETE';
    return h('div', { class: `confirm${deletes ? ' deletes' : ''}` },
      h('p', { role: 'alert' }, icon('alert'),
        doubt === 'delete' ? h('span', null, 'This deletes ', said(this.#change.target.label, 80), '. Approve the deletion?') : h('span', null, doubt)),
      h('div', { class: 'buttons' },
        h('button', { type: 'button', data: { act: 'cancel' }, onclick: () => this.cancel() }, 'Cancel'),
        h('button', { type: 'button', class: deletes ? 'danger' : 'approve', data: { act: 'confirm' }, onclick: () => this.approve() },
          icon(deletes ? 'trash' : 'check'), deletes ? 'Approve deletion' : 'Approve', h('kbd', { 'aria-hidden': 'true' }, 'A'))));
  }

  #settleRow() {
    return h('div', { class: 'buttons' },
      h('button', { type: 'button', class: 'reject', data: { act: 'failed' }, onclick: () => this.#send('failed') }, icon('cross'), 'It failed'),
      h('button', { type: 'button', class: 'approve', data: { act: 'applied' }, onclick: () => this.#send('applied') }, icon('check'), 'It was applied'));
  }

  // What nobody could observe is only settled with a reason.
  #settleButtons() {
    const blocked = this.#mode === 'busy' || this.#comment.value.trim() === '';
    for (const button of this.element.querySelectorAll('[data-act=applied], [data-act=failed]')) button.disabled = blocked;
  }
}
