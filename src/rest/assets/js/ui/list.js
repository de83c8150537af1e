// A virtual list: the page contains only the rows in sight and the active one. Rows that scroll out of sight are reused
// for others, so scrolling creates no elements.

import { h } from '../core/dom.js';
import { DENSITY_CHANGED } from './density.js';

const OVERSCAN = 6;
const NEAR_END = 20;

/** Adds or removes a class of a row; touches the page only if that is a change. */
export function toggleMark(row, name, on) {
  if (row.marks[name] === on) return;
  row.marks[name] = on;
  row.place.classList.toggle(name, on);
}

export class VirtualList {
  /** The scrolling element. */
  element;
  #list;
  #render;
  #nearEnd;
  #move;
  #beside;
  #decorate;
  #items = [];
  #rows = new Map();
  #active = null;
  #activeAt = 0;
  #rowHeight = 52;
  #height = 0;
  #frame = null;

  /**
   * `render(item, old)` returns a link or a button, which may be `old` with new content. `beside(item, current)` creates,
   * once per row, an element next to it, where `current()` returns the row's item. `decorate(row, item)` marks the row at
   * each repaint. `move(step)` is called to move to another row, `nearEnd()` to load more items.
   */
  constructor({ label, render, move, nearEnd, beside = null, decorate = null }) {
    this.#render = render;
    this.#beside = beside;
    this.#decorate = decorate;
    this.#nearEnd = nearEnd;
    this.#move = move;
    this.#list = h('ul', { class: 'rows', 'aria-label': label, role: 'list' });
    this.element = h('div', { class: 'list-scroll' }, this.#list);
    this.element.addEventListener('scroll', () => this.#paintSoon(), { passive: true });
    this.#list.addEventListener('keydown', (event) => this.#key(event));
    new ResizeObserver(() => this.#measure()).observe(this.element);
    this.element.addEventListener(DENSITY_CHANGED, () => this.#remeasure());
  }

  #measure() {
    const probe = h('li', { class: 'row-place probe', 'aria-hidden': 'true' });
    this.#list.append(probe);
    const height = probe.offsetHeight;
    probe.remove();
    if (height > 0 && height !== this.#rowHeight) {
      this.#rowHeight = height;
      for (const row of this.#rows.values()) row.at = -1;
    }
    this.#height = this.element.clientHeight;
    this.#stretch();
    this.#paint(this.element.scrollTop);
  }

  // Keeps the first visible row in place when the row height changes.
  #remeasure() {
    const anchor = this.#anchor(this.element.scrollTop);
    this.#measure();
    if (!anchor) return;
    this.element.scrollTop = anchor.index * this.#rowHeight;
    this.#paint(this.element.scrollTop);
  }

  #stretch() {
    const height = `${this.#items.length * this.#rowHeight}px`;
    if (this.#list.style.height !== height) this.#list.style.height = height;
  }

  #key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.#move(step);
  }

  /** Sets the items, newest first, and the active one; visible rows keep their position on the screen. */
  setItems(items, active = this.#active) {
    // Reads before writing, so that the browser computes the layout only once.
    let top = this.element.scrollTop;
    const anchor = this.#anchor(top);
    // The collection may change its array between two calls, so the items are copied.
    this.#items = items.slice();
    this.#active = active;
    this.#stretch();
    if (anchor) {
      const index = this.#indexNear(anchor.id, anchor.index);
      const wanted = index * this.#rowHeight + anchor.offset;
      if (index !== -1 && wanted !== top) {
        this.element.scrollTop = wanted;
        top = this.element.scrollTop;
      }
    }
    this.#paint(top);
  }

  // At the top nothing is anchored, so that new items come into sight.
  #anchor(top) {
    if (top < this.#rowHeight / 2) return null;
    const index = Math.floor(top / this.#rowHeight);
    const item = this.#items[index];
    return item ? { id: item.id, index, offset: top - index * this.#rowHeight } : null;
  }

  // Returns the index of an item. The search starts near its last index, because few items come in between.
  #indexNear(id, near) {
    const { length } = this.#items;
    const start = Math.min(Math.max(0, near), length - 1);
    for (let low = start, high = start + 1; low >= 0 || high < length; low -= 1, high += 1) {
      if (low >= 0 && this.#items[low].id === id) return low;
      if (high < length && this.#items[high].id === id) return high;
    }
    return -1;
  }

  redecorate() {
    this.#paint(this.element.scrollTop);
  }

  indexOf(id) {
    if (id === null) return -1;
    const at = this.#indexNear(id, this.#activeAt);
    if (id === this.#active && at !== -1) this.#activeAt = at;
    return at;
  }

  /** Marks the active row; `reveal` scrolls to it, `focus` moves the focus there. */
  setActive(id, { reveal = false, focus = false } = {}) {
    this.#active = id;
    const index = this.indexOf(id);
    if (reveal && index !== -1) {
      const top = index * this.#rowHeight;
      const { scrollTop, clientHeight } = this.element;
      if (top < scrollTop) this.element.scrollTop = top;
      else if (top + this.#rowHeight > scrollTop + clientHeight) this.element.scrollTop = top + this.#rowHeight - clientHeight;
    }
    this.#paint(this.element.scrollTop);
    if (focus) this.#rows.get(id)?.link.focus({ preventScroll: true });
  }

  /** Moves the focus to the active row, or to the first. Returns false if there is none. */
  focus() {
    const id = this.indexOf(this.#active) !== -1 ? this.#active : this.#items[0]?.id;
    const row = this.#rows.get(id);
    if (row) row.link.focus({ preventScroll: true });
    return Boolean(row);
  }

  get focused() {
    return this.#list.contains(document.activeElement);
  }

  #paintSoon() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#paint(this.element.scrollTop);
    });
  }

  #paint(scrollTop) {
    const height = this.#height || this.element.clientHeight;
    const from = Math.max(0, Math.floor(scrollTop / this.#rowHeight) - OVERSCAN);
    const to = Math.min(this.#items.length, Math.ceil((scrollTop + height) / this.#rowHeight) + OVERSCAN);
    const wanted = [];
    for (let i = from; i < to; i += 1) wanted.push(i);
    const chosen = this.indexOf(this.#active);
    if (chosen !== -1 && chosen < from) wanted.unshift(chosen);
    if (chosen !== -1 && chosen >= to) wanted.push(chosen);
    const focused = document.activeElement;
    const keep = new Set(wanted.map((i) => this.#items[i].id));
    const spare = [];
    for (const [id, row] of this.#rows) {
      if (keep.has(id)) continue;
      this.#rows.delete(id);
      // A row with the focus is removed instead of reused, so that the focus does not move to another item.
      if (row.place.contains(focused)) row.place.remove();
      else spare.push(row);
    }
    const tabStop = chosen === -1 ? wanted[0] : chosen;
    let next = this.#list.firstChild;
    for (const i of wanted) {
      const { place } = this.#row(i, i === tabStop, spare);
      if (next === place) next = place.nextSibling;
      else this.#list.insertBefore(place, next);
    }
    for (const row of spare) row.place.remove();
    // Moving a row in the page takes its focus away.
    if (focused !== document.activeElement && focused?.isConnected && this.#list.contains(focused)) focused.focus({ preventScroll: true });
    if (this.#items.length && to > this.#items.length - NEAR_END) this.#nearEnd();
  }

  #row(index, tabStop, spare) {
    const item = this.#items[index];
    let row = this.#rows.get(item.id);
    if (!row) {
      row = this.#takeSpare(item, spare) ?? { place: h('li', { class: 'row-place' }), link: null, beside: null, item: null, marks: {}, at: -1, total: -1, current: null, tabStop: null };
      toggleMark(row, 'arrived', Boolean(item.fresh));
      item.fresh = false;
      this.#rows.set(item.id, row);
    }
    if (row.item !== item) {
      const link = this.#render(item, row.link);
      row.item = item;
      if (!row.link) {
        row.place.append(link);
        row.beside = this.#beside?.(item, () => row.item) ?? null;
        if (row.beside) row.place.append(row.beside);
        row.link = link;
      }
    }
    if (row.at !== index) {
      row.at = index;
      row.place.style.transform = `translateY(${index * this.#rowHeight}px)`;
      row.place.setAttribute('aria-posinset', String(index + 1));
    }
    if (row.total !== this.#items.length) {
      row.total = this.#items.length;
      row.place.setAttribute('aria-setsize', String(row.total));
    }
    this.#decorate?.(row, item);
    if (row.tabStop !== tabStop) {
      row.tabStop = tabStop;
      row.link.tabIndex = tabStop ? 0 : -1;
    }
    const current = item.id === this.#active;
    if (row.current !== current) {
      row.current = current;
      if (current) row.link.setAttribute('aria-current', 'true');
      else row.link.removeAttribute('aria-current');
    }
    return row;
  }

  // Headings of groups and changes are different elements.
  #takeSpare(item, spare) {
    const i = spare.findIndex((row) => Boolean(row.item.group) === Boolean(item.group));
    return i === -1 ? null : spare.splice(i, 1)[0];
  }
}
