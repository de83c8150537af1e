// Starts and stops a gateway with its own data directory, creates keys, proposes changes and decides them.

import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as clients from '../../clients/gateway.mjs';

export const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

export const { eventually } = clients;

export class Gateway {
  #keys = new Map();
  #rpc = 0;

  /**
   * Starts a gateway. `review` holds the keys of `policy.review` in camel case, with times in seconds. `flood` raises the
   * limit of proposals per minute. `rules` and `servers` are `policy.rules` and `mcpServers` of the configuration file, and
   * `config` has further keys. With port 0, the system chooses a free one.
   */
  static async start({ review = {}, groups = {}, flood = false, rules = [], servers = {}, config = {}, port = 0 } = {}) {
    const gateway = Object.assign(new Gateway(), { review, groups, flood, rules, servers, config, port });
    gateway.data = mkdtempSync(join(tmpdir(), 'countersign-dashboard-'));
    await gateway.run();
    return gateway;
  }

  /** Starts the process. After `halt` it uses the same port and data. */
  async run() {
    this.log = '';
    this.child = spawn(clients.binary, ['serve', '--listen', `127.0.0.1:${this.port}`, '--data', this.data, '--config', this.#write()], { stdio: ['ignore', 'pipe', 'pipe'], env: clients.environment() });
    for (const stream of [this.child.stdout, this.child.stderr]) stream.on('data', (text) => { this.log += text; });
    this.port = await clients.publishedPort(this.data, this.child.pid, () => this.child.exitCode !== null && `the gateway ended with ${this.child.exitCode}:\n${this.log}`);
    this.url = `http://127.0.0.1:${this.port}`;
    await eventually('the gateway answers', async () => (await fetch(`${this.url}/health`)).ok);
  }

  /** Writes the file with these keys replaced and makes the gateway read it. */
  reconfigure(more = {}) {
    this.#write(more);
    process.kill(this.child.pid, 'SIGHUP');
  }

  #write(more = {}) {
    const file = join(this.data, 'config.yaml');
    const name = (key) => key.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`);
    const value = (key, v) => (['undoFor', 'expireAfter', 'holdFor'].includes(key) ? `${v}s` : v);
    // JSON is YAML.
    writeFileSync(`${file}.new`, JSON.stringify({
      ...(this.flood ? { changes: { max_proposals_per_minute: 10_000, max_pending: 10_000 } } : {}),
      policy: { groups: this.groups, review: Object.fromEntries(Object.entries(this.review).map(([key, v]) => [name(key), value(key, v)])), rules: this.rules },
      mcpServers: this.servers,
      ...this.config,
      ...more,
    }));
    // The file is replaced atomically, because the gateway may read it at any time.
    renameSync(`${file}.new`, file);
    return file;
  }

  /** Ends the process. */
  async halt(signal = 'SIGKILL') {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const gone = new Promise((resolve) => { this.child.once('exit', resolve); });
    process.kill(this.child.pid, signal);
    await gone;
  }

  async end() {
    await this.halt();
    rmSync(this.data, { recursive: true, force: true });
  }

  /** Runs the program on the gateway's data directory and returns its output. */
  cli(...args) {
    return execFileSync(clients.binary, [...args, '--data', this.data], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], env: clients.environment() }).trim();
  }

  /** Returns a key of that role; the same name returns the same key. */
  key(role, name, owner = null) {
    if (!this.#keys.has(name)) this.#keys.set(name, this.cli('keys', 'create', '--role', role, '--name', name, ...(owner ? ['--owner', owner] : [])));
    return this.#keys.get(name);
  }

  /** Returns the link that `countersign open` prints. */
  link() {
    return /https?:\/\/\S+#code=\S+/.exec(this.cli('open', '--print'))[0];
  }

  async api(path, { body, key = this.key('reviewer', 'rest-reviewer') } = {}) {
    const response = await fetch(`${this.url}/api/${path}`, {
      method: body ? 'POST' : 'GET',
      headers: { Authorization: `Bearer ${key}`, ...(body ? { 'Content-Type': 'application/json' } : {}) },
      body: body && JSON.stringify(body),
    });
    return { status: response.status, value: await response.json() };
  }

  /** Calls a tool as a one-shot client. `body` is an object, or text that is sent unchanged. */
  async tool(name, body, { key } = {}) {
    const response = await fetch(`${this.url}/tools/${name}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', ...(key ? { Authorization: `Bearer ${key}` } : {}) },
      body: typeof body === 'string' ? body : JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${name}: ${response.status} ${text}`);
    return JSON.parse(text);
  }

  async project() {
    this.projectId ??= (await this.tool('list_projects', {})).structuredContent.projects[0].id;
    return this.projectId;
  }

  /** Proposes a write and returns the id of the change. */
  async propose(name, args, options) {
    const answer = await this.tool(name, args, options);
    const id = answer.structuredContent?.changeId;
    if (!id) throw new Error(`${name} made no change: ${JSON.stringify(answer)}`);
    return id;
  }

  async proposeIssue(title, more = {}, options) {
    return this.propose('create_issue', { projectId: await this.project(), title, type: 'Bug', ...more }, options);
  }

  async change(id) {
    return (await this.api(`changes/${id}`)).value;
  }

  async decide(id, decision, comment, key) {
    const { version, digest } = await this.change(id);
    return this.api(`changes/${id}/decision`, { body: { decision, comment, version, digest }, key });
  }

  /** Waits until the change is in that state. */
  async reaches(id, state) {
    return eventually(`${id} becomes ${state}`, async () => {
      const change = await this.change(id);
      return change.state === state && change;
    });
  }

  /** Waits until the applied change was read back. */
  async verified(id) {
    return eventually(`${id} is read back`, async () => {
      const change = await this.reaches(id, 'applied');
      return change.verification.verified !== 'not_read' && change;
    });
  }

  /** Creates an issue and returns its id. */
  async issue(title, more) {
    const id = await this.proposeIssue(title, more);
    await this.decide(id, 'approve');
    const { result } = await this.reaches(id, 'applied');
    return result.structuredContent.issue.id;
  }

  /** Opens an MCP session with that `clientInfo` and returns `call(tool, args)`. */
  async mcp(clientInfo) {
    let session = null;
    const send = async (message) => {
      const response = await fetch(`${this.url}/mcp`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream', ...(session ? { 'Mcp-Session-Id': session, 'MCP-Protocol-Version': '2025-11-25' } : {}) },
        body: JSON.stringify({ jsonrpc: '2.0', ...message }),
      });
      session ??= response.headers.get('mcp-session-id');
      const text = await response.text();
      if (!response.ok) throw new Error(`${message.method}: ${response.status} ${text}`);
      if (message.id === undefined) return null;
      const isStream = response.headers.get('content-type').startsWith('text/event-stream');
      const messages = isStream ? text.split('\n').filter((l) => l.startsWith('data:') && l.length > 6).map((l) => JSON.parse(l.slice(5))) : [JSON.parse(text)];
      const answer = messages.find((m) => m.id === message.id);
      if (answer.error) throw new Error(JSON.stringify(answer.error));
      return answer.result;
    };
    await send({ id: ++this.#rpc, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo } });
    await send({ method: 'notifications/initialized' });
    return async (name, args) => (await send({ id: ++this.#rpc, method: 'tools/call', params: { name, arguments: args } })).structuredContent.changeId;
  }
}
