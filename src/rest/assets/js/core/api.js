// Calls the gateway's REST API. Each request carries the secret in a header, because the cookie alone authorizes nothing.

import { t } from './locale.js';
import { elementsOf, sourceOf } from './rawjson.js';
import { syncClock } from './time.js';

const TIMEOUT = 20_000;
// Longer than the receiver of a webhook may take, which is at most five minutes.
const WEBHOOK_TEST_TIMEOUT = 305_000;

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

/** Reports that the gateway did not answer. It may or may not have received the request. */
class NetworkError extends Error {}

export class Api {
  #secret;
  #unauthorized;

  /** `secret()` returns the header's value or null. `unauthorized()` is called for every 401 except those of a sign-in or of an earlier secret. */
  constructor(secret, unauthorized) {
    this.#secret = secret;
    this.#unauthorized = unauthorized;
  }

  #headers(extra, secret = this.#secret()) {
    return secret ? { 'X-Countersign-Secret': secret, ...extra } : { ...extra };
  }

  async #call(method, path, { body, raw, signal, timeout: limit = TIMEOUT, signingIn = false, withSecret = true } = {}) {
    const secret = withSecret ? this.#secret() : null;
    const payload = raw ?? (body === undefined ? undefined : JSON.stringify(body));
    const timeout = AbortSignal.timeout(limit);
    let response;
    let text;
    try {
      response = await fetch(path, {
        method,
        headers: this.#headers({ Accept: 'application/json', ...(payload === undefined ? {} : { 'Content-Type': 'application/json' }) }, secret),
        body: payload,
        signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
        cache: 'no-store',
        credentials: 'same-origin',
        redirect: 'error',
      });
      text = await response.text();
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new NetworkError(t('core.api.noAnswer'));
    }
    syncClock(response.headers.get('Date'));
    let value = null;
    try {
      value = text === '' ? null : JSON.parse(text);
    } catch {
      if (response.ok) throw new NetworkError(t('core.api.unreadable'));
    }
    if (response.ok) return { value, text };
    const problem = value && typeof value === 'object' ? value : {};
    const error = new ApiError(response.status, problem, text, Number(response.headers.get('Retry-After')) || null);
    if (response.status === 401 && !signingIn) this.#reportUnauthorized(secret);
    throw error;
  }

  // The user may have signed in again since the request was sent with that secret.
  #reportUnauthorized(secret) {
    if (secret === this.#secret()) this.#unauthorized();
  }

  // Calls the API and returns only the parsed answer.
  async #fetchJson(...request) {
    return (await this.#call(...request)).value;
  }

  /** Signs in. With the secret of a sign-in, a code of somebody else is refused; see `otherPerson`. */
  async signIn(credential, { withSecret = true } = {}) {
    return this.#fetchJson('POST', '/api/sign-in', { body: credential, signingIn: true, withSecret });
  }

  /** Returns the ways to sign in: `{provider}`. */
  async signInOptions() {
    return this.#fetchJson('GET', '/api/sign-in', { signingIn: true });
  }

  /** Returns the page of the identity provider that ends the session there, or undefined. */
  async signOut() {
    return (await this.#fetchJson('POST', '/api/sign-out', { signingIn: true }))?.providerUrl;
  }

  async me() {
    return this.#fetchJson('GET', '/api/me', { signingIn: true });
  }

  /** Returns a page of changes, newest first: `{changes, nextCursor, counts}`. Empty filters are not sent. */
  async changes({ states, tool, server, principal, q, since, until, limit = 100, cursor, signal }) {
    const query = new URLSearchParams({ limit: String(limit) });
    if (states?.length) query.set('status', states.join(','));
    for (const [key, value] of Object.entries({ tool, server, principal, q, since, until, cursor })) if (value) query.set(key, value);
    return this.#fetchJson('GET', `/api/changes?${query}`, { signal });
  }

  /** Returns `{change, source, proposed}`; see `withSources`. */
  async change(id, signal) {
    const { value, text } = await this.#call('GET', `/api/changes/${encodeURIComponent(id)}`, { signal });
    return withSources(value, text);
  }

  async decide(id, decision) {
    return this.#postChange(`/api/changes/${encodeURIComponent(id)}/decision`, decision);
  }

  async settle(id, settlement) {
    return this.#postChange(`/api/changes/${encodeURIComponent(id)}/settle`, settlement);
  }

  /** Replaces the arguments. They are sent as JSON text, so that untouched values keep their exact form. */
  async edit(id, { source, version, comment }) {
    const rest = JSON.stringify({ version, comment: comment || undefined });
    return this.#postChange(`/api/changes/${encodeURIComponent(id)}/edit`, null, `{"arguments":${source},${rest.slice(1)}`);
  }

  async undo(id, version) {
    return this.#postChange(`/api/changes/${encodeURIComponent(id)}/undo`, { version });
  }

  /** Makes the gateway read the target again and compute a new preview. */
  async refreshPreview(id, version) {
    return this.#postChange(`/api/changes/${encodeURIComponent(id)}/refresh`, { version });
  }

  /** Decides each change on its own: `[{id, change} | {id, problem}]`. `changes` holds the id, version and digest of each. */
  async decideAll(decision, comment, changes) {
    return (await this.#fetchJson('POST', '/api/decisions', { body: { decision, comment: comment || undefined, changes } })).results;
  }

  /** Returns the bundles of changes that wait for a decision, oldest first. */
  async bundles(signal) {
    return (await this.#fetchJson('GET', '/api/bundles', { signal })).bundles;
  }

  /** Returns the bundle that contains a change, with `steps: [{change, source}]` in order. */
  async bundle(id, signal) {
    const { bundle, steps } = withSteps(await this.#call('GET', `/api/bundles/${encodeURIComponent(id)}`, { signal }));
    return { ...bundle, steps };
  }

  /** Returns a plan with `steps: [{change, source}]` in order. */
  async plan(id, signal) {
    return withSteps(await this.#call('GET', `/api/plans/${encodeURIComponent(id)}`, { signal }));
  }

  /** Decides all steps of a plan that wait for the user. `decision` holds the version and the digests that were shown. */
  async decidePlan(id, decision) {
    return withSteps(await this.#call('POST', `/api/plans/${encodeURIComponent(id)}/decision`, { body: decision }));
  }

  async createRule(id, rule) {
    return this.#fetchJson('POST', `/api/changes/${encodeURIComponent(id)}/rule`, { body: rule });
  }

  /** Returns the policy in force, with what each rule decided. */
  async policy(signal) {
    return this.#fetchJson('GET', '/api/policy', { signal });
  }

  /** Returns the rules of the configuration file: `{editing, mayEdit, version, rules}`. */
  async policyFile(signal) {
    return this.#fetchJson('GET', '/api/policy/file', { signal });
  }

  /** Changes the rules of the file, or shows with `preview` what would change. */
  async editPolicy(edit) {
    return this.#fetchJson('PUT', '/api/policy/rules', { body: edit });
  }

  /** Returns the standing rules that the history suggests for calls like a change: `{suggestions, complete}`. */
  async suggestions(id, signal) {
    return this.#fetchJson('GET', `/api/changes/${encodeURIComponent(id)}/suggestions`, { signal });
  }

  /** Returns the standing rules, newest first: `[{rule, source}]`. `source` is the text of the arguments, or null. */
  async rules(signal) {
    const { value, text } = await this.#call('GET', '/api/rules', { signal });
    const sources = elementsOf(sourceOf(text, ['rules']));
    return value.rules.map((rule, i) => ({ rule, source: rule.arguments ? sourceOf(sources[i], ['arguments']) : null }));
  }

  async revokeRule(id, comment) {
    return this.#fetchJson('POST', `/api/rules/${encodeURIComponent(id)}/revoke`, { body: { comment } });
  }

  async #postChange(path, body, raw) {
    const { value, text } = await this.#call('POST', path, raw === undefined ? { body } : { raw });
    return withSources(value, text);
  }

  /** Returns a page of audit entries, newest first: `{entries, titles, nextCursor, head}`. Empty filters are not sent. */
  async audit({ change, event, actor, q, since, until, limit = 50, cursor, signal }) {
    const query = new URLSearchParams({ limit: String(limit) });
    for (const [key, value] of Object.entries({ change, event, actor, q, since, until, cursor })) if (value) query.set(key, value);
    return this.#fetchJson('GET', `/api/audit?${query}`, { signal });
  }

  /** Returns the audit trail as `{name, blob}` after it has arrived completely. An export has no timeout. */
  async exportAudit({ format, since, until, signal }) {
    const query = new URLSearchParams({ format });
    if (since) query.set('since', since);
    if (until) query.set('until', until);
    const secret = this.#secret();
    let response;
    try {
      response = await fetch(`/api/audit/export?${query}`, { headers: this.#headers(), signal, cache: 'no-store', credentials: 'same-origin', redirect: 'error' });
      if (response.ok) {
        const name = /filename="([\w.-]{1,100})"/.exec(response.headers.get('Content-Disposition') ?? '')?.[1] ?? `countersign-audit.${format}`;
        return { name, blob: await response.blob() };
      }
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new NetworkError(t(response ? 'core.api.exportInterrupted' : 'core.api.noAnswer'));
    }
    const text = await response.text();
    if (response.status === 401) this.#reportUnauthorized(secret);
    let problem = {};
    try {
      problem = JSON.parse(text);
    } catch {
      // A proxy in front of the gateway may answer with something other than JSON.
    }
    throw new ApiError(response.status, problem, text, Number(response.headers.get('Retry-After')) || null);
  }

  async webhooks(signal) {
    return (await this.#fetchJson('GET', '/api/webhooks', { signal })).webhooks;
  }

  /** Returns the deliveries of one webhook, newest first: `{deliveries, nextCursor}`. */
  async deliveries(name, { limit, cursor, signal }) {
    const query = new URLSearchParams({ limit: String(limit) });
    if (cursor) query.set('cursor', cursor);
    return this.#fetchJson('GET', `/api/webhooks/${encodeURIComponent(name)}/deliveries?${query}`, { signal });
  }

  /** Sends waiting deliveries now. Returns `{again}`, the number of deliveries that had been given up. */
  async retryWebhook(name) {
    return (await this.#fetchJson('POST', `/api/webhooks/${encodeURIComponent(name)}/retry`)) ?? {};
  }

  /** Sends a test event to a webhook: `{delivered, status, error}`. */
  async testWebhook(name) {
    return (await this.#fetchJson('POST', `/api/webhooks/${encodeURIComponent(name)}/test`, { timeout: WEBHOOK_TEST_TIMEOUT })) ?? {};
  }

  /** Returns which of the first steps are done, and how agents connect. */
  async firstSteps(signal) {
    return this.#fetchJson('GET', '/api/first-steps', { signal });
  }

  /** Returns the test change, which is proposed unless it is pending already. */
  async proposeTestChange() {
    return this.#fetchJson('POST', '/api/test-change');
  }

  /** Returns the overview of a range, `24h` or `30d`. */
  async overview(range, signal) {
    return this.#fetchJson('GET', `/api/overview?range=${range}`, { signal });
  }

  /** Returns the absence of the user, if there is one, and who can be their deputy: `{absence, deputies, groups}`. */
  async absence() {
    return this.#fetchJson('GET', '/api/account/absence');
  }

  async setAbsence({ until, deputy }) {
    return this.#fetchJson('PUT', '/api/account/absence', { body: { until, deputy } });
  }

  async endAbsence() {
    return this.#fetchJson('DELETE', '/api/account/absence');
  }

  /** Returns all keys, newest first. */
  async keys(signal) {
    return this.#fetchJson('GET', '/api/keys', { signal });
  }

  /** Revokes a key, and returns the same as `keys`. */
  async revokeKey(id) {
    return this.#fetchJson('DELETE', `/api/keys/${encodeURIComponent(id)}`);
  }

  /** Creates a key: `{name, role, owner}`, by default of an agent. Returns `{id, name, role, secret}`; nothing returns the secret again. */
  async createKey(key) {
    return this.#fetchJson('POST', '/api/keys', { body: key });
  }

  /** Returns the gateways that share this store. */
  async nodes(signal) {
    return (await this.#fetchJson('GET', '/api/nodes', { signal })).nodes;
  }

  /** Returns the newest sessions and the number of all: `{sessions, total}`. */
  async sessions(signal) {
    return this.#fetchJson('GET', '/api/sessions?limit=200', { signal });
  }

  async servers(signal) {
    return (await this.#fetchJson('GET', '/api/servers', { signal })).servers;
  }

  async server(name, signal) {
    return this.#fetchJson('GET', `/api/servers/${encodeURIComponent(name)}`, { signal });
  }

  /** Accepts definitions, accepts them as known reads, or revokes acceptances (`action`). `tools` holds each name with the hash that was shown. */
  async changeAcceptances(name, action, tools) {
    return this.#fetchJson('POST', `/api/servers/${encodeURIComponent(name)}/${action}`, { body: { tools } });
  }

  /** Creates a standing rule for each tool, so that it runs without review. `tools` is as above; a reason is required. */
  async letRun(name, tools, reason) {
    return this.#fetchJson('POST', `/api/servers/${encodeURIComponent(name)}/allow`, { body: { tools, reason } });
  }

  /** Begins to connect the user's account at a server. Returns `{url}`, the server's own page. */
  async connectServer(name) {
    return this.#fetchJson('POST', `/api/servers/${encodeURIComponent(name)}/connect`);
  }

  /** Removes the user's account at a server. */
  async disconnectServer(name) {
    return this.#fetchJson('DELETE', `/api/servers/${encodeURIComponent(name)}/connection`);
  }

  /** Returns the servers of the configuration file, its version, and whether the user may edit them. */
  async serverFile(signal) {
    return this.#fetchJson('GET', '/api/server-file', { signal });
  }

  /** Adds the servers of a text to the file, or only shows what would change: `{version, text, name, preview}`. */
  async addServers(edit) {
    return this.#fetchJson('POST', '/api/servers', { body: edit });
  }

  /** Changes a server of the file: `{version, settings, preview}`. */
  async editServer(name, edit) {
    return this.#fetchJson('PUT', `/api/servers/${encodeURIComponent(name)}`, { body: edit });
  }

  /** Removes a server from the file, or only shows what would change. */
  async removeServer(name, version, preview) {
    return this.#fetchJson('DELETE', `/api/servers/${encodeURIComponent(name)}?version=${encodeURIComponent(version)}&preview=${preview}`);
  }

  /** Tries a server: `{name}`, with its `settings` or a `text` if it is not the one of the file. */
  async tryServer(request) {
    return this.#fetchJson('POST', '/api/server-trials', { body: request });
  }

  async trials(signal) {
    return (await this.#fetchJson('GET', '/api/server-trials', { signal })).trials;
  }

  /** Decides on a trial. `verdict` is `run` or `refuse`. */
  async decideTrial(id, verdict) {
    return this.#fetchJson('POST', `/api/server-trials/${encodeURIComponent(id)}/decision`, { body: { verdict } });
  }

  /** Returns the last reload of the configuration, and the change of it that waits for consent. */
  async reloadStatus(signal) {
    return this.#fetchJson('GET', '/api/reload', { signal });
  }

  /** Decides on a configuration change. `verdict` is `accept` or `refuse`. */
  async consent(digest, verdict) {
    return this.#fetchJson('POST', '/api/reload/consent', { body: { digest, verdict } });
  }

  events(signal, lastSeq) {
    const headers = this.#headers({ Accept: 'text/event-stream' });
    if (lastSeq !== null) headers['Last-Event-ID'] = String(lastSeq);
    return fetch('/api/events', { headers, signal, cache: 'no-store', credentials: 'same-origin', redirect: 'error' });
  }
}

// Adds the exact JSON text of the arguments that will run (`source`) and, after an edit, of those proposed (`proposed`).
const withSources = (change, text) => ({ change, source: sourceOf(text, ['arguments']), proposed: sourceOf(text, ['proposedArguments']) });

// Adds each change of a plan or a bundle with the exact JSON text of its arguments.
function withSteps({ value, text }) {
  const sources = elementsOf(sourceOf(text, ['changes']));
  return { ...value, steps: value.changes.map((change, i) => ({ change, source: sourceOf(sources[i], ['arguments']) })) };
}

/** Returns the change that a 409 carries, as `withSources` does, or null. */
export function conflictOf(error) {
  if (!(error instanceof ApiError) || !error.problem.change) return null;
  return { change: error.problem.change, source: sourceOf(error.source, ['change', 'arguments']), proposed: sourceOf(error.source, ['change', 'proposedArguments']) };
}

/** Returns `{signedInAs, signInAs}` if a code was refused because it would sign the browser in as somebody else, or null. */
export const otherPerson = (error) => (error instanceof ApiError && error.problem.details?.signInAs ? error.problem.details : null);

/** Returns a sentence for people about a failed call. */
export function explain(error) {
  if (error instanceof NetworkError) return t('core.api.check', { problem: error.message });
  if (!(error instanceof ApiError)) return error instanceof Error ? error.message : String(error);
  if (error.status === 429) {
    return error.retryAfter ? t('core.api.tooManyFor', { seconds: error.retryAfter }) : t('core.api.tooMany');
  }
  if (error.code === 'SELF_APPROVAL') return t('core.api.ownChange');
  if (error.code === 'EDIT_FORBIDDEN') return t('core.api.editForbidden');
  if (error.code === 'AUTHORIZATION') return t('core.api.accountMissing', { problem: error.message });
  if (error.code === 'SIGN_IN_REQUIRED' || error.code === 'POLICY_DENIED') return `${error.message}.`;
  if (error.status === 403) return t('core.api.notAllowed', { problem: error.message });
  return sentence(error.message);
}

// Errors of the gateway begin in lower case and quote names as code, because terminals and logs put them after a colon.
const sentence = (text) => text.replace(/^[a-z]+(?= )/, (word) => word[0].toUpperCase() + word.slice(1)).replace(/`([^`]*)`/g, '“$1”');
