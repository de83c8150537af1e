// The first steps of a new gateway, in place of an empty inbox. Each is ticked as soon as it is done.

import { announce, notice } from '../core/announce.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { Poller } from '../core/poller.js';
import { preference, setPreference } from '../core/prefs.js';
import { go, routeTo } from '../core/router.js';
import { agentSetup } from './agentsetup.js';
import { problemNotice } from './states.js';

const POLL_INTERVAL = 5000;
// Joins the events of one action into one read.
const BURST = 200;
const SHOWN = 'first-steps';
// The session of an agent may be over when the page is loaded again.
const AGENT_SEEN = 'agent-seen';

/** Returns true until this browser has hidden or finished the steps. */
export const areFirstStepsShown = () => preference(SHOWN, ['shown', 'hidden']) === 'shown';

const TITLES = { agent: 'firststeps.agent', server: 'firststeps.server', change: 'firststeps.change' };

export class FirstSteps {
  element = h('section', { class: 'page first-steps', 'aria-label': t('firststeps.title') });
  #api;
  #changed;
  #poller;
  #items = null;
  #progress = h('p', { class: 'quiet', role: 'status' });
  #isActive = null;

  /** Returns the steps, or null if this browser has hidden or finished them. `changed()` is called when `isActive` changes. */
  static create({ api, changed }) {
    return areFirstStepsShown() ? new FirstSteps({ api, changed }) : null;
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
      if (this.#isActive) notice(t('firststeps.allDone'), { tone: 'green', iconName: 'check' });
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
    const text = t('firststeps.progress', { done: Object.keys(done).length - remaining.length, count: Object.keys(done).length });
    if (this.#progress.textContent !== text) this.#progress.textContent = text;
    return this.#setActive(true);
  }

  #tick(name, { element, mark, state, number }, isDone, isFirst) {
    if (element.dataset.done !== String(isDone)) {
      element.dataset.done = String(isDone);
      fill(mark, isDone ? icon('check') : String(number));
      state.textContent = isDone ? t('firststeps.doneMark') : '';
      if (isDone && !isFirst) announce(t('firststeps.done', { step: t(TITLES[name]) }));
    }
    // A step closes once it is done, but not while it has the focus.
    if (!isDone || element.dataset.closed === 'yes' || element.contains(document.activeElement)) return;
    element.dataset.closed = 'yes';
    element.open = false;
  }

  #build(steps) {
    const contents = {
      agent: [h('p', null, t('firststeps.agentHelp')), agentSetup({ api: this.#api, steps })],
      server: [h('p', null, t('firststeps.serverHelp'), !steps.mayCreateAgentKeys && [' ', t('firststeps.serverAdmin')]), h('p', null, h('a', { class: 'button primary', href: routeTo('servers', null, { add: 'yes' }) }, t('firststeps.server')))],
      change: this.#changeStep(steps),
    };
    const items = Object.fromEntries(Object.entries(contents).map(([name, content], n) => {
      const mark = h('span', { class: 'step-mark', 'aria-hidden': 'true' });
      const state = h('span', { class: 'sr-only' });
      const element = h('details', { class: 'step card', data: { step: name } }, h('summary', null, mark, h('h2', null, t(TITLES[name]), state), icon('chevron')), h('div', { class: 'step-body' }, content));
      return [name, { element, mark, state, number: n + 1 }];
    }));
    fill(this.element,
      h('div', { class: 'page-head' },
        h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, t('firststeps.title')),
          h('span', { class: 'pane-tools' }, h('button', { type: 'button', class: 'ghost', onclick: () => this.#finish() }, t('firststeps.hide')))),
        h('p', null, t('firststeps.about')),
        this.#progress),
      h('div', { class: 'steps' }, Object.values(items).map(({ element }) => element)));
    return items;
  }

  #changeStep({ canProposeTestChange }) {
    if (!canProposeTestChange) return [h('p', null, t('firststeps.noTracker'))];
    const button = h('button', { type: 'button', class: 'primary', onclick: async () => {
      button.disabled = true;
      try {
        const { id } = await this.#api.proposeTestChange();
        go(routeTo('inbox', id));
      } catch (error) {
        problemNotice(error);
      }
      button.disabled = false;
    } }, t('firststeps.propose'));
    return [h('p', null, t('firststeps.changeHelp')), h('p', null, button)];
  }
}
