// Parses a text/event-stream, chunk by chunk (HTML standard, "9.2.6 Interpreting an event stream").

// The gateway sends no larger event; the connection is dropped instead of filling memory.
const MAX_BUFFER = 16 * 1024 * 1024;

export class SseParser {
  #onEvent;
  #buffer = '';
  #data = [];
  #type = '';
  #id = null;
  #started = false;

  /** `onEvent({type, data, id})` receives each event; `id` is null if the event had none. */
  constructor(onEvent) {
    this.#onEvent = onEvent;
  }

  push(chunk) {
    this.#buffer += chunk;
    if (!this.#started && this.#buffer.length) {
      this.#started = true;
      if (this.#buffer.charCodeAt(0) === 0xfeff) this.#buffer = this.#buffer.slice(1);
    }
    let start = 0;
    for (let i = 0; i < this.#buffer.length; i += 1) {
      const char = this.#buffer[i];
      if (char !== '\n' && char !== '\r') continue;
      // A carriage return at the end may be the first half of a pair.
      if (char === '\r' && i + 1 === this.#buffer.length) break;
      this.#line(this.#buffer.slice(start, i));
      if (char === '\r' && this.#buffer[i + 1] === '\n') i += 1;
      start = i + 1;
    }
    this.#buffer = this.#buffer.slice(start);
    if (this.#buffer.length > MAX_BUFFER) throw new RangeError('event too large');
  }

  #line(line) {
    if (line === '') return this.#dispatch();
    if (line[0] === ':') return;
    const colon = line.indexOf(':');
    const field = colon === -1 ? line : line.slice(0, colon);
    let value = colon === -1 ? '' : line.slice(colon + 1);
    if (value[0] === ' ') value = value.slice(1);
    if (field === 'data') this.#data.push(value);
    else if (field === 'event') this.#type = value;
    else if (field === 'id' && !value.includes('\0')) this.#id = value;
  }

  #dispatch() {
    const event = { type: this.#type || 'message', data: this.#data.join('\n'), id: this.#id };
    const empty = this.#data.length === 0;
    this.#data = [];
    this.#type = '';
    this.#id = null;
    if (!empty) this.#onEvent(event);
  }
}
