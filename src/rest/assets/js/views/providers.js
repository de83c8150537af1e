// Shows the servers that calls are routed to, their state, and the tool definitions that wait for a reviewer.

import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { Poller } from '../core/poller.js';
import { count, plural, quote, visibleString } from '../core/text.js';
import { time } from '../core/time.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';
import { ToolsPanel } from '../ui/tools.js';

const POLL_INTERVAL = 10_000;
const KINDS = { module: 'Built-in module', upstream: 'MCP server' };
const STATUS = {
  up: { label: 'Up', tone: 'green', icon: 'check' },
  connecting: { label: 'Connecting', tone: 'amber', icon: 'refresh' },
  down: { label: 'Down', tone: 'red', icon: 'alert' },
};
const TRANSPORTS = { stdio: 'stdio', 'streamable-http': 'Streamable HTTP', sse: 'HTTP + SSE', websocket: 'WebSocket' };
const BREAKERS = {
  open: 'Circuit open: too many calls failed, so calls are not attempted for a while.',
  'half-open': 'Circuit half-open: one call is being attempted.',
};

/** Returns the number of definitions of a server that wait for a reviewer. */
export const toReview = (p) => (p.review ? p.review.new + p.review.changed + p.review.reads : 0);

export class ProvidersView {
  element;
  #api;
  #me;
  #poller;
  #count = h('span', { class: 'quiet' });
  #body = h('div', { class: 'page-body' }, skeleton(4));
  #list = h('ul', { class: 'servers' });
  #servers = new Map();

  constructor({ api, me }) {
    this.#api = api;
    this.#me = me;
    this.element = h('div', { class: 'page' },
      h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, 'Servers'), this.#count), h('p', { class: 'quiet' }, 'The servers behind this gateway, their tools, and how the policy treats calls to each tool.')), this.#body);
    this.#poller = new Poller({
      read: (signal) => this.#api.servers(signal),
      show: (providers) => this.#paint(providers),
      failed: (error) => fill(this.#body, errorState(error, () => this.#poller.poll())),
      every: POLL_INTERVAL,
    });
  }

  dispose() {
    this.#poller.stop();
  }

  route() {}

  event() {}

  providerEvent() {
    this.#poller.poll();
  }

  // A rule may let a tool run without review.
  ruleEvent() {
    for (const server of this.#servers.values()) server.reload();
  }

  refresh() {
    this.#poller.poll();
  }

  #paint(providers) {
    this.#count.textContent = count(providers.length);
    if (!providers.length) {
      fill(this.#body, emptyState('servers', 'No servers', 'Paste the mcpServers block of your MCP client into the configuration, or enable a module.'));
      return;
    }
    if (!this.#list.isConnected) fill(this.#body, this.#list);
    for (const [name, server] of this.#servers) {
      if (providers.some((p) => p.name === name)) continue;
      server.element.remove();
      this.#servers.delete(name);
    }
    // At first, servers that wait for a reviewer are listed first. Later nothing moves while it is being read.
    const sorted = this.#servers.size ? providers : [...providers].sort((a, b) => Number(toReview(b) > 0) - Number(toReview(a) > 0));
    for (const p of sorted) {
      let server = this.#servers.get(p.name);
      if (!server) {
        server = new Server(p.name, this.#api, this.#me, this.#poller.signal);
        this.#servers.set(p.name, server);
        this.#list.append(server.element);
      }
      server.show(p);
    }
  }
}

// Formats a line such as `Previews: recipes for 4 tools, with the shipped set filesystem.`
function previews({ sets = [], tools = [] }) {
  if (!tools.length) return ['Previews: none; reviewers see only the arguments.'];
  return [`Previews: recipes for ${plural(tools.length, 'tool')}`, sets.length > 0 && [`, with the shipped ${sets.length === 1 ? 'set' : 'sets'} `, quote(sets.join(', '), 200)], '.'].flat().filter(Boolean);
}

class Server {
  element;
  #name;
  #api;
  #signal;
  #head = h('div', { class: 'server-head' });
  #rest = h('div', { class: 'server-rest' });
  #panel;
  #text = '';
  #isOpen = false;
  #isLoading = false;
  #more = h('button', { type: 'button', class: 'link server-more', onclick: () => this.#open() }, 'Tools and policy', icon('chevron'));

  constructor(name, api, me, signal) {
    this.#name = name;
    this.#api = api;
    this.#signal = signal;
    this.#panel = new ToolsPanel({
      server: name,
      may: Boolean(me.mayDecide),
      act: async (kind, tools, reason) => {
        try {
          return (await (kind === 'allow' ? api.letRun(name, tools, reason) : api.definitions(name, kind, tools))).tools;
        } catch (error) {
          if (error.status === 409) await this.#loadTools();
          throw error;
        }
      },
    });
    this.element = h('li', { class: 'card server' }, this.#head, this.#rest);
  }

  show(p) {
    const text = JSON.stringify(p);
    if (text !== this.#text) {
      this.#text = text;
      this.#paint(p);
      // Offers about a server's tools are shown without a click.
      if (p.kind === 'upstream' && p.tools > 0) this.#loadTools();
    }
    if (toReview(p) > 0) this.#isOpen = true;
    if (this.#isOpen) this.#loadTools();
  }

  reload() {
    if (this.#panel.element.isConnected) this.#loadTools();
  }

  #open() {
    this.#isOpen = true;
    this.#more.disabled = true;
    this.#loadTools();
  }

  async #loadTools() {
    if (this.#isLoading) return;
    this.#isLoading = true;
    try {
      this.#panel.show((await this.#api.server(this.#name, this.#signal)).tools);
      if (!this.#panel.element.isConnected) fill(this.#rest, this.#panel.element);
    } catch (error) {
      if (!this.#signal.aborted && error.status !== 401 && !this.#panel.element.isConnected) {
        fill(this.#rest, errorState(error, () => this.#loadTools()));
      }
    } finally {
      this.#isLoading = false;
    }
  }

  #paint(p) {
    const { label, tone, icon: name } = STATUS[p.status] ?? { label: visibleString(String(p.status)), tone: 'grey', icon: 'question' };
    this.#panel.useRecipes(p.kind === 'upstream' ? p.previews?.tools ?? [] : null);
    const n = toReview(p);
    const connection = [TRANSPORTS[p.transport] ?? p.transport, p.era && `${p.era}${p.revision ? ` · ${p.revision}` : ''}`].filter(Boolean);
    fill(this.#head,
      h('div', { class: 'card-head' },
        h('h2', null, quote(p.name, 80)),
        h('div', { class: 'server-badges' },
          n > 0 && h('span', { class: 'badge state tone-amber' }, icon('eye'), `${count(n)} to review`),
          p.breaker && p.breaker !== 'closed' && h('span', { class: `badge state tone-${p.breaker === 'open' ? 'red' : 'amber'}`, title: BREAKERS[p.breaker] }, icon('unplugged'), `Circuit ${visibleString(p.breaker)}`),
          h('span', { class: `badge state tone-${tone}` }, icon(name), label))),
      h('p', { class: 'quiet server-line' }, [KINDS[p.kind] ?? visibleString(String(p.kind)), ...connection.map((t) => visibleString(String(t))), p.required && 'required'].filter(Boolean).join(' · ')),
      p.target && h('p', { class: 'server-target' }, h('code', null, quote(p.target, 300))),
      p.kind === 'upstream' && p.previews && h('p', { class: 'quiet server-line' }, ...previews(p.previews)),
      p.status !== 'up' && p.kind === 'upstream' && h('div', { class: `banner tone-${p.status === 'down' ? 'red' : 'amber'} why-down` }, icon('alert'), h('div', null,
        h('p', null, p.lastError ? quote(p.lastError, 500) : p.status === 'connecting' ? 'It has not answered yet.' : 'The reason is not known.', p.since && h('span', { class: 'quiet' }, p.status === 'connecting' ? ' · connecting since ' : ' · ', time(p.since))),
        p.stderrError && h('p', { class: 'stderr' }, h('span', { class: 'quiet' }, 'Error on stderr: '), h('code', null, quote(p.stderrError, 500))),
        p.lastStderr && p.lastStderr !== p.stderrError && h('p', { class: 'stderr' }, h('span', { class: 'quiet' }, 'Last line on stderr: '), h('code', null, quote(p.lastStderr, 500))),
        p.restarts > 0 && h('p', { class: 'quiet' }, `Restarted ${plural(p.restarts, 'time')} so far.`))),
      p.leftOut?.length > 0 && h('details', { class: 'fold-section' }, h('summary', null, `${count(p.leftOut.length)} left out`), h('ul', { class: 'left-out' }, p.leftOut.slice(0, 100).map((text) => h('li', null, quote(text, 300))))),
      p.details?.length > 0 && h('ul', { class: 'quiet server-line' }, p.details.slice(0, 100).map((text) => h('li', null, quote(text, 300)))),
      p.warnings?.length > 0 && h('details', { class: 'fold-section' }, h('summary', null, plural(p.warnings.length, 'warning')), h('ul', { class: 'left-out' }, p.warnings.slice(0, 100).map((text) => h('li', null, quote(text, 300))))),
      h('dl', { class: 'figures' }, [['Tools', p.tools], ['Resources', p.resources], ['Prompts', p.prompts], ['In flight', p.inFlight], ['Restarts', p.restarts]]
        .filter(([, value]) => typeof value === 'number').map(([label_, value]) => h('div', null, h('dt', null, label_), h('dd', null, count(value))))));
    if (!this.#rest.hasChildNodes() && p.tools > 0) fill(this.#rest, this.#more);
  }
}
