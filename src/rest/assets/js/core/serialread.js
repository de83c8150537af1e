// Reads data so that only one read runs at a time.

/** Calls `read()`, or once more after the call that runs, however often it is asked meanwhile. */
export class SerialRead {
  #read;
  #isRunning = false;
  #isWanted = false;

  constructor(read) {
    this.#read = read;
  }

  async run() {
    this.#isWanted = true;
    if (this.#isRunning) return;
    this.#isRunning = true;
    try {
      while (this.#isWanted) {
        this.#isWanted = false;
        await this.#read();
      }
    } finally {
      this.#isRunning = false;
    }
  }
}
