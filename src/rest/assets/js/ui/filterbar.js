// The search field, states and filters above a list.

import { AGES, FACETS, UNSUCCESSFUL, countCriteria } from '../core/filters.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { shortcut } from '../core/keys.js';
import { t } from '../core/locale.js';
import { count, short, visibleString } from '../core/text.js';
import { STATES } from '../core/vocab.js';

const INPUT_DELAY = 200;

export class FilterBar {
  element;
  chips;
  #change;
  #leave;
  #states;
  #filter;
  #search;
  #toggle;
  #panel;
  #selects = new Map();
  #group;
  #timer = null;
  #facets = null;
  #chipsKey = null;

  /** `name` is `inbox` or `history`. `change(filter)` is called for another filter, `leave()` moves the focus to the list. `grouping` offers a checkbox. */
  constructor({ name, grouping, states, filter, change, leave }) {
    this.#change = change;
    this.#leave = leave;
    this.#states = states;
    this.#filter = filter;
    this.#search = h('input', {
      type: 'search', placeholder: t('filter.search'), 'aria-label': t(name === 'inbox' ? 'filter.searchInbox' : 'filter.searchHistory'), autocomplete: 'off', spellcheck: 'false', maxlength: '200', 'aria-keyshortcuts': shortcut('/'),
      oninput: () => this.#applySoon(), onkeydown: (event) => this.#key(event),
    });
    this.#search.value = filter.q;
    this.#toggle = h('button', { type: 'button', class: 'icon-only narrow', 'aria-label': t('filter.filters'), 'aria-expanded': 'false', 'aria-controls': 'filters', title: t('filter.filters'), onclick: () => this.#open(this.#panel.hidden) }, icon('filter'));
    const select = (key, label, options) => {
      const element = h('select', { id: `filter-${key}`, onchange: () => this.#set({ [key]: element.value }) }, options);
      this.#selects.set(key, element);
      return h('div', { class: 'narrow-field' }, h('label', { for: `filter-${key}` }, label), element);
    };
    this.#group = h('input', { type: 'checkbox', id: 'filter-group', onchange: () => this.#set({ group: this.#group.checked ? '' : 'none' }) });
    this.#panel = h('div', { class: 'narrow-panel', id: 'filters', hidden: true },
      FACETS.map(([key, label]) => select(key, label)),
      select('age', t('filter.age'), [h('option', { value: '' }, t('filter.anyAge')), Object.entries(AGES).map(([value, { label }]) => h('option', { value }, label))]),
      grouping && h('label', { class: 'narrow-group', for: 'filter-group' }, this.#group, t('filter.group')));
    this.chips = h('div', { class: 'chips', role: 'group', 'aria-label': t('filter.state') });
    this.element = h('div', { class: 'filterbar' },
      h('div', { class: 'filter-row' }, h('label', { class: 'filter' }, icon('search'), this.#search, h('kbd', { 'aria-hidden': 'true' }, '/')), this.#toggle), this.chips, this.#panel);
    if (countCriteria(filter)) this.#open(true);
  }

  focus() {
    this.#search.select();
  }

  /** Shows the current filter, the choices that `facets()` returns, and the counts by state. */
  show(filter, facets, counts) {
    this.#filter = filter;
    if (document.activeElement !== this.#search && this.#search.value !== filter.q) this.#search.value = filter.q;
    const n = countCriteria(filter);
    this.#toggle.classList.toggle('chosen', n > 0);
    this.#toggle.setAttribute('aria-label', n ? t('filter.filtersChosen', { count: n }) : t('filter.filters'));
    this.#group.checked = filter.group !== 'none';
    this.#selects.get('age').value = filter.age;
    // The choices are not computed while the panel is closed.
    this.#facets = facets;
    if (!this.#panel.hidden) this.#choices();
    this.#paintChips(filter, counts);
  }

  #choices() {
    const facets = this.#facets();
    for (const [key] of FACETS) this.#options(this.#selects.get(key), facets[key] ?? [], this.#filter[key]);
  }

  // Options are rebuilt only when they differ, and not while the list has the focus.
  #options(select, list, chosen) {
    const key = JSON.stringify(list);
    if (select.dataset.key !== key && document.activeElement !== select) {
      select.dataset.key = key;
      fill(select, h('option', { value: '' }, t('filter.any')), list.map(([value, n]) => h('option', { value }, n === null ? visibleString(short(value, 60)) : `${visibleString(short(value, 60))} (${count(n)})`)));
    }
    if (select.value !== chosen) select.value = chosen;
  }

  #paintChips(filter, counts) {
    const states = ['', ...this.#states.filter((s) => s === filter.state || counts[s] > 0 || ['applied', 'rejected', 'failed'].includes(s)), ...(filter.state === UNSUCCESSFUL ? [UNSUCCESSFUL] : [])];
    const isNarrowed = countCriteria(filter) > 0 || filter.q || filter.state;
    const key = JSON.stringify([states, states.map((state) => counts[state] ?? 0), filter.state, Boolean(isNarrowed)]);
    if (key === this.#chipsKey) return;
    this.#chipsKey = key;
    // Existing chips are reused, because replacing one during a press would lose the click.
    const present = new Map([...this.chips.children].map((chip) => [chip.dataset.state, chip]));
    const chips = states.map((state) => {
      const chip = present.get(state) ?? h('button', { type: 'button', class: 'chip', data: { state }, onclick: () => this.#set({ state }) });
      chip.setAttribute('aria-pressed', String(state === filter.state));
      fill(chip, state === UNSUCCESSFUL ? t('filter.unsuccessful') : state ? STATES[state].label : t('filter.all'), state && counts[state] > 0 && h('span', { class: 'quiet' }, count(counts[state])));
      return chip;
    });
    if (isNarrowed) chips.push(present.get('clear') ?? h('button', { type: 'button', class: 'chip clear', data: { state: 'clear' }, onclick: () => this.clear() }, icon('cross'), t('filter.clear')));
    for (const chip of [...this.chips.children]) if (!chips.includes(chip)) chip.remove();
    chips.forEach((chip, i) => this.chips.children[i] !== chip && this.chips.insertBefore(chip, this.chips.children[i] ?? null));
  }

  clear() {
    this.#search.value = '';
    this.#set({ state: '', tool: '', server: '', principal: '', age: '', q: '' });
  }

  #set(part) {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#change({ ...this.#filter, q: this.#search.value.trim(), ...part });
  }

  #applySoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#set({}), INPUT_DELAY);
  }

  #key(event) {
    if (event.key === 'Escape') {
      event.preventDefault();
      event.stopPropagation();
      if (this.#search.value) {
        this.#search.value = '';
        this.#set({});
      } else {
        this.#leave();
      }
    } else if (event.key === 'ArrowDown' || event.key === 'Enter') {
      event.preventDefault();
      if (this.#timer !== null) this.#set({});
      this.#leave();
    }
  }

  #open(open) {
    this.#panel.hidden = !open;
    if (open && this.#facets) this.#choices();
    this.#toggle.setAttribute('aria-expanded', String(open));
  }

  dispose() {
    clearTimeout(this.#timer);
  }
}
