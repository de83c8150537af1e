// The form that edits the rules of the policy in the configuration file. It tries them on recorded calls and shows the changed
// lines before it writes them. Where the file is not edited here, it shows the lines to write.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { routeTo } from '../core/router.js';
import { quote, visibleString } from '../core/text.js';
import { openDialog } from './dialog.js';
import { labelledField, yamlBlock } from './fileform.js';
import { configLines } from './reload.js';
import { verdictBadge } from './verdict.js';

// The keys with a field of their own, of which the first ones hold patterns.
const PATTERNS = ['tools', 'servers', 'principals', 'roles'];
const TEXTS = ['name', 'when', 'reason'];
const VERDICTS = ['review', 'allow', 'deny'];
const MAX_SUMMARY = 120;

/** Returns the patterns of a text. Commas within braces belong to a pattern. Pure. */
function patternsOf(text) {
  const found = text.split(/,(?![^{]*\})/).map((part) => part.trim()).filter(Boolean);
  return found.length > 1 ? found : found[0];
}

/**
 * Returns the keys of a rule that have fields, after an edit. `shown` holds the texts of the fields before the edit, and `texts`
 * those after it. A field that was not edited keeps its value, which its text may not express: a comma in a pattern, or a line
 * break. Pure.
 */
export function editedKeys(settings, shown, texts) {
  const valueOf = (key, text) => (PATTERNS.includes(key) ? patternsOf(text) : text.trim());
  const keys = Object.entries(texts).map(([key, text]) => [key, text === shown[key] ? settings[key] : valueOf(key, text)]);
  return Object.fromEntries(keys.filter(([, value]) => (value ?? '') !== ''));
}

/** Returns a rule as a line such as `no-deletions: delete_*`. Pure. */
function ruleSummary({ name, tools, servers, when, resources, prompts, methods }) {
  const what = [tools, servers, resources, prompts, methods].flat().filter(Boolean).join(', ') || (when ? '' : '*');
  return [name && `${name}:`, what, when && `(${when})`].filter(Boolean).join(' ');
}

/** Opens the form. `file` is the answer of `api.policyFile()`. `saved(result)` is called after the file was written. */
export function openPolicyForm({ api, file, saved }) {
  // Each rule is `{kept}` or `{replaces, settings}`, with its keys in `settings`.
  let entries = file.rules.map((settings, index) => ({ kept: index, settings }));
  let chosen = null;
  const list = h('ol', { class: 'policy-list' });
  const editor = h('div', { class: 'policy-editor' });
  const report = h('div', { class: 'policy-report', 'aria-live': 'polite', tabindex: '-1' });
  const error = h('p', { class: 'edit-errors', role: 'alert' });
  const foot = h('div', { class: 'sheet-foot' });
  const complain = (message) => {
    fill(error, icon('alert'), message);
    error.scrollIntoView();
  };

  const focusEntry = (index) => list.children[Math.min(index, entries.length - 1)]?.querySelector('button')?.focus();

  const move = (index, by) => {
    const [entry] = entries.splice(index, 1);
    entries.splice(index + by, 0, entry);
    paint();
    list.children[index + by].querySelector(`[data-act="${by < 0 ? 'up' : 'down'}"]:enabled, button:enabled`)?.focus();
  };

  const write = (entry, settings) => ({ replaces: entry?.kept ?? entry?.replaces, settings });

  const toggle = (index) => {
    const { disabled, ...settings } = entries[index].settings;
    entries[index] = write(entries[index], disabled ? settings : { ...settings, disabled: true });
    paint();
    focusEntry(index);
  };

  const row = (entry, index) => {
    const { settings } = entry;
    const text = ruleSummary(settings);
    const act = (name, key, run, disabled = false) => h('button', { type: 'button', class: 'small', data: { act: name }, disabled, onclick: run }, t(key), h('span', { class: 'sr-only' }, ' ', visibleString(text.slice(0, 60))));
    return h('li', { class: settings.disabled ? 'off' : null },
      h('p', null, verdictBadge(settings.then), ' ', quote(text, MAX_SUMMARY), settings.disabled && h('span', { class: 'badge' }, t('policy.disabled'))),
      h('div', { class: 'policy-acts' }, act('edit', 'policy.edit', () => edit(index)), act('up', 'policy.up', () => move(index, -1), index === 0), act('down', 'policy.down', () => move(index, 1), index === entries.length - 1),
        act('toggle', settings.disabled ? 'policy.enable' : 'policy.disable', () => toggle(index)),
        act('remove', 'policy.remove', () => {
          entries.splice(index, 1);
          paint();
          focusEntry(index);
        })));
  };

  function paint() {
    fill(report);
    fill(error);
    fill(editor);
    chosen = null;
    list.hidden = false;
    fill(list, entries.map(row));
    fill(foot, h('button', { type: 'button', onclick: () => dialog.close() }, t('common.cancel')),
      h('button', { type: 'button', onclick: () => edit(entries.length) }, icon('plus'), t('policy.add')),
      h('button', { type: 'button', class: 'primary', onclick: (event) => tryOut(event.currentTarget) }, icon('play'), t('policy.try')));
  }

  function edit(index) {
    const entry = entries[index];
    const settings = entry?.settings ?? { then: 'review' };
    chosen = index;
    // The buttons of other rules would discard what is typed.
    list.hidden = true;
    fill(report);
    fill(error);
    const inputs = Object.fromEntries([...TEXTS, ...PATTERNS].map((key) => [key, h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', value: [settings[key] ?? ''].flat().join(', ') })]));
    const textsOf = () => Object.fromEntries(Object.entries(inputs).map(([key, input]) => [key, input.value]));
    const shown = textsOf();
    const then = h('select', null, VERDICTS.map((verdict) => h('option', { value: verdict, selected: verdict === settings.then }, t(`policy.${verdict}`))));
    const known = [...TEXTS, ...PATTERNS, 'then', 'disabled'];
    const others = Object.fromEntries(Object.entries(settings).filter(([key]) => !known.includes(key)));
    const more = h('textarea', { rows: '2', spellcheck: 'false' }, Object.keys(others).length ? JSON.stringify(others) : '');
    const apply = () => {
      let rest = {};
      try {
        rest = more.value.trim() ? JSON.parse(more.value) : {};
      } catch {
        return complain(t('policy.notJson'));
      }
      const { when, reason, ...next } = editedKeys(settings, shown, textsOf());
      if (next.roles) next.roles = [next.roles].flat();
      if (when) next.when = when;
      Object.assign(next, rest, { then: then.value });
      if (reason) next.reason = reason;
      if (settings.disabled) next.disabled = true;
      entries[index] = write(entry, next);
      paint();
      return focusEntry(index);
    };
    fill(editor, h('fieldset', null, h('legend', null, entry ? t('policy.editRule', { number: index + 1 }) : t('policy.newRule')),
      labelledField(t('policy.field.name'), inputs.name), labelledField(t('policy.field.tools'), inputs.tools, t('policy.field.toolsHint')),
      labelledField(t('policy.field.servers'), inputs.servers), labelledField(t('policy.field.principals'), inputs.principals), labelledField(t('policy.field.roles'), inputs.roles, t('policy.field.rolesHint')),
      labelledField(t('policy.field.when'), inputs.when, t('policy.field.whenHint')), labelledField(t('policy.field.then'), then), labelledField(t('policy.field.reason'), inputs.reason),
      labelledField(t('policy.field.more'), more, t('policy.field.moreHint'))));
    fill(foot, h('button', { type: 'button', onclick: () => {
      paint();
      focusEntry(index);
    } }, t('common.back')), h('button', { type: 'button', class: 'primary', onclick: apply }, icon('check'), t('policy.apply')));
    inputs.name.focus();
    editor.scrollIntoView();
  }

  const body = (preview) => ({
    version: file.version, preview,
    rules: entries.map(({ kept, replaces, settings }) => (kept !== undefined ? { kept } : { ...(replaces === undefined ? {} : { replaces }), settings })),
  });

  const fail = (problem) => {
    if (problem.problem?.yaml) fill(report, yamlBlock(problem.problem.yaml));
    complain(problem.status === 409 ? t('common.fileChanged') : visibleString(explain(problem)));
  };

  async function tryOut(button) {
    button.disabled = true;
    try {
      const request = body(true);
      const result = await api.editPolicy(request);
      // Ignores the answer if the rules were modified meanwhile, or one is being edited.
      if (chosen !== null || JSON.stringify(body(true)) !== JSON.stringify(request)) return;
      fill(error);
      fill(report, dryRun(result.dryRun),
        result.loosens.length > 0 && h('p', { class: 'banner tone-amber' }, icon('eye'), h('span', null, t('common.waitsForConsent', { count: result.loosens.length }))),
        file.mayEdit ? configLines(result.file, result.lines) : [h('p', null, t(`common.paste.${file.editing}`)), yamlBlock(result.yaml)]);
      const save = h('button', { type: 'button', class: 'approve', onclick: () => send(save) }, icon('check'), t('common.writeFile'));
      fill(foot, h('button', { type: 'button', onclick: () => {
        paint();
        focusEntry(0);
      } }, t('common.back')), file.mayEdit && save);
      list.hidden = true;
      // The button that writes gets no focus, so that a second Enter writes nothing before the result was seen.
      report.focus();
      report.scrollIntoView();
    } catch (problem) {
      fail(problem);
    } finally {
      button.disabled = false;
    }
  }

  async function send(button) {
    button.disabled = true;
    try {
      const result = await api.editPolicy(body(false));
      dialog.close();
      saved(result);
    } catch (problem) {
      button.disabled = false;
      fail(problem);
    }
  }

  const dialog = openDialog({
    title: t('policy.editTitle'),
    className: 'policy-form',
    isEdited: (hasInput) => hasInput || entries.length !== file.rules.length || entries.some(({ kept }, index) => kept !== index),
    build: () => h('form', { class: 'sheet-body', novalidate: true, onsubmit: (event) => event.preventDefault() },
      h('p', { class: 'quiet' }, t('policy.editHelp')),
      !file.mayEdit && h('p', { class: 'banner tone-amber' }, icon('alert'), h('span', null, t('common.notEdited'))),
      list, editor, error, report, foot),
  });
  paint();
  foot.querySelector('button.primary').focus();
  return dialog;
}

// Shows the recorded calls whose verdicts would differ.
function dryRun({ compared, complete, differing, differences }) {
  const decision = ({ verdict, rule }) => h('span', null, verdictBadge(verdict), ' ', h('span', { class: 'quiet' }, quote(rule ?? t('policy.default'), 60)));
  return h('section', { class: 'dry-run' }, h('h3', null, t('policy.dryRun')),
    h('p', null, differing === 0 ? t('policy.noDifference', { count: compared }) : t('policy.differing', { count: differing, compared })),
    !complete && h('p', { class: 'quiet' }, t('policy.notAll')),
    differences.length > 0 && h('ul', { class: 'plain-links' }, differences.map(({ change, before, after }) => h('li', null,
      h('a', { href: routeTo('history', change.id) }, quote(change.summary, 100)), ' ', decision(before), ' → ', decision(after)))),
    differing > differences.length && h('p', { class: 'quiet' }, t('policy.moreDiffering', { count: differing - differences.length })));
}
