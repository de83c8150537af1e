// The first steps of a new gateway, in place of an empty inbox. Each is ticked as soon as it is done.

import { announce, notice } from '../core/announce.js';
import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { Poller } from '../core/poller.js';
import { preference, setPreference } from '../core/prefs.js';
import { go, routeTo } from '../core/router.js';
import { agentSetup } from './agentsetup.js';

const POLL_INTERVAL = 5000;
// Joins the events of one action into one read.
const BURST = 200;
const SHOWN = 'first-steps';
// The session of an agent may be over when the page is loaded again.
const AGENT_SEEN = 'agent-seen';

const TITLES = { agent: 'Connect an agent', server: 'Add a server', change: 'Decide on a test change' };

export class FirstSteps {
  element = h('section', { class: 'page first-steps', 'aria-label': 'First steps' });
  #api;
  #changed;
  #poller;
  #items = null;
  #progress = h('p', { class: 'quiet', role: 'status' });
  #isActive = null;

  /** Returns the steps, or null if this browser has hidden or finished them. `changed()` is called when `isActive` changes. */
  static create({ api, changed }) {
    return preference(SHOWN, ['shown', 'hidden']) === 'shown' ? new FirstSteps({ api, changed }) : null;
  }

  constructor({ api, changed }) {
    this.#api = api;
    this.#changed = changed;
    this.#poller = new Poller({
      read: (signal) => api.firstSteps(signal),
      show: (steps) => this.#show(steps),
      failed: () => this.#setActive(false),
      every: POLL_INTERVAL,
      burst: BURST,
    });
  }

  /** True while steps remain, and null until that is known. */
  get isActive() {
    return this.#isActive;
  }

  /** Reads the steps again after an event. */
  refresh() {
    if (this.#isActive) this.#poller.pollSoon();
  }

  /** Ticks the first step even if the session is over at once. */
  sawAgent() {
    setPreference(AGENT_SEEN, 'yes');
    this.refresh();
  }

  dispose() {
    this.#poller.stop();
  }

  #setActive(isActive) {
    if (this.#isActive === isActive) return;
    this.#isActive = isActive;
    this.#changed();
  }

  #finish() {
    setPreference(SHOWN, 'hidden');
    this.#poller.stop();
    this.#setActive(false);
  }

  #show(steps) {
    if (steps.agentSeen) setPreference(AGENT_SEEN, 'yes');
    const done = { agent: preference(AGENT_SEEN, ['no', 'yes']) === 'yes', server: steps.serverAdded, change: steps.changeDecided };
    const remaining = Object.keys(done).filter((name) => !done[name]);
    if (!remaining.length) {
      if (this.#isActive) notice('All first steps are done.', { tone: 'green', iconName: 'check' });
      return this.#finish();
    }
    this.#items ??= this.#build(steps);
    const isFirst = this.#isActive === null;
    for (const [name, item] of Object.entries(this.#items)) this.#tick(name, item, done[name], isFirst);
    const next = this.#items[remaining[0]].element;
    // Only a tick opens the next step, so that a step that the user has closed stays closed.
    if (next.dataset.next !== 'yes') {
      next.open = true;
      next.dataset.next = 'yes';
    }
    const text = `${Object.keys(done).length - remaining.length} of ${Object.keys(done).length} done`;
    if (this.#progress.textContent !== text) this.#progress.textContent = text;
    return this.#setActive(true);
  }

  #tick(name, { element, mark, state, number }, isDone, isFirst) {
    if (element.dataset.done !== String(isDone)) {
      element.dataset.done = String(isDone);
      fill(mark, isDone ? icon('check') : String(number));
      state.textContent = isDone ? ', done' : '';
      if (isDone && !isFirst) announce(`Done: ${TITLES[name]}`);
    }
    // A step closes once it is done, but not while it has the focus.
    if (!isDone || element.dataset.closed === 'yes' || element.contains(document.activeElement)) return;
    element.dataset.closed = 'yes';
    element.open = false;
  }

  #build(steps) {
    const contents = {
      agent: [h('p', null, 'Choose your client. This step is ticked when its agent connects.'), agentSetup({ api: this.#api, steps })],
      server: [h('p', null, 'Put an MCP server behind the gateway, so that its writes wait for you. An admin, or whoever signed in at this machine, adds it.'), h('p', null, h('a', { class: 'button', href: routeTo('servers') }, 'Add a server'))],
      change: this.#changeStep(steps),
    };
    const items = Object.fromEntries(Object.entries(contents).map(([name, content], n) => {
      const mark = h('span', { class: 'step-mark', 'aria-hidden': 'true' });
      const state = h('span', { class: 'sr-only' });
      const element = h('details', { class: 'step card', data: { step: name } }, h('summary', null, mark, h('h2', null, TITLES[name], state)), h('div', { class: 'step-body' }, content));
      return [name, { element, mark, state, number: n + 1 }];
    }));
    fill(this.element,
      h('div', { class: 'page-head' },
        h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, 'First steps'),
          h('span', { class: 'pane-tools' }, h('button', { type: 'button', class: 'ghost', onclick: () => this.#finish() }, 'Hide'))),
        this.#progress),
      h('div', { class: 'steps' }, Object.values(items).map(({ element }) => element)));
    return items;
  }

  #changeStep({ canProposeTestChange }) {
    if (!canProposeTestChange) return [h('p', null, 'The built-in tracker is off, so ask your agent to change something. The change waits here for you.')];
    const button = h('button', { type: 'button', class: 'primary', onclick: async () => {
      button.disabled = true;
      try {
        const { id } = await this.#api.proposeTestChange();
        go(routeTo('inbox', id));
      } catch (error) {
        notice(explain(error), { tone: 'red', iconName: 'alert' });
      }
      button.disabled = false;
    } }, 'Propose a test change');
    return [h('p', null, 'A built-in agent proposes an issue in the tracker. Approve it to see it run, or reject it.'), h('p', null, button)];
  }
}
