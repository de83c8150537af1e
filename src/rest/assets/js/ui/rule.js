// Creates a standing rule from a change and describes its effect in one sentence beforehand.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { quote, visibleString } from '../core/text.js';
import { proposerName, subjectOf } from '../core/vocab.js';
import { openDialog } from './dialog.js';

const DAY = 86_400;
const DURATIONS = [[900, '15 minutes'], [3600, 'an hour'], [8 * 3600, '8 hours'], [DAY, 'a day'], [7 * DAY, 'a week'], [30 * DAY, '30 days']];
const MAX_COMMENT = 2000;

/** Opens the dialog. `create(rule)` resolves to the stored rule, which `done(rule)` receives. */
export function openRule({ change, create, done }) {
  const chosen = { verdict: 'allow', arguments: 'exact', principal: 'same', for: 3600 };
  const sentence = h('p', { class: 'rule-sentence', 'aria-live': 'polite' });
  const error = h('p', { class: 'edit-errors', role: 'alert' });
  const comment = h('textarea', { id: 'rule-comment', rows: '1', maxlength: String(MAX_COMMENT), placeholder: 'Why? (optional, recorded in the audit trail)' });
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
    fill(duration, DURATIONS.map(([value, label]) => h('option', { value: String(value) }, label)), forever && h('option', { value: '0' }, 'until revoked'));
    chosen.for = forever ? 0 : 3600;
    duration.value = String(chosen.for);
  };

  const paint = () => {
    const agent = chosen.principal === 'same' ? quote(proposerName(change.proposer), 60) : 'any agent';
    const tool = h('code', null, quote(subjectOf(change), 120));
    const argumentsText = chosen.arguments === 'exact' ? ' with exactly these arguments' : ' with any arguments';
    const time = chosen.for ? ` for ${DURATIONS.find(([v]) => v === chosen.for)[1]}` : ' until the rule is revoked';
    const allow = chosen.verdict === 'allow';
    fill(sentence, icon(allow ? 'check' : 'cross'), h('span', null, 'Calls to ', tool, ' by ', h('strong', null, agent), argumentsText, time,
      allow ? ' run without review.' : ' are denied without review.'));
    sentence.className = `rule-sentence tone-${allow ? (chosen.arguments === 'any' ? 'amber' : 'green') : 'red'}`;
    fill(save, icon('rule'), 'Create standing rule');
  };

  const submit = async (event) => {
    event.preventDefault();
    save.disabled = true;
    fill(error);
    try {
      const { verdict, principal } = chosen;
      const rule = await create({ verdict, arguments: chosen.arguments, principal, ...(chosen.for ? { for: chosen.for } : {}), ...(comment.value.trim() ? { comment: comment.value.trim() } : {}) });
      dialog.close();
      done(rule);
    } catch (problem) {
      save.disabled = false;
      fill(error, icon('alert'), visibleString(problem.status === 404 && problem.code !== 'CHANGE_NOT_FOUND' ? 'This gateway does not support standing rules.' : explain(problem)));
    }
  };

  const form = h('form', { class: 'sheet-body', novalidate: true, onsubmit: submit },
    h('p', { class: 'quiet' }, 'A standing rule decides future calls automatically; this change still needs its own decision. The rule is listed under Standing rules and in the audit trail, and any reviewer can revoke it.'),
    radios('verdict', 'Future calls', [['allow', 'Allow'], ['deny', 'Deny']]),
    radios('arguments', 'Arguments', [['exact', 'Exactly these'], ['any', 'Any']]),
    radios('principal', 'Agent', [['same', h('span', null, 'Only ', quote(proposerName(change.proposer), 60))], ['any', 'Any agent']]),
    h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'rule-for' }, 'For'), duration),
    h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: 'rule-comment' }, 'Comment'), comment),
    sentence, error,
    h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel'), save));
  fillDurations();
  paint();
  const dialog = openDialog({ title: 'Create standing rule', build: () => form });
  form.querySelector('input')?.focus();
  return dialog;
}
