// A list of any length of which only the rows in sight (and the chosen one) are in the page.

import { h } from '../core/dom.js';

const OVERSCAN = 6;
const NEAR_END = 20;

export class VirtualList {
  /** The scrolling element. */
  element;
  #list;
  #render;
  #nearEnd;
  #move;
  #aside;
  #decorate;
  #items = [];
  #index = new Map();
  #rows = new Map();
  #active = null;
  #rowHeight = 84;
  #frame = null;

  /**
   * `render(item)` returns a link or a button; `aside(item)`, once for each row, what stands beside it; `decorate(place,
   * item)` marks the row at each repaint; `move(step)` asks for another row; `nearEnd()` for more items.
   */
  constructor({ label, render, move, nearEnd, aside = null, decorate = null }) {
    this.#render = render;
    this.#aside = aside;
    this.#decorate = decorate;
    this.#nearEnd = nearEnd;
    this.#move = move;
    this.#list = h('ul', { class: 'rows', 'aria-label': label, role: 'list' });
    this.element = h('div', { class: 'list-scroll' }, this.#list);
    this.element.addEventListener('scroll', () => this.#later(), { passive: true });
    this.#list.addEventListener('keydown', (event) => this.#key(event));
    new ResizeObserver(() => this.#measure()).observe(this.element);
  }

  #measure() {
    const probe = h('li', { class: 'row-place probe', 'aria-hidden': 'true' });
    this.#list.append(probe);
    const height = probe.offsetHeight;
    probe.remove();
    if (height > 0) this.#rowHeight = height;
    this.#list.style.height = `${this.#items.length * this.#rowHeight}px`;
    this.#paint();
  }

  #key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.#move(step);
  }

  /** New items, newest first; rows in sight stay where they are on the screen. */
  setItems(items) {
    const anchor = this.#anchor();
    // A copy: what is painted must fit together until the next call, whatever happens to the collection.
    this.#items = items.slice();
    this.#index = new Map(this.#items.map((item, i) => [item.id, i]));
    this.#list.style.height = `${items.length * this.#rowHeight}px`;
    if (anchor) {
      const index = this.#index.get(anchor.id);
      if (index !== undefined) this.element.scrollTop = index * this.#rowHeight + anchor.offset;
    }
    this.#paint();
  }

  // At the very top nothing is anchored: what is new is to come into sight there.
  #anchor() {
    const top = this.element.scrollTop;
    if (top < this.#rowHeight / 2) return null;
    const first = Math.floor(top / this.#rowHeight);
    const item = this.#items[first];
    return item ? { id: item.id, offset: top - first * this.#rowHeight } : null;
  }

  /** Marks all rows in sight again. */
  redecorate() {
    this.#paint();
  }

  indexOf(id) {
    return this.#index.get(id) ?? -1;
  }

  /** Marks the chosen row; `reveal` scrolls to it, `focus` moves the keyboard there. */
  setActive(id, { reveal = false, focus = false } = {}) {
    this.#active = id;
    const index = this.indexOf(id);
    if (reveal && index !== -1) {
      const top = index * this.#rowHeight;
      const { scrollTop, clientHeight } = this.element;
      if (top < scrollTop) this.element.scrollTop = top;
      else if (top + this.#rowHeight > scrollTop + clientHeight) this.element.scrollTop = top + this.#rowHeight - clientHeight;
    }
    this.#paint();
    if (focus) this.#rows.get(id)?.link.focus({ preventScroll: true });
  }

  /** Moves the keyboard to the chosen row, or to the first. */
  focus() {
    const id = this.#index.has(this.#active) ? this.#active : this.#items[0]?.id;
    const row = this.#rows.get(id);
    if (row) row.link.focus({ preventScroll: true });
    return Boolean(row);
  }

  get focused() {
    return this.#list.contains(document.activeElement);
  }

  #later() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#paint();
    });
  }

  #paint() {
    const { scrollTop, clientHeight } = this.element;
    const from = Math.max(0, Math.floor(scrollTop / this.#rowHeight) - OVERSCAN);
    const to = Math.min(this.#items.length, Math.ceil((scrollTop + clientHeight) / this.#rowHeight) + OVERSCAN);
    const wanted = [];
    for (let i = from; i < to; i += 1) wanted.push(i);
    const chosen = this.indexOf(this.#active);
    if (chosen !== -1 && chosen < from) wanted.unshift(chosen);
    if (chosen !== -1 && chosen >= to) wanted.push(chosen);
    const focused = document.activeElement;
    const keep = new Set(wanted.map((i) => this.#items[i].id));
    for (const [id, row] of this.#rows) {
      if (keep.has(id)) continue;
      row.place.remove();
      this.#rows.delete(id);
    }
    const tabStop = chosen === -1 ? wanted[0] : chosen;
    let previous = null;
    for (const i of wanted) {
      const place = this.#row(i, i === tabStop);
      const next = previous ? previous.nextSibling : this.#list.firstChild;
      if (next !== place) this.#list.insertBefore(place, next);
      previous = place;
    }
    // A row that moved in the page has lost the focus on its way.
    if (focused !== document.activeElement && focused?.isConnected && this.#list.contains(focused)) focused.focus({ preventScroll: true });
    if (this.#items.length && to > this.#items.length - NEAR_END) this.#nearEnd();
  }

  #row(index, tabStop) {
    const item = this.#items[index];
    const active = item.id === this.#active;
    let row = this.#rows.get(item.id);
    if (!row) {
      row = { place: h('li', { class: 'row-place' }), link: null, item: null };
      if (item.fresh) row.place.classList.add('arrived');
      item.fresh = false;
      this.#rows.set(item.id, row);
    }
    if (row.item !== item) {
      const link = this.#render(item);
      // Replacing the content keeps the element that has the focus.
      if (row.link) row.link.replaceChildren(...link.childNodes);
      else row.place.append((row.link = link), this.#aside?.(item) ?? '');
      for (const name of ['aria-expanded', 'aria-label']) if (link.hasAttribute(name)) row.link.setAttribute(name, link.getAttribute(name));
      row.item = item;
    }
    row.place.style.transform = `translateY(${index * this.#rowHeight}px)`;
    row.place.setAttribute('aria-setsize', String(this.#items.length));
    row.place.setAttribute('aria-posinset', String(index + 1));
    this.#decorate?.(row.place, item);
    row.link.tabIndex = tabStop ? 0 : -1;
    if (active) row.link.setAttribute('aria-current', 'true');
    else row.link.removeAttribute('aria-current');
    return row.place;
  }
}
