// Announces events: in a polite live region for screen readers, and as short notices on the page.

import { h } from './dom.js';
import { icon } from './icons.js';
import { t } from './locale.js';
import { visibleString, short } from './text.js';

const NOTICE_MS = 6000;
let region = null;
let stack = null;
let queue = [];
let timer = null;

export function mountAnnouncer(parent) {
  region = h('div', { class: 'sr-only', 'aria-live': 'polite', 'aria-atomic': 'true', id: 'announcer' });
  stack = h('div', { class: 'notices', role: 'region', 'aria-label': t('core.notices') });
  parent.append(region, stack);
}

/** Announces `text` to screen readers. A burst of more than three texts is summed up as a number and the last text. */
export function announce(text) {
  queue.push(visibleString(short(text, 200)));
  timer ??= setTimeout(() => {
    timer = null;
    const texts = queue;
    queue = [];
    region.textContent = texts.length > 3 ? t('core.updates', { count: texts.length, last: texts.at(-1) }) : texts.join(' ');
  }, 400);
}

/**
 * Shows a notice. One without a problem or an action disappears by itself, but not under the pointer or with the focus. `tone` is
 * `green`, `red`, `amber` or `accent`. A notice replaces an older one with the same `key`.
 */
export function notice(text, { tone = 'accent', iconName = 'info', action = null, key = null } = {}) {
  const stays = tone === 'red' || action !== null;
  const element = h('div', { class: `notice tone-${tone}` }, icon(iconName), h('span', null, visibleString(short(text, 200))),
    action && h('button', { type: 'button', class: 'link', onclick: () => { action.run(); element.remove(); } }, action.label),
    h('button', { type: 'button', class: 'ghost icon-only', 'aria-label': t('core.dismiss'), onclick: () => element.remove() }, icon('cross')));
  if (stays) element.dataset.stays = '';
  if (key !== null) {
    removeNotice(key);
    element.dataset.key = key;
  }
  const passing = [...stack.children].filter((older) => older.dataset.stays === undefined && !older.matches(':hover, :focus-within'));
  stack.prepend(element);
  // A notice that stays gives way only to another one.
  while (stack.children.length > 3 && (passing.length || stays)) (passing.pop() ?? stack.lastChild).remove();
  const expire = () => (element.matches(':hover, :focus-within') ? setTimeout(expire, NOTICE_MS) : element.remove());
  if (!stays) setTimeout(expire, NOTICE_MS);
  announce(text);
}

/** Removes the notice with that key. */
export const removeNotice = (key) => [...stack.children].find((older) => older.dataset.key === key)?.remove();

/** Removes all notices, which may contain what only a signed-in user may read. */
export const clearNotices = () => stack.replaceChildren();
