// The page that explains what connecting a server means, and leads to the server's own sign-in page. Agents hand out its link.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { go, routeTo } from '../core/router.js';
import { quote } from '../core/text.js';
import { accountSection, connectProblem, personName } from '../ui/account.js';
import { emptyState, problemBanner } from '../ui/states.js';

const SERVER_KEY = 'countersign.connecting';

/** Returns the server that this tab left to connect, once. */
export function takeConnecting() {
  const name = sessionStorage.getItem(SERVER_KEY);
  sessionStorage.removeItem(SERVER_KEY);
  return name;
}

export class ConnectPage {
  element = h('div', { class: 'connect' });
  #name;
  #api;
  #me;
  #text = '';
  #error = h('div', { class: 'connect-error', role: 'alert' });

  /** `problem` is the name of the problem with which the last attempt ended, or null. */
  constructor({ name, api, me, problem }) {
    this.#name = name;
    this.#api = api;
    this.#me = me;
    if (problem) this.#showProblem(connectProblem(problem));
  }

  /** Shows the server, which is undefined if there is none of this name. */
  show(server) {
    const text = JSON.stringify([server?.target, server?.account]);
    if (text === this.#text) return;
    const isFirst = this.#text === '';
    this.#text = text;
    fill(this.element, server?.account ? this.#page(server) : this.#nothing(server));
    if (isFirst) this.element.querySelector('h1')?.focus({ preventScroll: true });
  }

  #nothing(server) {
    return [h('h1', { class: 'sr-only', tabindex: '-1' }, t('connect.heading')), server
      ? emptyState('check', t('connect.nothing'), h('p', null, parts('connect.needsNone', { server: quote(this.#name, 80) })), back(t('connect.allServers')))
      : emptyState('question', t('connect.noServer'), h('p', null, parts('connect.noServerNamed', { server: quote(this.#name, 80) })), back(t('connect.allServers')))];
  }

  #page({ target, account }) {
    const isShared = account.as === 'gateway';
    const owner = isShared ? t('connect.sharedAccount') : parts('connect.ownAccount', { name: h('strong', null, quote(personName(this.#me), 60)) });
    const button = h('button', { type: 'button', class: account.connected ? '' : 'primary', onclick: () => this.#leave(button) }, t(account.connected ? 'connect.again' : 'connect.connect'));
    return h('article', { class: 'card connect-card' },
      h('span', { class: 'connect-icon' }, icon('servers')),
      h('h1', { tabindex: '-1' }, parts('connect.title', { server: quote(this.#name, 80) })),
      account.connected && accountSection({ server: this.#name, account: { ...account, mayConnect: false }, me: this.#me }),
      h('p', null, t(isShared ? 'connect.aboutShared' : 'connect.aboutOwn')),
      h('dl', { class: 'connect-facts' },
        h('div', null, h('dt', null, t('connect.server')), h('dd', null, h('code', null, quote(target ?? '', 200)))),
        h('div', null, h('dt', null, t('connect.account')), h('dd', null, owner))),
      this.#error,
      h('div', { class: 'connect-foot' }, account.mayConnect ? button : h('p', { class: 'quiet' }, t(isShared ? 'account.adminConnects' : 'connect.byItself')), back(t(account.connected ? 'common.back' : 'connect.notNow'))),
      account.mayConnect && h('p', { class: 'quiet connect-note' }, t('connect.note')));
  }

  #showProblem(text) {
    fill(this.#error, problemBanner(text));
  }

  async #leave(button) {
    button.disabled = true;
    fill(this.#error);
    try {
      const { url } = await this.#api.connectServer(this.#name);
      if (!/^https?:$/.test(new URL(url).protocol)) throw new Error(t('connect.badAddress'));
      sessionStorage.setItem(SERVER_KEY, this.#name);
      location.assign(url);
    } catch (error) {
      this.#showProblem(explain(error));
      button.disabled = false;
    }
  }
}

const back = (text) => h('button', { type: 'button', onclick: () => go(routeTo('servers')) }, text);
