// Edits the arguments of a change in a form or as JSON. The gateway validates and previews the result; nothing is
// approved here.

import { ApiError, explain } from '../core/api.js';
import { fieldOf, formOf, sourceOfForm } from '../core/argform.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { pretty } from '../core/rawjson.js';
import { escapeHidden, MAX_COMMENT, quote, segments, short, visibleString } from '../core/text.js';
import { openDialog } from './dialog.js';

const MAX_FAULTS = 20;
// Drafts by change and version, kept when the dialog is closed without saving.
const drafts = new Map();

/**
 * Opens the editor. `open` is `{change, source}`, `schema()` resolves to the tool's input schema or null,
 * `send(source, comment)` resolves to the gateway's answer, `remedy(error)` to a button that helps or null, and `done(answer)`
 * receives the answer.
 */
export function openEdit({ open, schema, send, remedy, done }) {
  const { change, source } = open;
  const key = `${change.id} ${change.version}`;
  const draft = drafts.get(key);
  let mode = 'json';
  let fields = null;
  let inputs = new Map();
  let busy = false;
  const json = h('textarea', { class: 'edit-json mono', id: 'edit-json', rows: '14', spellcheck: 'false', autocomplete: 'off', wrap: 'off', 'aria-describedby': 'edit-errors', oninput: () => nameHiddenChars(json, jsonMarks) });
  json.value = draft?.source ?? readableJson(source);
  const initialJson = json.value;
  const jsonMarks = h('div', { class: 'edit-marks', 'aria-live': 'polite' });
  nameHiddenChars(json, jsonMarks);
  const comment = h('textarea', { id: 'edit-comment', rows: '1', maxlength: String(MAX_COMMENT), placeholder: t('controls.whyOptional') });
  comment.value = draft?.comment ?? '';
  const errors = h('div', { class: 'edit-errors', id: 'edit-errors', role: 'alert' });
  const body = h('div', { class: 'edit-fields' });
  const tabs = h('div', { class: 'layouts', role: 'group', 'aria-label': t('edit.how'), hidden: true });
  const save = h('button', { type: 'submit', class: 'primary' }, t('edit.save'));
  let saved = false;

  const current = () => {
    if (mode === 'json') {
      JSON.parse(json.value);
      return json.value.trim();
    }
    return sourceOfForm(fields.map((field) => {
      const { input, initial, keep } = inputs.get(field.key);
      const untouched = input.value === initial;
      // An optional field that was absent and is still empty is omitted.
      return { field, text: untouched ? field.text : input.value, absent: (untouched && field.source === null) || keep?.checked === false };
    }));
  };

  const show = (next) => {
    mode = next;
    fill(errors);
    fill(tabs, ['form', 'json'].map((name) => h('button', { type: 'button', class: 'layout', 'aria-pressed': String(name === mode), data: { layout: name }, onclick: () => name !== mode && switchTo(name) }, name === 'form' ? t('edit.fields') : 'JSON')));
    if (mode === 'json') {
      fill(body, h('label', { class: 'edit-label', for: 'edit-json' }, t('edit.arguments')), json, jsonMarks);
      return;
    }
    inputs = new Map();
    fill(body, fields.map((field) => fieldRow(field, inputs)));
  };

  const switchTo = (next) => {
    try {
      const text = current();
      if (next === 'json') {
        json.value = readableJson(text);
        nameHiddenChars(json, jsonMarks);
      } else {
        const form = formOf(text, inputSchema);
        if (!form) throw new SyntaxError(t('edit.noFields'));
        fields = form;
      }
      show(next);
    } catch (error) {
      showError(error);
    }
  };

  const showError = (error) => {
    const details = error instanceof ApiError && Array.isArray(error.problem.details?.errors) ? error.problem.details.errors.slice(0, MAX_FAULTS) : [];
    for (const row of body.querySelectorAll('.edit-field')) {
      row.classList.remove('wrong');
      row.querySelector('.edit-fault')?.remove();
      row.querySelector('input, textarea, select').removeAttribute('aria-invalid');
    }
    const rest = [];
    let first = null;
    for (const { pointer, message } of details) {
      const row = mode === 'form' && inputs.get(fieldOf(pointer))?.row;
      if (!row) {
        rest.push(h('li', null, pointer && [h('code', null, quote(pointer, 120)), ' '], quote(String(message ?? ''), 300)));
        continue;
      }
      row.classList.add('wrong');
      row.querySelector('input, textarea, select').setAttribute('aria-invalid', 'true');
      row.append(h('p', { class: 'edit-fault' }, icon('alert'), quote(String(message ?? ''), 300)));
      first ??= row;
    }
    const text = error instanceof SyntaxError ? error.message : explain(error);
    fill(errors, h('p', null, icon('alert'), h('span', null, details.length && !rest.length ? t('edit.notAccepted') : visibleString(short(text, 400)))), rest.length > 0 && h('ul', null, rest));
    (first?.querySelector('input, textarea, select') ?? (mode === 'json' ? json : null))?.focus();
  };

  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    let text;
    try {
      text = current();
    } catch (error) {
      showError(error);
      return;
    }
    busy = true;
    save.disabled = true;
    fill(save, t('edit.saving'));
    try {
      const answer = await send(text, comment.value.trim());
      saved = true;
      drafts.delete(key);
      dialog.close();
      done(answer);
    } catch (error) {
      showError(error);
      errors.append(...[await remedy(error)].filter(Boolean));
    } finally {
      busy = false;
      save.disabled = false;
      fill(save, t('edit.save'));
    }
  };

  let inputSchema = null;
  const form = h('form', { class: 'sheet-body edit', novalidate: true, onsubmit: submit, onkeydown: (event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && form.requestSubmit() },
    h('p', { class: 'quiet' }, t('edit.help')),
    tabs, body, errors,
    h('label', { class: 'edit-label', for: 'edit-comment' }, t('controls.comment')), comment,
    h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: () => dialog.close() }, t('common.cancel')), save));
  const dialog = openDialog({
    title: t('edit.title'), className: 'edit-sheet', build: () => form,
    closed: () => {
      if (saved) return;
      try {
        const text = current();
        if (text !== source && readableJson(text) !== initialJson) drafts.set(key, { source: readableJson(text), comment: comment.value });
      } catch {
        if (mode === 'json') drafts.set(key, { source: json.value, comment: comment.value });
      }
    },
  });
  show('json');
  (async () => {
    inputSchema = await schema();
    let text = source;
    try {
      text = current();
    } catch {
      return; // A draft that is not valid JSON yet stays text.
    }
    const now = formOf(text, inputSchema);
    if (!now || !dialog.isConnected) return;
    tabs.hidden = false;
    if (json.value !== initialJson && !draft) {
      show('json');
      return;
    }
    fields = now;
    const focused = document.activeElement === json || document.activeElement?.closest('dialog') === dialog;
    show('form');
    if (focused) body.querySelector('input, textarea, select')?.focus();
  })();
  return dialog;
}

// Returns the same JSON with indentation and with invisible characters as escapes.
const readableJson = (source) => escapeHidden(pretty(source));

// Creates one field with its title, its description and an input.
function fieldRow(field, inputs) {
  const id = `edit-${field.key}`;
  const props = { id, 'aria-describedby': field.help ? `${id}-help` : null, autocomplete: 'off', spellcheck: field.kind === 'long' ? 'true' : 'false' };
  let input;
  if (field.kind === 'choice' || field.kind === 'flag') {
    input = h('select', props, (!field.required || field.source === null) && h('option', { value: '' }, '—'), field.options.map((o) => h('option', { value: o }, visibleString(o))));
  } else if (field.kind === 'long' || field.kind === 'json') {
    input = h('textarea', { ...props, rows: String(Math.min(12, Math.max(3, field.text.split('\n').length))), class: field.kind === 'json' ? 'mono' : null });
  } else {
    input = h('input', { ...props, type: 'text', inputmode: field.kind === 'number' ? 'decimal' : null });
  }
  input.value = field.text;
  const note = h('div', { class: 'edit-marks', 'aria-live': 'polite' });
  input.addEventListener('input', () => {
    nameHiddenChars(input, note);
    if (keep) keep.checked = true;
  });
  nameHiddenChars(input, note);
  // An optional text has a checkbox to omit it, because an empty text differs from an absent one.
  const keep = !field.required && (field.kind === 'text' || field.kind === 'long') ? h('input', { type: 'checkbox', checked: field.source !== null, 'aria-label': t('edit.sendField', { field: visibleString(short(field.title, 60)) }) }) : null;
  const row = h('div', { class: 'edit-field' },
    h('div', { class: 'edit-head' }, h('label', { class: 'edit-label', for: id }, quote(field.title, 80), field.title !== field.key && h('code', { class: 'quiet' }, quote(field.key, 60)), field.required && h('span', { class: 'quiet' }, t('edit.required'))),
      keep && h('label', { class: 'edit-keep quiet' }, keep, t('edit.send'))),
    input, note, field.help && h('p', { class: 'quiet edit-help', id: `${id}-help` }, quote(field.help, 240)),
    !field.known && h('p', { class: 'quiet edit-help' }, t('edit.unknownField')));
  inputs.set(field.key, { input, initial: input.value, keep, row });
  return row;
}

// Names invisible characters below the input, because the browser does not show them.
function nameHiddenChars(input, note) {
  const hidden = segments(input.value, { block: true }).filter((s) => s.text === undefined);
  if (!hidden.length) return fill(note);
  const names = [...new Set(hidden.map((s) => `U+${s.code.toString(16).toUpperCase().padStart(4, '0')} (${s.name})`))];
  return fill(note, icon('alert'), t('edit.invisible', { names: [...names.slice(0, 6), ...(names.length > 6 ? ['…'] : [])].join(', ') }));
}

/** Returns the input schema of a change's tool from the server's list of tools. Without one, the arguments are edited as JSON. */
export async function inputSchemaOf(api, { provider, tool }) {
  try {
    const { tools } = await api.server(provider);
    const found = tools.find(({ name }) => name === tool) ?? tools.find(({ name }) => name.endsWith(`__${tool}`));
    return found ? JSON.parse(found.definition).inputSchema ?? null : null;
  } catch {
    return null;
  }
}
