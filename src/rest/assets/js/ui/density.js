// Switches between compact and comfortable rows and remembers the choice in this browser.

import { t } from '../core/locale.js';
import { preference, setPreference } from '../core/prefs.js';
import { fill, h, notifyAll } from '../core/dom.js';
import { icon } from '../core/icons.js';

const DENSITIES = ['compact', 'comfortable'];

/** The event that tells a list of another row height. */
export const DENSITY_CHANGED = 'density';

const isCompact = () => preference('density', DENSITIES) === 'compact';

/** Sets the chosen density on the document, where the styles read it. */
export function applyDensity() {
  document.documentElement.dataset.density = preference('density', DENSITIES);
}

export function densityButton() {
  const button = h('button', { type: 'button', class: 'ghost icon-only density', 'aria-label': t('controls.compactRows'), onclick: () => {
    setPreference('density', isCompact() ? 'comfortable' : 'compact');
    applyDensity();
    paint();
    notifyAll('.list-scroll', DENSITY_CHANGED);
  } });
  const paint = () => {
    button.setAttribute('aria-pressed', String(isCompact()));
    button.title = t(isCompact() ? 'controls.comfortableRows' : 'controls.compactRows');
    fill(button, icon(isCompact() ? 'compact' : 'rows'));
  };
  paint();
  return button;
}
