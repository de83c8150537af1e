// Shows the standing rules that the history of a tool suggests. Nothing is created before a reviewer fills in the form.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { routeTo } from '../core/router.js';
import { quote } from '../core/text.js';
import { time } from '../core/time.js';
import { proposerName, subjectOf } from '../core/vocab.js';
import { stateBadge } from './badges.js';
import { section } from './content.js';

/** Describes the conditions of a rule on single arguments. */
export function conditionsText(matching) {
  return h('span', null, matching.map(({ argument, equals, within }, n) => {
    const name = h('code', null, quote(argument, 60));
    return [n > 0 && t('suggestions.and'), ...(within === undefined ? parts('suggestions.equalTo', { argument: name, value: h('code', null, quote(JSON.stringify(equals), 120)) })
      : parts('suggestions.within', { argument: name, folder: h('code', null, quote(within, 120)) }))];
  }));
}

/** Returns a section with the suggestions, or null. `open(suggestion)` shows the form. */
export function suggestedRules(change, { suggestions, complete }, open) {
  if (!suggestions.length) return null;
  const links = (label, { count, newest }) => count > 0 && h('details', { class: 'fold-section' }, h('summary', null, label),
    h('ul', { class: 'plain-links' }, newest.map(({ id, state, summary, createdAt }) => h('li', null,
      h('a', { href: routeTo('history', id) }, quote(summary, 120)), ' ', stateBadge(state), ' ', h('span', { class: 'quiet' }, time(createdAt))))),
    count > newest.length && h('p', { class: 'quiet' }, t('suggestions.older', { count: count - newest.length })));
  const item = (suggestion) => {
    const { matching, approvals, matched, unmatched } = suggestion;
    return h('li', { class: 'card suggestion' },
      h('p', { class: 'rule-words' }, ...parts(matching.length ? 'suggestions.effect' : 'suggestions.effectAny', {
        tool: h('code', null, quote(subjectOf(change), 120)), agent: h('strong', null, quote(proposerName(change.proposer), 60)), conditions: conditionsText(matching),
      }), ' ', h('span', { class: 'quiet' }, t('suggestions.approved', { count: approvals }))),
      links(t('suggestions.matched', { count: matched.count }), matched),
      links(t('suggestions.unmatched', { count: unmatched.count }), unmatched),
      h('button', { type: 'button', class: 'small', onclick: () => open(suggestion) }, icon('rule'), t('suggestions.fillIn')));
  };
  return section(t('suggestions.title'), t('suggestions.note'),
    h('p', { class: 'quiet' }, t('suggestions.help'), !complete && [' ', t('suggestions.incomplete')]),
    h('ul', { class: 'suggestions' }, suggestions.map(item)));
}
