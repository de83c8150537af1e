// The arguments of a call of which nobody can tell what it changes: once, in neutral colours, field by field or as the
// exact JSON. What was not there before is not shown as added.

import { choice, choose } from '../core/prefs.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { copyButton } from './badges.js';
import { diffView } from './diff.js';
import { jsonBlock } from './json.js';
import { longText } from './longtext.js';

const LAYOUTS = ['fields', 'json'];

/** `{fields, tool}`: the arguments of the diff, and what the tool says of itself (null where it says nothing). */
export function told({ fields }) {
  return { fields: fields.filter((f) => !f.field.startsWith('$')), tool: fields.find((f) => f.field === '$description')?.after ?? null };
}

/** `[switch, …parts]`: the arguments, and what switches between their two forms where there are any (or null). */
export function callArguments(change, source) {
  const { fields } = told(change.diff);
  const cut = change.diff.truncated;
  const box = h('div', { class: 'call-args' });
  const switcher = h('span', { class: 'layouts arg-layouts', role: 'group', 'aria-label': 'Form of the arguments' });
  const exact = () => h('div', { class: 'args' }, copyButton(source, 'Copy the arguments'), jsonBlock(source, 'Arguments'));
  const paint = (shown) => {
    const had = switcher.contains(document.activeElement);
    fill(switcher, LAYOUTS.map((name) => h('button', {
      type: 'button', class: 'layout', 'aria-pressed': String(name === shown),
      onclick: () => {
        choose('arguments', name);
        paint(name);
      },
    }, name === 'json' ? 'JSON' : 'Fields')));
    if (had) switcher.querySelector('[aria-pressed=true]').focus();
    fill(box, shown === 'json' ? exact() : diffView({ fields, truncated: false }, 'ASKED'));
  };
  if (!fields.length) fill(box, source === '{}' ? h('p', { class: 'quiet' }, 'This call has no arguments.') : exact());
  // What was cut is complete as JSON only.
  else paint(cut ? 'json' : choice('arguments', LAYOUTS));
  return [
    fields.length > 0 ? switcher : null,
    cut && h('p', { class: 'banner tone-amber preview-note' }, icon('alert'), h('span', null, 'The arguments are too large to show field by field. Read the JSON before you approve.')),
    box,
  ];
}

/** What the tool says of itself, or null. */
export function toolDescription(change) {
  const { tool } = told(change.diff);
  return tool && h('details', { class: 'fold-section' }, h('summary', null, 'Tool description'), h('blockquote', null, longText(tool, { chars: 1200, lines: 14 })));
}
