// The mock's webhooks: they send nothing, and fail on request. Every event of the feed is a delivery.

import { Problem } from './core.mjs';

export class Hooks {
  all = new Map();

  constructor(core) {
    this.core = core;
  }

  /** `{name: {url, failing, error}}` replaces all of them. */
  set(hooks) {
    const before = this.all;
    this.all = new Map(Object.entries(hooks).map(([name, hook]) => [name, { failing: false, error: null, stuck: before.get(name)?.stuck ?? null, ...hook }]));
    for (const [name, hook] of this.all) {
      if (hook.failing === Boolean(before.get(name)?.failing)) continue;
      hook.stuck = hook.failing ? this.core.events.length - 1 : null;
      for (const listener of this.core.listeners) listener({ type: hook.failing ? 'webhook.failing' : 'webhook.recovered', at: new Date().toISOString(), webhook: name, error: hook.error });
    }
  }

  #find(name) {
    const hook = this.all.get(name);
    if (!hook) throw new Problem(404, 'NOT_FOUND', 'There is no webhook of this name');
    return hook;
  }

  list() {
    const head = this.core.events.length;
    return [...this.all].map(([name, { url, failing, error, stuck }]) => ({
      name, url, format: 'json', events: ['change.*'], tools: [], servers: [], states: [], position: stuck ?? head, head, waiting: stuck === null ? 0 : head - stuck, failing, lastError: failing ? error : null,
      nextAttemptAt: failing ? new Date(Date.now() + 42_000).toISOString() : null,
    }));
  }

  deliveries(name, query) {
    const { stuck, error } = this.#find(name);
    const limit = Number(query.get('limit') ?? 50);
    const below = Number(query.get('cursor') ?? Infinity);
    const all = this.core.events.filter((e) => e.seq < below).toReversed();
    const page = all.slice(0, limit).map(({ seq, type, at, change }) => {
      const waits = stuck !== null && seq > stuck;
      return { id: seq, seq, type, subject: change.id, changeId: change.id, state: waits ? 'waiting' : 'delivered', attempts: waits ? 3 : 1, status: waits ? 503 : 204, error: waits ? error : null, takenAt: at, lastAttemptAt: at };
    });
    return { deliveries: page, nextCursor: all.length > limit ? String(page.at(-1).seq) : null };
  }

  test(name) {
    const { failing, error } = this.#find(name);
    return failing ? { delivered: false, status: 503, error } : { delivered: true, status: 204, error: null };
  }

  retry(name) {
    const hook = this.#find(name);
    hook.retried = (hook.retried ?? 0) + 1;
    return { again: hook.retried === 1 ? 2 : 0 };
  }
}
