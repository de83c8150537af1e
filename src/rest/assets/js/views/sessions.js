// Shows the sessions that are open, and the gateways that share the store.

import { fill, h, refill } from '../core/dom.js';
import { t } from '../core/locale.js';
import { Poller } from '../core/poller.js';
import { routeTo } from '../core/router.js';
import { count, quote, visible, visibleString } from '../core/text.js';
import { now, time } from '../core/time.js';
import { transportOf } from '../core/vocab.js';
import { toneBadge } from '../ui/badges.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';

// Events add and remove sessions; their activity is polled.
const POLL_INTERVAL = 10_000;

// A client may disconnect without ending its session, which is then kept for a while. It also needs no connection between
// two requests, so it counts as gone only after this pause.
const MAX_PAUSE = 15_000;
const isGone = (session) => session.connected === false && now() - Date.parse(session.lastActiveAt) > MAX_PAUSE;

export class SessionsView {
  element;
  #api;
  #sessions = new Map();
  // The number of sessions that are not listed.
  #unlisted = 0;
  #nodes = [];
  #poller;
  #parts;

  constructor({ api }) {
    this.#api = api;
    this.#parts = { count: h('span', { class: 'quiet' }), body: h('div', { class: 'page-body' }, skeleton(5)) };
    this.element = h('div', { class: 'page' },
      h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, t('shell.view.sessions')), this.#parts.count), h('p', { class: 'quiet' }, t('sessions.about'))),
      this.#parts.body);
    this.#poller = new Poller({
      read: async (signal) => {
        const [sessions, nodes] = await Promise.all([this.#api.sessions(signal), this.#api.nodes(signal).catch(() => [])]);
        return { ...sessions, nodes };
      },
      show: ({ sessions, total, nodes }) => {
        this.#nodes = nodes;
        this.#unlisted = Math.max(0, (total ?? sessions.length) - sessions.length);
        this.#sessions = new Map(sessions.map((session) => [session.id, session]));
        this.#paint();
      },
      failed: (error) => fill(this.#parts.body, errorState(error, () => this.#poller.poll())),
      every: POLL_INTERVAL,
    });
  }

  dispose() {
    this.#poller.stop();
  }

  route() {}

  refresh() {
    this.#poller.poll();
  }

  event() {}

  sessionEvent({ type, session }) {
    if (type === 'session.closed') this.#sessions.delete(session.id);
    else this.#sessions.set(session.id, session);
    this.#paint();
  }

  #paint() {
    const all = [...this.#sessions.values()].sort((a, b) => Date.parse(b.createdAt) - Date.parse(a.createdAt));
    const total = all.length + this.#unlisted;
    const gone = all.filter(isGone).length;
    this.#parts.count.textContent = gone > 0 && this.#unlisted === 0 ? t('sessions.connected', { connected: total - gone, count: total }) : count(total);
    const gateways = this.#gateways();
    if (!all.length) {
      fill(this.#parts.body, emptyState('sessions', t('sessions.none'), t('sessions.noneHow')), gateways);
      return;
    }
    // A gateway may have thousands of sessions; only the newest are listed.
    const shown = all.slice(0, 300);
    refill(this.#parts.body,
      h('table', { class: 'records' },
        h('thead', null, h('tr', null, ['client', 'principal', 'transport', 'opened', 'lastActive', 'inFlight', 'session'].map((column) => h('th', { scope: 'col' }, t(`sessions.column.${column}`))))),
        h('tbody', null, shown.map((session) => h('tr', null,
          h('td', { data: { label: t('sessions.column.client') } }, session.clientName ? h('span', null, quote(session.clientName, 60), session.clientVersion && [' ', h('span', { class: 'quiet' }, quote(session.clientVersion, 30))]) : h('span', { class: 'quiet' }, t('sessions.notNamed'))),
          h('td', { data: { label: t('sessions.column.principal') } }, h('a', { href: routeTo('history', null, { principal: session.principal }), data: { key: session.id }, title: t('sessions.proposed') }, quote(session.principal ?? '', 60))),
          h('td', { data: { label: t('sessions.column.transport') } }, visibleString(transportOf(session.transport)), session.revision && h('span', { class: 'quiet nowrap' }, ' · ', quote(session.revision, 20))),
          h('td', { class: 'nowrap', data: { label: t('sessions.column.opened') } }, time(session.createdAt)),
          h('td', { class: 'nowrap', data: { label: t('sessions.column.lastActive') } }, time(session.lastActiveAt), isGone(session) && h('span', { class: 'quiet', title: t('sessions.notConnectedWhy') }, ' · ', t('sessions.notConnected'))),
          h('td', { class: 'num', data: { label: t('sessions.column.inFlight') } }, count(session.inFlight ?? 0)),
          h('td', { data: { label: t('sessions.column.session') } }, h('code', null, visible(String(session.id).slice(0, 10)))))))),
      total > shown.length && h('p', { class: 'quiet pad' }, t('sessions.more', { count: total - shown.length })),
      gateways);
  }

  // Shows the gateways if several can share the store.
  #gateways() {
    if (!this.#nodes.some((node) => node.leaseUntil)) return null;
    const state = (node) => (!node.live ? ['grey', 'clock', t('sessions.gone')] : node.sameConfiguration === false ? ['amber', 'alert', t('sessions.otherConfiguration')] : ['green', 'check', t('sessions.up')]);
    const servers = (node) => (!node.live ? [] : [
      [t('sessions.notReached'), node.unreachable], [t('sessions.onlyHere'), node.onlyHere], [t('sessions.breakerOpen'), node.breakersOpen],
    ].filter(([, names]) => names?.length));
    return h('section', { class: 'gateways' },
      h('h2', null, t('sessions.gateways')),
      h('p', { class: 'quiet' }, t('sessions.gatewaysAbout')),
      h('table', { class: 'records' },
        h('thead', null, h('tr', null, ['gateway', 'state', 'servers', 'address', 'version', 'started', 'running'].map((column) => h('th', { scope: 'col' }, t(`sessions.column.${column}`))))),
        h('tbody', null, this.#nodes.map((node) => {
          const [tone, name, label] = state(node);
          return h('tr', null,
            h('td', { data: { label: t('sessions.column.gateway') } }, h('code', null, quote(node.id, 24)), node.here && h('span', { class: 'quiet' }, ' ', t('sessions.here')), node.leads && h('span', { class: 'quiet' }, ' · ', t('sessions.leads'))),
            h('td', { data: { label: t('sessions.column.state') } }, toneBadge(tone, name, label)),
            h('td', { data: { label: t('sessions.column.servers') } }, servers(node).length
              ? servers(node).map(([what, names]) => h('div', null, h('span', { class: 'quiet' }, what, ' '), quote(names.join(', '), 120)))
              : h('span', { class: 'quiet' }, node.live ? t('sessions.allReached') : '—')),
            h('td', { data: { label: t('sessions.column.address') } }, quote(node.url, 80)),
            h('td', { data: { label: t('sessions.column.version') } }, quote(node.version, 30)),
            h('td', { class: 'nowrap', data: { label: t('sessions.column.started') } }, time(node.startedAt)),
            h('td', { class: 'num', data: { label: t('sessions.column.running') } }, count(node.running)));
        }))));
  }
}
