// Shows to whom something is sent, each recipient on its own.

import { h } from '../core/dom.js';
import { t } from '../core/locale.js';
import { longText } from './longtext.js';

const FIRST_RECIPIENTS = 40;
const TAGS = { insert: 'ins', delete: 'del', equal: 'span' };
const SIGNS = { insert: '+', delete: '−' };

/** Shows `[{op, name}]` as a list. */
export function recipientsView(list, isArgument) {
  if (!list.length) return h('p', { class: 'quiet' }, t('diff.nobody'));
  const chips = h('ul', { class: 'recipient-list' });
  const show = (part) => chips.append(...part.map(({ op, name }) => {
    const shownOp = isArgument ? 'equal' : op;
    return h('li', { class: `recipient ${shownOp}` }, SIGNS[shownOp] && h('span', { class: 'sign', 'aria-hidden': 'true' }, SIGNS[shownOp]),
      h(TAGS[shownOp], null, name === '' ? h('span', { class: 'quiet' }, t('diff.empty')) : longText(name, { chars: 120, lines: 2, inline: true })));
  }));
  const first = list.length <= FIRST_RECIPIENTS + 5 ? list.length : FIRST_RECIPIENTS;
  show(list.slice(0, first));
  const more = first < list.length && h('li', null, h('button', { type: 'button', class: 'link more', onclick: () => {
    more.remove();
    show(list.slice(first));
  } }, t('diff.showRecipients', { count: list.length - first })));
  if (more) chips.append(more);
  return chips;
}
