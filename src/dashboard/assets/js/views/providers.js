// What calls can be routed to, and whether it is up.

import { h, fill } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { count, said, visible, visibleString } from '../core/text.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';

const LOOK = 15_000;
const KINDS = { module: 'Built-in module', upstream: 'Upstream MCP server' };

export class ProvidersView {
  element;
  #api;
  #abort = new AbortController();
  #timer;
  #body = h('div', { class: 'page-body' }, skeleton(4));
  #shown = false;

  constructor({ api }) {
    this.#api = api;
    this.element = h('div', { class: 'page' },
      h('div', { class: 'page-head' }, h('h1', { tabindex: '-1' }, 'Providers'), h('p', { class: 'quiet' }, 'Where this gateway routes calls to.')), this.#body);
    this.#load();
    this.#timer = setInterval(() => !document.hidden && this.#load(), LOOK);
  }

  dispose() {
    this.#abort.abort();
    clearInterval(this.#timer);
  }

  route() {}

  event() {}

  refresh() {
    this.#load();
  }

  async #load() {
    try {
      const providers = await this.#api.providers(this.#abort.signal);
      this.#shown = true;
      this.#paint(providers);
    } catch (error) {
      if (!this.#abort.signal.aborted && error.status !== 401 && !this.#shown) fill(this.#body, errorState(error, () => this.#load()));
    }
  }

  #paint(providers) {
    if (!providers.length) {
      fill(this.#body, emptyState('providers', 'No providers', 'Enable a module in the configuration, then start the gateway again.'));
      return;
    }
    fill(this.#body, h('ul', { class: 'cards' }, providers.map((p) => {
      const up = p.status === 'up';
      return h('li', { class: 'card' },
        h('div', { class: 'card-head' }, h('h2', null, said(p.name, 60)),
          h('span', { class: `badge state tone-${up ? 'green' : 'red'}` }, icon(up ? 'check' : 'alert'), up ? 'Up' : visible(String(p.status)))),
        h('p', { class: 'quiet' }, KINDS[p.kind] ?? visibleString(String(p.kind))),
        h('dl', { class: 'figures' }, [['Tools', p.tools], ['Resources', p.resources], ['Prompts', p.prompts]].map(([name, n]) => h('div', null, h('dt', null, name), h('dd', null, typeof n === 'number' ? count(n) : '—')))));
    })));
  }
}
