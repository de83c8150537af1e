// Shows several changes with all their diffs one below the other, under a table of contents. It notes which of them were
// shown to the end, so that they can be decided together.

import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { count, quote } from '../core/text.js';
import { isDecidable, shownOperation, stateOf, toolName } from '../core/vocab.js';
import { routeTo } from '../core/router.js';
import { operationGlyph, stateBadge } from './badges.js';
import * as content from './content.js';

// The diffs of later changes are built when they come near the screen.
const EAGER_ITEMS = 20;
// The height in pixels from which a change counts as the first on the screen, below the header.
const MIN_VISIBLE = 120;
const NEAR = '1500px 0px';

const seenMark = () => h('span', { class: 'badge tone-green seen-mark' }, icon('eye'), t('list.seenMark'));

/** Creates the line that leads to the decision on all changes, which stands below them. */
export const decisionHint = (decision) => h('p', { class: 'quiet decision-hint', hidden: true }, parts('list.decideBelow', {
  link: h('button', { type: 'button', class: 'link', onclick: () => {
    keepInSight(decision);
    decision.focus({ preventScroll: true });
  } }, t('list.atEnd')),
}));

// Changes get their full height when they come near the screen and push the decision down, so this scrolls again until the reader acts.
function keepInSight(decision) {
  const abort = new AbortController();
  const scroll = () => decision.scrollIntoView({ block: 'end' });
  const observer = new ResizeObserver(scroll);
  abort.signal.addEventListener('abort', () => observer.disconnect());
  for (const type of ['wheel', 'pointerdown', 'keydown']) addEventListener(type, () => abort.abort(), { capture: true, passive: true, signal: abort.signal });
  for (const element of [decision.previousElementSibling, decision]) observer.observe(element);
  scroll();
}

export class ChangeList {
  element;
  #seen = new Map();
  #items = new Map();
  #onSeen;
  #linkTo;
  #waits;
  #mustRead;
  #someSeen;
  #tools;
  #frame = null;
  #followCurrent = () => {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#markCurrent();
    });
  };
  #progress = h('p', { class: 'quiet', role: 'status' });
  #meter = h('progress', { 'aria-hidden': 'true', max: '1', value: '0' });
  #progressLine = h('div', { class: 'list-progress' }, this.#meter, this.#progress);
  #contents = h('ol', { class: 'list-contents' });
  #sections = h('div', { class: 'list-sections' });
  #observer = new IntersectionObserver((entries) => this.#note(entries));
  #nearObserver = new IntersectionObserver((entries) => this.#fillNear(entries), { rootMargin: NEAR });

  /**
   * `linkTo(position)` returns the route of the change at a position, `waits(change)` what it waits for, or null.
   * `mustRead(change)` tells whether this person has to read it, and `someSeen(seen, count)` how many of those were seen.
   * `seen()` is called when another change was shown to its end, or when one has to be shown again. `tools(change)` returns
   * `{key, nodes}`: what stands below the diff of a change, and a key of everything that it depends on. `hint` stands below
   * the progress.
   */
  constructor({ label, linkTo, hint, mustRead, someSeen, waits = () => null, seen = () => {}, tools = () => ({ key: '', nodes: null }) }) {
    this.#onSeen = seen;
    this.#linkTo = linkTo;
    this.#mustRead = mustRead;
    this.#someSeen = someSeen;
    this.#waits = waits;
    this.#tools = tools;
    this.element = h('div', { class: 'change-list' },
      h('nav', { class: 'card list-nav', 'aria-label': label }, h('h2', null, label), this.#progressLine, hint, this.#contents), this.#sections);
    // Scrolling does not bubble.
    addEventListener('scroll', this.#followCurrent, { capture: true, passive: true });
    for (const type of ['focusin', 'focusout']) this.#sections.addEventListener(type, this.#followCurrent);
  }

  dispose() {
    this.#observer.disconnect();
    this.#nearObserver.disconnect();
    removeEventListener('scroll', this.#followCurrent, { capture: true });
  }

  /** Returns true if the change was shown to its end as it is now. */
  hasSeen(id) {
    const item = this.#items.get(id);
    return item !== undefined && this.#hasSeen(item.change);
  }

  /** Returns the id of the change that has the focus or is the first on the screen, or null. */
  get current() {
    const sections = [...this.#sections.children];
    const section = document.activeElement?.closest?.('.list-item') ?? sections.find((s) => s.getBoundingClientRect().bottom > MIN_VISIBLE);
    return section?.dataset.id ?? null;
  }

  /** Moves the focus by so many changes. */
  move(step) {
    const sections = [...this.#sections.children];
    const at = sections.indexOf(document.activeElement?.closest?.('.list-item'));
    this.reveal(at === -1 ? sections.findIndex((s) => s.dataset.id === this.current) : Math.min(Math.max(0, at + step), sections.length - 1));
  }

  /** Opens or closes the diff of a change. */
  toggle(id) {
    const fold = this.#items.get(id)?.fold;
    if (fold) fold.open = !fold.open;
  }

  /** Paints again what stands below each diff, and what has to be read. */
  repaintTools() {
    for (const item of this.#items.values()) this.#paintTools(item);
    this.#paintContents();
  }

  /** Creates the button that leads to the first change that still has to be read. */
  nextButton() {
    return h('button', { type: 'button', class: 'link', data: { act: 'next-unseen' }, onclick: () => this.reveal(this.#ordered().findIndex((item) => this.#isUnread(item))) }, t('list.nextUnseen'));
  }

  /** Shows the changes `[{change, source}]`. One that is the same as before stays as it is on the screen. */
  show(list) {
    const ids = new Set(list.map(({ change }) => change.id));
    for (const [id, item] of this.#items) {
      if (ids.has(id)) continue;
      this.#observer.unobserve(item.end);
      this.#nearObserver.unobserve(item.section);
      item.section.remove();
      this.#items.delete(id);
    }
    for (const [position, entry] of list.entries()) {
      let item = this.#items.get(entry.change.id);
      if (!item) {
        item = this.#create(position, entry.change.id);
        this.#items.set(entry.change.id, item);
      }
      this.#paint(item, entry, position);
      if (this.#sections.children[position] !== item.section) this.#sections.insertBefore(item.section, this.#sections.children[position] ?? null);
    }
    this.#paintContents();
  }

  /** Scrolls to the change at a position and moves the focus to its heading. */
  reveal(position) {
    const heading = this.#sections.children[position]?.querySelector('h2');
    heading?.scrollIntoView({ block: 'start' });
    heading?.focus({ preventScroll: true });
  }

  #create(position, id) {
    const end = h('div', { class: 'list-end', data: { id } });
    const body = h('div', { class: 'list-body' });
    const summary = h('summary');
    const fold = h('details', { class: 'list-fold', open: true }, summary, body, end);
    const head = h('div', { class: 'list-head' });
    const tools = h('div', { class: 'list-tools' });
    const section = h('section', { class: 'card list-item', 'aria-label': t('list.changeNumber', { number: position + 1 }), data: { id } }, head, fold, tools);
    const isNear = position < EAGER_ITEMS;
    if (!isNear) this.#nearObserver.observe(section);
    const item = { section, head, fold, summary, body, end, tools, isNear, key: null, toolsKey: null, change: null, text: 'null' };
    this.#paintSummary(item, false);
    return item;
  }

  #paint(item, { change, source }, position) {
    item.change = change;
    const waits = this.#waits(change);
    const key = this.#headKey(change);
    if (item.key === key) return;
    const digest = item.digest;
    item.key = key;
    item.digest = change.digest;
    const hadFocus = item.head.contains(document.activeElement);
    fill(item.head,
      h('div', { class: 'list-marks' }, operationGlyph(shownOperation(change), change.summary), stateBadge(change.state),
        change.terms.quorum === 0 && !isDecidable(change.state) && h('span', { class: 'badge tone-grey' }, icon('check'), t('list.allowedByPolicy')),
        h('span', { class: 'quiet' }, quote(toolName(change), 120)),
        this.#hasSeen(change) && seenMark(),
        h('a', { href: routeTo('changes', change.id) }, t('common.open'))),
      h('h2', { tabindex: '-1' }, `${count(position + 1)}. `, quote(change.summary, 280)),
      waits && h('p', { class: 'list-waits quiet' }, icon('clock'), waits),
      content.review(change), content.requirements(change), content.outcome(change));
    if (hadFocus) item.head.querySelector('h2').focus({ preventScroll: true });
    item.text = source ?? 'null';
    this.#paintTools(item);
    if (digest !== change.digest) {
      item.body.replaceChildren();
      // Content that changed in front of the reader must be opened again, so that nobody decides on it unread.
      const wasSeen = digest !== undefined && this.#seen.get(change.id) === digest;
      if (wasSeen) item.fold.open = false;
      if (wasSeen || this.#hasSeen(change)) this.#paintSummary(item, wasSeen);
    }
    this.#fillBody(item);
  }

  // Fills the line that opens the diff. `isModified` tells that the content differs from what was read.
  #paintSummary(item, isModified) {
    fill(item.summary, t('list.diffAndArguments'), isModified && [' ', h('span', { class: 'badge tone-amber' }, icon('refresh'), t('list.changedSinceSeen'))]);
  }

  // Returns a key of everything that the head of a change shows.
  #headKey(change) {
    return `${change.version} ${this.#waits(change)} ${change.waitsFor?.change} ${this.#hasSeen(change)}`;
  }

  #fillBody(item) {
    if (!item.isNear) return;
    const { change, text } = item;
    if (!item.body.firstChild) fill(item.body, content.changes(change, text), content.args(change, text));
    // An end that is in sight already does not come into sight again.
    this.#observer.unobserve(item.end);
    this.#observer.observe(item.end);
  }

  #fillNear(entries) {
    for (const { isIntersecting, target } of entries) {
      const item = this.#items.get(target.dataset.id);
      if (!isIntersecting || !item || item.isNear) continue;
      item.isNear = true;
      this.#nearObserver.unobserve(target);
      this.#fillBody(item);
    }
  }

  #paintTools(item) {
    const { key, nodes } = this.#tools(item.change);
    if (item.toolsKey === key) return;
    item.toolsKey = key;
    const act = item.tools.contains(document.activeElement) ? document.activeElement.dataset.act : null;
    fill(item.tools, nodes);
    if (act) item.tools.querySelector(`[data-act="${act}"]`)?.focus({ preventScroll: true });
  }

  #hasSeen({ id, digest }) {
    return this.#seen.get(id) === digest;
  }

  // The end of a closed part has no height, so it is not in sight.
  #note(entries) {
    let isNew = false;
    for (const { isIntersecting, target } of entries) {
      const item = this.#items.get(target.dataset.id);
      if (!isIntersecting || !item || this.#hasSeen(item.change)) continue;
      this.#seen.set(item.change.id, item.change.digest);
      item.key = null;
      isNew = true;
    }
    if (!isNew) return;
    for (const item of this.#items.values()) if (item.key === null) this.#markSeen(item);
    this.#paintContents();
    this.#onSeen();
  }

  #markSeen(item) {
    item.key = this.#headKey(item.change);
    const marks = item.head.querySelector('.list-marks');
    if (!marks.querySelector('.seen-mark')) marks.lastChild.before(seenMark());
    this.#paintSummary(item, false);
  }

  #isUnread({ change }) {
    return this.#mustRead(change) && !this.#hasSeen(change);
  }

  #ordered() {
    return [...this.#sections.children].map((section) => this.#items.get(section.dataset.id));
  }

  // Marks the change to which the keys apply, and scrolls the contents to it, but not the page.
  #markCurrent() {
    const { current } = this;
    const at = this.#ordered().findIndex(({ change }) => change.id === current);
    const links = [...this.#contents.querySelectorAll('a')];
    if (links[at]?.hasAttribute('aria-current')) return;
    for (const link of links) link.removeAttribute('aria-current');
    links[at]?.setAttribute('aria-current', 'true');
    const entry = links[at]?.parentElement.getBoundingClientRect();
    const box = this.#contents.getBoundingClientRect();
    if (entry?.top < box.top) this.#contents.scrollTop -= box.top - entry.top;
    else if (entry?.bottom > box.bottom) this.#contents.scrollTop += entry.bottom - box.bottom;
  }

  #paintContents() {
    const all = this.#ordered();
    const focused = [...this.#contents.querySelectorAll('a')].indexOf(document.activeElement);
    fill(this.#contents, all.map(({ change }, position) => h('li', { class: this.#hasSeen(change) ? 'seen' : '' },
      operationGlyph(shownOperation(change), change.summary), h('a', { href: this.#linkTo(position) }, quote(change.summary, 120)), ' ',
      h('span', { class: change.state === 'pending' ? 'sr-only' : `list-state tone-${stateOf(change.state).tone}` }, stateOf(change.state).label),
      this.#hasSeen(change) && (isDecidable(change.state) || change.state === 'approved') && h('span', { class: 'seen-mark' }, icon('eye'), h('span', { class: 'sr-only' }, t('list.seen'))))));
    if (focused !== -1) this.#contents.querySelectorAll('a')[focused]?.focus({ preventScroll: true });
    this.#markCurrent();
    const toRead = all.filter(({ change }) => this.#mustRead(change)).length;
    const seen = toRead - all.filter((item) => this.#isUnread(item)).length;
    this.#progressLine.hidden = toRead === 0;
    this.#meter.max = Math.max(1, toRead);
    this.#meter.value = seen;
    this.#progress.textContent = seen === toRead ? t('list.allSeen') : this.#someSeen(count(seen), toRead);
  }
}

