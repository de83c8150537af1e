// Creates tabs. The arrow keys move among them, and Home and End go to the first and the last.

import { fill, h } from '../core/dom.js';

let number = 0;

/**
 * Creates tabs with the accessible name `label`. `tabs` has `{id, name}` of each, and `render(id)` returns the content of
 * the panel. The returned object has `element`, and `paint()` renders the open panel again.
 */
export function createTabs({ label, tabs, selected, render }) {
  const prefix = `tabs-${number += 1}`;
  let current = selected;
  const panel = h('div', { class: 'tab-panel', role: 'tabpanel', id: `${prefix}-panel`, tabindex: '0' });
  const buttons = tabs.map(({ id, name }) => h('button', { type: 'button', class: 'tab', role: 'tab', id: `${prefix}-${id}`, 'aria-controls': `${prefix}-panel`, onclick: () => select(id) }, name));
  const list = h('div', { class: 'tab-list', role: 'tablist', 'aria-label': label, onkeydown: (event) => {
    const at = tabs.findIndex(({ id }) => id === current);
    const to = { ArrowRight: (at + 1) % tabs.length, ArrowLeft: (at + tabs.length - 1) % tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    select(tabs[to].id);
    buttons[to].focus();
  } }, buttons);
  function paint() {
    tabs.forEach(({ id }, n) => {
      buttons[n].setAttribute('aria-selected', String(id === current));
      buttons[n].tabIndex = id === current ? 0 : -1;
    });
    panel.setAttribute('aria-labelledby', `${prefix}-${current}`);
    fill(panel, render(current));
  }
  function select(id) {
    current = id;
    paint();
  }
  paint();
  return { element: h('div', { class: 'tabs' }, list, panel), paint };
}
