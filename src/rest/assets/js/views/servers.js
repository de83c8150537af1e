// Shows the servers that calls are routed to, their state, and the tool definitions that wait for a reviewer.

import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { Poller } from '../core/poller.js';
import { go, replaceRoute, routeTo } from '../core/router.js';
import { count, quote, visibleString } from '../core/text.js';
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
const KINDS = { module: t('servers.kind.module'), upstream: t('servers.kind.upstream') };
const STATUS = {
  up: { label: t('servers.status.up'), tone: 'green', icon: 'check' },
  connecting: { label: t('servers.status.connecting'), tone: 'amber', icon: 'refresh' },
  needs_connection: { label: t('servers.status.needs_connection'), tone: 'amber', icon: 'unplugged' },
  down: { label: t('servers.status.down'), tone: 'red', icon: 'alert' },
};
const TRANSPORTS = { stdio: 'stdio', 'streamable-http': 'Streamable HTTP', sse: 'HTTP + SSE', websocket: 'WebSocket' };
const BREAKERS = ['open', 'half-open'];

const MEANINGS = [[t('servers.review'), t('servers.reviewMeans')], [t('servers.accept'), t('servers.acceptMeans')], [t('servers.allow'), t('servers.allowMeans')]];

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
  #add = h('button', { type: 'button', class: 'add-server', hidden: true, onclick: () => this.#openForm(null) }, icon('plus'), t('servers.add'));
  #trials = h('div', { class: 'trials' });
  #trialsText = '';
  #table = h('div', { class: 'server-overview' });
  #tableText = '';
  #disabled = h('div', { class: 'disabled-servers' });

  constructor({ api, me }) {
    this.#api = api;
    this.#me = me;
    this.#page = [h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, t('shell.view.servers')), this.#count, this.#add), h('p', { class: 'quiet' }, t('servers.about')), meanings()), this.#problemBar, this.#trials, this.#table, this.#body, this.#disabled];
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
    if (query.has('add')) {
      this.#openForm(null);
      return replaceRoute(routeTo('servers'));
    }
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
      const { purpose } = await this.#api.decideTrial(id, verdict);
      const [run, refused] = purpose === 'save' ? ['servers.saved', 'servers.saveRefused'] : ['servers.testRuns', 'servers.testRefused'];
      notice(t(verdict === 'run' ? run : refused), { tone: 'green', iconName: 'check' });
    } catch (error) {
      notice(visibleString(explain(error)), { tone: 'red', iconName: 'alert' });
    }
    this.#poller.poll();
  }

  // Opens the form with the file as it is now. Without a name, it adds a server.
  async #openForm(name) {
    try {
      const file = await this.#api.serverFile(this.#poller.signal);
      if (!file.mayEdit && this.#me.role !== 'admin') return;
      const server = file.servers.find((configured) => configured.name === name) ?? null;
      openServerForm({ api: this.#api, file, server: name && server, saved: (result, saved) => {
        this.#announceSaved(result);
        // The card of a new server may be far below.
        if (saved && !name) go(routeTo('servers', saved));
      } });
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
    if (result.saved) notice(t('servers.written', { file: visibleString(result.file) }), { tone: 'green', iconName: 'check' });
    else notice(t('servers.waits'), { tone: 'amber', iconName: 'eye' });
    this.#poller.poll();
  }

  // Lists the servers that the file has but the gateway does not use.
  #paintDisabled(servers) {
    const disabled = (this.#file?.servers ?? []).filter(({ name, settings }) => settings?.disabled === true && !servers.some((server) => server.name === name));
    fill(this.#disabled, disabled.length > 0 && h('details', { class: 'fold-section', open: true }, h('summary', null, t('servers.disabled', { count: disabled.length })),
      h('ul', { class: 'disabled-list' }, disabled.map(({ name }) => h('li', null, h('span', null, quote(name, 64)),
        this.#file.mayEdit && h('span', { class: 'server-actions' },
          h('button', { type: 'button', onclick: () => this.#enable(name) }, t('servers.enable')),
          h('button', { type: 'button', onclick: () => this.#openForm(name) }, t('servers.change')),
          h('button', { type: 'button', onclick: () => this.#openRemoval(name) }, t('servers.remove'))))))));
  }

  #paint(servers) {
    this.#servers = servers;
    if (this.#connectPage) return this.#connectPage.show(servers.find((server) => server.name === this.#chosen));
    this.#count.textContent = count(servers.length);
    this.#paintDisabled(servers);
    if (!servers.length) {
      fill(this.#body, emptyState('servers', t('servers.none'), t('servers.noneHow')));
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
    if (!chosen) return;
    this.#chosen = null;
    chosen.element.scrollIntoView({ block: 'start' });
  }
}

// Formats a line such as `Previews: recipes for 4 tools, with the shipped set filesystem.`
function previews({ sets = [], tools = [] }) {
  if (!tools.length) return t('servers.noPreviews');
  return parts(sets.length === 0 ? 'servers.previews' : sets.length === 1 ? 'servers.previewsOfSet' : 'servers.previewsOfSets', { count: tools.length, sets: quote(sets.join(', '), 200) });
}

// Explains what a reviewer can decide about a tool.
function meanings() {
  return h('details', { class: 'fold-section meanings' }, h('summary', null, t('servers.meanings')),
    h('dl', null, MEANINGS.map(([term, text]) => h('div', null, h('dt', null, term), h('dd', null, text)))),
    h('p', { class: 'quiet' }, t('servers.meaningsNote')));
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
  #more = h('button', { type: 'button', class: 'link server-more', onclick: () => this.#open() }, t('servers.toolsAndPolicy'), icon('chevron'));

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
          n > 0 && h('span', { class: 'badge state tone-amber' }, icon('eye'), t('servers.toReview', { count: n })),
          server.breaker && server.breaker !== 'closed' && h('span', { class: `badge state tone-${server.breaker === 'open' ? 'red' : 'amber'}`, title: BREAKERS.includes(server.breaker) && t(`servers.breaker.${server.breaker}`) }, icon('unplugged'), BREAKERS.includes(server.breaker) ? t(`servers.circuit.${server.breaker}`) : visibleString(server.breaker)),
          h('span', { class: `badge state tone-${tone}` }, icon(name), label))),
      h('p', { class: 'quiet server-line' }, [KINDS[server.kind] ?? visibleString(String(server.kind)), ...connection.map((t) => visibleString(String(t))), server.required && t('servers.required')].filter(Boolean).join(' · ')),
      server.target && h('p', { class: 'server-target' }, h('code', null, quote(server.target, 300))),
      server.kind === 'upstream' && server.previews && h('p', { class: 'quiet server-line' }, previews(server.previews)),
      server.previews?.suggested && h('p', { class: 'quiet server-line' }, parts('servers.suggested', { name: quote(server.previews.suggested, 60), line: h('code', null, `previews: ${visibleString(server.previews.suggested)}`) })),
      accountSection({ server: server.name, account: server.account, me: this.#me, isJustConnected: this.#isJustConnected, disconnect: () => this.#disconnect() }),
      server.status !== 'up' && server.kind === 'upstream' && !isUnconnected(server) && h('div', { class: `banner tone-${server.status === 'down' ? 'red' : 'amber'} why-down` }, icon('alert'), h('div', null,
        h('p', null, server.lastError ? quote(server.lastError, 500) : t(server.status === 'connecting' ? 'servers.notAnswered' : 'servers.reasonUnknown'), server.since && h('span', { class: 'quiet' }, ' · ', server.status === 'connecting' ? parts('servers.connectingSince', { time: time(server.since) }) : time(server.since))),
        server.stderrError && h('p', { class: 'stderr' }, h('span', { class: 'quiet' }, t('servers.stderrError'), ' '), h('code', null, quote(server.stderrError, 500))),
        server.lastStderr && server.lastStderr !== server.stderrError && h('p', { class: 'stderr' }, h('span', { class: 'quiet' }, t('servers.lastStderr'), ' '), h('code', null, quote(server.lastStderr, 500))),
        server.restarts > 0 && h('p', { class: 'quiet' }, t('servers.restarted', { count: server.restarts })))),
      server.leftOut?.length > 0 && h('details', { class: 'fold-section' }, h('summary', null, t('servers.leftOut', { count: server.leftOut.length })), h('ul', { class: 'left-out' }, server.leftOut.slice(0, 100).map((text) => h('li', null, quote(text, 300))))),
      server.details?.length > 0 && h('ul', { class: 'quiet server-line' }, server.details.slice(0, 100).map((text) => h('li', null, quote(text, 300)))),
      server.warnings?.length > 0 && h('details', { class: 'fold-section' }, h('summary', null, t('servers.warnings', { count: server.warnings.length })), h('ul', { class: 'left-out' }, server.warnings.slice(0, 100).map((text) => h('li', null, quote(text, 300))))),
      h('dl', { class: 'figures' }, ['tools', 'resources', 'prompts', 'inFlight', 'restarts']
        .filter((figure) => typeof server[figure] === 'number').map((figure) => h('div', null, h('dt', null, t(`servers.figure.${figure}`)), h('dd', null, count(server[figure]))))),
      this.#mayEdit && h('div', { class: 'server-actions' },
        h('button', { type: 'button', onclick: (event) => this.#test(event.currentTarget) }, t('servers.test')),
        h('button', { type: 'button', onclick: this.#actions.change }, t('servers.change')),
        h('button', { type: 'button', onclick: this.#actions.remove }, t('servers.remove'))));
    if (!this.#rest.hasChildNodes() && server.tools > 0) fill(this.#rest, this.#more);
  }
}
