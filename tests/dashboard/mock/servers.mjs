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
    const allowed = t.read && believed;
    return {
      name: t.name, title: '', description: t.description, verdict: allowed ? 'allow' : 'review',
      reason: allowed ? 'it only reads' : mark === 'TOOL_CHANGED' ? 'the tool’s definition changed and nobody has accepted the new one yet' : mark ? 'the tool is new and nobody has accepted it yet' : t.read ? 'nobody has accepted yet that it only reads' : 'it may write',
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
    return [...this.all.values()].map(({ toolList, pins, ...server }) => {
      const tools = this.one(server.name).tools;
      const review = { new: tools.filter((t) => t.mark === 'TOOL_NEW').length, changed: tools.filter((t) => t.mark === 'TOOL_CHANGED').length, reads: tools.filter((t) => t.claimsRead).length };
      return { ...server, tools: tools.length, review };
    });
  }

  one(name) {
    const server = this.#find(name);
    return { name, tools: server.toolList.map((t) => this.#info(server, t)) };
  }

  decide(name, what, chosen, by) {
    const server = this.#find(name);
    const now = this.one(name).tools;
    if (chosen.some((c) => !now.some((t) => t.name === c.name && t.hash === c.hash))) throw new Problem(409, 'VERSION_CONFLICT', 'A definition is another by now.');
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

  happen({ connect, redefine, offer, waiting, refused }) {
    if (connect) {
      this.#add(connect, [tool(`${connect}__read_file`, true, 'Reads a file'), tool(`${connect}__list`, true, 'Lists a folder\u202e\u200b of files'), tool(`${connect}__write_file`, false, 'Writes a file')],
        { kind: 'upstream', status: 'up', resources: 3, prompts: 1, transport: 'stdio', target: 'npx server-filesystem', era: 'handshake', revision: '2025-11-25', required: false, breaker: 'closed', inFlight: 0, waiting: 0, links: 0, lastError: null, leftOut: [], previews: { sets: ['filesystem'], tools: ['write_file'] }, since: new Date().toISOString(), restarts: 0 });
    }
    if (redefine) {
      const server = this.#find(redefine.server);
      server.toolList = server.toolList.map((t) => (t.name === redefine.tool ? tool(t.name, t.read, redefine.description) : t));
    }
    if (offer) this.#find(offer.server).toolList.push(tool(offer.tool, false, offer.description));
    if (waiting !== undefined) this.reload.waiting = waiting && { digest: sha(JSON.stringify(waiting)), since: new Date().toISOString(), loosens: waiting };
    if (refused) this.reload.last = { at: new Date().toISOString(), why: 'file', result: 'refused', problems: refused };
  }
}
