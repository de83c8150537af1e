// Shows one open change, keeps it current and sends decisions, which always carry the version and digest on the screen.

import { conflictOf, explain } from '../core/api.js';
import { announce, notice } from '../core/announce.js';
import { differences } from '../core/compare.js';
import { isReachable, needsGateway } from '../core/connection.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { shortcut } from '../core/keys.js';
import { parts, t } from '../core/locale.js';
import { short, visibleString } from '../core/text.js';
import { now } from '../core/time.js';
import { isDecidable, eventOf, stateOf } from '../core/vocab.js';
import { go, routeTo } from '../core/router.js';
import * as content from './content.js';
import { DecisionBar } from './decision.js';
import { comparison } from './diff.js';
import { inputSchemaOf, openEdit } from './edit.js';
import { openRule } from './rule.js';
import { needsSignIn, signInButton } from './signinagain.js';
import { emptyState, errorState, missingState, problemNotice, skeleton } from './states.js';
import { suggestedRules } from './suggestions.js';
import { escalationTime, isReviewerOf, mayCreateRule, mayEdit } from './terms.js';
import { actor, timeline } from './timeline.js';

const MAX_UNFOLDED = 60;
// The interval in milliseconds at which an approved change is read again.
const POLL_INTERVAL = 2000;
// Browsers run timers with a longer delay at once.
const MAX_TIMEOUT = 2 ** 31 - 1;
// What is said when another decision came first.
const ALREADY = {
  pending: 'detail.alreadyPending', stale: 'detail.alreadyStale', approved: 'detail.alreadyApproved', executing: 'detail.alreadyRunning', outcome_unknown: 'detail.alreadyUnknown',
  applied: 'detail.alreadyApplied', failed: 'detail.alreadyFailed', rejected: 'detail.alreadyRejected', expired: 'detail.alreadyExpired', withdrawn: 'detail.alreadyWithdrawn',
};

export class Detail {
  element;
  #api;
  #me;
  #decided;
  #approved;
  #seen;
  #deciding;
  #next;
  #bar;
  #id = null;
  #shown = null;
  /** The last version that the reader has acknowledged. */
  #baseline = null;
  #cause = null;
  #fetching = null;
  #fetchAgain = false;
  #pollTimer = null;
  #escalationTimer = null;
  #focusWanted = false;
  #openFolds = new Set();
  #parts;

  /**
   * `decided(change)` is called for each new state, `approved(change)` for each approval made here, `seen(change)` for
   * each version on the screen, `deciding(id)` before anything is decided or edited here. `drafts`, `selection` and
   * `back()`, which returns to the list, are passed to the decision bar. `next()` opens the next change.
   */
  constructor({ api, me, drafts, decided, next, back, approved = () => {}, seen = () => {}, deciding = () => {}, selection }) {
    this.#api = api;
    this.#me = me;
    this.#approved = approved;
    this.#seen = seen;
    this.#deciding = deciding;
    this.#decided = decided;
    this.#next = next;
    this.#bar = new DecisionBar({ me, drafts, selection, back, submit: (kind, comment) => this.#send(kind, comment) });
    const part = (cls) => h('div', { class: cls });
    this.#parts = { head: part('detail-head'), notes: part('detail-notes'), next: part('detail-next'), body: part('detail-body'), suggested: part('detail-suggested'), story: part('detail-story') };
    this.scroll = h('div', { class: 'detail-scroll' },
      // On a small screen the list with its heading is hidden.
      h('h1', { class: 'sr-only small-only', tabindex: '-1' }, t('detail.change')),
      h('button', { type: 'button', class: 'ghost back', onclick: back }, icon('back'), t('detail.allChanges')),
      this.#parts.head, this.#parts.notes, this.#parts.next, this.#parts.body, this.#parts.suggested, this.#parts.story);
    this.element = h('article', { class: 'detail', 'aria-label': t('detail.selectedChange') }, this.scroll, this.#bar.element);
    this.close();
  }

  get id() {
    return this.#id;
  }

  get state() {
    return this.#shown?.change.state ?? null;
  }

  close() {
    this.#id = null;
    this.#shown = null;
    this.#fetching?.abort();
    this.#bar.hide();
    this.#blank(emptyState('inbox', t('detail.noneSelected'), h('p', { class: 'hint' }, parts('detail.selectOne', { key: h('kbd', null, 'j') }))));
  }

  #blank(...nodes) {
    fill(this.#parts.head, ...nodes);
    for (const part of ['notes', 'next', 'body', 'suggested', 'story']) fill(this.#parts[part]);
  }

  /** Opens a change. `sudden` means that it opened without an action of the user. */
  async open(id, { sudden = false, focus = false } = {}) {
    if (id === this.#id) {
      if (focus) this.focus();
      return;
    }
    this.#id = id;
    this.#shown = null;
    this.#baseline = null;
    this.#cause = null;
    this.#openFolds = new Set();
    this.#bar.hide();
    fill(this.#parts.notes);
    fill(this.#parts.next);
    fill(this.#parts.suggested);
    this.scroll.scrollTop = 0;
    // The heading on the screen is still that of the previous change, so the focus moves when this one is loaded.
    this.#focusWanted = focus;
    const slow = setTimeout(() => this.#id === id && !this.#shown && this.#blank(skeleton()), 120);
    await this.#fetch(sudden);
    clearTimeout(slow);
  }

  /** Moves the focus to the heading as soon as there is one. */
  focus() {
    const title = this.#shown && this.element.querySelector('h2');
    if (title) title.focus();
    this.#focusWanted = !title;
  }

  changed(event) {
    if (event.change.id !== this.#id) return;
    if (event.type === 'change.escalated') this.#showEscalation(this.#id);
    if (this.#shown && this.#shown.change.version >= event.change.version) return;
    this.#cause = event;
    this.#fetch(true);
  }

  refresh() {
    if (this.#id !== null) this.#fetch(true);
  }

  async #fetch(sudden) {
    // Only one request runs at a time; requests in between lead to one more read.
    if (this.#fetching && !this.#fetching.signal.aborted && this.#fetching.id === this.#id) {
      this.#fetchAgain = true;
      return;
    }
    this.#fetching?.abort();
    const abort = new AbortController();
    const id = this.#id;
    abort.id = id;
    this.#fetching = abort;
    this.#fetchAgain = false;
    try {
      const current = await this.#api.change(id, abort.signal);
      if (this.#id === id) this.#show(current, { sudden });
    } catch (error) {
      if (this.#id === id && !abort.signal.aborted) this.#showError(error);
    } finally {
      if (this.#fetching === abort) {
        this.#fetching = null;
        if (this.#fetchAgain && this.#id === id) this.#fetch(true);
      }
    }
  }

  #showError(error) {
    if (error.status === 401) return;
    if (this.#shown) {
      problemNotice(error);
      return;
    }
    if (error.code === 'CHANGE_NOT_FOUND') {
      this.#blank(missingState(t('detail.missing', { id: visibleString(short(this.#id, 60)) }), t('detail.missingWhy')));
      return;
    }
    this.#blank(errorState(error, () => {
      this.#blank(skeleton());
      this.#fetch(false);
    }));
  }

  #show(current, { sudden = false, conflict = false, own = false } = {}) {
    const before = this.#shown;
    // The same version is painted again only if there is a message to show.
    const same = before && before.change.version === current.change.version && before.change.waitsFor?.change === current.change.waitsFor?.change;
    this.#pollApproved(current.change);
    this.#awaitEscalation(current.change);
    if (before && (before.change.version > current.change.version || (same && !conflict && !own))) return;
    this.#shown = current;
    const { change } = current;
    this.#baseline ??= current;
    const undecided = isDecidable(change.state);
    const altered = undecided && this.#baseline.change.digest !== change.digest;
    const isNewVersion = before !== null && before.change.version !== change.version;
    const isAnswer = this.#bar.mode === 'busy';
    const hadFocus = this.#bar.hasFocus || this.#parts.head.contains(document.activeElement);
    this.#rememberFolds();
    this.#showHead(change);
    this.#showNotes(current, { altered, isNewVersion, conflict });
    const source = current.source ?? 'null';
    const result = content.result(change);
    const first = content.resultComesFirst(change);
    fill(this.#parts.body, content.outcome(change), first && result, content.questions(change), content.changes(change, source), !first && result, content.edited(change, source, current.proposed), content.args(change, source));
    this.#restoreFolds();
    if (this.#focusWanted) this.focus();
    this.#bar.show(change, { altered, sudden: sudden && (isNewVersion || before === null), afterConflict: altered && conflict });
    if (hadFocus && (isAnswer || (!undecided && change.state !== 'outcome_unknown'))) this.focus();
    this.#loadTimeline(change.id);
    this.#loadSuggestions(change);
    this.#decided(change);
    this.#seen(change);
  }

  #showHead(change) {
    fill(this.#parts.head, content.head(change, this.#actions(change)), content.statedReason(change), content.review(change), content.requirements(change));
  }

  // Time lets further reviewers decide. The event of that moment arrives only if the leading node is this one.
  #awaitEscalation(change) {
    clearTimeout(this.#escalationTimer);
    const at = escalationTime(change);
    const wait = at === null || !isDecidable(change.state) ? 0 : at - now();
    if (wait > 0 && wait < MAX_TIMEOUT) this.#escalationTimer = setTimeout(() => this.#showEscalation(change.id), wait);
  }

  #showEscalation(id) {
    if (this.#id !== id || !this.#shown) return;
    const hadFocus = this.#parts.head.contains(document.activeElement);
    this.#rememberFolds();
    this.#showHead(this.#shown.change);
    this.#restoreFolds();
    if (hadFocus) this.focus();
    this.#bar.refresh();
    this.#loadTimeline(id);
  }

  // There is no event for a change that starts to wait for another one, so approved changes are polled.
  #pollApproved({ id, state }) {
    clearTimeout(this.#pollTimer);
    if (state === 'approved') this.#pollTimer = setTimeout(() => this.#id === id && this.#fetch(true), POLL_INTERVAL);
  }

  // Creates the buttons other than the decision.
  #actions(change) {
    const isReviewer = isReviewerOf(change, this.#me);
    const button = (act, iconName, text, key, run, props = needsGateway()) => h('button', { type: 'button', class: 'ghost small', data: { act }, 'aria-keyshortcuts': key, title: key ? `${text} (${key})` : text, onclick: run, ...props }, icon(iconName), h('span', null, text));
    return h('span', { class: 'detail-actions' },
      isReviewer && isDecidable(change.state) && mayEdit(change.terms) && button('edit', 'pencil', t('detail.edit'), shortcut('e'), () => this.edit()),
      // A rule outlasts the change, so an escalation does not let anybody create one.
      mayCreateRule(change, this.#me) && button('rule', 'rule', t('detail.createRule'), null, () => this.#rule()),
      button('print', 'print', t('detail.print'), null, () => {
        this.#unfold();
        print();
      }, {}));
  }

  // Opens folded and truncated parts before printing, up to a bound.
  #unfold() {
    for (const details of this.scroll.querySelectorAll('details')) details.open = true;
    for (let n = 0; n < MAX_UNFOLDED; n += 1) {
      const more = this.#parts.body.querySelector('button.more');
      if (!more) return;
      more.click();
    }
  }

  /** Handles the key `e`. */
  edit() {
    const open = this.#shown;
    if (!open || !isReachable() || !isReviewerOf(open.change, this.#me) || !isDecidable(open.change.state)) return false;
    const { change } = open;
    if (!mayEdit(change.terms)) {
      notice(t('core.api.editForbidden'), { tone: 'amber', iconName: 'hidden' });
      return true;
    }
    openEdit({
      open: { change, source: open.source ?? 'null' },
      schema: () => inputSchemaOf(this.#api, change),
      send: async (source, comment) => {
        // The editor knows that the change is modified.
        this.#deciding(change.id);
        try {
          return await this.#api.edit(change.id, { source, version: change.version, comment });
        } catch (error) {
          const conflict = conflictOf(error);
          if (conflict && conflict.change.version !== change.version && this.#id === change.id) this.#show(conflict, { conflict: true });
          throw error;
        }
      },
      remedy: async (error) => (needsSignIn(error) ? signInButton(this.#api, change.id, t('detail.discardAndSignIn')) : null),
      done: (answer) => {
        if (this.#id !== change.id) return;
        this.#baseline = answer;
        // The event may have arrived first; the reader's own edit is still not announced as a surprise.
        this.#show(answer, { own: true });
        this.focus();
        this.scroll.scrollTop = 0;
        announce(t('detail.savedRead'));
        notice(t('detail.saved'), { tone: 'green', iconName: 'check' });
      },
    });
    return true;
  }

  #rule(suggestion = null) {
    if (!this.#shown) return;
    const { change } = this.#shown;
    openRule({
      change, suggestion, create: (rule) => this.#api.createRule(change.id, rule),
      done: () => {
        this.#loadSuggestions(change);
        notice(t('detail.ruleCreated'), { tone: 'green', iconName: 'rule', action: { label: t('detail.standingRules'), run: () => go(routeTo('rules')) } });
      },
    });
  }

  // Folds that the reader opened stay open after a repaint.
  #rememberFolds() {
    for (const details of this.#parts.body.querySelectorAll('details')) {
      const name = details.querySelector('summary').textContent;
      if (details.open) this.#openFolds.add(name);
      else this.#openFolds.delete(name);
    }
  }

  #restoreFolds() {
    for (const details of this.#parts.body.querySelectorAll('details')) details.open = this.#openFolds.has(details.querySelector('summary').textContent);
  }

  #showNotes(current, { altered, isNewVersion, conflict }) {
    const { change } = current;
    const cause = this.#cause && this.#cause.change.version === change.version ? this.#cause : null;
    this.#cause = null;
    if (!altered && !isNewVersion && !conflict) return;
    if (!altered) {
      this.#parts.notes.querySelector('.altered')?.remove();
      if (conflict) {
        fill(this.#parts.notes, h('div', { class: 'banner tone-amber', role: 'status' }, icon('info'),
          h('span', null, h('strong', null, t('detail.notRecorded')), ' ', t(ALREADY[change.state] ?? 'detail.alreadyOther', { state: stateOf(change.state).label }))));
      } else if (cause) {
        announce(t('detail.event', { actor: cause.actor === 'system' ? 'Countersign' : cause.actor, event: eventOf(cause.type).label }));
      }
      return;
    }
    const list = differences(this.#baseline, current);
    fill(this.#parts.notes, h('div', { class: 'banner tone-amber altered', role: 'status' }, icon('refresh'),
      h('div', null,
        h('p', null, h('strong', null, t(conflict ? 'detail.notRecordedUpdated' : 'detail.updatedMeanwhile')), ' ',
          cause && cause.actor !== 'system' ? parts('detail.newVersionBelowBy', { actor: actor(cause.actor), event: visibleString(eventOf(cause.type).label) }) : t('detail.newVersionBelow')),
        list.length ? comparison(list) : h('p', { class: 'quiet' }, t('detail.sameFields')),
        h('button', { type: 'button', class: 'link', onclick: () => this.#acknowledge() }, t('detail.gotIt')))));
    announce(t('detail.openUpdated'));
  }

  #acknowledge() {
    this.#baseline = this.#shown;
    fill(this.#parts.notes);
    this.#bar.show(this.#shown.change);
    this.focus();
  }

  async #loadTimeline(id) {
    try {
      const { entries } = await this.#api.audit({ change: id, limit: 100 });
      if (this.#id !== id) return;
      fill(this.#parts.story, content.section(t('detail.timeline'), null, timeline(entries, this.#shown.change),
        h('p', { class: 'story-more' }, h('a', { href: routeTo('audit', id) }, t('detail.inTrail')))));
    } catch (error) {
      if (this.#id === id && error.status !== 401) fill(this.#parts.story, content.section(t('detail.timeline'), null, h('p', { class: 'quiet' }, visibleString(explain(error)))));
    }
  }

  async #loadSuggestions(change) {
    const { id, version, operation, terms } = change;
    if (!mayCreateRule(change, this.#me) || operation === 'DELETE' || terms.quorum > 1) return;
    // Without an answer the page only lacks a hint.
    const found = await this.#api.suggestions(id).catch(() => null);
    if (found && this.#shown?.change.id === id && this.#shown.change.version === version) fill(this.#parts.suggested, suggestedRules(change, found, (suggestion) => this.#rule(suggestion)));
  }

  async #send(kind, comment) {
    const { id, version, digest } = this.#shown.change;
    this.#deciding(id);
    try {
      const answer = await {
        approve: () => this.#api.decide(id, { decision: kind, comment: comment || undefined, version, digest }),
        reject: () => this.#api.decide(id, { decision: kind, comment: comment || undefined, version, digest }),
        undo: () => this.#api.undo(id, version),
        refresh: () => this.#api.refreshPreview(id, version),
        applied: () => this.#api.settle(id, { outcome: kind, comment, version }),
        failed: () => this.#api.settle(id, { outcome: kind, comment, version }),
      }[kind]();
      if (kind === 'approve') this.#approved(answer.change);
      if (this.#id === id) {
        this.#baseline = answer;
        this.#show(answer);
        if (!isDecidable(answer.change.state) || kind === 'approve') this.#offerNext();
      }
      announce({
        approve: t(answer.change.state === 'pending' ? 'detail.voted' : 'detail.approved'), reject: t('detail.rejected'), applied: t('detail.settledApplied'), failed: t('detail.settledFailed'),
        undo: t('detail.undone'), refresh: t('detail.refreshed'),
      }[kind]);
      return true;
    } catch (error) {
      if (this.#id !== id) {
        problemNotice(error);
        return false;
      }
      const carried = conflictOf(error);
      // An error may also carry the version on the screen, which is not a conflict.
      const conflict = carried && carried.change.id === id && carried.change.version !== version ? carried : null;
      if (conflict) this.#show(conflict, { sudden: true, conflict: true });
      const remedy = !conflict && needsSignIn(error) ? await signInButton(this.#api, id) : null;
      if (this.#id !== id) return false;
      if (!conflict || isDecidable(conflict.change.state)) this.#bar.fail(conflict ? t('detail.readAgain') : explain(error), remedy);
      return false;
    }
  }

  #offerNext() {
    const next = this.#next(false);
    if (!next) return;
    fill(this.#parts.next, h('p', { class: 'next-up' }, h('button', { type: 'button', class: 'link', onclick: () => this.#next(true) }, t('detail.next'), icon('chevron')), h('kbd', null, 'j')));
  }

  selectionChanged() {
    this.#bar.selectionChanged();
  }

  approve() {
    this.#bar.approveByKey();
  }

  reject() {
    this.#bar.startReject();
  }

  undo() {
    return this.#bar.undo();
  }

  refreshPreview() {
    return this.#bar.refreshPreview();
  }

  /** Shows a change that was modified by another part of this page. */
  adopt(answer) {
    if (this.#id !== answer.change.id) return;
    this.#baseline = answer;
    this.#show(answer);
  }

  cancel() {
    return this.#bar.cancel();
  }
}
