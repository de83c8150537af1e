// Shows a notice for each approval that can still be undone, counting down to when the change runs.

import { announce, notice } from '../core/announce.js';
import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { short, visibleString } from '../core/text.js';
import { until } from '../core/time.js';

const TICK = 250;
const MAX_NOTICES = 4;

export const isUndoable = (change) => change.state === 'approved' && Boolean(change.runAfter) && until(change.runAfter) > 0;

export class UndoStack {
  element = h('div', { class: 'undos', role: 'region', 'aria-label': 'Approvals that can be undone' });
  #undo;
  #undone;
  #open = new Map();
  #timer = null;
  #hidden = null;

  /** `undo(id, version)` resolves to the updated change, which `undone(answer)` receives. */
  constructor({ undo, undone }) {
    this.#undo = undo;
    this.#undone = undone;
  }

  add(change) {
    if (!isUndoable(change)) return;
    this.drop(change.id);
    const countdown = h('strong', { class: 'undo-left' });
    const button = h('button', { type: 'button', onclick: () => this.#run(change.id) }, icon('undo'), 'Undo', h('kbd', { 'aria-hidden': 'true' }, 'U'));
    const element = h('div', { class: 'undo' }, h('span', { class: 'undo-text' }, 'Approved: ', visibleString(short(change.summary, 70)), ' runs in ', countdown), button);
    element.hidden = change.id === this.#hidden;
    this.#open.set(change.id, { change, element, countdown, button });
    this.element.prepend(element);
    while (this.#open.size > MAX_NOTICES) this.drop(this.#open.keys().next().value);
    this.#timer ??= setInterval(() => this.#tick(), TICK);
    this.#tick();
    announce('Approved. Press u to undo.');
  }

  /** Hides the notice of the open change, which shows the same itself. */
  hide(id) {
    this.#hidden = id;
    for (const [other, { element }] of this.#open) element.hidden = other === id;
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
  dropIfModified({ id, version, state }) {
    const entry = this.#open.get(id);
    if (entry && (state !== 'approved' || version !== entry.change.version)) this.drop(id);
  }

  /** Handles the key `u`, which undoes the newest approval. Returns false if there is none. */
  undoLast() {
    const last = [...this.#open.keys()].at(-1);
    if (last === undefined) return false;
    this.#run(last);
    return true;
  }

  clear() {
    for (const id of [...this.#open.keys()]) this.drop(id);
  }

  #tick() {
    for (const [id, { change, countdown }] of this.#open) {
      const seconds = Math.ceil(until(change.runAfter) / 1000);
      if (seconds <= 0) this.drop(id);
      else if (countdown.textContent !== `${seconds} s`) countdown.textContent = `${seconds} s`;
    }
  }

  async #run(id) {
    const entry = this.#open.get(id);
    if (!entry || entry.button.disabled) return;
    entry.button.disabled = true;
    fill(entry.button, 'Undoing…');
    try {
      const answer = await this.#undo(id, entry.change.version);
      notice('Undone: the change is waiting for a decision again.', { tone: 'accent', iconName: 'undo' });
      this.#undone(answer);
    } catch (error) {
      notice(`Not undone: ${explain(error)}`, { tone: 'red', iconName: 'alert' });
    }
    this.drop(id);
  }
}
