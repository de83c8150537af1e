// The mock's servers with definitions that wait for a reviewer, and a configuration that does. Kept in memory only.

import { createHash } from 'node:crypto';
import { Problem } from './core.mjs';

const sha = (text) => `sha256:${createHash('sha256').update(text).digest('hex')}`;

function tool(name, read, description, more = {}) {
  return { name, definition: JSON.stringify({ name, description, inputSchema: { type: 'object', properties: { path: { type: 'string', description: 'Where' }, limit: { type: 'integer', maximum: 'BIG' } } }, annotations: { readOnlyHint: read, destructiveHint: !read }, ...more }).replace('"BIG"', '12345678901234567890123'), description, read };
}

const text = (title, more = {}) => ({ type: 'string', title, ...more });
const CREATE_ISSUE = {
  type: 'object', required: ['projectId', 'title', 'type'], additionalProperties: false,
  properties: {
    projectId: text('Project', { description: 'Id of the project' }), title: text('Title', { minLength: 1, maxLength: 200 }), type: text('Type', { enum: ['Bug', 'Task', 'Story', 'Epic'] }),
    priority: text('Priority', { enum: ['Low', 'Medium', 'High', 'Critical'], default: 'Medium' }), description: text('Description', { maxLength: 20000, description: 'Markdown' }),
    estimatedHours: { type: 'number', title: 'Estimated hours', minimum: 0 }, parentId: text('Parent'), status: text('Status'),
  },
};

// What the file says beside what is in force, line by line.
const contentOf = ({ key, from, to }) => ({ key, cut: false, lines: [{ op: 'same', text: `# ${key}` }, ...[['removed', from], ['added', to]].filter(([, value]) => value !== null).map(([op, text]) => ({ op, text }))] });

const UPSTREAM = {
  kind: 'upstream', status: 'up', resources: 3, prompts: 1, transport: 'stdio', target: 'npx server-filesystem', era: 'handshake', revision: '2025-11-25', required: false, breaker: 'closed', inFlight: 0, waiting: 0,
  links: 0, lastError: null, stderrError: null, lastStderr: null, leftOut: [], previews: { sets: [], tools: [] }, since: new Date().toISOString(), restarts: 0,
};

export class Servers {
  all = new Map();
  reload = { file: '/etc/countersign.yaml', generation: 1, waiting: null, needsRestart: [], last: null };

  constructor() {
    this.#add('tracker', [tool('list_issues', true, 'Lists issues'), tool('create_issue', false, 'Creates an issue', { inputSchema: CREATE_ISSUE })], { kind: 'module', status: 'up', resources: 9, prompts: 3 });
    this.#add('gateway', [tool('get_change', true, 'Shows a change')], { kind: 'module', status: 'up', resources: 2, prompts: 0 });
  }

  #add(name, tools, info) {
    this.all.set(name, { name, ...info, toolList: tools, pins: new Map(info.kind === 'module' ? [] : tools.map((t) => [t.name, { seen: sha(t.definition), text: t.definition }])) });
  }

  #info(server, t) {
    const hash = sha(t.definition);
    const pin = server.pins.get(t.name);
    const standing = server.kind === 'module' ? 'module' : !pin ? 'new' : pin.accepted ? (pin.accepted === hash ? 'accepted' : 'changed') : pin.seen === hash ? 'seen' : pin.seen ? 'changed' : 'new';
    const mark = { new: 'TOOL_NEW', changed: 'TOOL_CHANGED' }[standing] ?? null;
    const believed = standing === 'module' || standing === 'accepted';
    const letRun = server.letRun?.get(t.name) ?? null;
    const allowed = (t.read && believed) || letRun !== null;
    return {
      name: t.name, title: '', description: t.description, verdict: allowed ? 'allow' : 'review',
      letRun, mayLetRun: !allowed && mark === null && server.kind !== 'module',
      reason: letRun ? `${letRun.by} lets it run without review: ${letRun.reason}` : allowed ? 'it only reads' : mark === 'TOOL_CHANGED' ? 'the tool’s definition changed and nobody has accepted the new one yet' : mark ? 'the tool is new and nobody has accepted it yet' : t.read ? 'nobody has accepted yet that it only reads' : 'it may write',
      rules: [], annotations: { readOnlyHint: t.read, destructiveHint: !t.read, idempotentHint: false, openWorldHint: true },
      standing, mark, claimsRead: standing === 'seen' && t.read, hash, definition: t.definition,
      previous: standing === 'changed' ? pin.text : null, acceptedBy: standing === 'accepted' ? pin.by : null, acceptedAt: standing === 'accepted' ? pin.at : null,
    };
  }

  #find(name) {
    const server = this.all.get(name);
    if (!server) throw new Problem(404, 'NOT_FOUND', 'There is no provider of this name.');
    return server;
  }

  list() {
    return [...this.all.values()].map(({ toolList, pins, letRun, ...server }) => {
      const tools = this.one(server.name).tools;
      const review = { new: tools.filter((t) => t.mark === 'TOOL_NEW').length, changed: tools.filter((t) => t.mark === 'TOOL_CHANGED').length, reads: tools.filter((t) => t.claimsRead).length };
      return { ...server, tools: tools.length, review };
    });
  }

  one(name) {
    const server = this.#find(name);
    return { name, tools: server.toolList.map((t) => this.#info(server, t)) };
  }

  #current(name, chosen) {
    const now = this.one(name).tools;
    if (chosen.some((c) => !now.some((t) => t.name === c.name && t.hash === c.hash))) throw new Problem(409, 'VERSION_CONFLICT', 'A definition is another by now.');
    return now;
  }

  allow(name, chosen, reason, by) {
    const server = this.#find(name);
    this.#current(name, chosen);
    server.letRun ??= new Map();
    for (const c of chosen) server.letRun.set(c.name, { rule: `srl_${c.hash.slice(7, 31)}`, by, at: new Date().toISOString(), reason });
    return this.one(name);
  }

  decide(name, what, chosen, by) {
    const server = this.#find(name);
    const now = this.#current(name, chosen);
    for (const c of chosen) {
      const pin = server.pins.get(c.name) ?? {};
      if (what === 'accept') Object.assign(pin, { accepted: c.hash, by, at: new Date().toISOString(), text: now.find((t) => t.name === c.name).definition });
      else delete pin.accepted;
      server.pins.set(c.name, pin);
    }
    return this.one(name);
  }

  consent({ digest, verdict }) {
    if (!this.reload.waiting) throw new Problem(404, 'NOT_FOUND', 'Nothing waits.');
    if (digest !== this.reload.waiting.digest) throw new Problem(409, 'VERSION_CONFLICT', 'Another configuration waits.');
    this.reload = { ...this.reload, waiting: null, last: { at: new Date().toISOString(), why: 'consent', result: verdict === 'accept' ? 'applied' : 'refused', problems: [] } };
    return this.reload;
  }

  happen({ connect, silent, down, redefine, offer, waiting, refused }) {
    if (connect) {
      this.#add(connect, [tool(`${connect}__read_file`, true, 'Reads a file'), tool(`${connect}__list`, true, 'Lists a folder\u202e\u200b of files'), tool(`${connect}__write_file`, false, 'Writes a file')],
        { ...UPSTREAM, previews: { sets: ['filesystem'], tools: ['write_file'] } });
    }
    // A server that says nothing of its tools, and one whose program does not stay up.
    if (silent) this.#add(silent, ['query', 'list_tables'].map((n) => ({ ...tool(`${silent}__${n}`, false, `${n === 'query' ? 'Runs a query' : 'Lists the tables'} of the database`), read: false })), { ...UPSTREAM, target: 'uvx mcp-server-sqlite' });
    if (down) this.#add(down, [], { ...UPSTREAM, status: 'down', resources: 0, prompts: 0, target: 'npx server-of-none', lastError: 'its program exited unexpectedly with code 1', stderrError: 'Error: DATABASE_URL is not set', lastStderr: 'See the log for details', restarts: 3 });
    if (redefine) {
      const server = this.#find(redefine.server);
      server.toolList = server.toolList.map((t) => (t.name === redefine.tool ? tool(t.name, t.read, redefine.description) : t));
    }
    if (offer) this.#find(offer.server).toolList.push(tool(offer.tool, false, offer.description));
    if (waiting !== undefined) this.reload.waiting = waiting && { digest: sha(JSON.stringify(waiting)), since: new Date().toISOString(), loosens: waiting, content: waiting.map(contentOf) };
    if (refused) this.reload.last = { at: new Date().toISOString(), why: 'file', result: 'refused', problems: refused };
  }
}
