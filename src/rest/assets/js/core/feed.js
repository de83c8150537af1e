// The live feed: one streaming fetch (EventSource cannot send headers), resumed with the last sequence number,
// so that no change event is missed and none is seen twice, whatever happens to the connection.

import { SseParser } from './sse.js';

const FIRST_DELAY = 250;
const LONGEST_DELAY = 8000;
// The gateway sends a comment every 15 s; a stream silent for this long is dead although nobody said so.
const SILENCE = 60_000;

export class Feed {
  #open;
  #on;
  #seq = null;
  #attempt = 0;
  #stopped = true;
  #abort = null;
  #timer = null;
  #watchdog = null;
  #heard = 0;

  /**
   * `open(signal, lastSeq)` returns a Response. `on`: `event(data)`, `hello(seq)`, `reset()` (the history is not the
   * one we knew), `state('connecting'|'live'|'waiting', {delay, status})`, where `status` is that of a gateway that answered with a refusal, `refused(response)` (401 or 403).
   */
  constructor(open, on) {
    this.#open = open;
    this.#on = on;
  }

  start() {
    if (!this.#stopped) return;
    this.#stopped = false;
    addEventListener('online', this.#now);
    document.addEventListener('visibilitychange', this.#woke);
    this.#connect();
  }

  stop() {
    this.#stopped = true;
    removeEventListener('online', this.#now);
    document.removeEventListener('visibilitychange', this.#woke);
    clearTimeout(this.#timer);
    clearTimeout(this.#watchdog);
    this.#abort?.abort();
  }

  /** Tries at once instead of waiting. */
  retry() {
    if (!this.#stopped && this.#timer !== null) this.#connect();
  }

  #now = () => this.retry();

  // A laptop that slept may hold a dead socket; a busy one has been heard from lately.
  #woke = () => {
    if (document.hidden) return;
    if (this.#timer !== null) this.retry();
    else if (Date.now() - this.#heard > SILENCE / 2) this.#abort?.abort();
  };

  async #connect() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const abort = new AbortController();
    this.#abort = abort;
    this.#on.state('connecting', {});
    let status = null;
    try {
      const response = await this.#open(abort.signal, this.#seq);
      if (response.status === 401 || response.status === 403) {
        this.stop();
        this.#on.refused(response);
        return;
      }
      if (!response.ok || !response.body) {
        status = response.status;
        await response.body?.cancel();
      } else {
        await this.#read(response.body, abort);
      }
    } catch {
      // Whatever it was: the same is done about it.
    } finally {
      clearTimeout(this.#watchdog);
    }
    if (!this.#stopped) this.#wait(status);
  }

  #wait(status) {
    const ceiling = Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** this.#attempt);
    this.#attempt += 1;
    // Jitter, so that a hundred dashboards do not come back in the same instant.
    const delay = this.#attempt === 1 ? FIRST_DELAY : ceiling * (0.6 + 0.4 * Math.random());
    this.#on.state('waiting', { delay, status });
    this.#timer = setTimeout(() => this.#connect(), delay);
  }

  async #read(body, abort) {
    const resuming = this.#seq !== null;
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new SseParser((event) => this.#take(event, resuming));
    const live = () => {
      this.#heard = Date.now();
      clearTimeout(this.#watchdog);
      this.#watchdog = setTimeout(() => abort.abort(), SILENCE);
    };
    live();
    this.#on.state('live', {});
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.#attempt = 0;
      live();
      parser.push(value);
    }
  }

  #take(event, resuming) {
    let data;
    try {
      data = JSON.parse(event.data);
    } catch {
      return; // Not one of ours.
    }
    if (data.type === 'hello') {
      // Where we resume, the events between ours and the head are still to come: the head must not be taken over.
      if (!resuming || data.seq < this.#seq) {
        const restarted = this.#seq !== null;
        this.#seq = data.seq;
        if (restarted) this.#on.reset();
        else this.#on.hello(data.seq);
      }
      return;
    }
    if (typeof data.seq === 'number') {
      if (this.#seq !== null && data.seq <= this.#seq) return;
      const gap = this.#seq !== null && data.seq > this.#seq + 1;
      this.#seq = data.seq;
      if (gap) this.#on.reset();
    }
    this.#on.event(data);
  }
}
