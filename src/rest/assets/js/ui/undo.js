// Approvals that can still be taken back: a notice each, which counts down to when the change runs.

import { announce, notice } from '../core/announce.js';
import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { short, visibleString } from '../core/text.js';
import { until } from '../core/time.js';

const TICK = 250;
const MOST = 4;

export const undoable = (change) => change.state === 'approved' && Boolean(change.runAfter) && until(change.runAfter) > 0;

export class UndoStack {
  element = h('div', { class: 'undos', role: 'region', 'aria-label': 'Approvals that can be undone' });
  #undo;
  #undone;
  #open = new Map();
  #timer = null;
  #hidden = null;

  /** `undo(id, version)` resolves to the change as it is then; `undone(answer)` is told of it. */
  constructor({ undo, undone }) {
    this.#undo = undo;
    this.#undone = undone;
  }

  /** This page has approved it. */
  add(change) {
    if (!undoable(change)) return;
    this.drop(change.id);
    const left = h('strong', { class: 'undo-left' });
    const button = h('button', { type: 'button', onclick: () => this.#run(change.id) }, icon('undo'), 'Undo', h('kbd', { 'aria-hidden': 'true' }, 'U'));
    const element = h('div', { class: 'undo' }, h('span', { class: 'undo-text' }, 'Approved: ', visibleString(short(change.summary, 70)), ' runs in ', left), button);
    element.hidden = change.id === this.#hidden;
    this.#open.set(change.id, { change, element, left, button });
    this.element.prepend(element);
    while (this.#open.size > MOST) this.drop(this.#open.keys().next().value);
    this.#timer ??= setInterval(() => this.#tick(), TICK);
    this.#tick();
    announce('Approved. Press u to undo.');
  }

  /** The change that is open shows the same by itself. */
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

  /** The feed says where a change stands now. */
  follow({ id, version, state }) {
    const held = this.#open.get(id);
    if (held && (state !== 'approved' || version !== held.change.version)) this.drop(id);
  }

  /** The key `u`: the newest one. Returns whether there was any. */
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
    for (const [id, { change, left }] of this.#open) {
      const seconds = Math.ceil(until(change.runAfter) / 1000);
      if (seconds <= 0) this.drop(id);
      else if (left.textContent !== `${seconds} s`) left.textContent = `${seconds} s`;
    }
  }

  async #run(id) {
    const held = this.#open.get(id);
    if (!held || held.button.disabled) return;
    held.button.disabled = true;
    fill(held.button, 'Undoing…');
    try {
      const answer = await this.#undo(id, held.change.version);
      notice('Undone: the change is waiting for a decision again.', { tone: 'accent', iconName: 'undo' });
      this.#undone(answer);
    } catch (error) {
      notice(`Not undone: ${explain(error)}`, { tone: 'red', iconName: 'alert' });
    }
    this.drop(id);
  }
}
