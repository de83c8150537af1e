// Lets the user choose the language of the page.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { chooseLanguage, chosenLanguage, LANGUAGES, t } from '../core/locale.js';

/** Creates the button and the menu that it opens. */
export function languageMenu() {
  const choice = ([code, name]) => h('button', { type: 'button', class: 'ghost', lang: code || null, 'aria-pressed': String(code === chosenLanguage()), onclick: () => chooseLanguage(code) }, icon('check'), h('span', null, name));
  return [
    h('button', { type: 'button', class: 'ghost icon-only', popovertarget: 'languages', 'aria-label': t('shell.language'), title: t('shell.language') }, icon('language')),
    h('div', { id: 'languages', class: 'languages', popover: '', role: 'group', 'aria-label': t('shell.language') }, [...Object.entries(LANGUAGES), ['', t('shell.languageOfBrowser')]].map(choice)),
  ];
}
