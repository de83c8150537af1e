// Exports the audit trail as a file. It is fetched with the secret, which a plain link could not carry, and saved only
// when complete, so that a partial file is never mistaken for the trail.

import { explain } from '../core/api.js';
import { notice } from '../core/announce.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { visibleString } from '../core/text.js';
import { openDialog } from './dialog.js';

const formats = () => [['jsonl', t('controls.exportJsonl'), t('controls.exportJsonlHelp')], ['csv', 'CSV', t('controls.exportCsvHelp')]];

/** Returns `{since, until}` of two optional days of date fields, both included, in the local time zone. */
export function spanOf(from, to) {
  const midnight = (day, days) => {
    const [y, m, d] = day.split('-').map(Number);
    return new Date(y, m - 1, d + days).toISOString();
  };
  return { since: from ? midnight(from, 0) : null, until: to ? midnight(to, 1) : null };
}

/** Opens the dialog. `load({format, since, until, signal})` resolves to `{name, blob}`. */
export function openExport({ load }) {
  const abort = new AbortController();
  const error = h('p', { class: 'edit-errors', role: 'alert' });
  const from = h('input', { type: 'date', id: 'export-from' });
  const to = h('input', { type: 'date', id: 'export-to' });
  const save = h('button', { type: 'submit', class: 'primary' }, icon('download'), h('span', null, t('controls.exportSave')));
  let format = 'jsonl';
  const submit = async (event) => {
    event.preventDefault();
    fill(error);
    if (from.value && to.value && from.value > to.value) {
      fill(error, icon('alert'), t('controls.exportOrder'));
      return;
    }
    save.disabled = true;
    save.lastChild.textContent = t('controls.exportReading');
    try {
      const { name, blob } = await load({ format, ...spanOf(from.value, to.value), signal: abort.signal });
      download(blob, name);
      dialog.close();
      notice(t('controls.exportSaved', { name }), { tone: 'green', iconName: 'check' });
    } catch (problem) {
      if (abort.signal.aborted) return;
      save.disabled = false;
      save.lastChild.textContent = t('controls.exportSave');
      fill(error, icon('alert'), visibleString(problem.status === 404 ? t('controls.exportMissing') : explain(problem)));
    }
  };
  const dialog = openDialog({
    title: t('controls.exportTitle'),
    build: (close) => h('form', { class: 'sheet-body', novalidate: true, onsubmit: submit },
      h('fieldset', { class: 'radios export-formats' }, h('legend', null, t('controls.exportFormat')), formats().map(([value, label, explanation]) => h('label', null,
        h('input', { type: 'radio', name: 'export-format', value, checked: value === format, onchange: () => { format = value; } }),
        h('span', null, label, h('span', { class: 'quiet' }, ` ${explanation}`))))),
      h('div', { class: 'export-span' },
        h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'export-from' }, t('controls.exportFrom')), from),
        h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'export-to' }, t('controls.exportTo')), to)),
      h('p', { class: 'quiet' }, t('controls.exportDays')),
      error,
      h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: close }, t('common.cancel')), save)),
    closed: () => abort.abort(),
  });
  dialog.querySelector('input').focus();
  return dialog;
}

function download(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  // Revoking the URL at once could interrupt the browser's save.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
