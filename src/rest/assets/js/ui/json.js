// Shows JSON with new indentation and otherwise unchanged.

import { h } from '../core/dom.js';
import { t } from '../core/locale.js';
import { layout } from '../core/rawjson.js';
import { visible } from '../core/text.js';
import { longText } from './longtext.js';
import { fillPaged } from './paged.js';

const FIRST_LINES = 60;
const STEP_LINES = 500;
const MAX_TOKEN_LENGTH = 480;

export function jsonBlock(source, label) {
  const lines = layout(source);
  const code = h('div', { class: 'json', role: 'group', 'aria-label': label, tabindex: '0' });
  fillPaged(code, lines, createLine, { first: FIRST_LINES, step: STEP_LINES, label: (n) => t('diff.showLines', { count: n }) });
  return code;
}

function createLine({ indent, tokens }) {
  // The indentation is text, so that a copied selection keeps it.
  const line = h('div', { class: 'json-line' }, '  '.repeat(Math.min(indent, 40)));
  for (const { kind, text } of tokens) {
    const span = h('span', { class: `j-${kind}` });
    if (text.length > MAX_TOKEN_LENGTH) span.append(longText(text, { chars: MAX_TOKEN_LENGTH, lines: 1000, inline: true }));
    else span.append(visible(text));
    line.append(span);
  }
  line.append('\n');
  return line;
}
