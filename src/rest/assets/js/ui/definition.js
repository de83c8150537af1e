// Shows the definition of a tool, either complete or as a diff from the previous one.

import { h } from '../core/dom.js';
import { lineDiff } from '../core/linediff.js';
import { layout } from '../core/rawjson.js';
import { visibleString } from '../core/text.js';
import { diffView } from './diff.js';
import { jsonBlock } from './json.js';

/** Returns a definition with one line per member; its tokens are unchanged. */
export const indented = (source) => layout(source).map(({ indent, tokens }) => '  '.repeat(indent) + tokens.map((t) => t.text).join('')).join('\n');

export function definitionBlock(tool) {
  return h('div', { class: 'args' }, jsonBlock(tool.definition, visibleString(`Definition of ${tool.name}`)));
}

/** Shows the changes since the definition was accepted or first seen. */
export function definitionDiff(tool) {
  const before = indented(tool.previous);
  const after = indented(tool.definition);
  const lines = lineDiff(before, after);
  return diffView({ fields: [{ field: 'definition', label: 'Definition', before, after, lines }], truncated: false }, 'UPDATE');
}
