// How much of a list is in sight: compact rows or comfortable ones, remembered on this browser.

import { choice, choose } from '../core/prefs.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';

const DENSITIES = ['compact', 'comfortable'];

/** What the page is told when rows become higher or lower. */
export const CHANGED = 'density';

const compact = () => choice('density', DENSITIES) === 'compact';

/** Puts what was chosen on the page; the styles do the rest. */
export function applyDensity() {
  document.documentElement.dataset.density = choice('density', DENSITIES);
}

/** The button beside a list's title. */
export function densityButton() {
  const button = h('button', { type: 'button', class: 'ghost icon-only density', 'aria-label': 'Compact rows', onclick: () => {
    choose('density', compact() ? 'comfortable' : 'compact');
    applyDensity();
    paint();
    document.dispatchEvent(new Event(CHANGED));
  } });
  const paint = () => {
    button.setAttribute('aria-pressed', String(compact()));
    button.title = compact() ? 'Comfortable rows' : 'Compact rows';
    fill(button, icon(compact() ? 'compact' : 'rows'));
  };
  paint();
  return button;
}
