// Shows webhooks and their deliveries, tests them and sends failed deliveries again.

import { explain } from '../core/api.js';
import { notice } from '../core/announce.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { Poller } from '../core/poller.js';
import { routeTo } from '../core/router.js';
import { count, quote, short, visible, visibleString } from '../core/text.js';
import { time } from '../core/time.js';
import { eventOf } from '../core/vocab.js';
import { toneBadge } from '../ui/badges.js';
import { emptyState, errorState, problemNotice, skeleton } from '../ui/states.js';

// Positions change with every event, so they are polled.
const POLL_INTERVAL = 5_000;
const PAGE_SIZE = 25;
const STATES = {
  delivered: { label: t('webhooks.delivered'), tone: 'green', icon: 'check' },
  waiting: { label: t('webhooks.waiting'), tone: 'amber', icon: 'clock' },
  given_up: { label: t('webhooks.givenUp'), tone: 'red', icon: 'cross' },
};

export class WebhooksView {
  element;
  #api;
  #canDecide;
  #poller;
  #cards = new Map();
  #count = h('span', { class: 'quiet' });
  #body = h('div', { class: 'page-body' }, skeleton(4));
  #list = h('ul', { class: 'hooks' });

  constructor({ api, me }) {
    this.#api = api;
    this.#canDecide = Boolean(me.mayDecide);
    this.element = h('div', { class: 'page' },
      h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, t('shell.view.webhooks')), this.#count), h('p', { class: 'quiet' }, t('webhooks.about'))), this.#body);
    this.#poller = new Poller({
      read: (signal) => this.#api.webhooks(signal),
      show: (webhooks) => this.#paint(webhooks),
      failed: (error) => fill(this.#body, errorState(error, () => this.#poller.poll())),
      every: POLL_INTERVAL,
      burst: 500,
    });
  }

  dispose() {
    this.#poller.stop();
  }

  route() {}

  // Most events of the feed may be delivered to a webhook.
  event() {
    this.webhookEvent();
  }

  // Events of servers and rules are delivered too, and a new configuration may define other webhooks.
  serverEvent() {
    this.webhookEvent();
  }

  ruleEvent() {
    this.webhookEvent();
  }

  webhookEvent() {
    this.#poller.pollSoon();
  }

  refresh() {
    this.#poller.poll();
  }

  #paint(webhooks) {
    this.#count.textContent = count(webhooks.length);
    if (!webhooks.length) {
      this.#cards.clear();
      this.#list.replaceChildren();
      fill(this.#body, emptyState('webhooks', t('webhooks.none'), t('webhooks.noneHow')));
      return;
    }
    if (!this.#list.isConnected) fill(this.#body, this.#list);
    for (const [name, card] of this.#cards) {
      if (webhooks.some((webhook) => webhook.name === name)) continue;
      card.element.remove();
      this.#cards.delete(name);
    }
    for (const webhook of webhooks) {
      let card = this.#cards.get(webhook.name);
      if (!card) {
        card = new WebhookCard(webhook.name, this.#api, this.#canDecide, this.#poller.signal, () => this.#poller.poll());
        this.#cards.set(webhook.name, card);
      }
      card.show(webhook);
    }
    // Keeps the order of the configuration, which may have changed. An element that is in place keeps its focus.
    for (const [i, { name }] of webhooks.entries()) {
      const { element } = this.#cards.get(name);
      if (this.#list.children[i] !== element) this.#list.insertBefore(element, this.#list.children[i] ?? null);
    }
  }
}

class WebhookCard {
  element;
  #name;
  #api;
  #signal;
  #changed;
  #retry;
  #test;
  #head = h('div');
  #rest = h('div', { class: 'fold-body' });
  #fold;
  #text = '';
  #deliveries = [];
  #cursor = null;
  #isLoading = false;

  constructor(name, api, canDecide, signal, changed) {
    this.#name = name;
    this.#api = api;
    this.#signal = signal;
    this.#changed = changed;
    this.#retry = canDecide && h('button', { type: 'button', class: 'small', onclick: () => this.#sendAgain() }, icon('refresh'), t('webhooks.again'), h('span', { class: 'sr-only' }, ' ', t('webhooks.to', { name: visibleString(short(name, 60)) })));
    this.#test = canDecide && h('button', { type: 'button', class: 'small', onclick: () => this.#sendTest() }, icon('webhooks'), t('webhooks.test'), h('span', { class: 'sr-only' }, ' ', t('webhooks.testOf', { name: visibleString(short(name, 60)) })));
    this.#fold = h('details', { class: 'fold-section' }, h('summary', null, t('webhooks.deliveries')), this.#rest);
    this.#fold.addEventListener('toggle', () => this.#fold.open && this.#loadNewest());
    this.element = h('li', { class: 'card hook' }, this.#head, this.#fold);
  }

  show(webhook) {
    const text = JSON.stringify(webhook);
    if (text === this.#text) return;
    this.#text = text;
    const focused = [this.#retry, this.#test].find((button) => button && document.activeElement === button);
    const fact = (label, ...content) => h('div', null, h('dt', null, label), h('dd', null, content));
    fill(this.#head,
      h('div', { class: 'card-head' },
        h('h2', null, quote(webhook.name, 80)),
        h('div', { class: 'server-badges' }, toneBadge(webhook.failing ? 'red' : 'green', webhook.failing ? 'alert' : 'check', t(webhook.failing ? 'webhooks.failing' : 'webhooks.working')), this.#test, this.#retry)),
      h('p', { class: 'server-target' }, h('code', null, quote(webhook.url, 300))),
      webhook.lastError && h('p', { class: `banner tone-${webhook.failing ? 'red' : 'amber'}` }, icon('alert'), h('span', null, quote(webhook.lastError, 500), webhook.nextAttemptAt && h('span', { class: 'quiet' }, ' · ', parts('webhooks.nextAttempt', { time: time(webhook.nextAttemptAt, 'countdown') })))),
      h('dl', { class: 'rule-facts' },
        fact(t('webhooks.waiting'), webhook.waiting === 0 ? t('webhooks.nothing') : t('webhooks.eventCount', { count: webhook.waiting })),
        webhook.format && fact(t('webhooks.format'), quote(webhook.format, 40)),
        [[t('webhooks.events'), webhook.events], [t('webhooks.tools'), webhook.tools], [t('webhooks.servers'), webhook.servers], [t('webhooks.states'), webhook.states]]
          .map(([label, all]) => all?.length > 0 && fact(label, quote(all.join(', '), 200)))));
    focused?.focus();
    if (this.#fold.open) this.#loadNewest();
  }

  async #loadNewest() {
    if (this.#isLoading) return;
    this.#isLoading = true;
    try {
      const page = await this.#api.deliveries(this.#name, { limit: PAGE_SIZE, signal: this.#signal });
      // Older deliveries stay if the newest page connects to them.
      const oldest = page.deliveries.at(-1)?.id ?? 0;
      const older = this.#deliveries.filter((d) => d.id < oldest);
      this.#deliveries = [...page.deliveries, ...older];
      if (!older.length) this.#cursor = page.nextCursor;
      this.#list();
    } catch (error) {
      if (!this.#signal.aborted && error.status !== 401 && !this.#deliveries.length) fill(this.#rest, errorState(error, () => this.#loadNewest()));
    } finally {
      this.#isLoading = false;
    }
  }

  async #loadOlder(button) {
    button.disabled = true;
    try {
      const page = await this.#api.deliveries(this.#name, { limit: PAGE_SIZE, cursor: this.#cursor, signal: this.#signal });
      const oldest = this.#deliveries.at(-1)?.id ?? Infinity;
      this.#deliveries.push(...page.deliveries.filter((d) => d.id < oldest));
      this.#cursor = page.nextCursor;
      this.#list();
    } catch (error) {
      button.disabled = false;
      button.textContent = t('common.loadOlderFailed', { problem: visibleString(explain(error)) });
    }
  }

  #list() {
    if (!this.#deliveries.length) {
      fill(this.#rest, h('p', { class: 'quiet' }, t('webhooks.nothingSent')));
      return;
    }
    fill(this.#rest, h('table', { class: 'records deliveries' },
      h('thead', null, h('tr', null, ['number', 'event', 'about', 'state', 'attempts', 'last'].map((column) => h('th', { scope: 'col' }, t(`webhooks.column.${column}`))))),
      h('tbody', null, this.#deliveries.map((d) => this.#row(d)))),
    this.#cursor && h('p', { class: 'load-more' }, h('button', { type: 'button', onclick: (e) => this.#loadOlder(e.currentTarget) }, t('common.loadOlder'))));
  }

  #row(d) {
    const { label, tone, icon: name } = STATES[d.state] ?? { label: String(d.state), tone: 'grey', icon: 'question' };
    const at = d.lastAttemptAt ?? d.takenAt;
    return h('tr', null,
      h('td', { class: 'num', data: { label: t('webhooks.column.number') } }, count(d.id)),
      h('td', { class: 'nowrap', data: { label: t('webhooks.column.event') } }, h('span', { title: eventOf(d.type).label }, quote(d.type, 60))),
      h('td', { data: { label: t('webhooks.column.about') } }, d.changeId ? h('a', { class: 'mono', href: routeTo('history', d.changeId) }, visible(short(d.changeId, 14))) : d.subject ? quote(d.subject, 60) : '—'),
      h('td', { data: { label: t('webhooks.column.state') } }, toneBadge(tone, name, visibleString(label)),
        d.error ? h('div', { class: 'quiet' }, quote(d.error, 200)) : d.status && h('span', { class: 'quiet' }, ` HTTP ${Number(d.status)}`)),
      h('td', { class: 'num', data: { label: t('webhooks.column.attempts') } }, count(d.attempts ?? 0)),
      h('td', { class: 'nowrap', data: { label: t('webhooks.column.last') } }, at ? time(at) : '—'));
  }

  async #sendTest() {
    this.#test.disabled = true;
    try {
      const { delivered, status, error } = await this.#api.testWebhook(this.#name);
      if (delivered) notice(t('webhooks.testDelivered', { name: this.#name, status: String(Number(status)) }), { tone: 'green', iconName: 'check' });
      else notice(t('webhooks.testFailed', { name: this.#name, problem: error }), { tone: 'red', iconName: 'alert' });
    } catch (error) {
      problemNotice(error);
    } finally {
      this.#test.disabled = false;
    }
  }

  async #sendAgain() {
    this.#retry.disabled = true;
    try {
      const { again } = await this.#api.retryWebhook(this.#name);
      notice(again > 0 ? t('webhooks.sendingAgain', { name: this.#name, count: again }) : t('webhooks.sending', { name: this.#name }), { tone: 'accent', iconName: 'refresh' });
      this.#changed();
    } catch (error) {
      problemNotice(error);
    } finally {
      this.#retry.disabled = false;
    }
  }
}
