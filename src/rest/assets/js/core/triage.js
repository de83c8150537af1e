// Records which changes the reviewer has opened and which of them are selected to be decided together. Only the version
// that was on the screen can be selected; a change that is modified later is deselected. Pure.

import { hasRowsBeyond } from './rowtable.js';
import { shownOperation } from './vocab.js';

const MAX_SEEN = 5000;
/** The gateway decides at most this many changes at once. */
export const MAX_SELECTED = 100;

/** Returns what a decision on several changes needs of one of them, as it is on the screen. */
export function shownOf(change) {
  const { id, version, digest, summary, state } = change;
  return { id, version, digest, truncated: change.diff.truncated || hasRowsBeyond(change.diff), requireComment: change.terms?.requireComment === true, operation: shownOperation(change), summary, state, previewFailed: Boolean(change.preview?.failed) };
}

export class Triage {
  #seen = new Map();
  #selected = new Map();

  /** Records that the whole change is on the screen. */
  markSeen(change) {
    this.#seen.delete(change.id);
    this.#seen.set(change.id, shownOf(change));
    if (this.#seen.size > MAX_SEEN) this.#seen.delete(this.#seen.keys().next().value);
  }

  hasSeen(row) {
    return this.#seen.get(row.id)?.version === row.version;
  }

  isSelected(id) {
    return this.#selected.has(id);
  }

  get size() {
    return this.#selected.size;
  }

  get selected() {
    return [...this.#selected.values()];
  }

  /** Selects or deselects a row. Returns `selected`, `deselected`, `unseen`, `decided` (no longer pending) or `full`. */
  toggle(row) {
    if (this.#selected.delete(row.id)) return 'deselected';
    if (row.state !== 'pending') return 'decided';
    if (!this.hasSeen(row)) return 'unseen';
    if (this.#selected.size >= MAX_SELECTED) return 'full';
    this.#selected.set(row.id, this.#seen.get(row.id));
    return 'selected';
  }

  drop(id) {
    this.#selected.delete(id);
  }

  clear() {
    this.#selected.clear();
  }

  /**
   * Deselects changes that were modified and returns their number. `get(id)` returns the current row of a pending change,
   * or null. A new version with the same digest (after a vote) stays selected, because the decision also carries the digest
   * of what was on the screen.
   */
  deselectModified(get) {
    let dropped = 0;
    for (const [id, seen] of this.#selected) {
      const row = get(id);
      if (row && row.state === 'pending' && (row.version === seen.version || row.digest === seen.digest)) {
        seen.version = row.version;
        continue;
      }
      this.#selected.delete(id);
      dropped += 1;
    }
    return dropped;
  }
}
