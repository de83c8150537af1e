// Inbox and History: a live list on the left, the chosen change on the right; on narrow screens one at a time.

import { h, fill, typing } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { matching } from '../core/collection.js';
import { count } from '../core/text.js';
import { go, replaceRoute, routeTo } from '../core/router.js';
import { INBOX_STATES, STATES } from '../core/vocab.js';
import { Detail } from '../ui/detail.js';
import { VirtualList } from '../ui/list.js';
import { changeRow } from '../ui/row.js';
import { copyButton } from '../ui/badges.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';

const wide = matchMedia('(min-width: 60rem)');
const FILTERS = ['', 'pending', 'stale', 'applied', 'rejected', 'failed', 'expired', 'withdrawn', 'outcome_unknown'];

export class ChangesView {
  element;
  #name;
  #collection;
  #states;
  #detail;
  #list;
  #filter = '';
  #query = {};
  #shown = [];
  #unsubscribe;
  #parts;
  #loaded = false;
  #onState;

  /** `name` is `inbox` or `history`; `onState(state)` asks for a history of one state. */
  constructor({ name, title, api, me, collection, states, onState = null }) {
    this.#name = name;
    this.#collection = collection;
    this.#states = states;
    this.#onState = onState;
    this.#detail = new Detail({
      api, me,
      decided: (change) => this.#collection.apply(change, false),
      next: (open) => this.#nextAfterDecision(open),
      back: () => this.#back(),
    });
    this.#list = new VirtualList({
      label: title,
      render: (change) => this.#row(change),
      move: (step) => this.#move(step, true),
      nearEnd: () => this.#collection.more(),
    });
    this.#parts = {
      count: h('span', { class: 'quiet' }),
      filter: h('input', { type: 'search', placeholder: 'Filter', 'aria-label': `Filter ${title.toLowerCase()}`, autocomplete: 'off', spellcheck: 'false', 'aria-keyshortcuts': '/', oninput: (e) => this.#setFilter(e.target.value), onkeydown: (e) => this.#filterKey(e) }),
      states: onState ? h('div', { class: 'chips', role: 'group', 'aria-label': 'State' }) : null,
      status: h('div', { class: 'list-status' }),
    };
    const pane = h('section', { class: 'pane-list', 'aria-label': title },
      h('div', { class: 'pane-head' },
        h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, title), this.#parts.count),
        h('label', { class: 'filter' }, icon('search'), this.#parts.filter, h('kbd', { 'aria-hidden': 'true' }, '/')),
        this.#parts.states),
      this.#parts.status, this.#list.element);
    this.element = h('div', { class: 'split' }, pane, this.#detail.element);
    this.#unsubscribe = collection.subscribe(() => this.#paint());
    this.#paint();
  }

  dispose() {
    this.#collection.keep(null);
    this.#detail.close();
    this.#unsubscribe();
  }

  #href(id) {
    return routeTo(this.#name, id, this.#query);
  }

  #row(change) {
    const row = changeRow(change, this.#href(change.id), this.#name === 'inbox' ? 'pending' : null);
    row.addEventListener('click', (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      // The route alone does not say that somebody wants the keyboard in the detail.
      if (!wide.matches) this.focusDetail = true;
    });
    return row;
  }

  /** The route asks for a change, or for none. */
  route({ id, query }) {
    const state = query.get('state') ?? '';
    this.#query = state ? { state } : {};
    this.element.classList.toggle('has-detail', id !== null);
    this.#collection.keep(id);
    if (id === null) {
      this.#detail.close();
    } else {
      this.#detail.open(id, { sudden: this.sudden === id, focus: this.focusDetail === true });
    }
    this.sudden = null;
    this.focusDetail = false;
    this.#list.setActive(id, { reveal: true, focus: this.#list.focused });
    this.#paint();
  }

  /** An event of the feed. The collection has it already. */
  event(event) {
    this.#detail.changed(event);
  }

  refresh() {
    this.#detail.refresh();
  }

  #paint() {
    const all = this.#collection.items;
    this.#shown = matching(all, this.#filter);
    this.#list.setItems(this.#shown);
    this.#list.setActive(this.#detail.id);
    const { status } = this.#collection;
    const total = this.#collection.size(this.#states());
    this.#parts.count.textContent = this.#filter ? `${count(this.#shown.length)} of ${count(total)}` : count(total);
    this.#status(status, all.length);
    this.element.classList.toggle('nothing', this.#shown.length === 0);
    if (this.#parts.states) this.#stateChips();
    if (status === 'ready' || status === 'partial') this.#loaded = true;
    this.#openFirst();
  }

  // Beside an empty detail a wide screen has room for the first change: so a new one is read without a click.
  #openFirst() {
    if (!this.#loaded || !wide.matches || this.#detail.id !== null || this.#filter || !this.element.isConnected) return;
    const first = this.#shown[0];
    if (!first) return;
    this.sudden = first.id;
    replaceRoute(this.#href(first.id));
  }

  #status(status, known) {
    const box = this.#parts.status;
    if (status === 'failed') return fill(box, errorState(this.#collection.error, () => this.#collection.reload()));
    if (known === 0 && (status === 'loading' || status === 'idle')) return fill(box, skeleton(5));
    if (this.#shown.length) return fill(box);
    if (this.#filter) {
      return fill(box, emptyState('search', 'Nothing matches', h('p', null, h('button', { type: 'button', class: 'link', onclick: () => this.#clearFilter() }, 'Clear the filter'))));
    }
    if (this.#name === 'history') return fill(box, emptyState('history', 'Nothing here yet', 'Changes that agents propose stay here, with how each of them ended.'));
    if (box.querySelector('.all-clear')) return box;
    const endpoint = `${location.origin}/mcp`;
    const empty = emptyState('check', 'Nothing waits for you', 'When an agent wants to write something, it appears here within a second.',
      h('p', { class: 'endpoint' }, 'Agents connect to'), h('p', { class: 'with-copy' }, h('code', null, endpoint), copyButton(endpoint, 'Copy the address for agents')));
    empty.classList.add('all-clear');
    return fill(box, empty);
  }

  #stateChips() {
    const { counts } = this.#collection;
    const chosen = this.#query.state ?? '';
    fill(this.#parts.states, FILTERS.filter((s) => s === '' || s === chosen || counts[s] > 0 || ['applied', 'rejected', 'failed'].includes(s)).map((state) => h('button', {
      type: 'button', class: 'chip', 'aria-pressed': String(state === chosen), data: { state }, onclick: () => this.#onState(state),
    }, state ? STATES[state].label : 'All', state && counts[state] > 0 && h('span', { class: 'quiet' }, count(counts[state])))));
  }

  #setFilter(text) {
    this.#filter = text.trim();
    this.#list.element.scrollTop = 0;
    this.#paint();
  }

  #clearFilter() {
    this.#parts.filter.value = '';
    this.#setFilter('');
  }

  #filterKey(event) {
    if (event.key === 'Escape') {
      event.preventDefault();
      event.stopPropagation();
      if (this.#filter) this.#clearFilter();
      else this.#list.focus();
    } else if (event.key === 'ArrowDown' || event.key === 'Enter') {
      event.preventDefault();
      this.#list.focus();
    }
  }

  #move(step, withFocus) {
    const items = this.#shown;
    if (!items.length) return;
    const at = this.#list.indexOf(this.#detail.id ?? this.cursor);
    let to;
    if (step === -Infinity) to = 0;
    else if (step === Infinity) to = items.length - 1;
    else to = at === -1 ? 0 : Math.min(items.length - 1, Math.max(0, at + step));
    const { id } = items[to];
    const inDetail = this.element.classList.contains('has-detail');
    if (wide.matches || inDetail) {
      replaceRoute(this.#href(id));
      if (withFocus || !inDetail) this.#list.setActive(id, { reveal: true, focus: true });
    } else {
      this.cursor = id;
      this.#list.setActive(id, { reveal: true, focus: true });
    }
  }

  // The next one that waits; with `open` goes there.
  #nextAfterDecision(open) {
    const at = this.#list.indexOf(this.#detail.id);
    const waits = (change) => INBOX_STATES.includes(change.state) && change.id !== this.#detail.id;
    const next = this.#shown.slice(at + 1).find(waits) ?? this.#shown.slice(0, Math.max(0, at)).findLast(waits);
    if (next && open) {
      replaceRoute(this.#href(next.id));
      this.#list.setActive(next.id, { reveal: true });
      this.#detail.focus();
    }
    return next ?? null;
  }

  #back() {
    const { id } = this.#detail;
    this.cursor = id;
    go(routeTo(this.#name, null, this.#query));
    this.#list.setActive(id, { reveal: true });
    this.#list.focus();
    this.#list.setActive(null);
  }

  keys() {
    const open = () => {
      const id = this.#detail.id ?? this.cursor ?? this.#shown[0]?.id;
      if (!id) return false;
      if (this.#detail.id === id) return this.#detail.focus();
      this.focusDetail = true;
      return go(this.#href(id));
    };
    const once = (action) => (event) => (event.repeat ? undefined : action());
    return {
      j: () => this.#move(1, this.#list.focused),
      k: () => this.#move(-1, this.#list.focused),
      o: open,
      Enter: open,
      a: once(() => this.#detail.approve()),
      r: once(() => this.#detail.reject()),
      '/': () => this.#parts.filter.select(),
      Escape: (event) => {
        if (this.#detail.cancel()) return true;
        if (typing(event.target)) return false;
        if (!wide.matches && this.#detail.id !== null) return this.#back();
        return this.#list.focus();
      },
    };
  }

  focus() {
    this.element.querySelector('h1').focus({ preventScroll: true });
  }
}
