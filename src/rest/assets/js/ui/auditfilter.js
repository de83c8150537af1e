// The search field and filters of the audit trail. The address holds the chosen values.

import { AGES, ageLimits } from '../core/filters.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { short, visibleString } from '../core/text.js';
import { EVENT_GROUPS, eventOf } from '../core/vocab.js';

const INPUT_DELAY = 250;
const MAX_TEXT = 200;
const MAX_NAMES = 200;
// The choice of all events of a group, in the order of `EVENT_GROUPS`.
const ALL_OF_GROUP = ['filter.allDecisions', 'filter.allChanges', 'filter.allExecution', 'filter.allRules', 'filter.allConfiguration', 'filter.allDefinitions'];

/** Reads `{q, event, actor, age}` from the query of a route. Unknown values are ignored. */
export function readAuditFilter(query) {
  const text = (key) => (query.get(key) ?? '').slice(0, MAX_TEXT);
  return { q: text('q'), event: /^[a-z_,]*$/.test(text('event')) ? text('event') : '', actor: text('actor'), age: AGES[query.get('age')] ? query.get('age') : '' };
}

/** Returns the filter as parameters of the REST API, at the time `now`. */
export function auditRequest({ q, event, actor, age }, now) {
  return { q, event, actor, ...ageLimits(age, now) };
}

export const isNarrowed = (filter) => Object.values(filter).some(Boolean);

// The actors seen so far, as choices.
const seenActors = new Set();

export class AuditFilter {
  element;
  #change;
  #search;
  #event;
  #actor;
  #age;
  #clear;
  #timer = null;
  #namesKey = '';

  constructor({ change }) {
    this.#change = change;
    const apply = () => this.#apply();
    this.#search = h('input', {
      type: 'search', placeholder: t('filter.searchTrailHint'), 'aria-label': t('filter.searchTrail'), autocomplete: 'off', spellcheck: 'false', maxlength: String(MAX_TEXT),
      oninput: () => {
        clearTimeout(this.#timer);
        this.#timer = setTimeout(apply, INPUT_DELAY);
      },
    });
    this.#event = h('select', { id: 'audit-event', onchange: apply }, h('option', { value: '' }, t('filter.anyEvent')), EVENT_GROUPS.map(([label, events], n) => h('optgroup', { label },
      h('option', { value: events.join(',') }, t(ALL_OF_GROUP[n])), events.map((event) => h('option', { value: event }, eventOf(event).label)))));
    this.#actor = h('select', { id: 'audit-actor', onchange: apply });
    this.#age = h('select', { id: 'audit-age', onchange: apply }, h('option', { value: '' }, t('filter.anyTime')), Object.entries(AGES).map(([value, { label }]) => h('option', { value }, label)));
    this.#clear = h('button', { type: 'button', class: 'ghost clear', hidden: true, onclick: () => change(readAuditFilter(new URLSearchParams())) }, icon('cross'), t('filter.clear'));
    const field = (id, label, select) => h('div', { class: 'audit-field' }, h('label', { class: 'sr-only', for: id }, label), select);
    this.element = h('div', { class: 'audit-filter', role: 'search' },
      h('label', { class: 'filter' }, icon('search'), this.#search),
      field('audit-event', t('filter.event'), this.#event), field('audit-actor', t('filter.who'), this.#actor), field('audit-age', t('filter.when'), this.#age), this.#clear);
  }

  /** Shows the current filter and adds the actors of the visible entries to the choices. */
  show(filter, actors = []) {
    for (const actor of actors) if (seenActors.size < MAX_NAMES) seenActors.add(actor);
    if (document.activeElement !== this.#search && this.#search.value !== filter.q) this.#search.value = filter.q;
    this.#event.value = filter.event;
    this.#age.value = filter.age;
    const names = [...new Set([...seenActors, ...(filter.actor ? [filter.actor] : [])])].sort();
    const namesKey = JSON.stringify(names);
    if (namesKey !== this.#namesKey && document.activeElement !== this.#actor) {
      this.#namesKey = namesKey;
      fill(this.#actor, h('option', { value: '' }, t('filter.anyone')), names.map((name) => h('option', { value: name }, name === 'system' || name === 'gateway' ? `Countersign (${name})` : visibleString(short(name, 60)))));
    }
    this.#actor.value = filter.actor;
    this.#clear.hidden = !isNarrowed(filter);
  }

  focus() {
    this.#search.select();
  }

  #apply() {
    clearTimeout(this.#timer);
    this.#change({ q: this.#search.value.trim(), event: this.#event.value, actor: this.#actor.value, age: this.#age.value });
  }

  dispose() {
    clearTimeout(this.#timer);
  }
}
