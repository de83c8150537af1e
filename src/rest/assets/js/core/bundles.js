// Knows which waiting changes form a bundle. The gateway computes that; this is read again after each event, at most once a
// second.

const FIRST_DELAY = 100;
const INTERVAL = 1000;

export class Bundles {
  #load;
  #byChange = new Map();
  #listeners = new Set();
  #timer = null;
  #readAt = -Infinity;
  #generation = 0;

  /** `load()` returns the bundles. */
  constructor(load) {
    this.#load = load;
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Returns the bundle of a change, or null. */
  of(id) {
    return this.#byChange.get(id) ?? null;
  }

  /** Reads the bundles again soon. */
  refresh() {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#read();
    }, Math.max(FIRST_DELAY, this.#readAt + INTERVAL - performance.now()));
  }

  stop() {
    clearTimeout(this.#timer);
    this.#listeners.clear();
  }

  async #read() {
    this.#readAt = performance.now();
    this.#generation += 1;
    const generation = this.#generation;
    try {
      const bundles = await this.#load();
      if (generation !== this.#generation) return;
      this.#byChange = new Map(bundles.flatMap((bundle) => bundle.waiting.map((id) => [id, bundle])));
      for (const listener of this.#listeners) listener();
    } catch {
      // Without this answer the inbox groups by agent and tool; the next event triggers another attempt.
    }
  }
}
