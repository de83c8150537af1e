// Reads the live feed with a streaming fetch, because EventSource cannot send headers. After a lost connection it resumes
// from the last sequence number, so that every event is delivered exactly once.

import { SseParser } from './sse.js';

const FIRST_DELAY = 250;
const MAX_DELAY = 8000;
// The gateway sends a comment every 15 s (`transports.http.sse_keep_alive`), so a stream that is silent for this long is dead.
const MAX_SILENCE = 60_000;

export class Feed {
  #open;
  #on;
  #seq = null;
  #attempt = 0;
  #stopped = true;
  // Events may have been missed before the first connection.
  #hasFailed = false;
  #abort = null;
  #timer = null;
  #watchdog = null;
  #lastReceived = 0;

  /**
   * `open(signal, lastSeq)` returns a Response. `on` holds the callbacks `event(data)`, `hello(seq)`, `reset()` (events
   * were missed, so everything must be read again), `refused(response)` (401 or 403) and
   * `state('connecting'|'live'|'waiting', {delay, status})`, where `status` is that of an error response, or null.
   */
  constructor(open, on) {
    this.#open = open;
    this.#on = on;
  }

  start() {
    if (!this.#stopped) return;
    this.#stopped = false;
    addEventListener('online', this.#onOnline);
    document.addEventListener('visibilitychange', this.#onVisible);
    this.#connect();
  }

  stop() {
    this.#stopped = true;
    removeEventListener('online', this.#onOnline);
    document.removeEventListener('visibilitychange', this.#onVisible);
    clearTimeout(this.#timer);
    clearTimeout(this.#watchdog);
    this.#abort?.abort();
  }

  retry() {
    if (!this.#stopped && this.#timer !== null) this.#connect();
  }

  #onOnline = () => this.retry();

  // After sleep a laptop may hold a dead socket. A stream with recent traffic is kept.
  #onVisible = () => {
    if (document.hidden) return;
    if (this.#timer !== null) this.retry();
    else if (Date.now() - this.#lastReceived > MAX_SILENCE / 2) this.#abort?.abort();
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
      // Every failure leads to a new attempt.
    } finally {
      clearTimeout(this.#watchdog);
    }
    if (!this.#stopped) this.#scheduleReconnect(status);
  }

  #scheduleReconnect(status) {
    this.#hasFailed = true;
    const ceiling = Math.min(MAX_DELAY, FIRST_DELAY * 2 ** this.#attempt);
    this.#attempt += 1;
    // Jitter keeps many dashboards from reconnecting at the same instant.
    const delay = this.#attempt === 1 ? FIRST_DELAY : ceiling * (0.6 + 0.4 * Math.random());
    this.#on.state('waiting', { delay, status });
    this.#timer = setTimeout(() => this.#connect(), delay);
  }

  async #read(body, abort) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new SseParser((event) => this.#handle(event));
    const markLive = () => {
      this.#lastReceived = Date.now();
      clearTimeout(this.#watchdog);
      this.#watchdog = setTimeout(() => abort.abort(), MAX_SILENCE);
    };
    markLive();
    this.#on.state('live', {});
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.#attempt = 0;
      markLive();
      parser.push(value);
    }
  }

  #handle(event) {
    let data;
    try {
      data = JSON.parse(event.data);
    } catch {
      return; // The gateway sends only JSON.
    }
    // The gateway sends it only on a stream that does not resume.
    if (data.type === 'hello') {
      this.#seq = data.seq;
      if (this.#hasFailed) this.#on.reset();
      else this.#on.hello(data.seq);
      return;
    }
    // The events up to this number are no longer stored, or the feed ends there because a backup was restored.
    if (data.type === 'reset') {
      this.#seq = data.seq;
      this.#on.reset();
      return;
    }
    if (typeof data.seq === 'number') {
      if (data.seq === this.#seq) return;
      // A gap means that events were missed.
      const isNext = this.#seq === null || data.seq === this.#seq + 1;
      this.#seq = data.seq;
      if (!isNext) this.#on.reset();
    }
    this.#on.event(data);
  }
}
