// Shows the servers that calls are routed to, their state, and the tool definitions that wait for a reviewer.

import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { Poller } from '../core/poller.js';
import { go, replaceRoute, routeTo } from '../core/router.js';
import { isStarting } from '../core/serverstate.js';
import { count, quote, visibleString } from '../core/text.js';
import { notice } from '../core/announce.js';
import { areFirstStepsShown } from '../ui/firststeps.js';
import { connectProblem, connectRoute } from '../ui/account.js';
import { openRemoval, openServerForm } from '../ui/serverform.js';
import { ServerTable } from '../ui/servertable.js';
import { emptyState, errorState, problemBanner, problemNotice, skeleton } from '../ui/states.js';
import { waitingTrials } from '../ui/trial.js';
import { ConnectPage, takeConnecting } from './connect.js';

const POLL_INTERVAL = 10_000;
// While a server starts, it is read more often, but not for ever.
const STARTING_INTERVAL = 1000;
const MAX_START = 60_000;
const MEANINGS = [[t('servers.review'), t('servers.reviewMeans')], [t('servers.accept'), t('servers.acceptMeans')], [t('servers.allow'), t('servers.allowMeans')]];

export class ServersView {
  element;
  #api;
  #me;
  #poller;
  #count = h('span', { class: 'quiet' });
  #body = h('div', { class: 'page-body' }, skeleton(4));
  #table;
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
  #add = h('button', { type: 'button', class: 'primary add-server', hidden: true, onclick: () => this.#openForm(null) }, icon('plus'), t('servers.add'));
  // The way back to the first steps, for those who came from there.
  #back = h('p', { class: 'to-first-steps', hidden: true }, h('a', { href: routeTo('inbox') }, t('servers.toFirstSteps')));
  #trials = h('div', { class: 'trials' });
  #trialsText = '';
  #disabled = h('div', { class: 'disabled-servers' });

  constructor({ api, me }) {
    this.#api = api;
    this.#me = me;
    this.#table = new ServerTable({ api, me, poll: () => this.#poller.poll(), change: (name) => this.#openForm(name), remove: (name) => this.#openRemoval(name) });
    this.#page = [h('div', { class: 'page-head' }, this.#back, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, t('shell.view.servers')), this.#count, this.#add), h('p', { class: 'quiet' }, t('servers.about')), meanings()), this.#problemBar, this.#trials, this.#body, this.#disabled];
    this.element = h('div', { class: 'page' }, this.#page);
    this.#poller = new Poller({
      read: async (signal) => {
        const [servers] = await Promise.all([this.#api.servers(signal), this.#readFile(signal)]);
        return servers;
      },
      show: (servers) => this.#paint(servers),
      failed: (error) => fill(this.#body, errorState(error, () => this.#poller.poll())),
      every: POLL_INTERVAL,
      burst: STARTING_INTERVAL,
    });
  }

  dispose() {
    this.#table.dispose();
    this.#poller.stop();
  }

  route({ id, part, query }) {
    if (query.has('connect-problem')) return this.#returnWithProblem(query.get('connect-problem'));
    if (query.has('add')) {
      this.#back.hidden = !areFirstStepsShown();
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
    this.#table.reloadTools();
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
      problemNotice(error);
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
        // The row of a new server may be far below.
        if (saved && !name) go(routeTo('servers', saved));
      } });
    } catch (error) {
      if (!this.#poller.signal.aborted) problemNotice(error);
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
      if (!this.#poller.signal.aborted) problemNotice(error);
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
    if (servers.some((server) => isStarting(server) && Date.now() - Date.parse(server.since) < MAX_START)) this.#poller.pollSoon();
    if (this.#connectPage) return this.#connectPage.show(servers.find((server) => server.name === this.#chosen));
    this.#count.textContent = count(servers.length);
    this.#paintDisabled(servers);
    if (!servers.length) {
      fill(this.#body, emptyState('servers', t('servers.none'), t('servers.noneHow')));
      return;
    }
    if (!this.#table.element.isConnected) fill(this.#body, this.#table.element);
    const editable = this.#file?.mayEdit ? this.#file.servers.map(({ name }) => name) : [];
    this.#table.show(servers, { editable, connected: this.#justConnected });
    if (!servers.some(({ name }) => name === this.#chosen)) return;
    this.#table.open(this.#chosen);
    this.#chosen = null;
  }
}

// Explains what a reviewer can decide about a tool.
function meanings() {
  return h('details', { class: 'fold-section meanings' }, h('summary', null, t('servers.meanings')),
    h('dl', null, MEANINGS.map(([term, text]) => h('div', null, h('dt', null, term), h('dd', null, text)))),
    h('p', { class: 'quiet' }, t('servers.meaningsNote')));
}
