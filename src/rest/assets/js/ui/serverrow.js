// A row of the table of servers, and the details into which it opens.

import { fill, h, separated } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { isBroken, isStarting, reviewCount, toolStates } from '../core/serverstate.js';
import { count, quote, short, shortMiddle, visibleString } from '../core/text.js';
import { time } from '../core/time.js';
import { accountSection } from './account.js';
import { toneBadge } from './badges.js';
import { errorState } from './states.js';
import { ToolsPanel } from './tools.js';
import { runTrial } from './trial.js';

const KINDS = { module: t('servers.kind.module'), upstream: t('servers.kind.upstream') };
const STATUS = {
  up: { label: t('servers.status.up'), tone: 'green', icon: 'check' },
  connecting: { label: t('servers.status.connecting'), tone: 'amber', icon: 'refresh' },
  needs_connection: { label: t('servers.status.needs_connection'), tone: 'amber', icon: 'unplugged' },
  down: { label: t('servers.status.down'), tone: 'red', icon: 'alert' },
};
const TRANSPORTS = { stdio: 'stdio', 'streamable-http': 'Streamable HTTP', sse: 'HTTP + SSE', websocket: 'WebSocket' };
const BREAKERS = ['open', 'half-open'];

let number = 0;

// The section about the account already says what to do.
const isUnconnected = (server) => server.status === 'needs_connection' && server.account;

const cell = (label) => h('td', { data: { label } });

// Formats a line such as `Previews: recipes for 4 tools, with the shipped set filesystem.`
function previews({ sets = [], tools = [] }) {
  if (!tools.length) return t('servers.noPreviews');
  return parts(sets.length === 0 ? 'servers.previews' : sets.length === 1 ? 'servers.previewsOfSet' : 'servers.previewsOfSets', { count: tools.length, sets: quote(sets.join(', '), 200) });
}

export class ServerRow {
  /** A table body of two rows, the second of which has the details. */
  element;
  isOpen = false;
  #name;
  #api;
  #me;
  #signal;
  #actions;
  #isJustConnected = false;
  #mayEdit = false;
  #needsAttention = false;
  #toggle;
  #about = h('div', { class: 'quiet server-line' });
  #cells = { state: cell(t('serverform.state')), tools: cell(t('serverform.tools')), target: cell(t('serverform.commandOrAddress')) };
  #row;
  #detail;
  #head = h('div', { class: 'server-head' });
  #trial = h('div', { class: 'server-trial', 'aria-live': 'polite' });
  #rest = h('div', { class: 'server-rest' });
  #panel;
  #text = '';
  #hasTools = false;
  #isLoading = false;

  constructor(name, { api, me, signal, ...actions }) {
    this.#actions = actions;
    this.#name = name;
    this.#api = api;
    this.#me = me;
    this.#signal = signal;
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
    const id = `server-detail-${number += 1}`;
    this.#toggle = h('button', { type: 'button', class: 'link server-toggle', 'aria-expanded': 'false', 'aria-controls': id, onclick: () => this.setOpen(!this.isOpen) }, icon('chevron'), quote(name, 64));
    this.#row = h('tr', { class: 'server-row' },
      h('td', { data: { label: t('serverform.server') } }, h('h2', null, this.#toggle), this.#about), this.#cells.state, this.#cells.tools, this.#cells.target);
    this.#detail = h('tr', { class: 'server-detail', id, hidden: true }, h('td', { colspan: '4' }, this.#head, this.#trial, this.#rest));
    this.element = h('tbody', { class: 'server' }, this.#row, this.#detail);
  }

  /** Shows or hides the details. */
  setOpen(isOpen) {
    this.isOpen = isOpen;
    this.#detail.hidden = !isOpen;
    this.#toggle.setAttribute('aria-expanded', String(isOpen));
    if (isOpen) this.#loadTools();
  }

  /** Shows the server; `isJustConnected` is true if its account was connected just now, and `mayEdit` if the user may change it. */
  show(server, { mayEdit, isJustConnected }) {
    const text = JSON.stringify(server);
    if (text !== this.#text || isJustConnected !== this.#isJustConnected || mayEdit !== this.#mayEdit) {
      this.#text = text;
      this.#mayEdit = mayEdit;
      this.#isJustConnected = isJustConnected;
      this.#hasTools = server.tools > 0;
      this.#paintRow(server);
      this.#paintHead(server);
    }
    // Details that ask for a decision open once by themselves.
    const needsAttention = reviewCount(server) > 0 || Boolean(isUnconnected(server)) || isJustConnected;
    if (needsAttention && !this.#needsAttention) this.setOpen(true);
    else if (this.isOpen) this.#loadTools();
    this.#needsAttention = needsAttention;
  }

  reloadTools() {
    if (this.#panel.element.isConnected) this.#loadTools();
  }

  async #test(button) {
    button.disabled = true;
    await runTrial({ api: this.#api, request: { name: this.#name }, place: this.#trial, signal: this.#signal });
    button.disabled = false;
  }

  async #disconnect() {
    await this.#api.disconnectServer(this.#name);
    this.#actions.poll();
  }

  async #loadTools() {
    if (this.#isLoading || !this.#hasTools) return;
    this.#isLoading = true;
    try {
      const { tools, knownReads } = await this.#api.server(this.#name, this.#signal);
      this.#panel.setKnownReads(knownReads ?? null);
      this.#panel.show(tools);
      if (!this.#panel.element.isConnected) fill(this.#rest, this.#panel.element);
    } catch (error) {
      if (!this.#signal.aborted && error.status !== 401 && !this.#panel.element.isConnected) {
        fill(this.#rest, errorState(error, () => this.#loadTools()));
      }
    } finally {
      this.#isLoading = false;
    }
  }

  #paintRow(server) {
    const { label, tone, icon: name } = STATUS[server.status] ?? { label: visibleString(String(server.status)), tone: 'grey', icon: 'question' };
    const isKnownBreaker = BREAKERS.includes(server.breaker);
    const states = toolStates(server);
    const waiting = reviewCount(server);
    const era = server.era && [server.era, server.revision].filter(Boolean).map((text) => visibleString(String(text))).join(' · ');
    this.#row.classList.toggle('broken', isBroken(server));
    fill(this.#about, [KINDS[server.kind] ?? visibleString(String(server.kind)), server.required && t('servers.required')].filter(Boolean).join(' · '));
    fill(this.#cells.state,
      h('div', { class: 'server-badges' }, toneBadge(tone, name, label),
        server.breaker && server.breaker !== 'closed' && h('span', { class: `badge state tone-${server.breaker === 'open' ? 'red' : 'amber'}`, title: isKnownBreaker && t(`servers.breaker.${server.breaker}`) }, icon('unplugged'), isKnownBreaker ? t(`servers.circuit.${server.breaker}`) : visibleString(server.breaker))),
      era && h('div', { class: 'quiet' }, era),
      server.status !== 'up' && server.lastError && h('div', { class: 'server-error' }, quote(server.lastError, 160)));
    fill(this.#cells.tools,
      states.length ? separated(states.map(([text, n]) => h('span', { class: 'nowrap' }, t(text, { count: n }))), ' · ') : h('span', { class: 'quiet' }, server.tools > 0 ? count(server.tools) : t('serverform.noTools')),
      waiting > 0 && h('div', null, toneBadge('amber', 'eye', t('serverform.toolsWaiting', { count: waiting }))));
    fill(this.#cells.target, server.target ? h('code', { class: 'server-command', title: visibleString(short(server.target, 300)) }, quote(shortMiddle(server.target, 64))) : h('span', { class: 'quiet' }, t('serverform.builtIn')));
  }

  #paintHead(server) {
    this.#panel.setRecipes(server.kind === 'upstream' ? server.previews?.tools ?? [] : null);
    fill(this.#head,
      server.transport && h('p', { class: 'quiet server-line' }, TRANSPORTS[server.transport] ?? visibleString(String(server.transport))),
      server.target && h('p', { class: 'server-target' }, h('code', null, quote(server.target, 300))),
      server.kind === 'upstream' && server.previews && h('p', { class: 'quiet server-line' }, previews(server.previews)),
      server.previews?.suggested && h('p', { class: 'quiet server-line' }, parts('servers.suggested', { name: quote(server.previews.suggested, 60), line: h('code', null, `previews: ${visibleString(server.previews.suggested)}`) })),
      accountSection({ server: server.name, account: server.account, me: this.#me, isJustConnected: this.#isJustConnected, disconnect: () => this.#disconnect() }),
      server.status !== 'up' && server.kind === 'upstream' && !isUnconnected(server) && h('div', { class: `banner tone-${server.status === 'down' ? 'red' : isStarting(server) ? 'grey' : 'amber'} why-down` }, icon(isStarting(server) ? 'refresh' : 'alert'), h('div', null,
        h('p', null, server.lastError ? quote(server.lastError, 500) : t(isStarting(server) ? 'servers.notAnswered' : 'servers.reasonUnknown'), server.since && h('span', { class: 'quiet' }, ' · ', server.status === 'connecting' ? parts('servers.connectingSince', { time: time(server.since) }) : time(server.since))),
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
        h('button', { type: 'button', onclick: () => this.#actions.change(this.#name) }, t('servers.change')),
        h('button', { type: 'button', onclick: () => this.#actions.remove(this.#name) }, t('servers.remove'))));
  }
}
