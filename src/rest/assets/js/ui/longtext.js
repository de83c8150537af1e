// Shows long text in parts, so that the page holds a bounded part at a time.

import { h } from '../core/dom.js';
import { t } from '../core/locale.js';
import { cut, visible } from '../core/text.js';

const STEP_CHARS = 20_000;

/** Returns the length of `text` when it is truncated to so many characters and lines. */
export function truncatedLength(text, chars, lines) {
  let end = Math.min(text.length, chars);
  let at = -1;
  for (let n = 0; n < lines; n += 1) {
    at = text.indexOf('\n', at + 1);
    if (at === -1 || at >= end) break;
    if (n === lines - 1) end = at;
  }
  return cut(text, end).length;
}

/** Shows an agent's text as a block or, with `inline`, in a line, with 'Show more' if it is long. */
export function longText(text, { chars = 1500, lines = 24, inline = false, tabs = false, className = '' } = {}) {
  const options = inline ? { tabs } : { block: true };
  const holder = h(inline ? 'span' : 'div', { class: `quote long ${className}`.trim(), dir: 'auto' });
  let end = truncatedLength(text, chars, lines);
  // A short remainder is shown instead of a button.
  if (text.length - end < 80 && truncatedLength(text, text.length, lines + 2) === text.length) end = text.length;
  holder.append(visible(text.slice(0, end), options));
  if (end === text.length) return holder;
  const more = h('button', { type: 'button', class: 'link more' });
  const label = () => {
    more.textContent = t('diff.showCharacters', { count: text.length - end });
  };
  more.addEventListener('click', () => {
    const next = cut(text, Math.min(text.length, end + STEP_CHARS)).length;
    more.before(visible(text.slice(end, next), options));
    end = next;
    if (end === text.length) more.remove();
    else label();
  });
  label();
  holder.append(more);
  return holder;
}
