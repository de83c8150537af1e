// The page of a signed-in user: the header, the views and the live feed.

import { announce, notice, removeNotice } from './core/announce.js';
import { Bundles } from './core/bundles.js';
import { Collection } from './core/collection.js';
import { setReachable } from './core/connection.js';
import { fill, h } from './core/dom.js';
import { Feed } from './core/feed.js';
import { filterRows, readFilter, requestOf } from './core/filters.js';
import { brand, icon } from './core/icons.js';
import { t } from './core/locale.js';
import { queueNotification } from './core/notify.js';
import { go, parseRoute, replaceRoute, routeTo } from './core/router.js';
import { isBroken, reviewCount } from './core/serverstate.js';
import { count, short } from './core/text.js';
import { nextTheme, theme } from './core/theme.js';
import { now } from './core/time.js';
import { Triage } from './core/triage.js';
import { eventName, HISTORY_STATES, INBOX_STATES } from './core/vocab.js';
import { AccountButton } from './ui/absence.js';
import { openHelp } from './ui/help.js';
import { languageMenu } from './ui/language.js';
import { isBarredAsProposer, isReviewerOf } from './ui/terms.js';
import { UndoStack } from './ui/undo.js';
import { AuditView } from './views/audit.js';
import { BundleView } from './views/bundle.js';
import { ChangesView } from './views/changes.js';
import { KeysView } from './views/keys.js';
import { OverviewView } from './views/overview.js';
import { PlanView } from './views/plan.js';
import { PolicyView } from './views/policy.js';
import { ReloadBar } from './ui/reload.js';
import { RulesView } from './views/rules.js';
import { ServersView } from './views/servers.js';
import { SessionsView } from './views/sessions.js';
import { WebhooksView } from './views/webhooks.js';

// On a small screen, all views except the first two are in a menu.
const VIEWS = ['inbox', 'history', 'overview', 'policy', 'audit', 'sessions', 'keys', 'servers', 'webhooks'];
// Servers and the configuration can change without an event.
const POLL_INTERVAL = 30_000;
// A shorter interruption shows no banner.
const BANNER_DELAY = 2500;

// Pages without a link of their own: of changes that are reviewed together, and of standing rules, which belong to the policy.
const RELATED = ['plans', 'bundles', 'rules'];

const MENU = VIEWS.slice(2);
const VIEW_ICONS = { policy: 'rule', keys: 'key' };
const linkOf = (name) => (name === 'rules' ? 'policy' : name);

// Creates the links to all views. On a large screen the links of the menu stand beside the others.
function viewLinks() {
  const badge = () => h('span', { class: 'count', hidden: true });
  const alarm = () => h('span', { class: 'alarm', hidden: true });
  const link = (name) => h('a', { href: routeTo(name), data: { view: name } }, icon(VIEW_ICONS[name] ?? name), h('span', null, t(`shell.view.${name}`)), (name === 'inbox' || name === 'servers') && badge(), name === 'servers' && alarm());
  return h('nav', { 'aria-label': t('shell.views') }, VIEWS.slice(0, 2).map(link),
    h('div', { id: 'more-views', class: 'menu', popover: '' }, MENU.map(link)),
    h('button', { type: 'button', class: 'more-views', popovertarget: 'more-views' }, icon('more'), h('span', null, t('shell.more')), badge(), alarm()));
}

// What the header drops, one after another, until the rest fits. How wide it is depends on the font, the language and the name.
const HEADER_STEPS = ['brief', 'plain', 'bare', 'folded'];

function fitHeader(header) {
  // The links of an open menu take no room in the header, which is measured again once the menu is closed.
  if (header.querySelector('.menu:popover-open')) return;
  header.classList.remove(...HEADER_STEPS);
  for (const step of HEADER_STEPS) {
    if (header.scrollWidth <= header.clientWidth) return;
    header.classList.add(step);
  }
}

export class App {
  element;
  #account;
  #api;
  #me;
  #keys;
  #feed;
  #inbox;
  #bundles;
  #history = null;
  #loadedRequest = null;
  #triage = new Triage();
  // Comments that were not sent yet, by the id of their change.
  #drafts = new Map();
  #undos;
  #view = null;
  #viewName = null;
  #parts;
  #bannerTimer = null;
  #recountTimer = null;
  #refusedStatus = null;
  #isFirstConnection = true;
  #ended = false;
  #reload;
  #reviewCount = 0;
  #shownCount = -1;
  #pollTimer = null;
  #abort = new AbortController();
  #signedOut;
  #onHash = () => this.#route();

  /** `signOut()` signs the user out. `signedOut(message)` is called when the gateway no longer accepts the sign-in. */
  constructor({ api, me, keys, signOut, signedOut }) {
    this.#api = api;
    this.#signedOut = signedOut;
    this.#me = me;
    this.#keys = keys;
    this.#inbox = new Collection({ load: (page) => api.changes({ ...page, states: INBOX_STATES }), accepts: (c) => INBOX_STATES.includes(c.state), eager: true });
    this.#inbox.subscribe(() => this.#updateCount());
    this.#bundles = new Bundles(() => api.bundles(this.#abort.signal));
    this.#parts = {
      nav: viewLinks(),
      state: h('div', { class: 'connection', role: 'status', data: { state: 'connecting' } }),
      banner: h('div', { class: 'gone', role: 'alert', hidden: true }),
      main: h('main', { id: 'main', tabindex: '-1' }),
      theme: h('button', { type: 'button', class: 'ghost icon-only', onclick: () => this.#switchTheme() }),
    };
    this.#account = new AccountButton({ api, me });
    this.#reload = new ReloadBar({ api, me });
    this.#undos = new UndoStack({ undo: (id, version) => api.undo(id, version), undone: (answer) => this.#applyUndo(answer), leave: () => this.#focusTitle() });
    this.element = h('div', { class: 'app' },
      h('button', { type: 'button', class: 'skip', onclick: () => this.#focusTitle() }, t('shell.skip')),
      h('header', { class: 'top' },
        h('a', { class: 'brand', href: routeTo('inbox'), 'aria-label': t('shell.brand') }, brand(), h('span', null, 'Countersign')),
        this.#parts.nav,
        h('div', { class: 'top-right' }, this.#parts.state, this.#parts.theme, languageMenu(),
          h('button', { type: 'button', class: 'ghost icon-only wide-only', 'aria-label': t('shell.shortcuts'), title: t('shell.shortcutsTitle'), onclick: openHelp }, icon('keyboard')),
          this.#account.element,
          h('button', { type: 'button', class: 'ghost signout', title: t('shell.signOut'), onclick: signOut }, icon('leave'), h('span', null, t('shell.signOut'))))),
      this.#parts.banner, this.#reload.element, this.#parts.main, this.#undos.element);
    this.#paintThemeButton();
    const header = this.element.querySelector('.top');
    new ResizeObserver(() => fitHeader(header)).observe(header);
    new MutationObserver(() => fitHeader(header)).observe(header, { subtree: true, childList: true, attributeFilter: ['hidden'] });
    this.#parts.nav.querySelector('.menu').addEventListener('toggle', () => fitHeader(header));
    this.#feed = new Feed((signal, seq) => api.events(signal, seq), {
      hello: () => {
        this.#inbox.reload();
        this.#bundles.refresh();
      },
      reset: () => this.#resync(),
      event: (event) => this.#handleEvent(event),
      state: (state, info) => this.#showConnection(state, info),
      refused: (response) => this.#handleRefusal(response),
    });
    keys.bind('app', {
      '?': openHelp, 'g i': () => go(routeTo('inbox')), 'g h': () => go(routeTo('history')), 'g a': () => go(routeTo('audit')),
      'g s': () => go(routeTo('sessions')), 'g v': () => go(routeTo('servers')), 'g w': () => go(routeTo('webhooks')), 'g r': () => go(routeTo('rules')), 'g p': () => go(routeTo('policy')), 'g o': () => go(routeTo('overview')), 'g k': () => go(routeTo('keys')),
    });
  }

  start() {
    addEventListener('hashchange', this.#onHash);
    this.#feed.start();
    this.#route();
    this.#poll();
    this.#pollTimer = setInterval(() => !document.hidden && this.#poll(), POLL_INTERVAL);
  }

  /** Stops the feed, timers and requests. */
  stop() {
    this.#ended = true;
    setReachable(true);
    this.#abort.abort();
    clearInterval(this.#pollTimer);
    removeEventListener('hashchange', this.#onHash);
    this.#feed.stop();
    this.#bundles.stop();
    this.#view?.dispose();
    this.#undos.clear();
    clearTimeout(this.#bannerTimer);
    clearTimeout(this.#recountTimer);
    this.#keys.bind('app', null);
    this.#keys.bind('view', null);
  }

  #route() {
    const route = parseRoute(location.hash);
    // External links use `#/changes/…`, which does not name a view.
    if (route.view === 'changes') return replaceRoute(routeTo('inbox', route.id, Object.fromEntries(route.query)));
    const name = [...VIEWS, ...RELATED].includes(route.view) ? route.view : 'inbox';
    const filter = readFilter(route.query, name === 'history' ? HISTORY_STATES : undefined);
    if (name !== this.#viewName) {
      const switched = this.#viewName !== null;
      this.#viewName = name;
      this.#view?.dispose();
      this.#view = this.#createView(name, filter);
      fill(this.#parts.main, this.#view.element);
      this.#keys.bind('view', this.#view.keys?.() ?? {});
      for (const link of this.#parts.nav.querySelectorAll('a')) {
        if (link.dataset.view === linkOf(name)) link.setAttribute('aria-current', 'page');
        else link.removeAttribute('aria-current');
      }
      this.#parts.nav.querySelector('.more-views').classList.toggle('current', MENU.includes(linkOf(name)));
      if (switched) this.#focusTitle();
    }
    this.#parts.nav.querySelector(':popover-open')?.hidePopover();
    if (name === 'history' && JSON.stringify(requestOf(filter, 0)) !== this.#loadedRequest) this.#view.use(this.#loadHistory(filter), filter);
    document.body.classList.toggle('on-detail', (name === 'inbox' || name === 'history') && route.id !== null);
    this.#view.route(route);
    this.#updateTitle();
  }

  #createView(name, filter) {
    const api = this.#api;
    this.#history = null;
    if (name === 'audit') return new AuditView({ api });
    if (name === 'keys') return new KeysView({ api });
    if (name === 'overview') return new OverviewView({ api });
    if (name === 'policy') return new PolicyView({ api, me: this.#me });
    if (name === 'rules') return new RulesView({ api, me: this.#me });
    if (name === 'webhooks') return new WebhooksView({ api, me: this.#me });
    if (name === 'plans') return new PlanView({ api, me: this.#me });
    if (name === 'bundles') return new BundleView({ api, me: this.#me, undos: this.#undos, decided: (change) => this.#inbox.apply(change, false) });
    if (name === 'sessions') return new SessionsView({ api });
    if (name === 'servers') return new ServersView({ api, me: this.#me });
    const common = { name, api, me: this.#me, triage: this.#triage, drafts: this.#drafts, undos: this.#undos, bundles: this.#bundles, filter };
    if (name === 'inbox') return new ChangesView({ ...common, title: t('shell.view.inbox'), collection: this.#inbox });
    return new ChangesView({ ...common, title: t('shell.view.history'), collection: this.#loadHistory(filter), onFilter: (chosen) => go(routeTo('history', null, chosen)) });
  }

  // Loads the history with the gateway applying the filter.
  #loadHistory(filter) {
    this.#loadedRequest = JSON.stringify(requestOf(filter, 0));
    const filterRequest = requestOf(filter, now());
    // Pending changes are in the inbox only.
    if (!filterRequest.states.length) filterRequest.states = HISTORY_STATES;
    this.#history = new Collection({ load: (page) => this.#api.changes({ ...page, ...filterRequest }), accepts: (c) => HISTORY_STATES.includes(c.state) && filterRows([c], filter, now()).length > 0 });
    this.#history.reload();
    return this.#history;
  }

  #applyUndo(answer) {
    this.#inbox.apply(answer.change, false);
    this.#history?.apply(answer.change, false);
    this.#view?.adopt?.(answer);
  }

  #handleEvent(event) {
    if (this.#ended) return;
    if (event.session) {
      this.#view?.sessionEvent?.(event);
      return;
    }
    if (/^webhook\./.test(event.type ?? '')) {
      this.#handleWebhookEvent(event);
      return;
    }
    if (/^rule\./.test(event.type ?? '')) {
      this.#view?.ruleEvent?.(event);
      return;
    }
    if (/^(provider|config)\./.test(event.type ?? '')) {
      if (event.type.startsWith('config.')) this.#reloadUser();
      this.#poll();
      this.#view?.serverEvent?.(event);
      return;
    }
    if (!event.change) return;
    this.#inbox.apply(event.change);
    this.#bundles.refresh();
    if (this.#history?.apply(event.change)) this.#recount();
    this.#view?.event(event);
    const name = eventName(event.type);
    this.#undos.dropIfModified(event.change);
    if (name === 'created') {
      announce(t('shell.newChange', { summary: event.change.summary }));
      if (isReviewerOf(event.change, this.#me) && !isBarredAsProposer(event.change, this.#me)) queueNotification(event.change, (id) => go(routeTo('inbox', id)));
    }
    if (['escalated', 'reminder'].includes(name) && isReviewerOf(event.change, this.#me) && !isBarredAsProposer(event.change, this.#me)) {
      announce(t('shell.undecided', { summary: event.change.summary }));
      queueNotification(event.change, (id) => go(routeTo('inbox', id)));
    }
    if (name === 'settled') removeNotice(`change:${event.change.id}`);
    if (name === 'outcome_unknown') notice(t('shell.outcomeUnknown', { summary: short(event.change.summary, 80) }), { key: `change:${event.change.id}`, tone: 'red', iconName: 'question', action: { label: t('common.open'), run: () => go(routeTo('inbox', event.change.id)) } });
    if (name === 'failed') notice(t('shell.failed', { summary: short(event.change.summary, 80) }), { key: `change:${event.change.id}`, tone: 'red', iconName: 'alert', action: { label: t('common.open'), run: () => go(routeTo('history', event.change.id)) } });
  }

  #handleWebhookEvent(event) {
    this.#view?.webhookEvent?.(event);
    const name = short(event.webhook ?? '', 60);
    const options = { key: `webhook:${event.webhook}`, action: { label: t('common.open'), run: () => go(routeTo('webhooks')) } };
    if (event.type === 'webhook.failing') notice(t('shell.webhookFailing', { name }), { ...options, tone: 'red', iconName: 'alert' });
    if (event.type === 'webhook.recovered') notice(t('shell.webhookRecovered', { name }), { ...options, tone: 'green', iconName: 'check' });
  }

  #recount() {
    this.#recountTimer ??= setTimeout(() => {
      this.#recountTimer = null;
      this.#history?.recount();
    }, 1000);
  }

  // A new configuration may change the user's groups. Views hold the same object, so it is updated in place.
  async #reloadUser() {
    try {
      Object.assign(this.#me, await this.#api.me());
    } catch {
      // The gateway checks permissions in any case.
    }
  }

  // Reads everything again after the feed has lost its position.
  #resync() {
    this.#inbox.reload();
    this.#bundles.refresh();
    this.#history?.reload();
    this.#view?.refresh();
    this.#poll();
  }

  // Reads what else waits for a reviewer: definitions of tools, and the configuration.
  async #poll() {
    this.#account.refresh();
    this.#reload.load(this.#abort.signal);
    try {
      const servers = await this.#api.servers(this.#abort.signal);
      this.#reviewCount = servers.reduce((sum, server) => sum + reviewCount(server), 0);
      const broken = servers.filter(isBroken).length;
      for (const alarm of this.#parts.nav.querySelectorAll('.alarm')) {
        alarm.hidden = broken === 0;
        fill(alarm, icon('alert'), h('span', { class: 'sr-only' }, ' ', t('shell.brokenServers', { count: broken })));
      }
    } catch {
      return; // The next poll tries again.
    }
    for (const badge of this.#parts.nav.querySelectorAll('[data-view=servers] .count, .more-views .count')) {
      badge.hidden = this.#reviewCount === 0;
      fill(badge, this.#reviewCount > 99 ? '99+' : count(this.#reviewCount), h('span', { class: 'sr-only' }, ' ', t('shell.toReview')));
    }
  }

  #showConnection(state, { status = null }) {
    const box = this.#parts.state;
    if (state === 'live') {
      clearTimeout(this.#bannerTimer);
      this.#bannerTimer = null;
      this.#paintConnection('live');
      this.#parts.banner.hidden = true;
      setReachable(true);
      if (!this.#isFirstConnection) this.#retryFailed();
      this.#isFirstConnection = false;
      return;
    }
    if (state === 'connecting' && box.dataset.state === 'waiting') return;
    if (box.dataset.state !== state || !box.firstChild) this.#paintConnection(state);
    if (state === 'waiting') {
      this.#refusedStatus = status;
      this.#bannerTimer ??= setTimeout(() => this.#showBanner(), BANNER_DELAY);
      if (!this.#parts.banner.hidden) this.#showBanner();
      if (this.#isFirstConnection && this.#inbox.status === 'idle') this.#inbox.reload();
    }
  }

  // The width of the longer text is reserved, so that the header stays as it is when the state changes.
  #paintConnection(state) {
    const texts = { live: t('shell.live'), waiting: t('shell.offline') };
    const longest = texts.live.length > texts.waiting.length ? texts.live : texts.waiting;
    this.#parts.state.dataset.state = state;
    fill(this.#parts.state, h('span', { class: 'pulse' }), h('span', { class: 'connection-text', data: { longest } }, texts[state] ?? h('span', { class: 'sr-only' }, t('shell.connecting'))));
  }

  // Reads again what could not be read while the gateway was away. The feed resumes, so it does not ask for that.
  #retryFailed() {
    for (const collection of [this.#inbox, this.#history]) if (collection?.status === 'failed') collection.reload();
    if (this.#parts.main.querySelector('.empty.error')) this.#view.refresh();
  }

  #showBanner() {
    if (this.#ended) return;
    const { banner } = this.#parts;
    banner.hidden = false;
    this.#checkReachability();
    // The banner is read aloud, so it is replaced only when its text changes.
    if (banner.dataset.refusal === String(this.#refusedStatus)) return;
    banner.dataset.refusal = String(this.#refusedStatus);
    const problem = this.#refusedStatus === null ? t('shell.unreachable') : t('shell.feedRefused', { status: String(this.#refusedStatus) });
    fill(banner, icon('unplugged'), h('span', null, h('strong', null, problem), ' ', t('shell.outOfDate')),
      h('button', { type: 'button', onclick: () => this.#feed.retry() }, t('shell.tryNow')));
  }

  // The feed alone may be interrupted, so another request tells whether decisions can be sent.
  async #checkReachability() {
    let isAnswered = true;
    try {
      await this.#api.me();
    } catch (error) {
      isAnswered = error.status < 500;
    }
    if (!this.#ended && !this.#parts.banner.hidden) setReachable(isAnswered);
  }

  #handleRefusal(response) {
    if (response.status === 401) return this.#signedOut(t('shell.signInEnded'));
    return this.#signedOut(t('shell.cannotSeeChanges'));
  }

  #updateCount() {
    const n = this.#inbox.size(INBOX_STATES);
    if (n === this.#shownCount) return;
    this.#shownCount = n;
    const badge = this.#parts.nav.querySelector('[data-view=inbox] .count');
    badge.hidden = n === 0;
    const text = n > 999 ? '999+' : count(n);
    if (badge.dataset.n !== text) fill(badge, text, h('span', { class: 'sr-only' }, ' ', t('shell.waiting')));
    badge.dataset.n = text;
    const mark = n > 0 ? '/assets/icon-waiting.svg' : '/assets/icon.svg';
    const favicon = document.getElementById('favicon');
    if (favicon.getAttribute('href') !== mark) favicon.href = mark;
    this.#updateTitle();
  }

  #updateTitle() {
    const n = this.#inbox.size(INBOX_STATES);
    const view = t(`shell.view.${this.#viewName ?? 'inbox'}`);
    document.title = n > 0 ? t('shell.titleWaiting', { waiting: n, view }) : t('shell.title', { view });
  }

  // On a small screen an open change hides the list with its heading.
  #focusTitle() {
    [...this.#view?.element.querySelectorAll('h1') ?? []].find((title) => title.checkVisibility())?.focus({ preventScroll: true });
  }

  #switchTheme() {
    nextTheme();
    this.#paintThemeButton();
    announce(t(`shell.theme.${theme()}`));
  }

  #paintThemeButton() {
    const label = t(`shell.theme.${theme()}`);
    this.#parts.theme.setAttribute('aria-label', label);
    this.#parts.theme.title = label;
    fill(this.#parts.theme, icon(theme()));
  }
}
