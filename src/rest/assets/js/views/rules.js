// Shows standing rules, which decide future calls. Everybody sees them, and a reviewer can revoke them.

import { explain } from '../core/api.js';
import { notice } from '../core/announce.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { Poller } from '../core/poller.js';
import { go, routeTo } from '../core/router.js';
import { count, MAX_COMMENT, quote, short, visible, visibleString } from '../core/text.js';
import { now, time } from '../core/time.js';
import { toneBadge } from '../ui/badges.js';
import { openDialog } from '../ui/dialog.js';
import { jsonBlock } from '../ui/json.js';
import { longText } from '../ui/longtext.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';
import { conditionsText } from '../ui/suggestions.js';
import { actor } from '../ui/timeline.js';

// Events add and end rules; the number of uses is polled.
const POLL_INTERVAL = 10_000;
// Only the newest rules are shown.
const MAX_SHOWN = 300;

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
      h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, t('rules.title')), this.#parts.count),
        h('p', { class: 'quiet' }, t('rules.about'))),
      this.#parts.chips, this.#parts.body);
    this.#poller = new Poller({
      read: (signal) => this.#api.rules(signal),
      show: (rules) => {
        const isFirst = this.#rules === null;
        this.#rules = rules;
        if (isFirst) this.#showChosen();
        else this.#paint();
      },
      failed: (error) => fill(this.#parts.body, error.status === 404 ? emptyState('rule', t('rules.unsupported'), t('rules.unsupportedWhy')) : errorState(error, () => this.#poller.poll())),
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
    fill(this.#parts.chips, endedCount > 0 && [[t('rules.inForce'), false, activeCount], [t('rules.ended'), true, endedCount]].map(([label, which, n]) => h('button', {
      type: 'button', class: 'chip', 'aria-pressed': String(this.#showsEnded === which), data: { key: `chip ${which}` },
      onclick: () => {
        this.#showsEnded = which;
        this.#paint();
      },
    }, label, h('span', { class: 'quiet' }, count(n)))));
    if (endedCount === 0) this.#showsEnded = false;
    const all = this.#rules.filter((entry) => hasEnded(entry) === this.#showsEnded);
    if (all.length === 0) {
      fill(this.#parts.body, emptyState('rule', t(endedCount > 0 ? 'rules.noneInForce' : 'rules.none'), t('rules.noneHow')));
    } else {
      fill(this.#parts.body, h('ul', { class: 'rules' }, all.slice(0, MAX_SHOWN).map((entry) => this.#item(entry, at))),
        all.length > MAX_SHOWN && h('p', { class: 'quiet pad' }, t('rules.older', { count: all.length - MAX_SHOWN })));
    }
    if (focused) this.element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  #item({ rule, source }, at) {
    const state = stateOfRule(rule, at);
    const allow = rule.verdict === 'allow';
    const fact = (label, ...content) => h('div', null, h('dt', null, label), h('dd', null, content));
    return h('li', { class: `card rule${state === 'active' ? '' : ' over'}${rule.id === this.#chosen ? ' chosen' : ''}` },
      h('div', { class: 'card-head' },
        h('h2', null, toneBadge(allow ? 'green' : 'red', allow ? 'check' : 'cross', t(allow ? 'rules.allows' : 'rules.denies')), ' ', h('code', null, quote(rule.tool, 200))),
        state !== 'active' && toneBadge('grey', state === 'revoked' ? 'undo' : 'clock', t(state === 'revoked' ? 'rules.revoked' : 'rules.expired')),
        state === 'active' && this.#canDecide && h('button', { type: 'button', class: 'small revoke', data: { key: `revoke ${rule.id}` }, onclick: () => this.#askToRevoke(rule) }, icon('undo'), t('rules.revoke'),
          h('span', { class: 'sr-only' }, ' ', t('rules.revokeOf', { tool: visibleString(short(rule.tool, 60)) })))),
      h('p', { class: 'rule-words' }, ...sentence(rule)),
      rule.orphanedAt && h('p', { class: 'banner tone-amber rule-orphan' }, icon('alert'), h('span', null, parts(allow ? 'rules.orphanAllows' : 'rules.orphanDenies', { name: h('strong', null, quote(rule.createdBy, 60)), time: time(rule.orphanedAt) }))),
      rule.comment && h('blockquote', null, longText(String(rule.comment), { chars: 400, lines: 4 })),
      h('dl', { class: 'rule-facts' },
        state === 'revoked' ? fact(t('rules.revoked'), parts('rules.revokedBy', { time: time(rule.revokedAt), name: actor(rule.revokedBy) }))
          : state === 'expired' ? fact(t('rules.expired'), time(rule.expiresAt ?? rule.expiredAt)) : fact(t('rules.until'), rule.expiresAt ? time(rule.expiresAt) : t('rules.untilRevoked')),
        fact(t('rules.used'), rule.uses === 0 ? t('rules.never') : t('rules.uses', { count: rule.uses })),
        fact(t('rules.createdBy'), quote(rule.createdBy, 60), ' ', h('span', { class: 'quiet' }, time(rule.createdAt))),
        fact(t('rules.server'), quote(rule.provider, 80)),
        rule.fromChange && fact(t('rules.from'), h('a', { href: routeTo('history', rule.fromChange) }, h('code', { class: 'id brief' }, visible(rule.fromChange)), h('span', { class: 'sr-only' }, t('rules.theChange'))))),
      rule.argumentsHash && this.#arguments(rule, source));
  }

  #arguments(rule, source) {
    // Arguments that were too large to store are known by their hash only.
    if (source === null) return h('p', { class: 'quiet rule-hash' }, parts('rules.tooLarge', { hash: h('code', { class: 'breakable' }, visibleString(rule.argumentsHash)) }));
    const body = h('div', { class: 'fold-body' });
    const fold = h('details', { class: 'fold-section', open: this.#open.has(rule.id) }, h('summary', { data: { key: `args ${rule.id}` } }, t('rules.arguments')), body);
    const show = () => !body.hasChildNodes() && body.append(jsonBlock(source, t('rules.argumentsOf')));
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
    const comment = h('textarea', { id: 'revoke-comment', rows: '1', maxlength: String(MAX_COMMENT), placeholder: t('controls.whyOptional') });
    const save = h('button', { type: 'submit', class: 'primary' }, icon('undo'), t('rules.revokeNow'));
    const submit = async (event) => {
      event.preventDefault();
      save.disabled = true;
      fill(error);
      try {
        await this.#api.revokeRule(rule.id, comment.value.trim() || undefined);
        dialog.close();
        notice(t('rules.isRevoked'), { tone: 'green', iconName: 'undo' });
        this.#poller.poll();
      } catch (problem) {
        save.disabled = false;
        // The rule may have ended already, which the list will show.
        this.#poller.poll();
        fill(error, icon('alert'), visibleString(problem.code === 'SELF_APPROVAL' ? t('rules.ownCalls') : explain(problem)));
      }
    };
    const dialog = openDialog({
      title: t('rules.revokeTitle'),
      build: (close) => h('form', { class: 'sheet-body', novalidate: true, onsubmit: submit },
        h('div', { class: `rule-sentence tone-${rule.verdict === 'allow' ? 'green' : 'red'}` }, icon('rule'), h('div', null, h('p', null, h('code', null, quote(rule.tool, 80))), h('p', null, ...sentence(rule)))),
        h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'revoke-comment' }, t('controls.comment')), comment),
        error,
        h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: close }, t('common.cancel')), save)),
      closed: () => !this.element.contains(document.activeElement) && this.element.querySelector('h1').focus({ preventScroll: true }),
    });
    comment.focus();
  }

  keys() {
    return { Escape: () => (this.#chosen ? go(routeTo('rules')) : false) };
  }
}

/** Returns the sentence about a rule for other pages. */
export const ruleSentence = (rule) => sentence(rule);

// Returns a sentence such as `Calls by claude with exactly these arguments run without review.`
function sentence({ principal, argumentsHash, matching, verdict }) {
  if (matching) return parts(principal ? 'suggestions.allows' : 'suggestions.allowsAny', { principal: h('strong', null, quote(principal ?? '', 80)), conditions: conditionsText(matching) });
  const key = `rules.sentence.${principal === null || principal === undefined ? 'any' : 'one'}.${argumentsHash ? 'exact' : 'all'}.${verdict === 'allow' ? 'allow' : 'deny'}`;
  return parts(key, { principal: h('strong', null, quote(principal ?? '', 80)) });
}
