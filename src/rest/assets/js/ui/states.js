// Creates placeholders for empty, loading and failed content.

import { notice } from '../core/announce.js';
import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { explain } from '../core/api.js';
import { t } from '../core/locale.js';
import { routeTo } from '../core/router.js';
import { visibleString } from '../core/text.js';

export function emptyState(iconName, title, ...text) {
  return h('div', { class: 'empty' }, h('span', { class: 'empty-icon' }, icon(iconName)), h('p', { class: 'empty-title' }, title),
    text.map((part) => (typeof part === 'string' ? h('p', null, part) : part)));
}

/** Says that what a link leads to does not exist. */
export function missingState(title, why) {
  const missing = emptyState('search', title, why, h('p', null, h('a', { href: routeTo('inbox') }, t('controls.toInbox'))));
  missing.setAttribute('role', 'alert');
  return missing;
}

export function errorState(error, retry) {
  return h('div', { class: 'empty error', role: 'alert' }, h('span', { class: 'empty-icon' }, icon('alert')),
    h('p', { class: 'empty-title' }, titleOf(error)),
    h('p', null, visibleString(explain(error))),
    retry && h('button', { type: 'button', onclick: retry }, t('controls.tryAgain')));
}

function titleOf({ status }) {
  if (status === 403) return t('controls.notAllowed');
  return t(status === 404 ? 'controls.notFound' : 'controls.wentWrong');
}

/** Shows a notice about a failed request. */
export const problemNotice = (error) => notice(explain(error), { tone: 'red', iconName: 'alert' });

/** Returns a banner about a problem. */
export const problemBanner = (text) => h('div', { class: 'banner tone-red' }, icon('alert'), h('div', null, h('p', null, visibleString(text))));

export function skeleton(lines = 6) {
  return h('div', { class: 'skeleton', 'aria-hidden': 'true' }, Array.from({ length: lines }, () => h('span')));
}
