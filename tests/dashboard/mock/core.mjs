// A stand-in for the gateway's core: changes with their transitions, the audit chain, the feed, keys and codes. It
// writes itself to a file, so that it can be stopped and started again.

import { createHash, randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DEFAULT_TERMS, Reviews } from './reviews.mjs';
import { Hooks } from './hooks.mjs';
import { Servers } from './servers.mjs';
import { hash, newTracker, preview, run, WRITES } from './tracker.mjs';

const sha = (text) => createHash('sha256').update(text).digest('hex');
export const token = (bytes = 24) => randomBytes(bytes).toString('base64url');

export class Problem extends Error {
  constructor(status, code, detail, extra = {}) {
    super(detail);
    Object.assign(this, { status, code, extra });
  }
}

// Keys and codes live in a file of their own, which the commands write while the server runs.
export class Credentials {
  constructor(dir) {
    mkdirSync(dir, { recursive: true });
    this.file = join(dir, 'credentials.json');
  }

  #read() {
    return existsSync(this.file) ? JSON.parse(readFileSync(this.file, 'utf8')) : { keys: {}, codes: {} };
  }

  #change(f) {
    const all = this.#read();
    const out = f(all);
    writeFileSync(this.file, JSON.stringify(all));
    return out;
  }

  create(role, name, owner = name) {
    const key = `csk_${token(32)}`;
    this.#change((all) => { all.keys[sha(key)] = { role, name, owner }; });
    return key;
  }

  code(role, name) {
    const code = token(16);
    this.#change((all) => { all.codes[code] = { role, name }; });
    return code;
  }

  byKey(key) {
    return this.#read().keys[sha(key)] ?? null;
  }

  useCode(code) {
    return this.#change((all) => {
      const found = all.codes[code] ?? null;
      delete all.codes[code];
      return found;
    });
  }
}

export class Core {
  constructor(dir) {
    this.file = join(dir, 'mock.json');
    this.listeners = new Set();
    this.sessions = new Map();
    this.doors = ['/api/rules', '/api/audit/export', '/api/webhooks'];
    this.hooks = new Hooks(this);
    this.servers = new Servers();
    this.reviews = new Reviews(this);
    this.review = { ...DEFAULT_TERMS };
    Object.assign(this, existsSync(this.file) ? JSON.parse(readFileSync(this.file, 'utf8')) : { tracker: newTracker(), changes: [], events: [], audit: [], signIns: {}, rules: [] });
    this.byId = new Map(this.changes.map((c) => [c.id, c]));
  }

  save() {
    const { tracker, changes, events, audit, signIns, rules } = this;
    writeFileSync(this.file, JSON.stringify({ tracker, changes, events, audit, signIns, rules }));
  }

  // Durable at once while that is cheap; thousands of changes are written together.
  #keep() {
    if (this.changes.length < 200) return this.save();
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.save();
    }, 200);
  }

  /** `more` replaces members: for samples, and for what only an upstream's tool has. */
  propose(tool, source, proposer, at = new Date(), more = {}) {
    const args = JSON.parse(source);
    const shown = preview(this.tracker, tool, args);
    const iso = at.toISOString();
    const terms = { ...this.review, ...more.terms };
    const twin = this.changes.find((c) => c.state === 'pending' && c.tool === tool && c.proposer.principal === proposer.principal && c.source === source);
    const change = {
      id: `chg_${token(18).replace(/[-_]/g, '0')}`, version: 1, state: 'pending', proposer, provider: 'tracker', tool, toolTitle: WRITES[tool][0], toolHash: hash(tool),
      arguments: args, ...shown, digest: '', idempotencyKey: null, preview: { kind: 'module' }, decisions: [],
      createdAt: iso, updatedAt: iso, expiresAt: new Date(at.getTime() + (terms.expireAfter ?? 86_400) * 1000).toISOString(), ...(twin ? { twinOf: twin.id } : {}), ...more, terms,
    };
    change.source = source;
    this.sign(change);
    this.changes.unshift(change);
    this.byId.set(change.id, change);
    this.#record(change, 'created', null, proposer.principal, {}, at);
    return change;
  }

  /** What a decision is about, in one hash. */
  sign(change) {
    change.digest = hash([change.diff, change.source]);
  }

  #record(change, event, from, actor, details, at = new Date()) {
    const prev = this.audit.at(-1)?.hash ?? `sha256:${'0'.repeat(64)}`;
    const entry = { seq: this.audit.length + 1, at: at.toISOString(), changeId: change.id, event, from, to: change.state, actor, details, prevHash: prev };
    entry.hash = hash(entry);
    this.audit.push(entry);
    const light = Object.fromEntries(['id', 'version', 'state', 'provider', 'tool', 'toolTitle', 'operation', 'summary', 'target', 'proposer', 'createdAt', 'updatedAt', 'expiresAt', 'digest', 'terms', 'preview', 'runAfter', 'twinOf', 'fault'].map((k) => [k, change[k]]));
    Object.assign(light, { decisions: change.decisions.map(({ comment, ...vote }) => vote), editCount: change.edits?.length ?? 0, quorum: change.terms.quorum });
    light.approvals = light.decisions.filter((d) => d.verdict === 'approve').length;
    const told = { type: `change.${event}`, seq: this.events.length + 1, at: entry.at, actor, comment: details.comment ?? null, change: light };
    this.events.push(told);
    this.#keep();
    for (const listener of this.listeners) listener(told);
  }

  #move(change, state, event, actor, details = {}, at = new Date()) {
    const from = change.state;
    change.state = state;
    change.version += 1;
    change.updatedAt = at.toISOString();
    this.#record(change, event, from, actor, details, at);
  }

  find(id) {
    const change = this.byId.get(id);
    if (!change) throw new Problem(404, 'CHANGE_NOT_FOUND', `There is no change ${id}.`);
    return change;
  }

  decide(id, who, decision) {
    return this.reviews.decide(this.find(id), who, decision);
  }

  /** A transition, for the reviews. */
  move(...args) {
    this.#move(...args);
  }

  /** Runs an approved change, unless it has left that state meanwhile. */
  execute(change, version) {
    if (change.state !== 'approved' || change.version !== version) return;
    this.#move(change, 'executing', 'executing', 'system');
    setTimeout(() => {
      try {
        change.result = run(this.tracker, change.tool, change.arguments);
        this.#move(change, 'applied', 'applied', 'system');
      } catch (error) {
        change.fault = { code: 'TOOL_EXECUTION_ERROR', message: error.message };
        this.#move(change, 'failed', 'failed', 'system');
      }
    }, 40);
  }

  /** For samples: a state that would take hours to come about. */
  force(change, state, event, actor, { at, fault, details, decision } = {}) {
    if (fault) change.fault = fault;
    if (decision) change.decisions.push({ ...decision, at: (at ?? new Date()).toISOString(), version: change.version });
    this.#move(change, state, event, actor, details, at);
  }

  settle(id, who, { outcome, comment, version }) {
    const change = this.find(id);
    if (change.state !== 'outcome_unknown') throw new Problem(409, 'CHANGE_NOT_PENDING', `The change is ${change.state}.`, { change });
    if (version !== change.version) throw new Problem(409, 'VERSION_CONFLICT', 'Another version.', { change });
    this.#move(change, outcome, 'settled', who.name, { comment });
    return change;
  }

  counts() {
    const counts = {};
    for (const { state } of this.changes) counts[state] = (counts[state] ?? 0) + 1;
    return counts;
  }
}
