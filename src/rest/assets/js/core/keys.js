// Handles the keyboard shortcuts of the page: single keys, and `g` followed by the letter of a view.

import { isTyping } from './dom.js';

const MAX_SEQUENCE_MS = 1200;

export class Keys {
  #handlers = new Map();
  /** The time of the press of `g` that waits for the letter of a view. */
  #prefixTime = -Infinity;

  constructor() {
    document.addEventListener('keydown', (event) => this.#press(event));
  }

  /** Sets the bindings `{key: handler(event)}` of one owner, or removes them. A handler returns false for an unused key. */
  bind(owner, bindings) {
    if (bindings) this.#handlers.set(owner, bindings);
    else this.#handlers.delete(owner);
  }

  #press(event) {
    if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector('dialog[open]')) return;
    if (isTyping(event.target) && event.key !== 'Escape') return;
    // Enter belongs to the button or link that has the focus.
    if (event.key === 'Enter' && event.target instanceof HTMLElement && event.target.closest('button, a, summary')) return;
    // The time of the press counts: a busy page may handle it later.
    const sequence = event.timeStamp - this.#prefixTime < MAX_SEQUENCE_MS;
    this.#prefixTime = -Infinity;
    if (event.key === 'g' && !sequence) {
      this.#prefixTime = event.timeStamp;
      return;
    }
    const key = sequence ? `g ${event.key}` : event.key;
    for (const bindings of [...this.#handlers.values()].reverse()) {
      const handler = bindings[key];
      if (handler && handler(event) !== false) {
        event.preventDefault();
        return;
      }
    }
  }
}

export const HELP = [
  ['Move', [['j', 'Next change'], ['k', 'Previous change'], ['Enter', 'Open the change'], ['Esc', 'Back, or cancel'], ['/', 'Search'], ['c', 'Expand or collapse the group'], ['d', 'Switch the diff layout']]],
  ['Decide', [['a', 'Approve'], ['r', 'Reject, with a comment'], ['Ctrl Enter', 'Send the rejection'], ['e', 'Edit the arguments'], ['u', 'Undo the last approval'], ['f', 'Refresh the preview']]],
  ['Many at once', [['x', 'Select the open change'], ['a', 'Approve all selected'], ['r', 'Reject all selected'], ['Esc', 'Clear the selection']]],
  ['In a bundle', [['Space', 'Show or hide the diff'], ['x', 'Take out of “Approve all”'], ['Shift A', 'Approve all, once all were seen']]],
  ['Go to', [['g i', 'Inbox'], ['g h', 'History'], ['g o', 'Overview'], ['g r', 'Standing rules'], ['g a', 'Audit'], ['g s', 'Sessions'], ['g k', 'Keys'], ['g v', 'Servers'], ['g w', 'Webhooks'], ['?', 'These shortcuts']]],
];
