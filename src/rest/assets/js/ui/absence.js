// The account button in the header, and the form with which people say that they are away and name a deputy.

import { explain } from '../core/api.js';
import { notice } from '../core/announce.js';
import { fill, h, separated } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { quote, visibleString } from '../core/text.js';
import { exact, now, time } from '../core/time.js';
import { openDialog } from './dialog.js';

const DAY = 86_400_000;
const MAX_DAYS = 60;

/** Formats a time for an input of the type `datetime-local`. */
function localTime(ms) {
  const date = new Date(ms);
  return new Date(ms - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** Shows who is signed in, and opens the form for people who may decide. It keeps `me.absence` and `me.deputyFor` current. */
export class AccountButton {
  element;
  #api;
  #me;

  constructor({ api, me }) {
    this.#api = api;
    this.#me = me;
    this.element = me.mayDecide
      ? h('button', { type: 'button', class: 'ghost me', 'aria-haspopup': 'dialog', title: t('absence.account'), onclick: () => this.#open() })
      : h('div', { class: 'me' });
    this.#paint();
  }

  /** Reads the absences again, because others may have named this person as their deputy. */
  async refresh() {
    if (!this.#me.mayDecide) return;
    try {
      const { absence = null, deputyFor = [] } = await this.#api.me();
      Object.assign(this.#me, { absence, deputyFor });
      this.#paint();
    } catch {
      // The next poll tries again.
    }
  }

  #paint() {
    const { displayName, name, role, absence } = this.#me;
    const isAway = absence && Date.parse(absence.until) > now();
    fill(this.element, h('span', { class: 'me-name' }, quote(displayName ?? name, 30)),
      isAway ? h('span', { class: 'badge tone-amber me-away' }, icon('clock'), t('absence.away')) : h('span', { class: 'me-role' }, quote(role, 20)));
  }

  #open() {
    openAbsence({ api: this.#api, changed: (absence) => {
      this.#me.absence = absence;
      this.#paint();
    } });
  }
}

function openAbsence({ api, changed }) {
  const body = h('div', { class: 'absence', 'aria-busy': 'true' }, h('p', { class: 'quiet' }, t('absence.loading')));
  const dialog = openDialog({ title: t('absence.title'), className: 'absence-sheet', build: () => h('div', { class: 'sheet-body' }, body) });
  const show = (state, close) => {
    changed(state.absence ?? null);
    body.removeAttribute('aria-busy');
    fill(body, form({ api, state, close, show }));
    body.querySelector('select, button')?.focus();
  };
  api.absence().then((state) => show(state, () => dialog.close()), (error) => {
    body.removeAttribute('aria-busy');
    fill(body, h('p', { class: 'edit-errors', role: 'alert' }, icon('alert'), visibleString(explain(error))));
  });
}

// Returns the form for a state of the gateway: `{absence, deputies, groups}`.
function form({ api, state: { absence, deputies, groups }, close, show }) {
  const error = h('p', { class: 'edit-errors', role: 'alert' });
  const buttons = [];
  const send = async (request, done) => {
    buttons.forEach((button) => { button.disabled = true; });
    fill(error);
    try {
      const state = await request();
      show(state, close);
      close();
      notice(done, { tone: 'green', iconName: 'check' });
    } catch (problem) {
      buttons.forEach((button) => { button.disabled = false; });
      paintSave();
      fill(error, icon('alert'), visibleString(explain(problem)));
    }
  };
  const names = separated(groups.slice(0, 8).map((name) => h('strong', null, quote(name, 60))));
  const until = h('input', { type: 'datetime-local', id: 'absence-until', 'aria-describedby': 'absence-limit', required: true, min: localTime(now()), max: localTime(now() + MAX_DAYS * DAY), value: localTime(absence ? Date.parse(absence.until) : now() + 7 * DAY) });
  const deputy = h('select', { id: 'absence-deputy', required: true }, !absence && h('option', { value: '' }, t('absence.choose')), deputies.map(({ name, displayName }) =>
    h('option', { value: name, selected: name === absence?.deputy }, visibleString(displayName ? `${displayName} (${name})` : name))));
  const save = h('button', { type: 'submit', class: absence ? '' : 'primary' }, t(absence ? 'absence.change' : 'absence.start'));
  const end = absence && h('button', { type: 'button', class: 'primary', onclick: () => send(() => api.endAbsence(), t('absence.isBack')) }, t('absence.back'));
  buttons.push(save, ...(end ? [end] : []));
  // An absence without a deputy, or without a group whose votes the deputy takes over, has no effect.
  const paintSave = () => { save.disabled = deputy.value === '' || groups.length === 0; };
  deputy.addEventListener('change', paintSave);
  paintSave();
  const submit = (event) => {
    event.preventDefault();
    const name = deputy.value;
    send(() => api.setAbsence({ until: new Date(until.value).toISOString(), deputy: name }), t('absence.isAway', { name: visibleString(name) }));
  };
  return h('form', { class: 'absence-form', onsubmit: submit },
    absence && h('p', { class: 'banner tone-amber' }, icon('clock'), h('span', null, parts('absence.state', { until: h('strong', null, exact(absence.until)), time: time(absence.until, 'countdown'), name: h('strong', null, quote(absence.deputy, 80)) }))),
    h('p', null, groups.length ? parts('absence.explanation', { groups: names }) : t('absence.noGroups')),
    deputies.length
      ? [h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'absence-deputy' }, t('absence.deputy')), deputy),
        h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'absence-until' }, t('absence.until')), until, h('span', { id: 'absence-limit', class: 'quiet' }, t('absence.limit', { days: MAX_DAYS })))]
      : h('p', { class: 'quiet' }, t('absence.nobody')),
    error,
    h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: close }, t('common.cancel')), end, deputies.length > 0 && save));
}
