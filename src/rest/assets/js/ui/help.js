// Shows the overview of keyboard shortcuts.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { areCharacterKeysOn, HELP, setCharacterKeys } from '../core/keys.js';
import { t } from '../core/locale.js';

export function openHelp() {
  const previousFocus = document.activeElement;
  const dialog = h('dialog', { class: 'help', 'aria-labelledby': 'help-title' },
    h('div', { class: 'help-head' }, h('h2', { id: 'help-title' }, t('shell.shortcuts')),
      h('button', { type: 'button', class: 'ghost icon-only', 'aria-label': t('controls.close'), onclick: () => dialog.close() }, icon('cross'))),
    h('div', { class: 'help-body' },
      h('label', null, h('input', { type: 'checkbox', checked: areCharacterKeysOn(), onchange: (event) => setCharacterKeys(event.currentTarget.checked) }), t('core.help.characterKeys')),
      HELP.map(([title, keys]) => h('section', null, h('h3', null, title),
        h('dl', null, keys.map(([key, text]) => h('div', null, h('dt', null, key.split(' ').map((k) => h('kbd', null, k))), h('dd', null, text))))))));
  // A click outside closes the dialog.
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
  dialog.addEventListener('keydown', (event) => {
    if (event.key !== '?') return;
    event.preventDefault();
    dialog.close();
  });
  dialog.addEventListener('close', () => {
    dialog.remove();
    if (previousFocus instanceof HTMLElement) previousFocus.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}
