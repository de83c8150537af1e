// What somebody has opened, and what of it they have selected to be decided together. Only what was on the screen as it
// is can be selected; what changes is dropped again. Pure.

import { shownOperation } from './vocab.js';

const MOST_SEEN = 5000;
/** The gateway takes so many at once. */
export const MOST_PICKED = 100;

export class Triage {
  #seen = new Map();
  #picked = new Map();

  /** The whole change is on the screen. */
  saw(change) {
    const { id, version, digest } = change;
    this.#seen.delete(id);
    this.#seen.set(id, { id, version, digest, truncated: change.diff.truncated, requireComment: change.terms?.requireComment === true, operation: shownOperation(change), summary: change.summary, state: change.state, previewFailed: Boolean(change.preview?.failed) });
    if (this.#seen.size > MOST_SEEN) this.#seen.delete(this.#seen.keys().next().value);
  }

  hasSeen(row) {
    return this.#seen.get(row.id)?.version === row.version;
  }

  isPicked(id) {
    return this.#picked.has(id);
  }

  get size() {
    return this.#picked.size;
  }

  /** In the order in which they were picked. */
  get picked() {
    return [...this.#picked.values()];
  }

  /** `picked`, `dropped`, `unseen`, `decided` (nothing to decide any more) or `full`. */
  toggle(row) {
    if (this.#picked.delete(row.id)) return 'dropped';
    if (row.state !== 'pending') return 'decided';
    if (!this.hasSeen(row)) return 'unseen';
    if (this.#picked.size >= MOST_PICKED) return 'full';
    this.#picked.set(row.id, this.#seen.get(row.id));
    return 'picked';
  }

  drop(id) {
    this.#picked.delete(id);
  }

  clear() {
    this.#picked.clear();
  }

  /**
   * Drops what is not as it was selected; returns how many. `get(id)` is the row as it is now, or null where there is
   * none among all that are pending. A version that shows the same (somebody has voted) is taken over: the decision names
   * the digest of what was on the screen as well.
   */
  follow(get) {
    let dropped = 0;
    for (const [id, seen] of this.#picked) {
      const row = get(id);
      if (row && row.state === 'pending' && (row.version === seen.version || row.digest === seen.digest)) {
        seen.version = row.version;
        continue;
      }
      this.#picked.delete(id);
      dropped += 1;
    }
    return dropped;
  }
}
