// Shows the rules of the policy in force, in order, with what each decided, and the standing rules beside them.

import { fill, h, refill } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { Poller } from '../core/poller.js';
import { routeTo } from '../core/router.js';
import { quote } from '../core/text.js';
import { now } from '../core/time.js';
import { notice } from '../core/announce.js';
import { openPolicyForm } from '../ui/policyform.js';
import { emptyState, errorState, problemNotice, skeleton } from '../ui/states.js';
import { verdictBadge } from '../ui/verdict.js';
import { ruleSentence, stateOfRule } from './rules.js';

const POLL_INTERVAL = 30_000;
const BURST = 500;
// Only the newest standing rules are shown; the others are on their own page.
const MAX_STANDING = 20;
const MAX_TOOLS = 8;
// The overview lists no more tools, so with that many it may lack one that has changes.
const MAX_ACTIVE_TOOLS = 20;

const QUOTED = /"(?:[^"\\]|\\.)*"/g;
const LIST_ITEM = /"(?:[^"\\]|\\.)*"|[^",\s][^",]*/g;

export class PolicyView {
  element;
  #api;
  #poller;
  #painted = '';
  #parts;

  constructor({ api, me }) {
    this.#api = api;
    this.#parts = {
      tools: h('span', { class: 'pane-tools' }, me.mayDecide && h('button', { type: 'button', class: 'primary', onclick: () => this.#edit() }, icon('pencil'), t('policy.editRules'))),
      body: h('div', { class: 'page-body policy' }, skeleton(6)),
    };
    this.element = h('div', { class: 'page' },
      h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, t('shell.view.policy')), this.#parts.tools),
        h('p', { class: 'quiet' }, t('policy.intro'))),
      this.#parts.body);
    this.#poller = new Poller({
      read: async (signal) => {
        const [policy, rules, { complete, tools }] = await Promise.all([this.#api.policy(signal), this.#api.rules(signal), this.#api.overview('30d', signal)]);
        const activeTools = complete && tools.length < MAX_ACTIVE_TOOLS ? tools.map(({ name }) => name) : null;
        return { policy, rules: rules.map(({ rule }) => rule), activeTools };
      },
      show: (found) => this.#paint(found),
      failed: (error) => fill(this.#parts.body, errorState(error, () => this.#poller.poll())),
      every: POLL_INTERVAL,
      burst: BURST,
    });
  }

  route() {}

  dispose() {
    this.#poller.stop();
  }

  refresh() {
    this.#poller.poll();
  }

  event() {
    this.#poller.pollSoon();
  }

  ruleEvent() {
    this.#poller.pollSoon();
  }

  async #edit() {
    try {
      openPolicyForm({
        api: this.#api, file: await this.#api.policyFile(),
        saved: () => {
          notice(t('policy.saved'), { tone: 'green', iconName: 'check' });
          this.#poller.poll();
        },
      });
    } catch (error) {
      problemNotice(error);
    }
  }

  // `activeTools` has the names of the tools that have changes, or is null if they are not known.
  #paint({ policy, rules, activeTools }) {
    const text = JSON.stringify([policy, rules, activeTools]);
    if (text === this.#painted) return;
    this.#painted = text;
    const active = rules.filter((rule) => stateOfRule(rule, now()) === 'active');
    refill(this.#parts.body,
      policy.mode === 'simulate' && h('p', { class: 'banner tone-amber' }, icon('alert'), h('span', null, t('policy.simulates'))),
      h('section', { class: 'policy-rules' }, h('h2', null, t('policy.rules')),
        policy.rules.length === 0 && h('p', { class: 'quiet' }, t('policy.noRules')),
        h('ol', null, policy.rules.map((rule, n) => ruleItem(rule, n + 1, activeTools)), defaultItem(policy, activeTools))),
      h('section', { class: 'policy-standing' }, h('h2', null, t('policy.standing')),
        active.length === 0 ? emptyState('rule', t('policy.noStanding'), t('policy.howStanding'))
          : h('ul', null, active.slice(0, MAX_STANDING).map((rule) => h('li', { class: 'card' }, h('p', null, h('code', null, quote(rule.tool, 120))), h('p', { class: 'rule-words' }, ...ruleSentence(rule)),
            h('p', { class: 'quiet' }, h('a', { href: routeTo('rules', rule.id) }, t('common.open'), h('span', { class: 'sr-only' }, ' ', quote(rule.tool, 60))), ` · ${t('policy.used', { count: rule.uses })}`)))),
        h('p', null, h('a', { href: routeTo('rules') }, t('policy.allStanding', { count: rules.length })))));
  }
}

function ruleItem(rule, number, activeTools) {
  // The label that the gateway gives to a rule without a name.
  const isUnnamed = rule.label === `rule ${number}`;
  return h('li', { class: 'card policy-rule', data: { rule: rule.label } },
    h('div', { class: 'card-head' }, h('h3', null, verdictBadge(rule.then), ' ', isUnnamed ? h('span', { class: 'quiet' }, t('policy.unnamed')) : quote(rule.label, 80))),
    rule.settings.length > 0 && h('dl', { class: 'policy-settings' }, rule.settings.map(({ key, value }) => h('div', null, h('dt', null, key), h('dd', null, settingValue(key, value))))),
    decisionCounts(rule.decided), coveredTools(rule.tools, activeTools));
}

// Shows a value that the gateway writes as YAML: a list as its items, a text without quotes and escapes, and others as they are.
function settingValue(key, value) {
  const read = (text) => (text.startsWith('"') ? JSON.parse(text) : text);
  const code = (text) => h('code', null, quote(text, 400));
  const isNested = /[{[]/.test(value.replace(QUOTED, '').slice(1));
  if (isNested) return code(value);
  if (value.startsWith('[')) return h('ul', { class: 'policy-values' }, (value.slice(1, -1).match(LIST_ITEM) ?? []).map((item) => h('li', null, code(read(item)))));
  return key === 'reason' ? quote(read(value), 400) : code(read(value));
}

function defaultItem({ default: name, decided: counts, tools: covered }, activeTools) {
  return h('li', { class: 'card policy-rule policy-default' },
    h('div', { class: 'card-head' }, h('h3', null, h('code', null, t('policy.default')), ' ', h('code', null, quote(name, 40)))),
    h('p', { class: 'quiet' }, t(`policy.default.${name}`)), decisionCounts(counts), coveredTools(covered, activeTools));
}

// Shows the numbers of calls by verdict.
function decisionCounts({ allowed, reviewed, denied }) {
  if (allowed + reviewed + denied === 0) return h('p', { class: 'policy-counts quiet' }, t('policy.matchedNothing'));
  const number = (n, key, tone) => n > 0 && h('li', { class: `tone-${tone}` }, t(key, { count: n }));
  return h('ul', { class: 'policy-counts' }, number(allowed, 'policy.allowed', 'green'), number(reviewed, 'policy.reviewed', 'amber'), number(denied, 'policy.denied', 'red'));
}

// The changes behind a rule are found by its tools, because a change stores only the name that its rule had.
function coveredTools({ count: all, names: covered }, activeTools) {
  if (all === 0) return h('p', { class: 'quiet' }, t('policy.noTools'));
  const unlisted = all - covered.length;
  // Tools without changes are left out only if all tools of the rule are known.
  const names = activeTools && unlisted === 0 ? covered.filter((name) => activeTools.includes(name)) : covered;
  if (names.length === 0) return null;
  const link = (name) => h('li', null, h('a', { href: routeTo('history', null, { tool: name, age: '30d' }) }, quote(name, 80)));
  const list = (some) => h('ul', { class: 'policy-tools' }, some.map(link));
  const rest = names.slice(MAX_TOOLS);
  return h('div', null, h('p', { class: 'quiet' }, t('policy.changesOf')), list(names.slice(0, MAX_TOOLS)),
    rest.length > 0 && h('details', { class: 'fold-section' }, h('summary', null, t('policy.moreTools', { count: rest.length + unlisted })), list(rest),
      unlisted > 0 && h('p', { class: 'quiet' }, ...parts('policy.unlisted', { count: unlisted }))));
}
