// Shows a long list in parts, so that only what is read is rendered.

import { h } from '../core/dom.js';

// A short remainder is shown instead of a button.
const MAX_REMAINDER = 10;

/**
 * Fills `parent` with the nodes that `create(item)` returns for the `first` items, and a button for the next ones, of which
 * each press shows `step`. `label(n)` returns the text of the button while n items are left.
 */
export function fillPaged(parent, items, create, { first, step, label }) {
  const more = h('button', { type: 'button', class: 'link more', onclick: () => show(step) });
  let shown = 0;
  const show = (n) => {
    more.before(...items.slice(shown, shown + n).map((item) => create(item)));
    shown = Math.min(items.length, shown + n);
    if (shown < items.length) more.textContent = label(items.length - shown);
    else more.remove();
  };
  parent.replaceChildren(more);
  show(items.length <= first + MAX_REMAINDER ? items.length : first);
}
