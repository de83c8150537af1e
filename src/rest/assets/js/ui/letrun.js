// Lets tools run without review: the user chooses tools beside their definitions and gives a reason. Each tool becomes a
// standing rule, which everybody sees and any reviewer can revoke.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { quote, visibleString } from '../core/text.js';
import { definitionBlock } from './definition.js';
import { openDialog } from './dialog.js';
import { longText } from './longtext.js';

const MAX_REASON = 2000;

/**
 * Opens the dialog. With a single tool there is nothing to choose. `allow(tools, reason)` resolves after the gateway has
 * created the rules; `done(n)` receives their number.
 */
export function openLetRun({ server, tools, allow, done }) {
  const chosen = new Set(tools.length === 1 ? tools.map(({ name }) => name) : []);
  const error = h('p', { class: 'edit-errors', role: 'alert' });
  const reason = h('textarea', { id: 'let-run-reason', rows: '2', maxlength: String(MAX_REASON), 'aria-required': 'true', placeholder: t('tools.letRunWhy') });
  const go = h('button', { type: 'submit', class: 'approve' }, icon('check'), h('span'));
  const relabel = () => {
    go.disabled = chosen.size === 0;
    go.lastChild.textContent = chosen.size === 0 ? t('tools.chooseTool') : t('tools.letRun', { count: chosen.size });
  };
  const definition = (tool) => {
    const body = h('div', { class: 'fold-body' });
    const fold = h('details', { class: 'fold-section' }, h('summary', null, t('tools.fullDefinition')), body);
    fold.addEventListener('toggle', () => fold.open && !body.hasChildNodes() && body.append(definitionBlock(tool)));
    return fold;
  };
  const list = h('ul', { class: 'bulk-list let-run', tabindex: '0', 'aria-label': t('tools.tools') }, tools.map((tool) => h('li', null, h('div', null,
    h('label', { class: 'offer-name' },
      tools.length > 1 && h('input', { type: 'checkbox', onchange: (event) => {
        if (event.target.checked) chosen.add(tool.name);
        else chosen.delete(tool.name);
        relabel();
      } }),
      h('code', null, quote(tool.name, 200))),
    tool.description && longText(tool.description, { chars: 300, lines: 3, className: 'offer-text' }),
    definition(tool)))));
  const submit = async (event) => {
    event.preventDefault();
    fill(error);
    if (reason.value.trim() === '') {
      fill(error, icon('alert'), t('tools.reasonMissing'));
      reason.focus();
      return;
    }
    const chosenTools = tools.filter(({ name }) => chosen.has(name));
    go.disabled = true;
    try {
      await allow(chosenTools, reason.value.trim());
      dialog.close();
      done(chosenTools.length);
    } catch (problem) {
      go.disabled = false;
      fill(error, icon('alert'), visibleString(problem.status === 409 ? t('tools.letRunConflict') : explain(problem)));
    }
  };
  relabel();
  const dialog = openDialog({
    title: tools.length === 1 ? t('tools.letRun', { count: 1 }) : t('tools.letRunOf', { server: visibleString(server) }),
    build: (close) => h('form', { class: 'sheet-body', novalidate: true, onsubmit: submit },
      h('p', null, t('tools.letRunHelp')),
      h('p', { class: 'quiet' }, t('tools.letRunRules')),
      list,
      h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'let-run-reason' }, t('tools.reason')), reason),
      error,
      h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: close }, t('common.cancel')), go)),
  });
  (tools.length === 1 ? reason : list.querySelector('input')).focus();
  return dialog;
}
