// Calls the gateway's REST endpoint. The secret goes along as a header; the cookie alone authorizes nothing.

import { elementsOf, sourceOf } from './rawjson.js';
import { learnClock } from './time.js';

const TIMEOUT = 20_000;

/** The gateway answered, and said no. */
export class ApiError extends Error {
  constructor(status, problem, source, retryAfter) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    this.code = problem.code ?? '';
    this.problem = problem;
    this.source = source;
    this.retryAfter = retryAfter;
  }
}

/** The gateway did not answer: whether it has heard us is unknown. */
export class NetworkError extends Error {}

export class Api {
  #secret;
  #unauthorized;

  /** `secret()` returns the header's value or null; `unauthorized()` is told of every 401 but those of a sign-in. */
  constructor(secret, unauthorized) {
    this.#secret = secret;
    this.#unauthorized = unauthorized;
  }

  #headers(extra) {
    const secret = this.#secret();
    return secret ? { 'X-Countersign-Secret': secret, ...extra } : { ...extra };
  }

  async #call(method, path, { body, raw, signal, signingIn = false } = {}) {
    const sent = raw ?? (body === undefined ? undefined : JSON.stringify(body));
    const timeout = AbortSignal.timeout(TIMEOUT);
    let response;
    let text;
    try {
      response = await fetch(path, {
        method,
        headers: this.#headers({ Accept: 'application/json', ...(sent === undefined ? {} : { 'Content-Type': 'application/json' }) }),
        body: sent,
        signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
        cache: 'no-store',
        credentials: 'same-origin',
        redirect: 'error',
      });
      text = await response.text();
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new NetworkError('The gateway did not answer.');
    }
    learnClock(response.headers.get('Date'));
    let value = null;
    try {
      value = text === '' ? null : JSON.parse(text);
    } catch {
      if (response.ok) throw new NetworkError('The gateway’s answer could not be read.');
    }
    if (response.ok) return { value, text };
    const problem = value && typeof value === 'object' ? value : {};
    const error = new ApiError(response.status, problem, text, Number(response.headers.get('Retry-After')) || null);
    if (response.status === 401 && !signingIn) this.#unauthorized();
    throw error;
  }

  async signIn(credential) {
    return (await this.#call('POST', '/api/sign-in', { body: credential, signingIn: true })).value;
  }

  async signOut() {
    await this.#call('POST', '/api/sign-out', { signingIn: true });
  }

  async me() {
    return (await this.#call('GET', '/api/me', { signingIn: true })).value;
  }

  /** A page of changes, newest first: `{changes, nextCursor, counts}`. What is not asked for is not sent. */
  async changes({ states, tool, server, principal, q, since, until, limit = 100, cursor, signal }) {
    const query = new URLSearchParams({ limit: String(limit) });
    if (states?.length) query.set('status', states.join(','));
    for (const [key, value] of Object.entries({ tool, server, principal, q, since, until, cursor })) if (value) query.set(key, value);
    return (await this.#call('GET', `/api/changes?${query}`, { signal })).value;
  }

  /** `{change, source}`, where `source` is the text of the arguments as they will run. */
  async change(id, signal) {
    const { value, text } = await this.#call('GET', `/api/changes/${encodeURIComponent(id)}`, { signal });
    return open(value, text);
  }

  async decide(id, decision) {
    return this.#changing(`/api/changes/${encodeURIComponent(id)}/decision`, decision);
  }

  async settle(id, settlement) {
    return this.#changing(`/api/changes/${encodeURIComponent(id)}/settle`, settlement);
  }

  /** Other arguments, as JSON text: what is not touched keeps its exact form. */
  async edit(id, { source, version, comment }) {
    const rest = JSON.stringify({ version, comment: comment || undefined });
    return this.#changing(`/api/changes/${encodeURIComponent(id)}/edit`, null, `{"arguments":${source},${rest.slice(1)}`);
  }

  async undo(id, version) {
    return this.#changing(`/api/changes/${encodeURIComponent(id)}/undo`, { version });
  }

  /** Looks at the target again. */
  async lookAgain(id, version) {
    return this.#changing(`/api/changes/${encodeURIComponent(id)}/refresh`, { version });
  }

  /** Decides many, each on its own: `[{id, change} | {id, problem}]`. `changes` names version and digest of each. */
  async decideAll(decision, comment, changes) {
    return (await this.#call('POST', '/api/decisions', { body: { decision, comment: comment || undefined, changes } })).value.results;
  }

  /** Makes a standing rule out of a change. */
  async makeRule(id, rule) {
    return (await this.#call('POST', `/api/changes/${encodeURIComponent(id)}/rule`, { body: rule })).value;
  }

  /** Standing rules, newest first: `[{rule, source}]`, where `source` is the text of its arguments, or null. */
  async rules(signal) {
    const { value, text } = await this.#call('GET', '/api/rules', { signal });
    const sources = elementsOf(sourceOf(text, ['rules']));
    return value.rules.map((rule, i) => ({ rule, source: rule.arguments ? sourceOf(sources[i], ['arguments']) : null }));
  }

  async revokeRule(id, comment) {
    return (await this.#call('POST', `/api/rules/${encodeURIComponent(id)}/revoke`, { body: { comment } })).value;
  }

  async #changing(path, body, raw) {
    const { value, text } = await this.#call('POST', path, raw === undefined ? { body } : { raw });
    return open(value, text);
  }

  /** A page of entries, newest first: `{entries, titles, nextCursor, head}`. What is not asked for is not sent. */
  async audit({ change, event, actor, q, since, until, limit = 50, cursor, signal }) {
    const query = new URLSearchParams({ limit: String(limit) });
    for (const [key, value] of Object.entries({ change, event, actor, q, since, until, cursor })) if (value) query.set(key, value);
    return (await this.#call('GET', `/api/audit?${query}`, { signal })).value;
  }

  /** The audit trail as `{name, blob}`, once it has come wholly. It takes as long as it takes. */
  async exportAudit({ format, since, until, signal }) {
    const query = new URLSearchParams({ format });
    if (since) query.set('since', since);
    if (until) query.set('until', until);
    let response;
    try {
      response = await fetch(`/api/audit/export?${query}`, { headers: this.#headers(), signal, cache: 'no-store', credentials: 'same-origin', redirect: 'error' });
      if (response.ok) {
        const name = /filename="([\w.-]{1,100})"/.exec(response.headers.get('Content-Disposition') ?? '')?.[1] ?? `countersign-audit.${format}`;
        return { name, blob: await response.blob() };
      }
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new NetworkError(response ? 'The export was interrupted; nothing was saved.' : 'The gateway did not answer.');
    }
    const text = await response.text();
    if (response.status === 401) this.#unauthorized();
    let problem = {};
    try {
      problem = JSON.parse(text);
    } catch {
      // What is between us and the gateway has answered.
    }
    throw new ApiError(response.status, problem, text, Number(response.headers.get('Retry-After')) || null);
  }

  async webhooks(signal) {
    return (await this.#call('GET', '/api/webhooks', { signal })).value.webhooks;
  }

  /** What went out to one webhook, newest first: `{deliveries, nextCursor}`. */
  async deliveries(name, { limit, cursor, signal }) {
    const query = new URLSearchParams({ limit: String(limit) });
    if (cursor) query.set('cursor', cursor);
    return (await this.#call('GET', `/api/webhooks/${encodeURIComponent(name)}/deliveries?${query}`, { signal })).value;
  }

  /** `{again}`: how many that had been given up. */
  async retryWebhook(name) {
    return (await this.#call('POST', `/api/webhooks/${encodeURIComponent(name)}/retry`)).value ?? {};
  }

  /** Sends a webhook something that says that it is a test: `{delivered, status, error}`. */
  async testWebhook(name) {
    return (await this.#call('POST', `/api/webhooks/${encodeURIComponent(name)}/test`)).value ?? {};
  }

  /** The gateways of one store; only this one where there can be no other. */
  async nodes(signal) {
    return (await this.#call('GET', '/api/nodes', { signal })).value.nodes;
  }

  /** The newest sessions, and how many there are: `{sessions, total}`. */
  async sessions(signal) {
    return (await this.#call('GET', '/api/sessions?limit=200', { signal })).value;
  }

  async servers(signal) {
    return (await this.#call('GET', '/api/servers', { signal })).value.servers;
  }

  /** `{name, tools}` of one server. */
  async server(name, signal) {
    return (await this.#call('GET', `/api/servers/${encodeURIComponent(name)}`, { signal })).value;
  }

  /** `what` is accept or revoke; `tools` names each definition with the hash that was shown. */
  async definitions(name, what, tools) {
    return (await this.#call('POST', `/api/servers/${encodeURIComponent(name)}/${what}`, { body: { tools } })).value;
  }

  /** Lets tools run without review: a standing rule for each. `tools` as above; the reason is not optional. */
  async letRun(name, tools, reason) {
    return (await this.#call('POST', `/api/servers/${encodeURIComponent(name)}/allow`, { body: { tools, reason } })).value;
  }

  /** How the configuration stands: what waits for consent, what was refused. */
  async reload(signal) {
    return (await this.#call('GET', '/api/reload', { signal })).value;
  }

  /** `verdict` is accept or refuse. */
  async consent(digest, verdict) {
    return (await this.#call('POST', '/api/reload/consent', { body: { digest, verdict } })).value;
  }

  /** The stream of events; after `lastSeq` where it is not null. */
  events(signal, lastSeq) {
    const headers = this.#headers({ Accept: 'text/event-stream' });
    if (lastSeq !== null) headers['Last-Event-ID'] = String(lastSeq);
    return fetch('/api/events', { headers, signal, cache: 'no-store', credentials: 'same-origin', redirect: 'error' });
  }
}

// `source` is the text of the arguments as they will run, `proposed` that of what was asked for, once edited.
const open = (change, text) => ({ change, source: sourceOf(text, ['arguments']), proposed: sourceOf(text, ['proposedArguments']) });

/** The change inside a 409, as `{change, source}`; null where there is none. */
export function conflictOf(error) {
  if (!(error instanceof ApiError) || !error.problem.change) return null;
  return { change: error.problem.change, source: sourceOf(error.source, ['change', 'arguments']), proposed: sourceOf(error.source, ['change', 'proposedArguments']) };
}

/** What to tell a person about a failed call. */
export function explain(error) {
  if (error instanceof NetworkError) return `${error.message} Check that it is running; nothing is lost.`;
  if (!(error instanceof ApiError)) return error instanceof Error ? error.message : String(error);
  if (error.status === 429) {
    return error.retryAfter ? `Too many requests. Try again in ${error.retryAfter} s.` : 'Too many requests. Wait a moment and try again.';
  }
  if (error.code === 'SELF_APPROVAL') return 'You proposed this change, so somebody else has to approve it.';
  if (error.code === 'EDIT_FORBIDDEN') return 'The rule for this tool does not allow reviewers to edit its changes.';
  if (error.status === 403) return `You are not allowed to do this. ${error.message}`;
  if (error.status === 404) return `Not found: ${error.message}`;
  return error.message;
}
