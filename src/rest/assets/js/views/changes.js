// The views Inbox and History: a live list on the left, the open change on the right; on narrow screens one at a time.

import { notice } from '../core/announce.js';
import { h, fill, isTyping } from '../core/dom.js';
import { facets, filterRows, filterQuery, seenChoices, countCriteria, readFilter, stateCounts, statesOf } from '../core/filters.js';
import { groupKey, groupRows } from '../core/groups.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { notificationState, toggleNotifications } from '../core/notify.js';
import { count } from '../core/text.js';
import { now } from '../core/time.js';
import { go, parseRoute, replaceRoute, routeTo } from '../core/router.js';
import { HISTORY_STATES, INBOX_STATES } from '../core/vocab.js';
import { copyButton } from '../ui/badges.js';
import { openAgentSetup } from '../ui/agentsetup.js';
import { densityButton } from '../ui/density.js';
import { Detail } from '../ui/detail.js';
import { FilterBar } from '../ui/filterbar.js';
import { FirstSteps } from '../ui/firststeps.js';
import { switchLayout } from '../ui/lines.js';
import { toggleMark, VirtualList } from '../ui/list.js';
import { changeRow, groupRow } from '../ui/row.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';
import { Selection } from './selection.js';

const wide = matchMedia('(min-width: 60rem)');
const NO_GROUPS = new Set();
const BELL_LABELS = { on: t('changes.bell.on'), off: t('changes.bell.off'), blocked: t('changes.bell.blocked') };

export class ChangesView {
  element;
  #name;
  #api;
  #me;
  #collection;
  #detail;
  #list;
  #bar;
  #undos;
  #bundles;
  #filter;
  #loadedFilter;
  #shown = [];
  #items = [];
  #groupIds = new Set();
  #toggled = new Map();
  #selection;
  // The first steps of a new gateway, in place of an empty inbox.
  #steps = null;
  #unsubscribe;
  #leaveBundles;
  #parts;
  #loaded = false;
  // The route that follows moves the focus to the open change.
  #focusesDetail = false;
  // The id of the change that the view opens without an action of the user.
  #openedByItself = null;
  // The id of the current row while no change is open.
  #cursorId = null;
  #onFilter;
  #query = {};
  #bundleOf = (id) => this.#bundles.of(id);

  /**
   * `name` is `inbox` or `history`. `triage`, `drafts`, `undos` and `bundles` outlive the view. In the history the gateway
   * filters: then `onFilter(filter)` requests another collection, and `filter` is that of the given one.
   */
  constructor({ name, title, api, me, collection, triage, drafts, undos, bundles, filter, onFilter = null }) {
    this.#name = name;
    this.#api = api;
    this.#me = me;
    this.#collection = collection;
    this.#undos = undos;
    this.#bundles = bundles;
    this.#filter = filter;
    this.#loadedFilter = filter;
    this.#onFilter = onFilter;
    // Only pending changes are selected, and the history has none.
    const selecting = me.mayDecide && name === 'inbox';
    this.#detail = new Detail({
      api, me, drafts,
      selection: { size: () => this.#selection?.size ?? 0, has: (id) => this.#selection.has(id), toggle: (id) => this.#selection.toggle(id), clear: () => this.#selection.clear() },
      decided: (change) => this.#collection.apply(change, false),
      approved: (change) => this.#undos.add(change),
      deciding: (id) => this.#selection.forget(id),
      seen: (change) => this.#selection.markSeen(change),
      next: (open) => this.#nextAfterDecision(open),
      back: () => this.#back(),
    });
    this.#list = new VirtualList({
      label: title,
      render: (item, old) => (item.group ? groupRow(item, (id) => this.#toggleGroup(id), old) : this.#row(item, old)),
      beside: (item, current) => (item.group ? h('a', { class: 'review-link', hidden: true }) : selecting ? this.#selection.box(() => current().id) : null),
      decorate: (row, item) => this.#decorate(row, item),
      move: (step) => this.#move(step, true),
      nearEnd: () => this.#collection.more(),
    });
    this.#bar = new FilterBar({ name, grouping: onFilter === null, states: name === 'inbox' ? INBOX_STATES : HISTORY_STATES, filter, change: (next) => this.#applyFilter(next), leave: () => this.#list.focus() });
    this.#selection = new Selection({
      api, triage, list: this.#list, get: (id) => this.#collection.get(id), canSelect: selecting,
      decided: (change, verdict) => {
        this.#collection.apply(change, false);
        if (verdict === 'approve') this.#undos.add(change);
      },
      done: () => this.#detail.refresh(),
      changed: () => this.#detail.selectionChanged(),
    });
    this.#parts = {
      count: h('span', { class: 'quiet' }),
      bell: h('button', { type: 'button', class: 'ghost icon-only bell', onclick: () => this.#toggleNotifications() }),
      status: h('div', { class: 'list-status' }),
    };
    const pane = h('section', { class: 'pane-list', 'aria-label': title },
      h('div', { class: 'pane-head' },
        h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, title), this.#parts.count,
          h('span', { class: 'pane-tools' }, selecting && this.#selection.toggleButton, densityButton(), name === 'inbox' && notificationState() !== 'none' && this.#parts.bell)),
        this.#bar.element),
      this.#parts.status, this.#list.element, selecting && this.#selection.element);
    if (selecting) this.#steps = FirstSteps.create({ api, changed: () => this.#paint() });
    this.element = h('div', { class: 'split' }, pane, this.#detail.element, this.#steps?.element);
    this.#unsubscribe = collection.subscribe(() => this.#paint());
    this.#leaveBundles = bundles.subscribe(() => {
      this.#keepToggled();
      // The open change may have joined a bundle, which is another group.
      this.#reveal(this.#detail.id);
      this.#paint();
    });
    this.#paintBell();
    this.#paint();
  }

  /** Shows another collection, which the gateway has filtered. */
  use(collection, filter) {
    this.#collection.keep(null);
    this.#unsubscribe();
    this.#collection = collection;
    this.#loadedFilter = filter;
    this.#loaded = false;
    this.#collection.keep(this.#detail.id);
    this.#unsubscribe = collection.subscribe(() => this.#paint());
  }

  dispose() {
    this.#collection.keep(null);
    this.#undos.hide(null);
    this.#detail.close();
    this.#bar.dispose();
    this.#steps?.dispose();
    this.#unsubscribe();
    this.#leaveBundles();
  }

  #groupKey(row) {
    return groupKey(row, this.#bundleOf);
  }

  #href(id) {
    if (this.#query.filter !== this.#filter) this.#query = { filter: this.#filter, text: routeTo('', null, filterQuery(this.#filter)).slice(2) };
    return `${routeTo(this.#name, id)}${this.#query.text}`;
  }

  #row(change, old) {
    const row = changeRow(change, this.#href(change.id), this.#name === 'inbox' ? 'pending' : null, old);
    if (row !== old) row.addEventListener('click', (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      // A click on a small screen moves the focus to the change; a route alone does not.
      if (!wide.matches) this.#focusesDetail = true;
      // The filter may have changed since the row was filled.
      row.setAttribute('href', this.#href(row.dataset.id));
    });
    return row;
  }

  /** Shows the change and the filter of a route. */
  route({ id, query }) {
    const filter = readFilter(query, this.#name === 'history' ? HISTORY_STATES : undefined);
    const isOtherFilter = JSON.stringify(filter) !== JSON.stringify(this.#filter);
    this.#filter = filter;
    if (isOtherFilter) this.#list.element.scrollTop = 0;
    this.element.classList.toggle('has-detail', id !== null);
    this.#collection.keep(id);
    if (id === null) {
      this.#detail.close();
    } else {
      this.#detail.open(id, { sudden: this.#openedByItself === id, focus: this.#focusesDetail });
    }
    this.#openedByItself = null;
    this.#focusesDetail = false;
    this.#reveal(id);
    this.#undos.hide(id);
    this.#paint();
    this.#list.setActive(id, { reveal: true, focus: this.#list.focused });
  }

  // Opens the group of the open change.
  #reveal(id) {
    const row = id === null ? null : this.#collection.get(id);
    if (row) this.#toggled.set(this.#groupKey(row), this.#toggled.get(this.#groupKey(row)) ?? true);
  }

  // Carries over to bundles whether the user had opened or closed the groups of their changes. A bundle with other changes stays
  // open, because nobody has closed those.
  #keepToggled() {
    const rows = this.#collection.items;
    for (const { group, id, rows: members, open } of this.#items) {
      if (!group || !this.#toggled.has(id)) continue;
      for (const key of new Set(members.map((row) => this.#groupKey(row)))) {
        if (key === id || (!open && this.#toggled.has(key))) continue;
        if (open || rows.every((row) => this.#groupKey(row) !== key || members.includes(row))) this.#toggled.set(key, open);
      }
    }
  }

  /** Handles an event, which the collection has already applied. */
  event(event) {
    this.#detail.changed(event);
    this.#steps?.refresh();
  }

  sessionEvent() {
    this.#steps?.sawAgent();
  }

  serverEvent() {
    this.#steps?.refresh();
  }

  refresh() {
    this.#detail.refresh();
  }

  #paint() {
    const all = this.#collection.items;
    const at = now();
    const isFiltered = Boolean(this.#filter.q || this.#filter.state || countCriteria(this.#filter));
    // Avoids reading every row where possible: there may be thousands, and dozens of events a second.
    const counts = this.#onFilter ? this.#collection.counts : this.#filter.q || countCriteria(this.#filter) ? stateCounts(all, this.#filter, at) : this.#collection.countsByState;
    this.#shown = isFiltered ? filterRows(all, this.#filter, at) : all;
    // The open change stays in the list, whatever its state.
    const openRow = isFiltered && this.#detail.id !== null && !this.#filter.q && !this.#shown.some((r) => r.id === this.#detail.id) ? this.#collection.get(this.#detail.id) : null;
    if (openRow && !INBOX_STATES.includes(openRow.state) && !countCriteria(this.#filter)) this.#shown = [...this.#shown, openRow].sort((a, b) => b.at - a.at);
    // Search results and the history are not grouped.
    this.#items = this.#onFilter || this.#filter.group === 'none' || this.#filter.q ? this.#shown : groupRows(this.#shown, this.#toggled, this.#bundleOf);
    this.#groupIds = this.#items === this.#shown ? NO_GROUPS : new Set(this.#items.filter((item) => item.group).map((item) => item.id));
    this.#list.setItems(this.#items, this.#detail.id);
    const { status } = this.#collection;
    const total = this.#collection.size(this.#name === 'inbox' ? INBOX_STATES : this.#loadedFilter.state ? statesOf(this.#loadedFilter.state) : HISTORY_STATES);
    const more = status === 'partial' ? '+' : '';
    const countText = !isFiltered ? count(total) : this.#onFilter ? `${count(this.#shown.length)}${more}` : t('changes.countOf', { shown: this.#shown.length, total });
    if (this.#parts.count.textContent !== countText) this.#parts.count.textContent = countText;
    this.#bar.show(this.#filter, () => (this.#onFilter ? seenChoices(this.#collection.items, this.#filter) : facets(this.#collection.items, this.#filter, now())), counts);
    this.#status(status, all.length);
    this.element.classList.toggle('nothing', this.#shown.length === 0);
    const isStarting = this.#detail.id === null && all.length === 0 && status === 'ready' && !isFiltered && this.#steps?.isActive === true;
    if (this.element.classList.contains('starting') !== isStarting) {
      this.element.classList.toggle('starting', isStarting);
      if (isStarting) this.#steps.element.scrollTop = 0;
    }
    if (status === 'ready') this.#selection.deselectModified();
    // The first page contains the newest change.
    if (status === 'ready' || status === 'partial' || all.length) this.#loaded = true;
    this.#openFirst();
  }

  // A wide screen opens the first change by itself.
  #openFirst() {
    if (!this.#loaded || !wide.matches || this.#detail.id !== null || this.#filter.q || !this.element.isConnected) return;
    // The user has just followed a link, which the page will open.
    const { view, id } = parseRoute(location.hash);
    if (view !== this.#name || id !== null) return;
    const first = this.#items.find((item) => !item.group);
    if (!first) return;
    this.#openedByItself = first.id;
    replaceRoute(this.#href(first.id));
  }

  #status(status, loadedCount) {
    const box = this.#parts.status;
    if (status === 'failed') return fill(box, errorState(this.#collection.error, () => this.#collection.reload()));
    if (loadedCount === 0 && (status === 'loading' || status === 'idle' || this.#steps?.isActive === null)) return fill(box, skeleton(5));
    if (this.#shown.length) return box.firstChild ? fill(box) : box;
    if (this.#filter.q || this.#filter.state || countCriteria(this.#filter)) {
      const inbox = this.#name === 'history' && !this.#filter.state ? routeTo('inbox', null, filterQuery(this.#filter)) : undefined;
      if (box.querySelector('.no-match') && box.querySelector('.no-match a')?.getAttribute('href') === inbox) return box;
      const empty = emptyState('search', t('common.noMatch'), h('p', null, h('button', { type: 'button', class: 'link', onclick: () => this.#bar.clear() }, t('common.clearFilter'))),
        inbox && h('p', null, h('a', { href: inbox }, t('changes.waitingInInbox'))));
      empty.classList.add('no-match');
      return fill(box, empty);
    }
    if (this.#name === 'history') return fill(box, emptyState('history', t('common.nothingYet'), t('changes.noHistoryHow')));
    const hasSteps = this.#steps?.isActive === true;
    if (box.querySelector('.all-clear')?.classList.contains('with-steps') === hasSteps) return box;
    const endpoint = `${location.origin}/mcp`;
    const empty = emptyState('check', t('changes.allClear'), t('changes.allClearHow'),
      h('p', { class: 'endpoint' }, t('changes.endpoint')), h('p', { class: 'with-copy' }, h('code', null, endpoint), copyButton(endpoint, t('changes.copyEndpoint'))),
      h('p', null, hasSteps ? h('a', { href: routeTo('inbox') }, t('changes.firstSteps')) : h('button', { type: 'button', class: 'link', onclick: () => openAgentSetup(this.#api) }, t('firststeps.agent'))));
    empty.classList.add('all-clear');
    empty.classList.toggle('with-steps', hasSteps);
    return fill(box, empty);
  }

  // The address holds the filter, so that it can be bookmarked and shared.
  #applyFilter(filter) {
    if (this.#onFilter) return this.#onFilter(filter);
    return replaceRoute(routeTo(this.#name, this.#detail.id, filterQuery(filter)));
  }

  #toggleGroup(key) {
    const group = this.#items.find((item) => item.id === key);
    if (!group) return;
    this.#toggled.set(key, !group.open);
    this.#paint();
  }

  // Handles the key `c`, which toggles the group of the open change.
  #toggleOpenGroup() {
    const row = this.#detail.id === null ? null : this.#collection.get(this.#detail.id);
    if (!row || !this.#groupIds.has(this.#groupKey(row))) return false;
    return this.#toggleGroup(this.#groupKey(row));
  }

  #decorate(row, item) {
    toggleMark(row, 'head', Boolean(item.group));
    if (item.group) this.#linkReview(row.beside, item);
    toggleMark(row, 'in-group', !item.group && this.#groupIds.size > 0 && this.#groupIds.has(this.#groupKey(item)));
    if (!item.group) this.#selection.decorate(row, item);
  }

  #linkReview(link, { plan, bundle }) {
    link.hidden = !plan && !bundle;
    const href = plan ? routeTo('plans', plan.id) : bundle ? routeTo('bundles', bundle.id) : '#/inbox';
    if (link.getAttribute('href') === href) return;
    link.setAttribute('href', href);
    link.textContent = t(plan ? 'changes.openPlan' : 'changes.reviewTogether');
  }

  // ── Notifications ──

  async #toggleNotifications() {
    const before = notificationState();
    const after = await toggleNotifications();
    if (after === 'blocked') notice(t('changes.blocked'), { tone: 'amber', iconName: 'bell' });
    else if (after !== before) notice(t(after === 'on' ? 'changes.notified' : 'changes.notNotified'), { tone: 'accent', iconName: 'bell' });
    this.#paintBell();
  }

  #paintBell() {
    const state = notificationState();
    const { bell } = this.#parts;
    bell.setAttribute('aria-pressed', String(state === 'on'));
    bell.setAttribute('aria-label', BELL_LABELS[state] ?? BELL_LABELS.off);
    bell.title = BELL_LABELS[state] ?? BELL_LABELS.off;
    fill(bell, icon(state === 'on' ? 'bell' : 'belloff'));
  }

  // ── Moving ──

  #move(step, withFocus) {
    const items = this.#items;
    if (!items.length) return;
    const direction = step < 0 ? -1 : 1;
    const at = this.#list.indexOf(this.#detail.id ?? this.#cursorId);
    let to;
    if (step === -Infinity) to = 0;
    else if (step === Infinity) to = items.length - 1;
    else to = at === -1 ? 0 : at + step;
    // Headings are skipped; moving into a closed group opens it.
    const skipStep = Number.isFinite(step) ? direction : -direction;
    while (items[to]?.group && (items[to].open || Number.isFinite(step) === false)) to += skipStep;
    let item = items[to];
    if (item?.group) {
      this.#toggled.set(item.id, true);
      item = direction < 0 ? item.rows.at(-1) : item.rows[0];
    }
    if (!item) return;
    const { id } = item;
    const isDetailOpen = this.element.classList.contains('has-detail');
    if (wide.matches || isDetailOpen) {
      if (this.#detail.id === id) return;
      replaceRoute(this.#href(id));
      if (withFocus || !isDetailOpen) this.#list.setActive(id, { reveal: true, focus: true });
    } else {
      this.#cursorId = id;
      this.#paint();
      this.#list.setActive(id, { reveal: true, focus: true });
    }
  }

  // Returns the next waiting change; with `open` goes there.
  #nextAfterDecision(open) {
    const rows = this.#items.flatMap((item) => (item.group ? (item.open ? [] : item.rows) : [item]));
    const at = rows.findIndex((row) => row.id === this.#detail.id);
    const waits = (change) => INBOX_STATES.includes(change.state) && change.id !== this.#detail.id;
    const next = rows.slice(at + 1).find(waits) ?? rows.slice(0, Math.max(0, at)).findLast(waits);
    if (next && open) {
      replaceRoute(this.#href(next.id));
      this.#list.setActive(next.id, { reveal: true });
      this.#detail.focus();
    }
    return next ?? null;
  }

  #back() {
    const { id } = this.#detail;
    this.#cursorId = id;
    go(this.#href(null));
    this.#list.setActive(id, { reveal: true });
    this.#list.focus();
    this.#list.setActive(null);
  }

  /** Shows a change that another part of the page has modified. */
  adopt(answer) {
    this.#collection.apply(answer.change, false);
    this.#detail.adopt(answer);
  }

  keys() {
    const open = () => {
      const id = this.#detail.id ?? this.#cursorId ?? this.#shown[0]?.id;
      if (!id) return false;
      if (this.#detail.id === id) return this.#detail.focus();
      this.#focusesDetail = true;
      return go(this.#href(id));
    };
    const once = (action) => (event) => (event.repeat ? undefined : action());
    const currentId = () => this.#detail.id ?? this.#cursorId;
    return {
      j: () => this.#move(1, this.#list.focused),
      k: () => this.#move(-1, this.#list.focused),
      o: open,
      Enter: open,
      a: once(() => this.#selection.decide('approve') || this.#detail.approve()),
      r: once(() => this.#selection.decide('reject') || this.#detail.reject()),
      e: once(() => this.#detail.edit()),
      f: once(() => this.#detail.refreshPreview()),
      u: once(() => this.#detail.undo() || this.#undos.undoLast()),
      x: once(() => (currentId() ? this.#selection.toggle(currentId()) : false)),
      c: () => this.#toggleOpenGroup(),
      d: once(() => switchLayout()),
      '/': () => this.#bar.focus(),
      Escape: (event) => {
        if (this.#detail.cancel()) return true;
        if (isTyping(event.target)) return false;
        if (this.#selection.clear()) return true;
        if (!wide.matches && this.#detail.id !== null) return this.#back();
        return this.#list.focus();
      },
    };
  }

  focus() {
    this.element.querySelector('h1').focus({ preventScroll: true });
  }
}
