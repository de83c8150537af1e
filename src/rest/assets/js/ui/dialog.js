// Opens dialogs. The focus stays inside an open dialog and returns to its previous place afterwards.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';

let number = 0;

/**
 * Opens a dialog and returns its element. `build(close)` returns the content. `closing()` may return false to keep the
 * dialog open.
 */
export function openDialog({ title, className = '', build, closing = null, closed = null }) {
  const previousFocus = document.activeElement;
  const id = `dialog-${number += 1}`;
  const close = () => dialog.close();
  const requestClose = () => (closing?.() === false ? undefined : close());
  const dialog = h('dialog', { class: `sheet ${className}`.trim(), 'aria-labelledby': id },
    h('div', { class: 'sheet-head' }, h('h2', { id, tabindex: '-1' }, title),
      h('button', { type: 'button', class: 'ghost icon-only', 'aria-label': t('controls.close'), onclick: requestClose }, icon('cross'))));
  dialog.append(...[build(close)].flat().filter(Boolean));
  // A click outside closes the dialog, unless it began inside, as when text is selected.
  let pressed = null;
  dialog.addEventListener('pointerdown', (event) => { pressed = event.target; });
  dialog.addEventListener('click', (event) => event.target === dialog && pressed === dialog && requestClose());
  dialog.addEventListener('cancel', (event) => {
    event.preventDefault();
    requestClose();
  });
  dialog.addEventListener('close', () => {
    dialog.remove();
    if (previousFocus instanceof HTMLElement && previousFocus.isConnected) previousFocus.focus({ preventScroll: true });
    closed?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
