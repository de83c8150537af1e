// Keyboard shortcuts of the page: single keys, and `g` followed by a view's letter.

import { typing } from './dom.js';

const SEQUENCE = 1200;

export class Keys {
  #handlers = new Map();
  #prefix = 0;

  /** `bindings` is `{key: handler(event)}`; a handler that returns false has not used the key. */
  constructor() {
    document.addEventListener('keydown', (event) => this.#press(event));
  }

  /** Replaces the bindings of one owner; null takes them away. */
  bind(owner, bindings) {
    if (bindings) this.#handlers.set(owner, bindings);
    else this.#handlers.delete(owner);
  }

  #press(event) {
    if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector('dialog[open]')) return;
    if (typing(event.target) && event.key !== 'Escape') return;
    // Enter and the space bar belong to the button or link that has the focus.
    if (event.key === 'Enter' && event.target instanceof HTMLElement && event.target.closest('button, a, summary')) return;
    const sequence = Date.now() - this.#prefix < SEQUENCE;
    this.#prefix = 0;
    if (event.key === 'g' && !sequence) {
      this.#prefix = Date.now();
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
  ['Move', [['j', 'Next change'], ['k', 'Previous change'], ['Enter', 'Open the change'], ['Esc', 'Back, or cancel'], ['/', 'Search'], ['c', 'Open or close its group'], ['d', 'Diff unified or side by side']]],
  ['Decide', [['a', 'Approve'], ['r', 'Reject: write a comment first'], ['Ctrl Enter', 'Send the rejection'], ['e', 'Edit the arguments'], ['u', 'Undo the last approval'], ['f', 'Look at the target again']]],
  ['Many at once', [['x', 'Pick the change, once opened'], ['a', 'Approve all that are picked'], ['r', 'Reject all that are picked'], ['Esc', 'Pick none']]],
  ['Go to', [['g i', 'Inbox'], ['g h', 'History'], ['g r', 'Standing rules'], ['g a', 'Audit'], ['g s', 'Sessions'], ['g p', 'Servers'], ['g w', 'Webhooks'], ['?', 'This overview']]],
];
