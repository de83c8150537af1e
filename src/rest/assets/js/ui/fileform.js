// Parts of the forms that edit the configuration file.

import { h } from '../core/dom.js';
import { t } from '../core/locale.js';
import { quote } from '../core/text.js';

let number = 0;

/** Returns a control with its label and a hint, which are tied to it by ids. */
export function labelledField(label, control, hint) {
  const id = `file-field-${number += 1}`;
  control.id = id;
  if (hint) control.setAttribute('aria-describedby', `${id}-hint`);
  return h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: id }, label), control, hint && h('p', { class: 'quiet', id: `${id}-hint` }, hint));
}

/** Shows lines of the configuration file, by default those that a person writes into it by hand. */
export const yamlBlock = (yaml, label = t('common.fileLines')) => h('pre', { class: 'server-yaml', tabindex: '0', 'aria-label': label }, h('code', null, yaml.trimEnd().split('\n').map((line) => [quote(line, Infinity), '\n'])));
