// Shows a notice for each approval that can still be undone, counting down to when the change runs.

import { announce, notice } from '../core/announce.js';
import { explain } from '../core/api.js';
import { isReachable, REACHABILITY_CHANGED } from '../core/connection.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { areCharacterKeysOn } from '../core/keys.js';
import { parts, t } from '../core/locale.js';
import { short, visibleString } from '../core/text.js';
import { until } from '../core/time.js';

const TICK = 250;
const MAX_NOTICES = 4;

export const isUndoable = (change) => change.state === 'approved' && Boolean(change.runAfter) && until(change.runAfter) > 0;

export class UndoStack {
  element = h('div', { class: 'undos', role: 'region', 'aria-label': t('decision.undoRegion'), 'data-needs-gateway': true });
  #undo;
  #undone;
  #leave;
  #open = new Map();
  #timer = null;
  #hidden = null;

  /**
   * `undo(id, version)` resolves to the updated change, which `undone(answer)` receives. `leave()` moves the focus to the view once
   * the last notice is closed.
   */
  constructor({ undo, undone, leave }) {
    this.#undo = undo;
    this.#undone = undone;
    this.#leave = leave;
    this.element.addEventListener(REACHABILITY_CHANGED, () => this.#tick());
  }

  add(change) {
    if (!isUndoable(change)) return;
    this.drop(change.id);
    const countdown = h('strong', { class: 'undo-left' });
    const button = h('button', { type: 'button', onclick: () => this.#run(change.id) }, icon('undo'), t('decision.undo'), h('kbd', { 'aria-hidden': 'true' }, 'u'));
    const summary = visibleString(short(change.summary, 70));
    const running = h('span', { class: 'undo-text' }, parts('decision.undoLine', { change: summary, time: countdown }));
    const unknown = h('span', { class: 'undo-text', hidden: true }, t('decision.undoUnknown', { change: summary }));
    const close = h('button', { type: 'button', class: 'icon-only', 'aria-label': t('controls.close'), onclick: () => this.#close(change.id) }, icon('cross'));
    const element = h('div', { class: 'undo' }, running, unknown, button, close);
    element.hidden = change.id === this.#hidden;
    this.#open.set(change.id, { change, element, countdown, running, unknown, button, busy: false, isClosed: false });
    this.element.prepend(element);
    while (this.#open.size > MAX_NOTICES) this.drop(this.#open.keys().next().value);
    this.#timer ??= setInterval(() => this.#tick(), TICK);
    this.#tick();
    announce(t(areCharacterKeysOn() ? 'decision.pressUndo' : 'detail.approved'));
  }

  /** Hides the notice of the open change, which shows the same itself. */
  hide(id) {
    this.#hidden = id;
    for (const [other, { element, isClosed }] of this.#open) element.hidden = isClosed || other === id;
  }

  // The change can still be undone with the key or on its own page.
  #close(id) {
    const entry = this.#open.get(id);
    entry.isClosed = true;
    entry.element.hidden = true;
    const next = this.element.querySelector('.undo:not([hidden]) .icon-only');
    if (next) next.focus();
    else this.#leave();
  }

  drop(id) {
    this.#open.get(id)?.element.remove();
    this.#open.delete(id);
    if (!this.#open.size) {
      clearInterval(this.#timer);
      this.#timer = null;
    }
  }

  /** Removes the notice if an event shows that the change was modified. */
  dropIfModified({ id, version }) {
    // The feed may still report the approval itself, or what came before it.
    if (version > this.#open.get(id)?.change.version) this.drop(id);
  }

  /** Handles the key `u`, which undoes the newest approval, one with an open notice first. Returns false if there is none. */
  undoLast() {
    const ids = [...this.#open.keys()];
    const last = ids.findLast((id) => !this.#open.get(id).isClosed) ?? ids.at(-1);
    if (last === undefined) return false;
    this.#run(last);
    return true;
  }

  clear() {
    for (const id of [...this.#open.keys()]) this.drop(id);
  }

  #tick() {
    const isKnown = isReachable();
    for (const [id, { change, countdown, running, unknown, button, busy }] of this.#open) {
      running.hidden = !isKnown;
      unknown.hidden = isKnown;
      button.disabled = busy || !isKnown;
      // Without the gateway, the notice stays, because nobody knows what became of the change.
      if (!isKnown) continue;
      const seconds = Math.ceil(until(change.runAfter) / 1000);
      const text = seconds < 60 ? t('core.time.amount.s', { count: seconds }) : t('core.time.amount.min', { count: Math.floor(seconds / 60) });
      if (seconds <= 0) this.drop(id);
      else if (countdown.textContent !== text) countdown.textContent = text;
    }
  }

  async #run(id) {
    const entry = this.#open.get(id);
    if (!entry || entry.button.disabled) return;
    entry.busy = true;
    entry.button.disabled = true;
    fill(entry.button, t('decision.undoing'));
    try {
      const answer = await this.#undo(id, entry.change.version);
      notice(t('decision.undone'), { tone: 'accent', iconName: 'undo' });
      this.#undone(answer);
    } catch (error) {
      notice(t('decision.notUndone', { problem: explain(error) }), { tone: 'red', iconName: 'alert' });
    }
    this.drop(id);
  }
}
