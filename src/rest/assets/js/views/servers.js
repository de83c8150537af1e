// Shows the servers that calls are routed to, their state, and the tool definitions that wait for a reviewer.

import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { Poller } from '../core/poller.js';
import { replaceRoute, routeTo } from '../core/router.js';
import { count, plural, quote, visibleString } from '../core/text.js';
import { time } from '../core/time.js';
import { notice } from '../core/announce.js';
import { explain } from '../core/api.js';
import { accountSection, connectProblem, connectRoute } from '../ui/account.js';
import { openRemoval, openServerForm } from '../ui/serverform.js';
import { serverTable } from '../ui/servertable.js';
import { emptyState, errorState, problemBanner, skeleton } from '../ui/states.js';
import { ToolsPanel } from '../ui/tools.js';
import { runTrial, waitingTrials } from '../ui/trial.js';
import { ConnectPage, takeConnecting } from './connect.js';

const POLL_INTERVAL = 10_000;
const KINDS = { module: 'Built-in module', upstream: 'MCP server' };
const STATUS = {
  up: { label: 'Up', tone: 'green', icon: 'check' },
  connecting: { label: 'Connecting', tone: 'amber', icon: 'refresh' },
  needs_connection: { label: 'Not connected', tone: 'amber', icon: 'unplugged' },
  down: { label: 'Down', tone: 'red', icon: 'alert' },
};
const TRANSPORTS = { stdio: 'stdio', 'streamable-http': 'Streamable HTTP', sse: 'HTTP + SSE', websocket: 'WebSocket' };
const BREAKERS = {
  open: 'Circuit open: too many calls failed, so calls are not attempted for a while.',
  'half-open': 'Circuit half-open: one call is being attempted.',
};

const MEANINGS = [
  ['Review', 'A call waits until a person decides on it. That is so for every tool that may write, and for every tool that only claims to read.'],
  ['Accept', 'You vouch for one definition of a tool. If the tool says that it only reads, or is on the list of known reads, its calls run without review from then on. All other tools are reviewed as before.'],
  ['Allow', 'You let a tool run without review, whatever it says: a standing rule, which does not apply to your own calls and lasts until somebody revokes it.'],
];

/** Returns the number of definitions of a server that wait for a reviewer. */
export const reviewCount = ({ review }) => (review ? review.new + review.changed + review.reads + (review.known ?? 0) : 0);

export class ServersView {
  element;
  #api;
  #me;
  #poller;
  #count = h('span', { class: 'quiet' });
  #body = h('div', { class: 'page-body' }, skeleton(4));
  #list = h('ul', { class: 'servers' });
  #cards = new Map();
  #page;
  #servers = null;
  // The page that connects a server, while it is open.
  #connectPage = null;
  #chosen = null;
  // The server that was connected just now.
  #justConnected = null;
  // The name of the problem with which the last connection ended.
  #connectProblem = null;
  #problemBar = h('div', { class: 'connect-problem', role: 'alert' });
  // The servers of the configuration file, and whether they can be edited here.
  #file = null;
  #add = h('button', { type: 'button', class: 'add-server', hidden: true, onclick: () => this.#openForm(null) }, icon('plus'), 'Add a server');
  #trials = h('div', { class: 'trials' });
  #trialsText = '';
  #table = h('div', { class: 'server-overview' });
  #tableText = '';
  #disabled = h('div', { class: 'disabled-servers' });

  constructor({ api, me }) {
    this.#api = api;
    this.#me = me;
    this.#page = [h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, 'Servers'), this.#count, this.#add), h('p', { class: 'quiet' }, 'The servers behind this gateway, their tools, and how the policy treats calls to each tool.'), meanings()), this.#problemBar, this.#trials, this.#table, this.#body, this.#disabled];
    this.element = h('div', { class: 'page' }, this.#page);
    this.#poller = new Poller({
      read: async (signal) => {
        const [servers] = await Promise.all([this.#api.servers(signal), this.#readFile(signal)]);
        return servers;
      },
      show: (servers) => this.#paint(servers),
      failed: (error) => fill(this.#body, errorState(error, () => this.#poller.poll())),
      every: POLL_INTERVAL,
    });
  }

  dispose() {
    this.#poller.stop();
  }

  route({ id, part, query }) {
    if (query.has('connect-problem')) return this.#returnWithProblem(query.get('connect-problem'));
    if (query.has('connected')) {
      this.#justConnected = id;
      takeConnecting();
      return replaceRoute(routeTo('servers', id));
    }
    const problem = this.#connectProblem;
    this.#connectProblem = null;
    this.#chosen = id;
    if (part === 'connect') {
      this.#connectPage = new ConnectPage({ name: id, api: this.#api, me: this.#me, problem });
      fill(this.element, this.#connectPage.element);
    } else {
      fill(this.#problemBar, problem && problemBanner(connectProblem(problem)));
      if (this.#connectPage) fill(this.element, this.#page);
      this.#connectPage = null;
    }
    if (this.#servers) this.#paint(this.#servers);
  }

  // The address names only the problem; the tab remembers the server that it left for.
  #returnWithProblem(problem) {
    this.#connectProblem = problem;
    const name = takeConnecting();
    replaceRoute(name ? connectRoute(name) : routeTo('servers'));
  }

  event() {}

  serverEvent() {
    this.#poller.poll();
  }

  // A rule may let a tool run without review.
  ruleEvent() {
    for (const card of this.#cards.values()) card.reload();
  }

  refresh() {
    this.#poller.poll();
  }

  // The list is shown even if the file cannot be read.
  async #readFile(signal) {
    try {
      const [file, trials] = await Promise.all([this.#api.serverFile(signal), this.#api.trials(signal)]);
      this.#file = file;
      this.#add.hidden = !file.mayEdit && this.#me.role !== 'admin';
      const text = JSON.stringify(trials);
      if (text !== this.#trialsText) {
        this.#trialsText = text;
        fill(this.#trials, waitingTrials(trials, this.#me, (id, verdict) => this.#decideTrial(id, verdict)));
      }
    } catch (error) {
      if (!signal.aborted) this.#file = null;
    }
  }

  async #decideTrial(id, verdict) {
    try {
      await this.#api.decideTrial(id, verdict);
      notice(verdict === 'run' ? 'The test runs; its result is shown to whoever asked for it.' : 'The test will not run.', { tone: 'green', iconName: 'check' });
    } catch (error) {
      notice(visibleString(explain(error)), { tone: 'red', iconName: 'alert' });
    }
    this.#poller.poll();
  }

  // Opens the form with the file as it is now. Without a name, it adds a server.
  async #openForm(name) {
    try {
      const file = await this.#api.serverFile(this.#poller.signal);
      const server = file.servers.find((configured) => configured.name === name) ?? null;
      openServerForm({ api: this.#api, file, server: name && server, saved: (result) => this.#announceSaved(result) });
    } catch (error) {
      if (!this.#poller.signal.aborted) notice(visibleString(explain(error)), { tone: 'red', iconName: 'alert' });
    }
  }

  async #openRemoval(name) {
    const file = await this.#api.serverFile(this.#poller.signal);
    openRemoval({ api: this.#api, file, name, saved: (result) => this.#announceSaved(result) });
  }

  // Enables a disabled server.
  async #enable(name) {
    try {
      const file = await this.#api.serverFile(this.#poller.signal);
      const { disabled, ...settings } = file.servers.find((server) => server.name === name)?.settings ?? {};
      this.#announceSaved(await this.#api.editServer(name, { version: file.version, settings, preview: false }));
    } catch (error) {
      if (!this.#poller.signal.aborted) notice(visibleString(explain(error)), { tone: 'red', iconName: 'alert' });
    }
  }

  #announceSaved(result) {
    notice(`Written to ${visibleString(result.file)}.`, { tone: 'green', iconName: 'check' });
    this.#poller.poll();
  }

  // Lists the servers that the file has but the gateway does not use.
  #paintDisabled(servers) {
    const disabled = (this.#file?.servers ?? []).filter(({ name, settings }) => settings?.disabled === true && !servers.some((server) => server.name === name));
    fill(this.#disabled, disabled.length > 0 && h('details', { class: 'fold-section', open: true }, h('summary', null, `${plural(disabled.length, 'disabled server')} in the configuration file`),
      h('ul', { class: 'disabled-list' }, disabled.map(({ name }) => h('li', null, h('span', null, quote(name, 64)),
        this.#file.mayEdit && h('span', { class: 'server-actions' },
          h('button', { type: 'button', onclick: () => this.#enable(name) }, 'Enable'),
          h('button', { type: 'button', onclick: () => this.#openForm(name) }, 'Change'),
          h('button', { type: 'button', onclick: () => this.#openRemoval(name) }, 'Remove')))))));
  }

  #paint(servers) {
    this.#servers = servers;
    if (this.#connectPage) return this.#connectPage.show(servers.find((server) => server.name === this.#chosen));
    this.#count.textContent = count(servers.length);
    this.#paintDisabled(servers);
    if (!servers.length) {
      fill(this.#body, emptyState('servers', 'No servers', 'Paste the mcpServers block of your MCP client into the configuration, or enable a module.'));
      return;
    }
    const text = JSON.stringify(servers);
    if (text !== this.#tableText) {
      this.#tableText = text;
      const focused = this.#table.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
      fill(this.#table, serverTable(servers, STATUS));
      if (focused) [...this.#table.querySelectorAll('a')].find((link) => link.getAttribute('href') === focused)?.focus();
    }
    if (!this.#list.isConnected) fill(this.#body, this.#list);
    for (const [name, card] of this.#cards) {
      if (servers.some((server) => server.name === name)) continue;
      card.element.remove();
      this.#cards.delete(name);
    }
    // At first, servers that wait for a reviewer are listed first. Later nothing moves while it is being read.
    const sorted = this.#cards.size ? servers : [...servers].sort((a, b) => Number(reviewCount(b) > 0) - Number(reviewCount(a) > 0));
    for (const server of sorted) {
      let card = this.#cards.get(server.name);
      if (!card) {
        card = new ServerCard(server.name, this.#api, this.#me, this.#poller, { change: () => this.#openForm(server.name), remove: () => this.#openRemoval(server.name) });
        this.#cards.set(server.name, card);
        this.#list.append(card.element);
      }
      card.show(server, server.name === this.#justConnected, this.#file?.mayEdit === true && this.#file.servers.some(({ name }) => name === server.name));
    }
    const chosen = this.#cards.get(this.#chosen);
    this.#chosen = null;
    chosen?.element.scrollIntoView({ block: 'center' });
  }
}

// Formats a line such as `Previews: recipes for 4 tools, with the shipped set filesystem.`
function previews({ sets = [], tools = [] }) {
  if (!tools.length) return ['Previews: none; reviewers see only the arguments.'];
  return [`Previews: recipes for ${plural(tools.length, 'tool')}`, sets.length > 0 && [`, with the shipped ${sets.length === 1 ? 'set' : 'sets'} `, quote(sets.join(', '), 200)], '.'].flat().filter(Boolean);
}

// Explains what a reviewer can decide about a tool.
function meanings() {
  return h('details', { class: 'fold-section meanings' }, h('summary', null, 'What reviewing, accepting and allowing mean'),
    h('dl', null, MEANINGS.map(([term, text]) => h('div', null, h('dt', null, term), h('dd', null, text)))),
    h('p', { class: 'quiet' }, 'What you accept or allow is one definition from one command or address. When either changes, calls are reviewed again.'));
}

// The section about the account already says what to do.
const isUnconnected = (server) => server.status === 'needs_connection' && server.account;

class ServerCard {
  element;
  #name;
  #api;
  #me;
  #poller;
  #actions;
  #isJustConnected = false;
  #mayEdit = false;
  #trial = h('div', { class: 'server-trial', 'aria-live': 'polite' });
  #head = h('div', { class: 'server-head' });
  #rest = h('div', { class: 'server-rest' });
  #panel;
  #text = '';
  #isOpen = false;
  #isLoading = false;
  #more = h('button', { type: 'button', class: 'link server-more', onclick: () => this.#open() }, 'Tools and policy', icon('chevron'));

  constructor(name, api, me, poller, actions) {
    this.#actions = actions;
    this.#name = name;
    this.#api = api;
    this.#me = me;
    this.#poller = poller;
    this.#panel = new ToolsPanel({
      server: name,
      canDecide: Boolean(me.mayDecide),
      act: async (kind, tools, reason) => {
        try {
          return (await (kind === 'allow' ? api.letRun(name, tools, reason) : api.changeAcceptances(name, kind, tools))).tools;
        } catch (error) {
          if (error.status === 409) await this.#loadTools();
          throw error;
        }
      },
    });
    this.element = h('li', { class: 'card server' }, this.#head, this.#trial, this.#rest);
  }

  async #test(button) {
    button.disabled = true;
    await runTrial({ api: this.#api, request: { name: this.#name }, place: this.#trial, signal: this.#poller.signal });
    button.disabled = false;
  }

  /** Shows the server; `isJustConnected` is true if its account was connected just now, and `mayEdit` if the user may change it. */
  show(server, isJustConnected, mayEdit) {
    const text = JSON.stringify(server);
    if (text !== this.#text || isJustConnected !== this.#isJustConnected || mayEdit !== this.#mayEdit) {
      this.#text = text;
      this.#mayEdit = mayEdit;
      this.#isJustConnected = isJustConnected;
      this.#paint(server);
      // Offers about a server's tools are shown without a click.
      if (server.kind === 'upstream' && server.tools > 0) this.#loadTools();
    }
    if (reviewCount(server) > 0) this.#isOpen = true;
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

  async #disconnect() {
    await this.#api.disconnectServer(this.#name);
    this.#poller.poll();
  }

  async #loadTools() {
    if (this.#isLoading) return;
    this.#isLoading = true;
    try {
      const { tools, knownReads } = await this.#api.server(this.#name, this.#poller.signal);
      this.#panel.setKnownReads(knownReads ?? null);
      this.#panel.show(tools);
      if (!this.#panel.element.isConnected) fill(this.#rest, this.#panel.element);
    } catch (error) {
      if (!this.#poller.signal.aborted && error.status !== 401 && !this.#panel.element.isConnected) {
        fill(this.#rest, errorState(error, () => this.#loadTools()));
      }
    } finally {
      this.#isLoading = false;
    }
  }

  #paint(server) {
    const { label, tone, icon: name } = STATUS[server.status] ?? { label: visibleString(String(server.status)), tone: 'grey', icon: 'question' };
    this.#panel.setRecipes(server.kind === 'upstream' ? server.previews?.tools ?? [] : null);
    const n = reviewCount(server);
    const connection = [TRANSPORTS[server.transport] ?? server.transport, server.era && `${server.era}${server.revision ? ` · ${server.revision}` : ''}`].filter(Boolean);
    fill(this.#head,
      h('div', { class: 'card-head' },
        h('h2', null, quote(server.name, 80)),
        h('div', { class: 'server-badges' },
          n > 0 && h('span', { class: 'badge state tone-amber' }, icon('eye'), `${count(n)} to review`),
          server.breaker && server.breaker !== 'closed' && h('span', { class: `badge state tone-${server.breaker === 'open' ? 'red' : 'amber'}`, title: BREAKERS[server.breaker] }, icon('unplugged'), `Circuit ${visibleString(server.breaker)}`),
          h('span', { class: `badge state tone-${tone}` }, icon(name), label))),
      h('p', { class: 'quiet server-line' }, [KINDS[server.kind] ?? visibleString(String(server.kind)), ...connection.map((t) => visibleString(String(t))), server.required && 'required'].filter(Boolean).join(' · ')),
      server.target && h('p', { class: 'server-target' }, h('code', null, quote(server.target, 300))),
      server.kind === 'upstream' && server.previews && h('p', { class: 'quiet server-line' }, ...previews(server.previews)),
      server.previews?.suggested && h('p', { class: 'quiet server-line' }, 'By its own name it is the ', quote(server.previews.suggested, 60), ' server, which anybody can claim. If you know that it is, write ', h('code', null, `previews: ${visibleString(server.previews.suggested)}`), ' below this server in the configuration.'),
      accountSection({ server: server.name, account: server.account, me: this.#me, isJustConnected: this.#isJustConnected, disconnect: () => this.#disconnect() }),
      server.status !== 'up' && server.kind === 'upstream' && !isUnconnected(server) && h('div', { class: `banner tone-${server.status === 'down' ? 'red' : 'amber'} why-down` }, icon('alert'), h('div', null,
        h('p', null, server.lastError ? quote(server.lastError, 500) : server.status === 'connecting' ? 'It has not answered yet.' : 'The reason is not known.', server.since && h('span', { class: 'quiet' }, server.status === 'connecting' ? ' · connecting since ' : ' · ', time(server.since))),
        server.stderrError && h('p', { class: 'stderr' }, h('span', { class: 'quiet' }, 'Error on stderr: '), h('code', null, quote(server.stderrError, 500))),
        server.lastStderr && server.lastStderr !== server.stderrError && h('p', { class: 'stderr' }, h('span', { class: 'quiet' }, 'Last line on stderr: '), h('code', null, quote(server.lastStderr, 500))),
        server.restarts > 0 && h('p', { class: 'quiet' }, `Restarted ${plural(server.restarts, 'time')} so far.`))),
      server.leftOut?.length > 0 && h('details', { class: 'fold-section' }, h('summary', null, `${count(server.leftOut.length)} left out`), h('ul', { class: 'left-out' }, server.leftOut.slice(0, 100).map((text) => h('li', null, quote(text, 300))))),
      server.details?.length > 0 && h('ul', { class: 'quiet server-line' }, server.details.slice(0, 100).map((text) => h('li', null, quote(text, 300)))),
      server.warnings?.length > 0 && h('details', { class: 'fold-section' }, h('summary', null, plural(server.warnings.length, 'warning')), h('ul', { class: 'left-out' }, server.warnings.slice(0, 100).map((text) => h('li', null, quote(text, 300))))),
      h('dl', { class: 'figures' }, [['Tools', server.tools], ['Resources', server.resources], ['Prompts', server.prompts], ['In flight', server.inFlight], ['Restarts', server.restarts]]
        .filter(([, value]) => typeof value === 'number').map(([label_, value]) => h('div', null, h('dt', null, label_), h('dd', null, count(value))))),
      this.#mayEdit && h('div', { class: 'server-actions' },
        h('button', { type: 'button', onclick: (event) => this.#test(event.currentTarget) }, 'Test'),
        h('button', { type: 'button', onclick: this.#actions.change }, 'Change'),
        h('button', { type: 'button', onclick: this.#actions.remove }, 'Remove')));
    if (!this.#rest.hasChildNodes() && server.tools > 0) fill(this.#rest, this.#more);
  }
}
