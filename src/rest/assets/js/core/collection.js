// A live, ordered set of changes (newest first), filled page by page from REST and kept current by the feed.
// Whichever comes first, the higher version wins; so events and pages may arrive in any order.

import { shownOperation } from './vocab.js';

const PAGE = 200;
// A history that somebody leaves open for weeks must not grow for ever: beyond this the oldest rows are let go.
const MOST = 20_000;
const TOP_UP = 1500;
// Milliseconds from an event to its repaint; between two repaints; and how many times longer than a repaint that is at least.
const FRAME = 16;
const GAP = 100;
const SHARE = 10;
const LONGEST_GAP = 500;

export class Collection {
  items = [];
  /** How many there are of each state at the gateway, and how many of those that are here. */
  counts = {};
  tally = {};
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
  #due = 0;
  #told = -Infinity;
  #cost = 0;
  #kept = null;
  #toppingUp = null;
  #waitedFor = new Set();
  /** Versions of what left while a page was under way: the page may still hold it as it was before. */
  #left = new Map();

  /**
   * `load({limit, cursor, signal})` is one page; `accepts(change)` whether a change belongs here. An eager
   * collection goes on loading until it has everything.
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

  /** How many there are of each state; the gateway's counts until everything has been loaded. */
  get inStates() {
    return this.status === 'ready' ? this.tally : { ...this.counts, ...Object.fromEntries(Object.entries(this.tally).map(([state, n]) => [state, Math.max(n, this.counts[state] ?? 0)])) };
  }

  /** How many belong here; the gateway's count until everything has been loaded. */
  size(states) {
    if (this.status === 'ready') return this.items.length - (this.#strayKept() ? 1 : 0);
    const counted = states.reduce((sum, state) => sum + (this.counts[state] ?? 0), 0);
    return Math.max(counted, this.items.length);
  }

  /** Keeps one change listed although it no longer belongs here, while somebody looks at it. */
  keep(id) {
    if (id === this.#kept) return;
    const stray = this.#strayKept();
    this.#kept = id;
    if (stray) this.#remove(stray.id);
    this.#notify();
  }

  #strayKept() {
    const kept = this.#kept === null ? null : this.#byId.get(this.#kept);
    return kept && !this.#accepts(kept) ? kept : null;
  }

  async reload() {
    this.#generation += 1;
    this.#cursor = null;
    const seen = new Set();
    await this.#page(this.#generation, seen);
  }

  /** Asks again how many there are in each state. */
  async recount() {
    try {
      this.counts = (await this.#load({ limit: 1, cursor: null })).counts ?? this.counts;
      this.#notify();
    } catch {
      // The figures are a help, and the next event asks again.
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
        const page = await this.#load({ limit: PAGE, cursor: this.#cursor });
        if (generation !== this.#generation) return;
        this.#cursor = page.nextCursor ?? null;
        this.counts = page.counts ?? this.counts;
        for (const change of page.changes) {
          seen?.add(change.id);
          if ((this.#left.get(change.id) ?? 0) < change.version) this.#put(light(change));
        }
        this.#notify();
      } while (this.#eager && this.#cursor);
      // What a complete reload has not brought is gone, unless an event has brought it meanwhile.
      if (seen && !this.#cursor) this.#forgetUnseen(seen);
      this.status = this.#cursor ? 'partial' : 'ready';
      this.#left.clear();
    } catch (error) {
      if (generation !== this.#generation) return;
      this.status = 'failed';
      this.error = error;
    }
    this.#notify();
  }

  #forgetUnseen(seen) {
    for (const item of [...this.items]) {
      if (!seen.has(item.id) && item.generation !== this.#generation && item.id !== this.#kept) this.#remove(item.id);
    }
  }

  /** An event of the feed, or the answer to a decision (not `live`). Returns whether anything is new. */
  apply(change, live = true) {
    const applied = this.#take(change, live);
    if (applied) this.#notify(!live);
    return applied;
  }

  #take(change, live) {
    const known = this.#byId.get(change.id);
    // The feed says less than a page: what it leaves out is taken from the page, even if that is not newer.
    if (known && (known.version > change.version || (known.version === change.version && (known.whole || !isWhole(change)) && (live || known.waitsFor === (change.waitsFor?.change ?? null))))) return false;
    if (this.status === 'loading') this.#left.set(change.id, change.version);
    const row = light(change, known);
    row.generation = this.#generation;
    row.fresh = !known && live;
    const applied = this.#put(row);
    if (row.waitsFor) this.#waitedFor.add(row.waitsFor);
    // No event says that an approved change waits for another one, or for whom.
    if (live && ((applied && !row.whole) || row.state === 'approved' || this.#waitedFor.delete(row.id))) this.#topUp();
    return applied;
  }

  // What the feed leaves out (votes, duplicates, when it runs, what it waits for) is read from the newest page, for all events of a while at once.
  #topUp() {
    this.#toppingUp ??= setTimeout(async () => {
      this.#toppingUp = null;
      let from = Math.min(PAGE, this.items.length) - 1;
      while (from >= 0 && this.items[from].whole && this.items[from].state !== 'approved') from -= 1;
      if (from === -1) return;
      try {
        const { changes } = await this.#load({ limit: Math.min(PAGE, from + 10), cursor: null });
        for (const change of changes) this.#take(change, false);
        this.#notify(false);
      } catch {
        // The list is right without it, only poorer.
      }
    }, TOP_UP);
  }

  #put(row) {
    const known = this.#byId.get(row.id);
    if (known && known.version > row.version) return false;
    if (known && known.version === row.version && known.whole && !row.whole) return false;
    if (!this.#accepts(row) && row.id !== this.#kept) {
      if (known) this.#remove(row.id);
      return Boolean(known);
    }
    if (known) {
      row.fresh = known.fresh;
      this.items[this.#indexOf(known)] = row;
      this.#tally(known, -1);
    } else {
      this.items.splice(this.#slot(row), 0, row);
      if (this.items.length > MOST) this.#remove(this.items.at(-1).id);
    }
    this.#tally(row, 1);
    this.#byId.set(row.id, row);
    return true;
  }

  #remove(id) {
    const known = this.#byId.get(id);
    if (!known) return;
    this.items.splice(this.#indexOf(known), 1);
    this.#byId.delete(id);
    this.#tally(known, -1);
  }

  #tally({ state }, by) {
    this.tally[state] = (this.tally[state] ?? 0) + by;
  }

  #indexOf(row) {
    const slot = this.#slot(row);
    return this.items[slot]?.id === row.id ? slot : this.items.findIndex((r) => r.id === row.id);
  }

  // The first place whose row is not newer: a binary search.
  #slot(row) {
    let low = 0;
    let high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (newer(this.items[middle], row)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // A burst of events is one repaint, at once for the first and then a few a second, and seldomer where a repaint takes
  // long: however many arrive, most of the time is left to whoever scrolls. What somebody does here does not wait. A timer
  // and not an animation frame: the count in the title of a hidden tab too.
  #notify(urgent = true) {
    const now = performance.now();
    const due = urgent ? now + FRAME : Math.max(now + FRAME, this.#told + Math.min(Math.max(GAP, this.#cost * SHARE), LONGEST_GAP));
    if (this.#timer !== null) {
      if (due >= this.#due) return;
      clearTimeout(this.#timer);
    }
    this.#due = due;
    this.#timer = setTimeout(() => {
      this.#timer = null;
      const begun = performance.now();
      for (const listener of this.#listeners) listener(this);
      this.#told = performance.now();
      this.#cost = this.#told - begun;
    }, due - now);
  }
}

const newer = (a, b) => a.at > b.at || (a.at === b.at && (a.fraction > b.fraction || (a.fraction === b.fraction && a.id > b.id)));

const isWhole = (change) => change.terms !== undefined;

/** What a list needs; diffs and arguments are left to the detail. `known` is the row so far: the feed says less. */
function light(change, known = null) {
  const { id, version, state, provider, tool, toolTitle, summary, target, proposer, createdAt, updatedAt, expiresAt } = change;
  // The feed leaves out how a preview was made.
  const operation = change.preview || !known ? shownOperation(change) : known.operation === 'CALL' ? 'CALL' : change.operation;
  const whole = isWhole(change);
  const { digest = known?.digest, duplicateOf = known?.duplicateOf ?? null } = change;
  const row = { id, version, state, provider, tool, toolTitle, operation, summary, target, proposer, createdAt, updatedAt, expiresAt, digest, duplicateOf, whole };
  row.quorum = change.terms?.quorum ?? known?.quorum ?? 1;
  row.approvals = change.decisions ? change.decisions.filter((d) => d.verdict === 'approve').length : known?.approvals ?? 0;
  row.edited = change.edits ? change.edits.length > 0 : change.editCount === undefined ? Boolean(known?.edited) : change.editCount > 0;
  row.waitsFor = change.waitsFor?.change ?? null;
  row.previewFailed = change.preview ? Boolean(change.preview.failed) : Boolean(known?.previewFailed);
  row.at = Date.parse(createdAt) || 0;
  // A burst is finer than the milliseconds of a Date.
  row.fraction = (/\.(\d+)/.exec(createdAt)?.[1] ?? '').padEnd(9, '0');
  row.text = [summary, target?.label, target?.entityType, toolTitle, tool, provider, operation, state, id, proposer?.principal, proposer?.clientName]
    .filter(Boolean).join('\n').toLowerCase();
  return row;
}

/** Those rows that hold every word of the filter. */
export function matching(items, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length ? items.filter((row) => words.every((word) => row.text.includes(word))) : items;
}
