// A dialog of the page: focus inside while it is open, back to where it was afterwards.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';

let number = 0;

/**
 * Opens one. `build(close)` gives its content; `closing()` may return false to keep it open (something is not saved).
 * Returns the element.
 */
export function openDialog({ title, className = '', build, closing = null, closed = null }) {
  const before = document.activeElement;
  const id = `dialog-${number += 1}`;
  const close = () => dialog.close();
  const leave = () => (closing?.() === false ? undefined : close());
  const dialog = h('dialog', { class: `sheet ${className}`.trim(), 'aria-labelledby': id },
    h('div', { class: 'sheet-head' }, h('h2', { id, tabindex: '-1' }, title),
      h('button', { type: 'button', class: 'ghost icon-only', 'aria-label': 'Close', onclick: leave }, icon('cross'))));
  dialog.append(...[build(close)].flat().filter(Boolean));
  // A press outside of the box closes it; one that began inside (a selection of text) does not.
  let pressed = null;
  dialog.addEventListener('pointerdown', (event) => { pressed = event.target; });
  dialog.addEventListener('click', (event) => event.target === dialog && pressed === dialog && leave());
  dialog.addEventListener('cancel', (event) => {
    event.preventDefault();
    leave();
  });
  dialog.addEventListener('close', () => {
    dialog.remove();
    if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
    closed?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
