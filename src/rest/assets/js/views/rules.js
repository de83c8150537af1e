// Shows standing rules, which decide future calls. Everybody sees them, and a reviewer can revoke them.

import { explain } from '../core/api.js';
import { notice } from '../core/announce.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { Poller } from '../core/poller.js';
import { go, routeTo } from '../core/router.js';
import { count, plural, quote, short, visible, visibleString } from '../core/text.js';
import { now, time } from '../core/time.js';
import { openDialog } from '../ui/dialog.js';
import { jsonBlock } from '../ui/json.js';
import { longText } from '../ui/longtext.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';
import { actor } from '../ui/timeline.js';

// Events add and end rules; the number of uses is polled.
const POLL_INTERVAL = 10_000;
// Only the newest rules are shown.
const MAX_SHOWN = 300;
const MAX_COMMENT = 2000;

/** Returns the state of a rule: `active`, `revoked` or `expired`. Pure. */
export function stateOfRule(rule, at) {
  if (rule.revokedAt) return 'revoked';
  if (rule.expiredAt || (rule.expiresAt && Date.parse(rule.expiresAt) <= at)) return 'expired';
  return 'active';
}

export class RulesView {
  element;
  #api;
  #canDecide;
  #rules = null;
  #showsEnded = false;
  #chosen = null;
  #open = new Set();
  #painted = '';
  #poller;
  #parts;

  constructor({ api, me }) {
    this.#api = api;
    this.#canDecide = Boolean(me.mayDecide);
    this.#parts = { count: h('span', { class: 'quiet' }), chips: h('div', { class: 'chips page-chips' }), body: h('div', { class: 'page-body' }, skeleton(5)) };
    this.element = h('div', { class: 'page rules-page' },
      h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, 'Standing rules'), this.#parts.count),
        h('p', { class: 'quiet' }, 'Decisions that reviewers made in advance for future calls. To make one, open a change and choose “Create standing rule…”.')),
      this.#parts.chips, this.#parts.body);
    this.#poller = new Poller({
      read: (signal) => this.#api.rules(signal),
      show: (rules) => {
        const isFirst = this.#rules === null;
        this.#rules = rules;
        if (isFirst) this.#showChosen();
        else this.#paint();
      },
      failed: (error) => fill(this.#parts.body, error.status === 404 ? emptyState('rule', 'No standing rules here', 'This gateway does not support standing rules.') : errorState(error, () => this.#poller.poll())),
      every: POLL_INTERVAL,
      burst: 200,
    });
  }

  dispose() {
    this.#poller.stop();
  }

  route({ id }) {
    this.#chosen = id;
    if (this.#rules) this.#showChosen();
  }

  event() {}

  refresh() {
    this.#poller.poll();
  }

  // The list is read again, so that arguments are shown exactly as sent. A burst leads to one read.
  ruleEvent() {
    this.#poller.pollSoon();
  }

  // Shows the rule that a link names, in force or ended.
  #showChosen() {
    const found = this.#rules.find(({ rule }) => rule.id === this.#chosen);
    if (found) this.#showsEnded = stateOfRule(found.rule, now()) !== 'active';
    this.#painted = '';
    this.#paint();
    this.element.querySelector('.rule.chosen')?.scrollIntoView({ block: 'center' });
  }

  #paint() {
    const at = now();
    const hasEnded = (entry) => stateOfRule(entry.rule, at) !== 'active';
    const endedCount = this.#rules.filter(hasEnded).length;
    const text = JSON.stringify([this.#rules, endedCount, this.#showsEnded]);
    if (text === this.#painted) return;
    this.#painted = text;
    const activeCount = this.#rules.length - endedCount;
    this.#parts.count.textContent = count(activeCount);
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    fill(this.#parts.chips, endedCount > 0 && [['In force', false, activeCount], ['Ended', true, endedCount]].map(([label, which, n]) => h('button', {
      type: 'button', class: 'chip', 'aria-pressed': String(this.#showsEnded === which), data: { key: `chip ${label}` },
      onclick: () => {
        this.#showsEnded = which;
        this.#paint();
      },
    }, label, h('span', { class: 'quiet' }, count(n)))));
    if (endedCount === 0) this.#showsEnded = false;
    const all = this.#rules.filter((entry) => hasEnded(entry) === this.#showsEnded);
    if (all.length === 0) {
      fill(this.#parts.body, emptyState('rule', endedCount > 0 ? 'No rule is in force' : 'No standing rules',
        'The policy and reviewers decide every call. To decide future calls in advance, open a change and choose “Create standing rule…”, or choose “Let this tool run without review…” on the Servers page.'));
    } else {
      fill(this.#parts.body, h('ul', { class: 'rules' }, all.slice(0, MAX_SHOWN).map((entry) => this.#item(entry, at))),
        all.length > MAX_SHOWN && h('p', { class: 'quiet pad' }, `and ${plural(all.length - MAX_SHOWN, 'older rule')}.`));
    }
    if (focused) this.element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  #item({ rule, source }, at) {
    const state = stateOfRule(rule, at);
    const allow = rule.verdict === 'allow';
    const fact = (label, ...content) => h('div', null, h('dt', null, label), h('dd', null, content));
    return h('li', { class: `card rule${state === 'active' ? '' : ' over'}${rule.id === this.#chosen ? ' chosen' : ''}` },
      h('div', { class: 'card-head' },
        h('h2', null, h('span', { class: `badge state tone-${allow ? 'green' : 'red'}` }, icon(allow ? 'check' : 'cross'), allow ? 'Allows' : 'Denies'), ' ', h('code', null, quote(rule.tool, 200))),
        state !== 'active' && h('span', { class: 'badge state tone-grey' }, icon(state === 'revoked' ? 'undo' : 'clock'), state === 'revoked' ? 'Revoked' : 'Expired'),
        state === 'active' && this.#canDecide && h('button', { type: 'button', class: 'small revoke', data: { key: `revoke ${rule.id}` }, onclick: () => this.#askToRevoke(rule) }, icon('undo'), 'Revoke',
          h('span', { class: 'sr-only' }, ` the rule for ${visibleString(short(rule.tool, 60))}`))),
      h('p', { class: 'rule-words' }, ...sentence(rule)),
      rule.orphanedAt && h('p', { class: 'banner tone-amber rule-orphan' }, icon('alert'), h('span', null, 'The key of ', h('strong', null, quote(rule.createdBy, 60)), ', who created this rule, was revoked or may no longer decide. ',
        allow ? 'The rule has not allowed any calls since ' : 'The rule still denies calls until a reviewer revokes it. Noticed ', time(rule.orphanedAt), '.')),
      rule.comment && h('blockquote', null, longText(String(rule.comment), { chars: 400, lines: 4 })),
      h('dl', { class: 'rule-facts' },
        state === 'revoked' ? fact('Revoked', time(rule.revokedAt), ' by ', actor(rule.revokedBy))
          : state === 'expired' ? fact('Expired', time(rule.expiresAt ?? rule.expiredAt)) : fact('Until', rule.expiresAt ? time(rule.expiresAt) : 'revoked'),
        fact('Used', rule.uses === 0 ? 'never' : plural(rule.uses, 'time')),
        fact('Created by', quote(rule.createdBy, 60), ' ', h('span', { class: 'quiet' }, time(rule.createdAt))),
        fact('Server', quote(rule.provider, 80)),
        rule.fromChange && fact('From', h('a', { href: routeTo('history', rule.fromChange) }, h('code', { class: 'id brief' }, visible(rule.fromChange)), h('span', { class: 'sr-only' }, ', the change')))),
      rule.argumentsHash && this.#arguments(rule, source));
  }

  #arguments(rule, source) {
    // Arguments that were too large to store are known by their hash only.
    if (source === null) return h('p', { class: 'quiet rule-hash' }, 'These arguments were too large to store; the rule recognises them by their hash ', h('code', { class: 'breakable' }, visibleString(rule.argumentsHash)), '.');
    const body = h('div', { class: 'fold-body' });
    const fold = h('details', { class: 'fold-section', open: this.#open.has(rule.id) }, h('summary', { data: { key: `args ${rule.id}` } }, 'Arguments'), body);
    const show = () => !body.hasChildNodes() && body.append(jsonBlock(source, 'Arguments of the rule'));
    if (fold.open) show();
    fold.addEventListener('toggle', () => {
      if (fold.open) this.#open.add(rule.id);
      else this.#open.delete(rule.id);
      if (fold.open) show();
    });
    return fold;
  }

  #askToRevoke(rule) {
    const error = h('p', { class: 'edit-errors', role: 'alert' });
    const comment = h('textarea', { id: 'revoke-comment', rows: '1', maxlength: String(MAX_COMMENT), placeholder: 'Why? (optional, recorded in the audit trail)' });
    const save = h('button', { type: 'submit', class: 'primary' }, icon('undo'), 'Revoke the rule');
    const submit = async (event) => {
      event.preventDefault();
      save.disabled = true;
      fill(error);
      try {
        await this.#api.revokeRule(rule.id, comment.value.trim() || undefined);
        dialog.close();
        notice('Rule revoked: the policy and reviewers decide again.', { tone: 'green', iconName: 'undo' });
        this.#poller.poll();
      } catch (problem) {
        save.disabled = false;
        // The rule may have ended already, which the list will show.
        this.#poller.poll();
        fill(error, icon('alert'), visibleString(problem.code === 'SELF_APPROVAL' ? 'This rule denies your own calls, so somebody else has to revoke it.' : explain(problem)));
      }
    };
    const dialog = openDialog({
      title: 'Revoke this rule?',
      build: (close) => h('form', { class: 'sheet-body', novalidate: true, onsubmit: submit },
        h('div', { class: `rule-sentence tone-${rule.verdict === 'allow' ? 'green' : 'red'}` }, icon('rule'), h('div', null, h('p', null, h('code', null, quote(rule.tool, 80))), h('p', null, ...sentence(rule)))),
        h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'revoke-comment' }, 'Comment'), comment),
        error,
        h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: close }, 'Cancel'), save)),
      closed: () => !this.element.contains(document.activeElement) && this.element.querySelector('h1').focus({ preventScroll: true }),
    });
    comment.focus();
  }

  keys() {
    return { Escape: () => (this.#chosen ? go(routeTo('rules')) : false) };
  }
}

// Returns a sentence such as `Calls by claude with exactly these arguments run without review.`
function sentence(rule) {
  return [rule.principal === null || rule.principal === undefined ? 'Calls by any agent' : ['Calls by ', h('strong', null, quote(rule.principal, 80))],
    rule.argumentsHash ? ' with exactly these arguments' : ' with any arguments',
    rule.verdict === 'allow' ? ' run without review.' : ' are denied without review.'];
}
