// The page that explains what connecting a server means, and leads to the server's own sign-in page. Agents hand out its link.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
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
    return [h('h1', { class: 'sr-only', tabindex: '-1' }, 'Connect a server'), server
      ? emptyState('check', 'Nothing to connect', h('p', null, quote(this.#name, 80), ' needs no account.'), back('All servers'))
      : emptyState('question', 'No such server', h('p', null, 'This gateway has no server ', quote(this.#name, 80), '.'), back('All servers'))];
  }

  #page({ target, account }) {
    const isShared = account.as === 'gateway';
    const owner = isShared ? 'the gateway’s, for everybody who uses it' : ['yours, ', h('strong', null, quote(personName(this.#me), 60))];
    const button = h('button', { type: 'button', class: account.connected ? '' : 'primary', onclick: () => this.#leave(button) }, account.connected ? 'Connect again' : 'Connect');
    return h('article', { class: 'card connect-card' },
      h('span', { class: 'connect-icon' }, icon('servers')),
      h('h1', { tabindex: '-1' }, 'Connect ', quote(this.#name, 80)),
      account.connected && accountSection({ server: this.#name, account: { ...account, mayConnect: false }, me: this.#me }),
      h('p', null, 'The server’s own page will ask you to sign in there and to agree, and then leads you back here. ',
        `Countersign keeps the access encrypted and uses it only for this server, when agents ${isShared ? 'of this gateway' : 'that act for you'} call it.`),
      h('dl', { class: 'connect-facts' },
        h('div', null, h('dt', null, 'Server'), h('dd', null, h('code', null, quote(target ?? '', 200)))),
        h('div', null, h('dt', null, 'Account'), h('dd', null, owner))),
      this.#error,
      h('div', { class: 'connect-foot' }, account.mayConnect ? button : h('p', { class: 'quiet' }, isShared ? 'An admin has to connect it.' : 'The gateway connects it by itself.'), back(account.connected ? 'Back' : 'Not now')),
      account.mayConnect && h('p', { class: 'quiet connect-note' }, 'Only go on if you, or an agent of yours, wanted to use this server. You can disconnect it at any time.'));
  }

  #showProblem(text) {
    fill(this.#error, problemBanner(text));
  }

  async #leave(button) {
    button.disabled = true;
    fill(this.#error);
    try {
      const { url } = await this.#api.connectServer(this.#name);
      if (!/^https?:$/.test(new URL(url).protocol)) throw new Error('The address of the server’s sign-in page cannot be opened.');
      sessionStorage.setItem(SERVER_KEY, this.#name);
      location.assign(url);
    } catch (error) {
      this.#showProblem(explain(error));
      button.disabled = false;
    }
  }
}

const back = (text) => h('button', { type: 'button', onclick: () => go(routeTo('servers')) }, text);
