// Tells people what happened: a polite live region for screen readers, short notices on the page for everybody.

import { h } from './dom.js';
import { icon } from './icons.js';
import { visibleString, short } from './text.js';

const SHOWN = 6000;
let region = null;
let stack = null;
let queue = [];
let timer = null;

export function mountAnnouncer(parent) {
  region = h('div', { class: 'sr-only', 'aria-live': 'polite', 'aria-atomic': 'true', id: 'announcer' });
  stack = h('div', { class: 'notices', role: 'region', 'aria-label': 'Notices' });
  parent.append(region, stack);
}

/** Says it once to screen readers. What comes in a burst is summed up, so that nobody has to listen to fifty lines. */
export function announce(text) {
  queue.push(visibleString(short(text, 200)));
  timer ??= setTimeout(() => {
    timer = null;
    const said = queue;
    queue = [];
    region.textContent = said.length > 3 ? `${said.length} updates. ${said.at(-1)}` : said.join(' ');
  }, 400);
}

/** A notice that goes by itself. `tone` is `green`, `red`, `amber` or `accent`. */
export function notice(text, { tone = 'accent', iconName = 'info', action = null } = {}) {
  const element = h('div', { class: `notice tone-${tone}` }, icon(iconName), h('span', null, visibleString(short(text, 200))),
    action && h('button', { type: 'button', class: 'link', onclick: () => { action.run(); element.remove(); } }, action.label),
    h('button', { type: 'button', class: 'ghost icon-only', 'aria-label': 'Dismiss', onclick: () => element.remove() }, icon('cross')));
  stack.prepend(element);
  while (stack.children.length > 3) stack.lastChild.remove();
  setTimeout(() => element.remove(), SHOWN);
  announce(text);
}
