// The mock's doors: the dashboard's files, REST, the feed, plain tools and a little of MCP.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';
import { Problem, token } from './core.mjs';
import { sourceOf } from '../../../src/http/assets/js/core/rawjson.js';
import { read, WRITES } from './tracker.mjs';

const ASSETS = new URL('../../../src/http/assets/', import.meta.url).pathname;
const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.css': 'text/css; charset=utf-8', '.svg': 'image/svg+xml' };
const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const VIEW = ['reviewer', 'viewer', 'admin'];
const DECIDE = ['reviewer', 'admin'];
// The sample's rules name people, too.
const groupsOf = (core, { name }) => [...Object.keys(core.groups ?? {}).filter((group) => core.groups[group].includes(name)), name];

export function serve(core, credentials, { host, port }) {
  const attempts = { failed: 0 };
  const server = createServer(async (req, res) => {
    const url = new URL(req.url, `http://${req.headers.host}`);
    try {
      await route(req, res, url);
    } catch (error) {
      const problem = error instanceof Problem ? error : new Problem(500, 'INTERNAL_ERROR', error.message);
      send(res, problem.status, 'application/problem+json', `{"type":"about:blank","title":${JSON.stringify(problem.code)},"status":${problem.status},"detail":${JSON.stringify(problem.message)},"code":"${problem.code}"${problem.extra.change ? `,"change":${encode(problem.extra.change)}` : ''}${problem.extra.details ? `,"details":${JSON.stringify(problem.extra.details)}` : ''}}`,
        problem.status === 401 ? { 'WWW-Authenticate': 'Bearer' } : problem.status === 429 ? { 'Retry-After': '7' } : {});
    }
  });

  async function route(req, res, url) {
    const path = url.pathname;
    if (req.method === 'GET' && (path === '/' || path.startsWith('/assets/'))) return asset(req, res, path);
    if (path.startsWith('/tools/') && req.method === 'POST') {
      return json(res, callTool(path.slice(7), await body(req), agent(req, { transport: 'rest', clientName: null, clientVersion: null, session: null, revision: null })));
    }
    if (path === '/mcp' && req.method === 'POST') return mcp(req, res);
    if (path === '/api/sign-in' && req.method === 'POST') return signIn(req, res);
    if (!path.startsWith('/api/')) throw new Problem(404, 'NOT_FOUND', 'No such page.');
    const me = who(req);
    if (!VIEW.includes(me.role)) throw new Problem(403, 'FORBIDDEN', 'This needs the role reviewer, viewer or admin.');
    if (path === '/api/me') return json(res, { ...me, groups: groupsOf(core, me), mayDecide: DECIDE.includes(me.role), mayUndoAll: me.role === 'admin' });
    if (path === '/api/sign-out') {
      delete core.signIns[cookie(req)];
      core.save();
      res.writeHead(204, { 'Set-Cookie': 'countersign_session=; Path=/; Max-Age=0' }).end();
      return;
    }
    if (path === '/api/changes') return send(res, 200, 'application/json', listing(url.searchParams));
    if (path === '/api/openapi.json') return json(res, { paths: Object.fromEntries(core.doors.map((door) => [door, {}])) });
    const hook = /^\/api\/webhooks(?:\/([^/]+)\/(deliveries|retry|test))?$/.exec(path);
    if (hook && core.doors.includes('/api/webhooks')) {
      if (!hook[1]) return json(res, { webhooks: core.hooks.list() });
      if (hook[2] !== 'deliveries' && hook[2] && !DECIDE.includes(me.role)) throw new Problem(403, 'FORBIDDEN', 'This needs the role reviewer or admin.');
      if (hook[2] === 'test') return json(res, core.hooks.test(decodeURIComponent(hook[1])));
      return json(res, hook[2] === 'retry' ? core.hooks.retry(decodeURIComponent(hook[1])) : core.hooks.deliveries(decodeURIComponent(hook[1]), url.searchParams));
    }
    // Only of the mock: webhooks that work or fail.
    if (path === '/api/mock/hooks') {
      core.hooks.set(JSON.parse(await body(req)));
      return json(res, {});
    }
    if (path === '/api/audit/export' && core.doors.includes(path)) return exported(res, url.searchParams);
    if (path === '/api/audit') return json(res, audit(url.searchParams));
    if (path === '/api/sessions') return json(res, { sessions: [...core.sessions.values()] });
    if (path === '/api/servers') return json(res, { servers: core.servers.list() });
    if (path === '/api/providers') return json(res, { providers: core.servers.list() });
    const provider = /^\/api\/(?:servers|providers)\/([^/]+)(?:\/(accept|revoke|allow))?$/.exec(path);
    if (provider) {
      const name = decodeURIComponent(provider[1]);
      if (!provider[2]) return json(res, core.servers.one(name));
      if (!DECIDE.includes(me.role)) throw new Problem(403, 'FORBIDDEN', 'This needs the role reviewer or admin.');
      const { tools, reason } = JSON.parse(await body(req));
      const answer = provider[2] === 'allow' ? core.servers.allow(name, tools, reason, me.name) : core.servers.decide(name, provider[2], tools, me.name);
      for (const listener of core.listeners) listener({ type: 'provider.changed', at: new Date().toISOString(), provider: name });
      return json(res, answer);
    }
    if (path === '/api/reload') return json(res, core.servers.reload);
    if (path === '/api/reload/consent') {
      if (!DECIDE.includes(me.role)) throw new Problem(403, 'FORBIDDEN', 'This needs the role reviewer or admin.');
      return json(res, core.servers.consent(JSON.parse(await body(req))));
    }
    if (path === '/api/decisions' || path === '/api/rules' || path.startsWith('/api/rules/')) return bulkAndRules(req, res, path, me);
    // Only of the mock: what rules the configuration would set for reviews.
    if (path === '/api/mock/review') {
      const { terms, groups } = JSON.parse(await body(req));
      Object.assign(core.review, terms);
      core.groups = groups ?? {};
      return json(res, core.review);
    }
    // Only of the mock: doors that a gateway may have or not.
    if (path === '/api/mock/doors') {
      core.doors = JSON.parse(await body(req)).doors;
      return json(res, {});
    }
    // Only of the mock: a change as an upstream would make it.
    if (path === '/api/mock/change') {
      const { tool, args, principal = 'local-agent', ...more } = JSON.parse(await body(req));
      const proposer = { principal, keyId: null, clientName: null, clientVersion: null, session: null, transport: 'rest', revision: null };
      return send(res, 200, 'application/json', encode(core.propose(tool, JSON.stringify(args), proposer, new Date(), more)));
    }
    // Only of the mock: what an upstream or the operator would do.
    if (path === '/api/mock') {
      core.servers.happen(JSON.parse(await body(req)));
      for (const listener of core.listeners) listener({ type: 'provider.changed', at: new Date().toISOString() });
      return json(res, {});
    }
    if (path === '/api/events') return events(req, res, url);
    const match = /^\/api\/changes\/([^/]+)(?:\/(decision|settle|edit|undo|refresh|rule))?$/.exec(path);
    if (!match) throw new Problem(404, 'NOT_FOUND', 'No such page.');
    const id = decodeURIComponent(match[1]);
    if (!match[2]) return send(res, 200, 'application/json', encode(core.find(id)));
    if (!DECIDE.includes(me.role)) throw new Problem(403, 'FORBIDDEN', 'This needs the role reviewer or admin.');
    const text = await body(req);
    const sent = JSON.parse(text);
    if (match[2] === 'rule') return json(res, core.reviews.rule(core.find(id), me, sent));
    if (match[2] === 'edit') return send(res, 200, 'application/json', encode(core.reviews.edit(core.find(id), me, sent, member(text, 'arguments'))));
    if (match[2] === 'undo') return send(res, 200, 'application/json', encode(core.reviews.undo(core.find(id), me, sent)));
    if (match[2] === 'refresh') return send(res, 200, 'application/json', encode(core.reviews.refresh(core.find(id), sent)));
    const change = match[2] === 'decision' ? core.decide(id, me, sent) : core.settle(id, me, sent);
    return send(res, 200, 'application/json', encode(change));
  }

  async function bulkAndRules(req, res, path, me) {
    if (path === '/api/rules') return json(res, { rules: core.rules });
    if (!DECIDE.includes(me.role)) throw new Problem(403, 'FORBIDDEN', 'This needs the role reviewer or admin.');
    const sent = JSON.parse(await body(req) || '{}');
    if (path !== '/api/decisions') return json(res, core.reviews.revoke(decodeURIComponent(path.slice('/api/rules/'.length).replace(/\/revoke$/, '')), me));
    const results = core.reviews.bulk(me, sent).map(({ id, change, problem }) => (change ? `{"id":${JSON.stringify(id)},"change":${encode(change)}}`
      : JSON.stringify({ id, problem: { type: 'about:blank', title: problem.code, status: problem.status, detail: problem.message, code: problem.code } })));
    return send(res, 200, 'application/json', `{"results":[${results.join(',')}]}`);
  }

  function who(req) {
    const bearer = /^Bearer (.+)$/.exec(req.headers.authorization ?? '')?.[1];
    const signedIn = core.signIns[cookie(req)];
    const found = bearer ? credentials.byKey(bearer) : signedIn && signedIn.secret === req.headers['x-countersign-secret'] ? signedIn.principal : null;
    if (!found) throw new Problem(401, 'UNAUTHORIZED', 'A credential is needed.');
    if (!bearer && req.method !== 'GET' && req.headers.origin !== `http://${req.headers.host}`) throw new Problem(403, 'FORBIDDEN', 'Another origin.');
    return found;
  }

  async function signIn(req, res) {
    if (attempts.failed >= 20) throw new Problem(429, 'RATE_LIMITED', 'Too many attempts.');
    const { key, code } = JSON.parse(await body(req));
    const principal = key ? credentials.byKey(key) : credentials.useCode(code);
    if (!principal) {
      attempts.failed += 1;
      throw new Problem(401, 'UNAUTHORIZED', 'Not known.');
    }
    if (!VIEW.includes(principal.role)) throw new Problem(403, 'FORBIDDEN', 'Agents do not sign in here.');
    const session = token();
    const secret = token();
    core.signIns[session] = { secret, principal };
    core.save();
    json(res, { secret, principal, expiresAt: new Date(Date.now() + 12 * 3600_000).toISOString() }, 200, { 'Set-Cookie': `countersign_session=${session}; HttpOnly; SameSite=Strict; Path=/` });
  }

  function agent(req, proposer) {
    const bearer = /^Bearer (.+)$/.exec(req.headers.authorization ?? '')?.[1];
    const found = bearer ? credentials.byKey(bearer) : { name: 'local-agent' };
    if (!found) throw new Problem(401, 'UNAUTHORIZED', 'Unknown key.');
    return { principal: found.name, keyId: null, ...proposer };
  }

  function callTool(tool, source, proposer) {
    const found = read(core.tracker, tool, JSON.parse(source || '{}'));
    if (found) return { content: [{ type: 'text', text: JSON.stringify(found) }], structuredContent: found };
    if (!WRITES[tool]) throw new Problem(404, 'TOOL_NOT_FOUND', `No tool ${tool}.`);
    const change = core.propose(tool, source, proposer);
    return { content: [{ type: 'text', text: `Change pending approval. ID: ${change.id}` }], structuredContent: { changeId: change.id, status: 'pending', expiresAt: change.expiresAt } };
  }

  const mcpClients = new Map();
  async function mcp(req, res) {
    const message = JSON.parse(await body(req));
    const answer = (result, headers = {}) => json(res, { jsonrpc: '2.0', id: message.id, result }, 200, headers);
    if (message.method === 'initialize') {
      const id = token();
      const { clientInfo, protocolVersion } = message.params;
      mcpClients.set(id, { clientName: clientInfo.name, clientVersion: clientInfo.version, revision: protocolVersion, transport: 'http', session: id });
      const now = new Date().toISOString();
      opened({ id: `${id.slice(0, 8)}…`, transport: 'http', revision: protocolVersion, clientName: clientInfo.name, clientVersion: clientInfo.version, principal: 'local-agent', createdAt: now, lastActiveAt: now, connected: true, inFlight: 0 });
      return answer({ protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'mock', version: '0' } }, { 'Mcp-Session-Id': id });
    }
    if (message.id === undefined) return void res.writeHead(202).end();
    return answer(callTool(message.params.name, JSON.stringify(message.params.arguments), agent(req, mcpClients.get(req.headers['mcp-session-id']))));
  }

  function opened(session) {
    core.sessions.set(session.id, session);
    const event = { type: 'session.opened', at: session.createdAt, session };
    for (const listener of core.listeners) listener(event);
  }

  function listing(query) {
    const states = (query.get('status') ?? '').split(',').filter(Boolean);
    const limit = Math.min(200, Number(query.get('limit') ?? 50));
    const from = Number(query.get('cursor') ?? 0);
    const names = (key) => query.getAll(key).flatMap((v) => v.split(',')).filter(Boolean);
    const one = (key, value) => { const wanted = names(key); return !wanted.length || wanted.includes(value); };
    const q = (query.get('q') ?? '').toLowerCase();
    const holds = (c) => [c.summary, c.target.label, c.id, c.tool, c.proposer.principal].some((t) => t.toLowerCase().includes(q));
    const all = core.changes.filter((c) => (!states.length || states.includes(c.state)) && one('principal', c.proposer.principal) && one('tool', c.tool) && one('server', c.provider)
      && (!q || holds(c)) && (!query.get('since') || c.createdAt >= query.get('since')) && (!query.get('until') || c.createdAt < query.get('until')));
    const page = all.slice(from, from + limit);
    const next = from + limit < all.length ? JSON.stringify(String(from + limit)) : 'null';
    return `{"changes":[${page.map(encode).join(',')}],"nextCursor":${next},"counts":${JSON.stringify(core.counts())}}`;
  }

  function audit(query) {
    const limit = Number(query.get('limit') ?? 50);
    const wanted = (key) => (query.get(key) ?? '').split(',').filter(Boolean);
    const title = (e) => core.byId.get(e.changeId)?.summary ?? '';
    const q = (query.get('q') ?? '').toLowerCase();
    const all = core.audit.filter((e) => (!query.get('change') || e.changeId === query.get('change')) && (!wanted('event').length || wanted('event').includes(e.event)) && (!wanted('actor').length || wanted('actor').includes(e.actor))
      && (!query.get('since') || e.at >= query.get('since')) && (!query.get('until') || e.at < query.get('until')) && (!q || [e.event, e.actor, e.changeId, JSON.stringify(e.details), title(e)].some((t) => t.toLowerCase().includes(q)))).toReversed();
    const below = Number(query.get('cursor') ?? Infinity);
    const page = all.filter((e) => e.seq < below).slice(0, limit);
    const last = page.at(-1)?.seq;
    const head = core.audit.at(-1);
    return { entries: page, titles: Object.fromEntries(page.filter((e) => title(e)).map((e) => [e.changeId, title(e)])), nextCursor: all.some((e) => e.seq < last) ? String(last) : null, head: head ? { seq: head.seq, hash: head.hash } : { seq: 0, hash: '' } };
  }

  function exported(res, query) {
    const format = query.get('format') ?? 'jsonl';
    if (!['jsonl', 'csv'].includes(format)) throw new Problem(400, 'INVALID_PARAMS', 'format must be jsonl or csv');
    const entries = core.audit.filter((e) => (!query.get('since') || e.at >= query.get('since')) && (!query.get('until') || e.at < query.get('until')));
    const columns = ['seq', 'at', 'changeId', 'event', 'from', 'to', 'actor', 'details', 'prevHash', 'hash'];
    const lines = format === 'jsonl' ? entries.map((e) => JSON.stringify(e)) : [columns.join(','), ...entries.map((e) => columns.map((c) => JSON.stringify(e[c] ?? '')).join(','))];
    send(res, 200, format === 'csv' ? 'text/csv; charset=utf-8' : 'application/jsonl', lines.map((l) => `${l}\n`).join(''), { 'Content-Disposition': `attachment; filename="countersign-audit-${new Date().toISOString().slice(0, 10)}.${format}"` });
  }

  function events(req, res, url) {
    const since = req.headers['last-event-id'] ?? url.searchParams.get('since');
    res.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
    const write = (event) => res.write(`${event.seq ? `id: ${event.seq}\n` : ''}event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
    if (since === null || since === undefined) res.write(`event: hello\ndata: ${JSON.stringify({ type: 'hello', seq: core.events.length })}\n\n`);
    else core.events.slice(Number(since)).forEach(write);
    core.listeners.add(write);
    const beat = setInterval(() => res.write(': still here\n\n'), 15_000);
    res.on('close', () => {
      core.listeners.delete(write);
      clearInterval(beat);
    });
  }

  // A client on a busy machine may come back late to a connection that it has kept.
  server.keepAliveTimeout = 120_000;
  server.listen(port, host);
  return server;
}

// The arguments go out as they came in, not as a parser would print them.
function encode(change) {
  const { source, proposedSource, arguments: _, ...rest } = change;
  return `{"arguments":${source},${proposedSource ? `"proposedArguments":${proposedSource},` : ''}${JSON.stringify(rest).slice(1)}`;
}

function asset(req, res, path) {
  const name = path === '/' ? 'index.html' : normalize(path.slice('/assets/'.length));
  let data;
  try {
    data = readFileSync(join(ASSETS, name));
  } catch {
    throw new Problem(404, 'NOT_FOUND', 'No such file.');
  }
  const etag = `W/"${createHash('sha256').update(data).digest('hex').slice(0, 32)}"`;
  const headers = { ETag: etag, 'Cache-Control': 'no-cache', 'Content-Security-Policy': CSP, 'X-Content-Type-Options': 'nosniff', 'Referrer-Policy': 'no-referrer', 'Cross-Origin-Opener-Policy': 'same-origin' };
  if (req.headers['if-none-match'] === etag) return void res.writeHead(304, headers).end();
  res.writeHead(200, { ...headers, 'Content-Type': TYPES[extname(name)] ?? 'application/octet-stream' }).end(data);
}

const member = (text, name) => sourceOf(text, [name]);
const cookie = (req) => /countersign_session=([^;]+)/.exec(req.headers.cookie ?? '')?.[1];
const json = (res, value, status = 200, headers = {}) => send(res, status, 'application/json', JSON.stringify(value), headers);

function send(res, status, type, text, headers = {}) {
  res.writeHead(status, { 'Content-Type': type, ...headers }).end(text);
}

async function body(req) {
  const parts = [];
  for await (const part of req) parts.push(part);
  return Buffer.concat(parts).toString('utf8');
}
