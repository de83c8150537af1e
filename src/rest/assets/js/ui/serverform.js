// The form that adds a server or changes one. It tests the server, and shows the changed lines of the configuration file
// before it writes them. Where the file is not edited here, it shows the lines to write.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { fieldsOf, KINDS, settingsOf } from '../core/servertarget.js';
import { quote, visibleString } from '../core/text.js';
import { openDialog } from './dialog.js';
import { labelledField, yamlBlock } from './fileform.js';
import { configLines } from './reload.js';
import { runTrial } from './trial.js';

const HINTS = {
  npm: ['serverform.package', '@modelcontextprotocol/server-filesystem'],
  pypi: ['serverform.package', 'mcp-server-git'],
  docker: ['serverform.image', 'ghcr.io/github/github-mcp-server'],
  command: ['serverform.command', '/usr/local/bin/server'],
  url: ['serverform.address', 'https://mcp.example.com/mcp'],
};

const NAME_EXAMPLE = 'files';
const ARGUMENT_EXAMPLES = { npm: '/home/me/documents', pypi: '--repository\n/home/me/project' };

/**
 * Opens the form. `file` is the answer of `api.serverFile()`, `server` the configured server to change, or null to add one.
 * `saved(result, name)` is called after the file was written, or once the edit waits for consent.
 */
export function openServerForm({ api, file, server = null, saved }) {
  const abort = new AbortController();
  const old = server?.settings ?? {};
  const shown = server ? fieldsOf(old) : { kind: 'npm', target: '', args: '', pairs: '' };
  const name = h('input', { type: 'text', maxlength: '64', autocomplete: 'off', spellcheck: 'false', disabled: server !== null, value: server?.name ?? '' });
  const kind = h('select', null, KINDS.filter(([value]) => !server || value !== 'paste').map(([value, label]) => h('option', { value, selected: value === shown.kind }, label)));
  const target = h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', value: shown.target });
  const args = h('textarea', { rows: '3', spellcheck: 'false' }, shown.args);
  const pairs = h('textarea', { rows: '2', spellcheck: 'false' }, shown.pairs);
  const text = h('textarea', { rows: '9', spellcheck: 'false', placeholder: '{ "mcpServers": { … } }' });
  name.placeholder = NAME_EXAMPLE;
  const fields = h('div', { class: 'server-fields' });
  const report = h('div', { class: 'server-report', 'aria-live': 'polite' });
  const error = h('p', { class: 'edit-errors', role: 'alert' });
  const test = h('button', { type: 'button', onclick: () => runTest() }, icon('refresh'), t('serverform.test'));
  const next = h('button', { type: 'submit', class: 'approve' }, t('serverform.showChange'));
  const foot = h('div', { class: 'sheet-foot' });

  const paintFields = () => {
    const isPaste = kind.value === 'paste';
    const [key, example] = HINTS[kind.value] ?? [];
    if (example) target.placeholder = example;
    args.placeholder = ARGUMENT_EXAMPLES[kind.value] ?? '';
    const isUrl = kind.value === 'url';
    fill(fields,
      !isPaste && labelledField(t(key), target),
      isPaste && labelledField(t('serverform.text'), text, t('serverform.textHint')),
      !isPaste && !isUrl && labelledField(t('serverform.arguments'), args, t('serverform.argumentsHint')),
      !isPaste && labelledField(t(isUrl ? 'serverform.headers' : 'serverform.variables'), pairs, t(isUrl ? 'serverform.headersHint' : 'serverform.variablesHint', { secret: '${NAME}' })));
  };

  // Shows a problem, and marks the control that it is about.
  const complain = (problem, control = null) => {
    fill(error, icon('alert'), problem);
    error.scrollIntoView({ block: 'nearest' });
    control?.setAttribute('aria-invalid', 'true');
    control?.focus();
    return null;
  };

  // Returns the servers of the form for a request, or shows what is missing.
  const read = () => {
    fill(error);
    for (const control of [name, target, pairs, text]) control.removeAttribute('aria-invalid');
    const given = name.value.trim();
    if (!server && file.servers.some((configured) => configured.name === given)) return complain(t('serverform.nameTaken', { name: visibleString(given) }), name);
    if (kind.value === 'paste') {
      if (text.value.trim() === '') return complain(t('serverform.pasteText'), text);
      return { name: given, text: text.value };
    }
    if (given === '') return complain(t('serverform.giveName'), name);
    const { settings, problem, field } = settingsOf({ kind: kind.value, target: target.value, args: args.value, pairs: pairs.value }, old);
    return problem ? complain(problem, field === 'target' ? target : pairs) : { name: given, settings };
  };

  async function runTest() {
    const given = read();
    if (!given) return;
    if (given.name === '') {
      complain(t('serverform.giveNameForTest'), name);
      return;
    }
    test.disabled = true;
    await runTrial({ api, request: given, place: report, signal: abort.signal });
    test.disabled = false;
  }

  const send = ({ name: given, settings, text: pasted }, preview) => {
    const common = { version: file.version, preview };
    if (server) return api.editServer(server.name, { ...common, settings });
    return api.addServers({ ...common, text: pasted ?? JSON.stringify({ mcpServers: { [given]: settings } }), ...(given ? { name: given } : {}) });
  };

  const fail = (problem) => {
    if (problem.problem?.yaml) fill(report, yamlBlock(problem.problem.yaml));
    complain(problem.status === 409 ? t('common.fileChanged') : visibleString(explain(problem)));
  };

  async function showChange(given) {
    next.disabled = true;
    try {
      const result = await send(given, true);
      fill(report,
        result.notes.map((note) => h('p', { class: 'banner tone-amber' }, icon('alert'), h('span', null, quote(note, 400)))),
        result.unsetVariables.length > 0 && h('p', { class: 'banner tone-amber' }, icon('alert'), h('span', null, t('serverform.unsetVariables', { names: result.unsetVariables.map((v) => visibleString(v)).join(', ') }))),
        result.loosens.length > 0 && h('p', { class: 'banner tone-amber' }, icon('eye'), h('span', null, t('common.waitsForConsent', { count: result.loosens.length }))),
        file.mayEdit && result.needsConsent && h('p', { class: 'banner tone-amber' }, icon('eye'), h('span', null, t('serverform.needsConsent'))),
        file.mayEdit ? [h('p', null, t('serverform.changesTo')), configLines(result.file, result.lines)]
          : [h('p', null, t(`common.paste.${file.editing}`)), yamlBlock(result.yaml)]);
      report.scrollIntoView({ block: 'nearest' });
      if (file.mayEdit) {
        const write = h('button', { type: 'button', class: 'approve', onclick: () => save(given, write) }, icon('check'), t(result.needsConsent ? 'serverform.askForConsent' : 'common.writeFile'));
        fill(foot, h('button', { type: 'button', onclick: back }, t('common.back')), write);
        setDisabled(true);
        write.focus();
      }
    } catch (problem) {
      fail(problem);
    } finally {
      next.disabled = false;
    }
  }

  async function save(given, button) {
    button.disabled = true;
    try {
      const result = await send(given, false);
      dialog.close();
      saved(result, given.name);
    } catch (problem) {
      button.disabled = false;
      fail(problem);
    }
  }

  const setDisabled = (disabled) => {
    for (const control of [kind, target, args, pairs, text]) control.disabled = disabled;
    name.disabled = disabled || server !== null;
  };

  function back() {
    setDisabled(false);
    fill(report);
    fill(error);
    paintFoot();
    next.focus();
  }

  const paintFoot = () => fill(foot, h('button', { type: 'button', onclick: () => dialog.close() }, t('common.cancel')), file.mayEdit && test, next);

  const dialog = openDialog({
    title: server ? t('serverform.changeTitle', { server: visibleString(server.name) }) : t('serverform.addTitle'),
    className: 'server-form',
    isEdited: (hasInput) => hasInput,
    closed: () => abort.abort(),
    build: () => h('form', { class: 'sheet-body', novalidate: true, onsubmit: (event) => {
      event.preventDefault();
      const given = read();
      if (given) showChange(given);
    } },
    !file.mayEdit && h('p', { class: 'banner tone-amber' }, icon('alert'), h('span', null, t('common.notEdited'))),
    labelledField(t('serverform.name'), name, server ? null : t('serverform.nameHint')), labelledField(t('serverform.kind'), kind), fields, report, error, foot),
  });
  kind.addEventListener('change', () => {
    fill(report);
    paintFields();
  });
  paintFields();
  paintFoot();
  (server ? target : name).focus();
  return dialog;
}

/** Asks before a server is removed, and shows the changed lines. */
export async function openRemoval({ api, file, name, saved }) {
  const error = h('p', { class: 'edit-errors', role: 'alert' });
  const body = h('div', { class: 'sheet-body' });
  const dialog = openDialog({ title: t('serverform.removeTitle', { server: visibleString(name) }), className: 'server-form', build: () => body });
  const remove = h('button', { type: 'button', class: 'reject', onclick: async () => {
    remove.disabled = true;
    try {
      const result = await api.removeServer(name, file.version, false);
      dialog.close();
      saved(result);
    } catch (problem) {
      remove.disabled = false;
      fill(error, icon('alert'), visibleString(problem.status === 409 ? t('serverform.removeAgain') : explain(problem)));
    }
  } }, icon('cross'), t('serverform.remove'));
  try {
    const result = await api.removeServer(name, file.version, true);
    fill(body, h('p', null, t('serverform.removeHelp')), configLines(result.file, result.lines), error,
      h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: () => dialog.close() }, t('common.cancel')), remove));
    remove.focus();
  } catch (problem) {
    fill(body, error);
    fill(error, icon('alert'), visibleString(explain(problem)));
  }
}
