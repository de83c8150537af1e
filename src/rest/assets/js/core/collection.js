// Holds a live set of changes, newest first. It is filled page by page from REST and kept current by the feed. The higher
// version of a change wins, so events and pages may arrive in any order.

import { shownOperation } from './vocab.js';

const PAGE_SIZE = 200;
// Bounds a history that stays open for weeks; the oldest rows are dropped.
const MAX_ROWS = 20_000;
const TOP_UP_DELAY = 1500;
// Milliseconds from an event to its repaint, and between two repaints. A slow repaint lengthens the interval.
const REPAINT_DELAY = 16;
const REPAINT_INTERVAL = 100;
const REPAINT_COST_FACTOR = 10;
const MAX_REPAINT_INTERVAL = 500;

export class Collection {
  items = [];
  /** The number of changes in each state at the gateway, as of the last page. */
  counts = {};
  /** The number of loaded changes in each state. */
  loadedCounts = {};
  /** `idle`, `loading`, `ready` (all loaded), `partial` (more to load) or `failed`. */
  status = 'idle';
  error = null;
  #byId = new Map();
  #load;
  #accepts;
  #eager;
  #cursor = null;
  #generation = 0;
  #listeners = new Set();
  #timer = null;
  #repaintDue = 0;
  #repaintedAt = -Infinity;
  #repaintCost = 0;
  #keptId = null;
  #toppingUp = null;
  #waitedFor = new Set();
  /** Versions that arrived while a page was loading: the page may still hold an older one. */
  #newerThanPage = new Map();

  /**
   * `load({limit, cursor, signal})` returns one page. `accepts(change)` tells if a change belongs here. An eager
   * collection loads all pages, one after another; any other waits for `more()`.
   */
  constructor({ load, accepts, eager = false }) {
    this.#load = load;
    this.#accepts = accepts;
    this.#eager = eager;
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  get(id) {
    return this.#byId.get(id) ?? null;
  }

  /** Returns the number of changes in each state; the gateway's counts until all pages are loaded. */
  get countsByState() {
    return this.status === 'ready' ? this.loadedCounts : { ...this.counts, ...Object.fromEntries(Object.entries(this.loadedCounts).map(([state, n]) => [state, Math.max(n, this.counts[state] ?? 0)])) };
  }

  /** Returns the number of changes in these states; the gateway's count until all pages are loaded. */
  size(states) {
    if (this.status === 'ready') return this.items.length - (this.#strayRow() ? 1 : 0);
    const counted = states.reduce((sum, state) => sum + (this.counts[state] ?? 0), 0);
    return Math.max(counted, this.items.length);
  }

  /** Keeps one change listed while it is open, even if it no longer belongs here. */
  keep(id) {
    if (id === this.#keptId) return;
    const stray = this.#strayRow();
    this.#keptId = id;
    if (stray) this.#remove(stray.id);
    this.#notify();
  }

  #strayRow() {
    const row = this.#keptId === null ? null : this.#byId.get(this.#keptId);
    return row && !this.#accepts(row) ? row : null;
  }

  async reload() {
    this.#generation += 1;
    this.#cursor = null;
    const seen = new Set();
    await this.#page(this.#generation, seen);
  }

  async recount() {
    try {
      this.counts = (await this.#load({ limit: 1, cursor: null })).counts ?? this.counts;
      this.#notify();
    } catch {
      // The next event triggers another attempt.
    }
  }

  async more() {
    if (this.status === 'partial') await this.#page(this.#generation, null);
  }

  async #page(generation, seen) {
    this.status = 'loading';
    this.error = null;
    this.#notify();
    try {
      do {
        const page = await this.#load({ limit: PAGE_SIZE, cursor: this.#cursor });
        if (generation !== this.#generation) return;
        this.#cursor = page.nextCursor ?? null;
        this.counts = page.counts ?? this.counts;
        for (const change of page.changes) {
          seen?.add(change.id);
          if ((this.#newerThanPage.get(change.id) ?? 0) < change.version) this.#put(rowOf(change));
        }
        this.#notify();
      } while (this.#eager && this.#cursor);
      // A complete reload removes every row that it did not contain, except those that an event has added since.
      if (seen && !this.#cursor) this.#forgetUnseen(seen);
      this.status = this.#cursor ? 'partial' : 'ready';
      this.#newerThanPage.clear();
    } catch (error) {
      if (generation !== this.#generation) return;
      this.status = 'failed';
      this.error = error;
    }
    this.#notify();
  }

  #forgetUnseen(seen) {
    for (const item of [...this.items]) {
      if (!seen.has(item.id) && item.generation !== this.#generation && item.id !== this.#keptId) this.#remove(item.id);
    }
  }

  /** Applies an event of the feed, or with `live` false the answer to a decision. Returns true if anything is new. */
  apply(change, live = true) {
    const applied = this.#applyChange(change, live);
    if (applied) this.#notify(!live);
    return applied;
  }

  #applyChange(change, live) {
    const known = this.#byId.get(change.id);
    // An event holds fewer fields than a page, so a page completes a row even if its version is not higher.
    if (known && (known.version > change.version || (known.version === change.version && (known.isWhole || !isComplete(change)) && (live || known.waitsFor === (change.waitsFor?.change ?? null))))) return false;
    if (this.status === 'loading') this.#newerThanPage.set(change.id, change.version);
    const row = rowOf(change, known);
    row.generation = this.#generation;
    row.fresh = !known && live;
    const applied = this.#put(row);
    if (row.waitsFor) this.#waitedFor.add(row.waitsFor);
    // There is no event for a change that starts to wait for another one, so the newest page is read again.
    if (live && ((applied && !row.isWhole) || row.state === 'approved' || this.#waitedFor.delete(row.id))) this.#topUp();
    return applied;
  }

  // Reads the fields that events lack (votes, duplicates, run time, waiting) from the newest page, once for many events.
  #topUp() {
    this.#toppingUp ??= setTimeout(async () => {
      this.#toppingUp = null;
      let from = Math.min(PAGE_SIZE, this.items.length) - 1;
      while (from >= 0 && this.items[from].isWhole && this.items[from].state !== 'approved') from -= 1;
      if (from === -1) return;
      try {
        const { changes } = await this.#load({ limit: Math.min(PAGE_SIZE, from + 10), cursor: null });
        for (const change of changes) this.#applyChange(change, false);
        this.#notify(false);
      } catch {
        // The rows stay correct; only these extra fields are missing.
      }
    }, TOP_UP_DELAY);
  }

  #put(row) {
    const known = this.#byId.get(row.id);
    if (known && known.version > row.version) return false;
    if (known && known.version === row.version && known.isWhole && !row.isWhole) return false;
    if (!this.#accepts(row) && row.id !== this.#keptId) {
      if (known) this.#remove(row.id);
      return Boolean(known);
    }
    if (known) {
      row.fresh = known.fresh;
      this.items[this.#indexOf(known)] = row;
      this.#countLoaded(known, -1);
    } else {
      this.items.splice(this.#insertionIndex(row), 0, row);
      if (this.items.length > MAX_ROWS) this.#remove(this.items.at(-1).id);
    }
    this.#countLoaded(row, 1);
    this.#byId.set(row.id, row);
    return true;
  }

  #remove(id) {
    const known = this.#byId.get(id);
    if (!known) return;
    this.items.splice(this.#indexOf(known), 1);
    this.#byId.delete(id);
    this.#countLoaded(known, -1);
  }

  #countLoaded({ state }, step) {
    this.loadedCounts[state] = (this.loadedCounts[state] ?? 0) + step;
  }

  #indexOf(row) {
    const index = this.#insertionIndex(row);
    return this.items[index]?.id === row.id ? index : this.items.findIndex((r) => r.id === row.id);
  }

  // Returns the index of the first row that is not newer, by binary search.
  #insertionIndex(row) {
    let low = 0;
    let high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isNewer(this.items[middle], row)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // Joins a burst of events into one repaint. The first is painted at once, later ones a few times a second, and less often
  // if a repaint is slow, so that scrolling stays smooth. Actions of the user are not delayed. A timer is used instead of an
  // animation frame, so that the count in the title of a hidden tab is updated too.
  #notify(urgent = true) {
    const now = performance.now();
    const due = urgent ? now + REPAINT_DELAY : Math.max(now + REPAINT_DELAY, this.#repaintedAt + Math.min(Math.max(REPAINT_INTERVAL, this.#repaintCost * REPAINT_COST_FACTOR), MAX_REPAINT_INTERVAL));
    if (this.#timer !== null) {
      if (due >= this.#repaintDue) return;
      clearTimeout(this.#timer);
    }
    this.#repaintDue = due;
    this.#timer = setTimeout(() => {
      this.#timer = null;
      const start = performance.now();
      for (const listener of this.#listeners) listener(this);
      this.#repaintedAt = performance.now();
      this.#repaintCost = this.#repaintedAt - start;
    }, due - now);
  }
}

const isNewer = (a, b) => a.at > b.at || (a.at === b.at && (a.fraction > b.fraction || (a.fraction === b.fraction && a.id > b.id)));

const isComplete = (change) => change.terms !== undefined;

/** Returns the row of a change, without diff and arguments. Fields that an event lacks are taken from `known`. */
function rowOf(change, known = null) {
  const { id, version, state, provider, tool, toolTitle, preview, summary, target, proposer, createdAt, updatedAt, expiresAt } = change;
  // Events do not tell how a preview was made.
  const operation = change.preview || !known ? shownOperation(change) : known.operation === 'CALL' ? 'CALL' : change.operation;
  const isWhole = isComplete(change);
  const { digest = known?.digest, duplicateOf = known?.duplicateOf ?? null } = change;
  const toolOperation = preview ? preview.toolOperation : known?.toolOperation;
  const row = { id, version, state, provider, tool, toolTitle, toolOperation, operation, summary, target, proposer, createdAt, updatedAt, expiresAt, digest, duplicateOf, isWhole };
  row.plan = change.plan ?? known?.plan ?? null;
  row.quorum = change.terms?.quorum ?? known?.quorum ?? 1;
  row.approvals = change.decisions ? change.decisions.filter((d) => d.verdict === 'approve').length : known?.approvals ?? 0;
  row.edited = change.edits ? change.edits.length > 0 : change.editCount === undefined ? Boolean(known?.edited) : change.editCount > 0;
  row.waitsFor = change.waitsFor?.change ?? null;
  row.previewFailed = change.preview ? Boolean(change.preview.failed) : Boolean(known?.previewFailed);
  row.differs = change.verification?.verified === 'differs';
  row.at = Date.parse(createdAt) || 0;
  // Changes of one burst may differ by less than the milliseconds of a Date.
  row.fraction = (/\.(\d+)/.exec(createdAt)?.[1] ?? '').padEnd(9, '0');
  row.text = [summary, target?.label, target?.entityType, toolTitle, tool, toolOperation, provider, operation, state, id, proposer?.principal, proposer?.claims?.displayName, proposer?.clientName]
    .filter(Boolean).join('\n').toLowerCase();
  return row;
}

/** Returns the rows that contain every word of the filter. */
export function matchingRows(items, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length ? items.filter((row) => words.every((word) => row.text.includes(word))) : items;
}
