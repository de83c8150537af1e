// Creates a standing rule from a change and describes its effect in one sentence beforehand.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { MAX_COMMENT, quote, visibleString } from '../core/text.js';
import { proposerName, subjectOf } from '../core/vocab.js';
import { openDialog } from './dialog.js';
import { conditionsText } from './suggestions.js';

const DAY = 86_400;
const DURATIONS = [[900, 'rule.minutes15'], [3600, 'rule.hour'], [8 * 3600, 'rule.hours8'], [DAY, 'rule.day'], [7 * DAY, 'rule.week'], [30 * DAY, 'rule.days30']];
// The sentence for a rule that ends by itself, and for one that lasts until it is revoked. Only a refusal may last.
const SENTENCES = {
  allow: { exact: ['rule.allowsExactFor'], any: ['rule.allowsAnyFor'], matching: ['suggestions.allowsFor'] },
  deny: { exact: ['rule.deniesExactFor', 'rule.deniesExact'], any: ['rule.deniesAnyFor', 'rule.deniesAny'] },
};

/** Opens the dialog, filled in from a suggestion if there is one. `create(rule)` resolves to the stored rule, which `done(rule)` receives. */
export function openRule({ change, suggestion = null, create, done }) {
  const matching = suggestion?.matching ?? [];
  const suggested = matching.length ? 'matching' : 'any';
  const chosen = { verdict: 'allow', arguments: suggestion ? suggested : 'exact', principal: 'same', for: 3600 };
  const defaultDuration = suggestion ? 7 * DAY : 3600;
  const sentence = h('p', { class: 'rule-sentence', 'aria-live': 'polite' });
  const error = h('p', { class: 'edit-errors', role: 'alert' });
  const comment = h('textarea', { id: 'rule-comment', rows: '1', maxlength: String(MAX_COMMENT), placeholder: t('controls.whyOptional') });
  const duration = h('select', { id: 'rule-for', onchange: () => {
    chosen.for = Number(duration.value);
    paint();
  } });
  const save = h('button', { type: 'submit', class: 'primary' });

  const radios = (name, legend, options) => h('fieldset', { class: 'radios' }, h('legend', null, legend), options.map(([value, label]) => h('label', null,
    h('input', { type: 'radio', name: `rule-${name}`, value, checked: chosen[name] === value, onchange: () => {
      chosen[name] = value;
      if (name === 'verdict') fillDurations();
      paint();
    } }), h('span', null, label))));

  const fillDurations = () => {
    const forever = chosen.verdict === 'deny';
    fill(duration, DURATIONS.map(([value, key]) => h('option', { value: String(value) }, t(key))), forever && h('option', { value: '0' }, t('rule.untilRevoked')));
    chosen.for = forever ? 0 : defaultDuration;
    duration.value = String(chosen.for);
  };

  const paint = () => {
    const agent = chosen.principal === 'same' ? quote(proposerName(change.proposer), 60) : t('rule.ofAnyAgent');
    const tool = h('code', null, quote(subjectOf(change), 120));
    const duration = chosen.for ? t(DURATIONS.find(([v]) => v === chosen.for)[1]) : '';
    const allow = chosen.verdict === 'allow';
    const key = SENTENCES[chosen.verdict][chosen.arguments][chosen.for ? 0 : 1];
    fill(sentence, icon(allow ? 'check' : 'cross'), h('span', null, parts(key, { tool, agent: h('strong', null, agent), duration, conditions: conditionsText(matching) })));
    sentence.className = `rule-sentence tone-${allow ? (chosen.arguments === 'any' ? 'amber' : 'green') : 'red'}`;
    fill(save, icon('rule'), t('rule.title'));
  };

  const submit = async (event) => {
    event.preventDefault();
    save.disabled = true;
    fill(error);
    try {
      const { verdict, principal } = chosen;
      const rule = await create({ verdict, arguments: chosen.arguments, principal, ...(chosen.arguments === 'matching' ? { matching } : {}), ...(chosen.for ? { for: chosen.for } : {}), ...(comment.value.trim() ? { comment: comment.value.trim() } : {}) });
      dialog.close();
      done(rule);
    } catch (problem) {
      save.disabled = false;
      fill(error, icon('alert'), visibleString(problem.status === 404 && problem.code !== 'CHANGE_NOT_FOUND' ? t('rules.unsupportedWhy') : explain(problem)));
    }
  };

  const form = h('form', { class: 'sheet-body', novalidate: true, onsubmit: submit },
    h('p', { class: 'quiet' }, t('rule.help')),
    !suggestion && radios('verdict', t('rule.futureCalls'), [['allow', t('rule.allow')], ['deny', t('rule.deny')]]),
    radios('arguments', t('rule.arguments'), [['exact', t('rule.exact')], ...(matching.length ? [['matching', conditionsText(matching)]] : []), ['any', t('rule.any')]]),
    radios('principal', t('rule.agent'), [['same', h('span', null, parts('rule.onlyAgent', { agent: quote(proposerName(change.proposer), 60) }))], ['any', t('rule.anyAgent')]]),
    h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'rule-for' }, t('rule.for')), duration),
    h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'rule-comment' }, t('controls.comment')), comment),
    sentence, error,
    h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: () => dialog.close() }, t('common.cancel')), save));
  fillDurations();
  paint();
  const dialog = openDialog({ title: t('rule.title'), build: () => form });
  form.querySelector('input')?.focus();
  return dialog;
}
