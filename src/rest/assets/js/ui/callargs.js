// Shows the arguments of a call whose effect is unknown, field by field or as the exact JSON. Neutral colours avoid the
// impression that something is added.

import { t } from '../core/locale.js';
import { preference, setPreference } from '../core/prefs.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { copyButton } from './badges.js';
import { diffView } from './diff.js';
import { jsonBlock } from './json.js';
import { longText } from './longtext.js';

const LAYOUTS = ['fields', 'json'];

/** Splits the fields of a diff into `{fields, tool}`: the arguments, and the tool's own description or null. */
export function splitFields({ fields }) {
  return { fields: fields.filter((f) => !f.field.startsWith('$')), tool: fields.find((f) => f.field === '$description')?.after ?? null };
}

/** Returns `[switcher, …parts]`. The switcher chooses between the two forms and is null if there is only one. */
export function callArguments(change, source) {
  const { fields } = splitFields(change.diff);
  const cut = change.diff.truncated;
  const box = h('div', { class: 'call-args' });
  const switcher = h('span', { class: 'layouts arg-layouts', role: 'group', 'aria-label': t('detail.argumentsForm') });
  const exact = () => h('div', { class: 'args' }, copyButton(source, t('detail.copyArguments')), jsonBlock(source, t('detail.arguments')));
  const paint = (shown) => {
    const hadFocus = switcher.contains(document.activeElement);
    fill(switcher, LAYOUTS.map((name) => h('button', {
      type: 'button', class: 'layout', 'aria-pressed': String(name === shown),
      onclick: () => {
        setPreference('arguments', name);
        paint(name);
      },
    }, name === 'json' ? 'JSON' : t('detail.fields'))));
    if (hadFocus) switcher.querySelector('[aria-pressed=true]').focus();
    fill(box, shown === 'json' ? exact() : diffView({ fields, truncated: false }, 'ARGUMENTS', source));
  };
  if (!fields.length) fill(box, source === '{}' ? h('p', { class: 'quiet' }, t('detail.noArguments')) : exact());
  // Truncated arguments are complete only as JSON.
  else paint(cut ? 'json' : preference('arguments', LAYOUTS));
  return [
    fields.length > 0 ? switcher : null,
    cut && h('p', { class: 'banner tone-amber preview-note' }, icon('alert'), h('span', null, t('detail.argumentsCut'))),
    box,
  ];
}

export function toolDescription(change) {
  const { tool } = splitFields(change.diff);
  return tool && h('details', { class: 'fold-section' }, h('summary', null, t('detail.toolDescription')), h('blockquote', null, longText(tool, { chars: 1200, lines: 14 })));
}
