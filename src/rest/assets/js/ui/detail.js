// One change, open: loads it, keeps it current while it is looked at, and sends what is decided about it. A decision
// always names the version and digest that are on the screen.

import { conflictOf, explain } from '../core/api.js';
import { announce, notice } from '../core/announce.js';
import { differences } from '../core/compare.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { visibleString } from '../core/text.js';
import { decidable, eventOf, stateOf } from '../core/vocab.js';
import { go, routeTo } from '../core/router.js';
import * as content from './content.js';
import { DecisionBar } from './decision.js';
import { comparison } from './diff.js';
import { openEdit } from './edit.js';
import { openRule } from './rule.js';
import { emptyState, errorState, skeleton } from './states.js';
import { isAsked, mayEdit } from './terms.js';
import { actor, timeline } from './timeline.js';

const MOST_UNFOLDED = 60;
// Milliseconds until an approved change is read again.
const LOOK = 2000;

export class Detail {
  element;
  #api;
  #me;
  #decided;
  #approved;
  #saw;
  #settled;
  #next;
  #bar;
  #id = null;
  #shown = null;
  /** What the reader has seen and not yet been told to be out of date. */
  #baseline = null;
  #cause = null;
  #fetching = null;
  #again = false;
  #looking = null;
  #focusWanted = false;
  #open = new Set();
  #parts;

  /**
   * `decided(change)` is told of each answer, `approved(change)` of each approval made here, `saw(change)` of what is on
   * the screen, `settled(id)` before anything is decided or edited here; `selection` is what is decided together; `next()` opens the next change; `back()` returns to the list.
   */
  constructor({ api, me, decided, next, back, approved = () => {}, saw = () => {}, settled = () => {}, selection }) {
    this.#api = api;
    this.#me = me;
    this.#approved = approved;
    this.#saw = saw;
    this.#settled = settled;
    this.#decided = decided;
    this.#next = next;
    this.#bar = new DecisionBar({ me, selection, submit: (kind, comment) => this.#send(kind, comment) });
    const part = (cls) => h('div', { class: cls });
    this.#parts = { head: part('detail-head'), notes: part('detail-notes'), next: part('detail-next'), body: part('detail-body'), story: part('detail-story') };
    this.scroll = h('div', { class: 'detail-scroll' },
      // On a small screen this is the whole page, and the list with its heading is away.
      h('h1', { class: 'sr-only small-only', tabindex: '-1' }, 'Change'),
      h('button', { type: 'button', class: 'ghost back', onclick: back }, icon('back'), 'All changes'),
      this.#parts.head, this.#parts.notes, this.#parts.next, this.#parts.body, this.#parts.story);
    this.element = h('article', { class: 'detail', 'aria-label': 'Selected change' }, this.scroll, this.#bar.element);
    this.close();
  }

  get id() {
    return this.#id;
  }

  /** The state on the screen; null while nothing is. */
  get state() {
    return this.#shown?.change.state ?? null;
  }

  close() {
    this.#id = null;
    this.#shown = null;
    this.#fetching?.abort();
    this.#bar.hide();
    this.#blank(emptyState('inbox', 'No change selected', h('p', { class: 'hint' }, 'Select one on the left, or press ', h('kbd', null, 'j'), '.')));
  }

  #blank(...nodes) {
    fill(this.#parts.head, ...nodes);
    for (const part of ['notes', 'next', 'body', 'story']) fill(this.#parts[part]);
  }

  /** `sudden`: it opened by itself, not because somebody asked for it. */
  async open(id, { sudden = false, focus = false } = {}) {
    if (id === this.#id) {
      if (focus) this.focus();
      return;
    }
    this.#id = id;
    this.#shown = null;
    this.#baseline = null;
    this.#cause = null;
    this.#open = new Set();
    this.#bar.hide();
    fill(this.#parts.notes);
    fill(this.#parts.next);
    this.scroll.scrollTop = 0;
    // What stands there still is the change before.
    this.#focusWanted = focus;
    const slow = setTimeout(() => this.#id === id && !this.#shown && this.#blank(skeleton()), 120);
    await this.#fetch(sudden);
    clearTimeout(slow);
  }

  /** Moves the keyboard to the heading, as soon as there is one. */
  focus() {
    const title = this.#shown && this.element.querySelector('h2');
    if (title) title.focus();
    this.#focusWanted = !title;
  }

  /** The feed says that the open change has altered. */
  changed(event) {
    if (event.change.id !== this.#id) return;
    if (this.#shown && this.#shown.change.version >= event.change.version) return;
    this.#cause = event;
    this.#fetch(true);
  }

  /** Reads it again, after the feed has lost its place. */
  refresh() {
    if (this.#id !== null) this.#fetch(true);
  }

  async #fetch(sudden) {
    // One request at a time: what comes while it is under way is read once afterwards.
    if (this.#fetching && !this.#fetching.signal.aborted && this.#fetching.id === this.#id) {
      this.#again = true;
      return;
    }
    this.#fetching?.abort();
    const abort = new AbortController();
    const id = this.#id;
    abort.id = id;
    this.#fetching = abort;
    this.#again = false;
    try {
      const current = await this.#api.change(id, abort.signal);
      if (this.#id === id) this.#show(current, { sudden });
    } catch (error) {
      if (this.#id === id && !abort.signal.aborted) this.#failed(error);
    } finally {
      if (this.#fetching === abort) {
        this.#fetching = null;
        if (this.#again && this.#id === id) this.#fetch(true);
      }
    }
  }

  #failed(error) {
    if (error.status === 401) return;
    if (this.#shown) {
      notice(explain(error), { tone: 'red', iconName: 'alert' });
      return;
    }
    this.#blank(errorState(error, () => {
      this.#blank(skeleton());
      this.#fetch(false);
    }));
  }

  #show(current, { sudden = false, conflict = false, own = false } = {}) {
    const before = this.#shown;
    // What is on the screen already is not painted again, unless there is something to say about it.
    const same = before && before.change.version === current.change.version && before.change.waitsFor?.change === current.change.waitsFor?.change;
    this.#look(current.change);
    if (before && (before.change.version > current.change.version || (same && !conflict && !own))) return;
    this.#shown = current;
    const { change } = current;
    this.#baseline ??= current;
    const undecided = decidable(change.state);
    const altered = undecided && this.#baseline.change.digest !== change.digest;
    const moved = before !== null && before.change.version !== change.version;
    const hadFocus = this.#bar.element.contains(document.activeElement) || this.#parts.head.contains(document.activeElement);
    this.#remember();
    fill(this.#parts.head, content.head(change, this.#actions(change)), content.review(change), content.asked(change));
    this.#notes(current, { altered, moved, conflict });
    const source = current.source ?? 'null';
    fill(this.#parts.body, content.outcome(change), content.result(change), content.questions(change), content.changes(change, source), content.edited(change, source, current.proposed), content.args(change, source));
    this.#restore();
    if (this.#focusWanted) this.focus();
    this.#bar.show(change, { altered, sudden: sudden && (moved || before === null), anew: altered && conflict });
    if (!undecided && change.state !== 'outcome_unknown' && hadFocus) this.focus();
    this.#story(change.id);
    this.#decided(change);
    this.#saw(change);
  }

  // No event says for whom an approved change waits.
  #look({ id, state }) {
    clearTimeout(this.#looking);
    if (state === 'approved') this.#looking = setTimeout(() => this.#id === id && this.#fetch(true), LOOK);
  }

  // What can be done beside deciding.
  #actions(change) {
    const may = isAsked(change, this.#me);
    const button = (act, iconName, text, key, run) => h('button', { type: 'button', class: 'ghost small', data: { act }, 'aria-keyshortcuts': key, title: key ? `${text} (${key})` : text, onclick: run }, icon(iconName), h('span', null, text));
    return h('span', { class: 'detail-actions' },
      may && decidable(change.state) && mayEdit(change.terms) && button('edit', 'pencil', 'Edit', 'e', () => this.edit()),
      may && button('rule', 'rule', 'Create standing rule…', null, () => this.#rule()),
      button('print', 'print', 'Print', null, () => {
        this.#unfold();
        print();
      }));
  }

  // Paper has nothing to press: what is folded or cut is opened, within bounds.
  #unfold() {
    for (const details of this.scroll.querySelectorAll('details')) details.open = true;
    for (let n = 0; n < MOST_UNFOLDED; n += 1) {
      const more = this.#parts.body.querySelector('button.more');
      if (!more) return;
      more.click();
    }
  }

  /** The key `e`. */
  edit() {
    const open = this.#shown;
    if (!open || !isAsked(open.change, this.#me) || !decidable(open.change.state)) return false;
    const { change } = open;
    if (!mayEdit(change.terms)) {
      notice('The rule for this tool does not allow reviewers to edit its changes.', { tone: 'amber', iconName: 'hidden' });
      return true;
    }
    openEdit({
      open: { change, source: open.source ?? 'null' },
      schema: () => this.#schema(change),
      send: async (source, comment) => {
        // Who edits it knows that it is another one.
        this.#settled(change.id);
        try {
          return await this.#api.edit(change.id, { source, version: change.version, comment });
        } catch (error) {
          const conflict = conflictOf(error);
          if (conflict && conflict.change.version !== change.version && this.#id === change.id) this.#show(conflict, { conflict: true });
          throw error;
        }
      },
      done: (answer) => {
        if (this.#id !== change.id) return;
        this.#baseline = answer;
        // The feed may have been quicker: what one made oneself is no surprise all the same.
        this.#show(answer, { own: true });
        this.focus();
        this.scroll.scrollTop = 0;
        announce('Saved. The diff shows what the new arguments would change.');
        notice('Saved with a new preview.', { tone: 'green', iconName: 'check' });
      },
    });
    return true;
  }

  // The input schema as the server's list of tools has it; without one the arguments are edited as JSON.
  async #schema({ provider, tool }) {
    try {
      const { tools } = await this.#api.server(provider);
      const found = tools.find((t) => t.name === tool) ?? tools.find((t) => t.name.endsWith(`__${tool}`));
      return found ? JSON.parse(found.definition).inputSchema ?? null : null;
    } catch {
      return null;
    }
  }

  #rule() {
    const { change } = this.#shown;
    openRule({
      change, make: (rule) => this.#api.makeRule(change.id, rule),
      done: () => notice('Standing rule created.', { tone: 'green', iconName: 'rule', action: { label: 'Standing rules', run: () => go(routeTo('rules')) } }),
    });
  }

  // A repaint must not close what somebody has opened.
  #remember() {
    for (const details of this.#parts.body.querySelectorAll('details')) {
      const name = details.querySelector('summary').textContent;
      if (details.open) this.#open.add(name);
      else this.#open.delete(name);
    }
  }

  #restore() {
    for (const details of this.#parts.body.querySelectorAll('details')) details.open = this.#open.has(details.querySelector('summary').textContent);
  }

  #notes(current, { altered, moved, conflict }) {
    const { change } = current;
    const cause = this.#cause && this.#cause.change.version === change.version ? this.#cause : null;
    this.#cause = null;
    if (!altered && !moved && !conflict) return;
    if (!altered) {
      this.#parts.notes.querySelector('.altered')?.remove();
      if (conflict) {
        fill(this.#parts.notes, h('div', { class: 'banner tone-amber', role: 'status' }, icon('info'),
          h('span', null, h('strong', null, 'Your decision was not recorded: '), `the change was already ${stateOf(change.state).label.toLowerCase()}.`)));
      } else if (cause) {
        announce(`${cause.actor === 'system' ? 'Countersign' : cause.actor} ${eventOf(cause.type).label}.`);
      }
      return;
    }
    const list = differences(this.#baseline, current);
    fill(this.#parts.notes, h('div', { class: 'banner tone-amber altered', role: 'status' }, icon('refresh'),
      h('div', null,
        h('p', null, h('strong', null, conflict ? 'Your decision was not recorded because the change was updated. ' : 'This change was updated while you were reading. '),
          'The new version is shown below', cause && cause.actor !== 'system' ? [' (', actor(cause.actor), ` ${visibleString(eventOf(cause.type).label)})`] : null, '.'),
        list.length ? comparison(list) : h('p', { class: 'quiet' }, 'The fields are the same, but the target has changed.'),
        h('button', { type: 'button', class: 'link', onclick: () => this.#acknowledge() }, 'Got it'))));
    announce('The open change was updated. Read the new version before you decide.');
  }

  #acknowledge() {
    this.#baseline = this.#shown;
    fill(this.#parts.notes);
    this.#bar.show(this.#shown.change);
    this.focus();
  }

  async #story(id) {
    try {
      const { entries, nextCursor } = await this.#api.audit({ change: id, limit: 100 });
      if (this.#id !== id) return;
      fill(this.#parts.story, content.section('Timeline', null, timeline(entries, this.#shown.change),
        h('p', { class: 'story-more' }, h('a', { href: routeTo('audit', id) }, 'Show in the audit trail'))));
    } catch (error) {
      if (this.#id === id && error.status !== 401) fill(this.#parts.story, content.section('Timeline', null, h('p', { class: 'quiet' }, visibleString(explain(error)))));
    }
  }

  async #send(kind, comment) {
    const { id, version, digest } = this.#shown.change;
    this.#settled(id);
    try {
      const answer = await {
        approve: () => this.#api.decide(id, { decision: kind, comment: comment || undefined, version, digest }),
        reject: () => this.#api.decide(id, { decision: kind, comment: comment || undefined, version, digest }),
        undo: () => this.#api.undo(id, version),
        again: () => this.#api.lookAgain(id, version),
        applied: () => this.#api.settle(id, { outcome: kind, comment, version }),
        failed: () => this.#api.settle(id, { outcome: kind, comment, version }),
      }[kind]();
      if (kind === 'approve') this.#approved(answer.change);
      if (this.#id === id) {
        this.#baseline = answer;
        this.#show(answer);
        if (!decidable(answer.change.state) || kind === 'approve') this.#offerNext();
      }
      announce({
        approve: answer.change.state === 'pending' ? 'Your approval is recorded; more approvals are needed.' : 'Approved.', reject: 'Rejected.', applied: 'Settled as applied.', failed: 'Settled as failed.',
        undo: 'Undone. The change is waiting for a decision again.', again: 'Preview refreshed.',
      }[kind]);
      return true;
    } catch (error) {
      if (this.#id !== id) {
        notice(explain(error), { tone: 'red', iconName: 'alert' });
        return false;
      }
      const inside = conflictOf(error);
      // A refusal may carry the change as it was shown: then it is no conflict.
      const conflict = inside && inside.change.id === id && inside.change.version !== version ? inside : null;
      if (conflict) this.#show(conflict, { sudden: true, conflict: true });
      if (!conflict || decidable(conflict.change.state)) this.#bar.fail(conflict ? 'Not recorded: read the new version and decide again.' : explain(error));
      return false;
    }
  }

  #offerNext() {
    const next = this.#next(false);
    if (!next) return;
    fill(this.#parts.next, h('p', { class: 'next-up' }, h('button', { type: 'button', class: 'link', onclick: () => this.#next(true) }, 'Next change', icon('chevron')), h('kbd', null, 'j')));
  }

  /** Something else is selected in the list. */
  selected() {
    this.#bar.follow();
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

  again() {
    return this.#bar.again();
  }

  /** What the open change became by other means than this page's own decision. */
  adopt(answer) {
    if (this.#id !== answer.change.id) return;
    this.#baseline = answer;
    this.#show(answer);
  }

  cancel() {
    return this.#bar.cancel();
  }
}
