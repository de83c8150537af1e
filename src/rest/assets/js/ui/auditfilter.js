// The head of the audit trail: search, and what it can be narrowed by. What is chosen stands in the address.

import { AGES } from '../core/filters.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { short, visibleString } from '../core/text.js';
import { EVENT_GROUPS, eventOf } from '../core/vocab.js';

const LATER = 250;
const MAX = 200;
const MOST_NAMES = 200;

/** Out of the query of a route: `{q, event, actor, age}`. What is unknown is left out. */
export function readAuditFilter(query) {
  const text = (key) => (query.get(key) ?? '').slice(0, MAX);
  return { q: text('q'), event: /^[a-z_,]*$/.test(text('event')) ? text('event') : '', actor: text('actor'), age: AGES[query.get('age')] ? query.get('age') : '' };
}

/** As the gateway is asked, at the time `now`. */
export function auditRequest({ q, event, actor, age }, now) {
  const at = (ms) => new Date(now - ms).toISOString();
  return { q, event, actor, since: AGES[age]?.within ? at(AGES[age].within) : '', until: AGES[age]?.beyond ? at(AGES[age].beyond) : '' };
}

/** For the query of a route: only what is chosen. */
export const auditQuery = (filter) => Object.fromEntries(Object.entries(filter).filter(([, value]) => value));

export const isNarrow = (filter) => Object.values(filter).some(Boolean);

// Names that were seen on this page, to choose from.
const met = new Set();

export class AuditFilter {
  element;
  #change;
  #search;
  #event;
  #actor;
  #age;
  #clear;
  #timer = null;
  #said = '';

  /** `change(filter)` asks for another filter. */
  constructor({ change }) {
    this.#change = change;
    const now = () => this.#tell();
    this.#search = h('input', {
      type: 'search', placeholder: 'Search titles, comments, names…', 'aria-label': 'Search the audit trail', autocomplete: 'off', spellcheck: 'false', maxlength: String(MAX),
      oninput: () => {
        clearTimeout(this.#timer);
        this.#timer = setTimeout(now, LATER);
      },
    });
    this.#event = h('select', { id: 'audit-event', onchange: now }, h('option', { value: '' }, 'Any event'), EVENT_GROUPS.map(([label, events]) => h('optgroup', { label },
      h('option', { value: events.join(',') }, `All: ${label.toLowerCase()}`), events.map((event) => h('option', { value: event }, eventOf(event).label)))));
    this.#actor = h('select', { id: 'audit-actor', onchange: now });
    this.#age = h('select', { id: 'audit-age', onchange: now }, h('option', { value: '' }, 'Any time'), Object.entries(AGES).map(([value, { label }]) => h('option', { value }, label)));
    this.#clear = h('button', { type: 'button', class: 'ghost clear', hidden: true, onclick: () => change(readAuditFilter(new URLSearchParams())) }, icon('cross'), 'Clear');
    const field = (id, label, select) => h('div', { class: 'audit-field' }, h('label', { class: 'sr-only', for: id }, label), select);
    this.element = h('div', { class: 'audit-filter', role: 'search' },
      h('label', { class: 'filter' }, icon('search'), this.#search),
      field('audit-event', 'Event', this.#event), field('audit-actor', 'Who', this.#actor), field('audit-age', 'When', this.#age), this.#clear);
  }

  /** The filter that holds, and the names of who did something in the entries in sight. */
  show(filter, actors = []) {
    for (const actor of actors) if (met.size < MOST_NAMES) met.add(actor);
    if (document.activeElement !== this.#search && this.#search.value !== filter.q) this.#search.value = filter.q;
    this.#event.value = filter.event;
    this.#age.value = filter.age;
    const names = [...new Set([...met, ...(filter.actor ? [filter.actor] : [])])].sort();
    const said = JSON.stringify(names);
    if (said !== this.#said && document.activeElement !== this.#actor) {
      this.#said = said;
      fill(this.#actor, h('option', { value: '' }, 'Anyone'), names.map((name) => h('option', { value: name }, name === 'system' || name === 'gateway' ? `Countersign (${name})` : visibleString(short(name, 60)))));
    }
    this.#actor.value = filter.actor;
    this.#clear.hidden = !isNarrow(filter);
  }

  focus() {
    this.#search.select();
  }

  #tell() {
    clearTimeout(this.#timer);
    this.#change({ q: this.#search.value.trim(), event: this.#event.value, actor: this.#actor.value, age: this.#age.value });
  }

  dispose() {
    clearTimeout(this.#timer);
  }
}
