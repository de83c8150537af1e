// Shows the definition of a tool, either complete or as a diff from the previous one.

import { h } from '../core/dom.js';
import { compareLines } from '../core/linediff.js';
import { t } from '../core/locale.js';
import { pretty } from '../core/rawjson.js';
import { visibleString } from '../core/text.js';
import { diffView } from './diff.js';
import { jsonBlock } from './json.js';

export function definitionBlock(tool) {
  return h('div', { class: 'args' }, jsonBlock(tool.definition, visibleString(t('diff.definitionOf', { tool: tool.name }))));
}

/** Shows the changes since the definition was accepted or first seen. */
export function definitionDiff(tool) {
  const before = pretty(tool.previous);
  const after = pretty(tool.definition);
  const lines = compareLines(before, after);
  return diffView({ fields: [{ field: 'definition', label: t('diff.definition'), before, after, lines }], truncated: false }, 'UPDATE');
}
