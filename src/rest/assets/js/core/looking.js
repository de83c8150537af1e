// Looking something up again and again while a view shows it.

/**
 * Reads at once, then every `every` ms while the page is visible, and shortly after `soon()`: a burst of events is one
 * look, `burst` ms later. `read` gets a signal that `end()` aborts. What fails is told to `failed` until something has
 * been shown, and never after the end or when the sign-in has ended.
 */
export class Looking {
  #look;
  #abort = new AbortController();
  #timer;
  #soon = null;
  #shown = false;

  constructor({ read, show, failed, every, burst = 0 }) {
    this.#look = { read, show, failed, burst };
    this.#timer = setInterval(() => !document.hidden && this.now(), every);
    this.now();
  }

  get signal() {
    return this.#abort.signal;
  }

  async now() {
    const { read, show, failed } = this.#look;
    try {
      const found = await read(this.signal);
      this.#shown = true;
      show(found);
    } catch (error) {
      if (!this.signal.aborted && error.status !== 401 && !this.#shown) failed(error);
    }
  }

  soon() {
    this.#soon ??= setTimeout(() => {
      this.#soon = null;
      this.now();
    }, this.#look.burst);
  }

  end() {
    this.#abort.abort();
    clearInterval(this.#timer);
    clearTimeout(this.#soon);
  }
}
