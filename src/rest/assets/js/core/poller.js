// Reads data repeatedly while a view shows it.

/**
 * Reads at once, then every `every` ms while the page is visible, and `burst` ms after `pollSoon()`, which joins a burst
 * of events into one read. `stop()` aborts the signal that `read` receives. `failed` is called for errors until the first
 * success, but not after `stop()` or when the sign-in has ended.
 */
export class Poller {
  #options;
  #abort = new AbortController();
  #timer;
  #burstTimer = null;
  #readCount = 0;
  // The number of the read whose data is shown.
  #shown = 0;

  constructor({ read, show, failed, every, burst = 0 }) {
    this.#options = { read, show, failed, burst };
    this.#timer = setInterval(() => !document.hidden && this.poll(), every);
    this.poll();
  }

  get signal() {
    return this.#abort.signal;
  }

  async poll() {
    const { read, show, failed } = this.#options;
    const number = (this.#readCount += 1);
    try {
      const data = await read(this.signal);
      // The answer to a later read may have come first.
      if (number < this.#shown) return;
      this.#shown = number;
      show(data);
    } catch (error) {
      if (!this.signal.aborted && error.status !== 401 && this.#shown === 0) failed(error);
    }
  }

  pollSoon() {
    this.#burstTimer ??= setTimeout(() => {
      this.#burstTimer = null;
      this.poll();
    }, this.#options.burst);
  }

  stop() {
    this.#abort.abort();
    clearInterval(this.#timer);
    clearTimeout(this.#burstTimer);
  }
}
