// Opens dialogs. The focus stays inside an open dialog and returns to its previous place afterwards.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { visibleString } from '../core/text.js';

let number = 0;

/**
 * Opens a dialog and returns its element. `build(close)` returns the content. `closing()` may return false to keep the
 * dialog open. Escape and a click outside have to be repeated if `isEdited(hasInput)` returns true, because they would discard
 * what was entered.
 */
export function openDialog({ title, className = '', build, closing = null, closed = null, isEdited = () => false }) {
  const previousFocus = document.activeElement;
  const id = `dialog-${number += 1}`;
  const close = () => dialog.close();
  const requestClose = () => (closing?.() === false ? undefined : close());
  let hasInput = false;
  const warning = h('p', { class: 'sheet-warning', role: 'alert' });
  const leave = () => {
    if (!isEdited(hasInput) || warning.hasChildNodes()) return requestClose();
    return fill(warning, icon('alert'), h('span', null, t('controls.unsaved')));
  };
  const dialog = h('dialog', { class: `sheet ${className}`.trim(), 'aria-labelledby': id },
    h('div', { class: 'sheet-head' }, h('h2', { id, tabindex: '-1' }, title),
      h('button', { type: 'button', class: 'ghost icon-only', 'aria-label': t('controls.close'), onclick: requestClose }, icon('cross'))),
    warning);
  dialog.append(...[build(close)].flat().filter(Boolean));
  // A click outside closes the dialog, unless it began inside, as when text is selected. The rest of a double click and a key that
  // is held down do not count as a second one.
  let pressed = null;
  dialog.addEventListener('pointerdown', (event) => { pressed = event.target; });
  dialog.addEventListener('click', (event) => event.target === dialog && pressed === dialog && event.detail < 2 && leave());
  dialog.addEventListener('keydown', (event) => event.key === 'Escape' && event.repeat && event.preventDefault());
  dialog.addEventListener('input', () => {
    hasInput = true;
    fill(warning);
  });
  dialog.addEventListener('cancel', (event) => {
    event.preventDefault();
    leave();
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

/**
 * Opens a dialog that asks before `act()` runs, whose failure it shows as `describe(error)`. `done()` follows a success, when the
 * dialog is closed.
 */
export function openConfirmation({ title, text, label, className = 'danger', act, done = null, closed = null, describe = explain }) {
  const failure = h('p', { class: 'edit-errors', role: 'alert' });
  const button = h('button', { type: 'submit', class: className }, label);
  return openDialog({
    title,
    closed,
    build: (close) => h('form', {
      class: 'sheet-body',
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        try {
          await act();
        } catch (error) {
          fill(failure, icon('alert'), visibleString(describe(error)));
          button.disabled = false;
          return;
        }
        close();
        done?.();
      },
    },
    h('p', null, text),
    failure,
    h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: close }, t('common.cancel')), button)),
  });
}
