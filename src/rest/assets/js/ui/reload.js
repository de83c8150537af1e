// The bar about the configuration file. It asks for consent to a change that loosens policy, or shows why a changed file
// was rejected.

import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { explain } from '../core/api.js';
import { needsGateway } from '../core/connection.js';
import { t } from '../core/locale.js';
import { quote, visibleString } from '../core/text.js';
import { PRESS_GUARD_MS, time } from '../core/time.js';
import { lineDiff } from './lines.js';
import { longText } from './longtext.js';

export class ReloadBar {
  element = h('div', { class: 'reload', role: 'region', 'aria-label': t('serverform.configuration'), hidden: true });
  #api;
  #canDecide;
  #text = '';
  #status = null;
  #open = false;
  #busy = false;
  #error = '';
  #dismissed = '';
  #notBefore = 0;

  constructor({ api, me }) {
    this.#api = api;
    this.#canDecide = Boolean(me.mayDecide);
  }

  async load(signal) {
    try {
      this.#show(await this.#api.reloadStatus(signal));
    } catch {
      // The next poll tries again.
    }
  }

  #show(status) {
    const text = JSON.stringify([status?.waiting ?? null, refusalOf(status)]);
    if (text === this.#text) return;
    if (this.#status?.waiting && status?.waiting && this.#status.waiting.digest !== status.waiting.digest) {
      this.#notBefore = Date.now() + PRESS_GUARD_MS;
      setTimeout(() => this.#paint(), PRESS_GUARD_MS);
    }
    this.#text = text;
    this.#status = status;
    this.#paint();
  }

  #paint() {
    const waiting = this.#status?.waiting ?? null;
    const refusal = refusalOf(this.#status);
    const visibleRefusal = refusal && this.#dismissed !== JSON.stringify(refusal) ? refusal : null;
    this.element.hidden = !waiting && !visibleRefusal;
    fill(this.element, visibleRefusal && this.#refused(visibleRefusal), waiting && this.#waiting(waiting));
  }

  #waiting(waiting) {
    const loosens = waiting.loosens ?? [];
    return h('div', { class: 'reload-item tone-amber' },
      h('div', { class: 'reload-line' }, icon('eye'),
        h('p', null, h('strong', null, t('serverform.changeNeedsConsent')), ' ',
          t(this.#canDecide ? 'serverform.loosens' : 'serverform.loosensForReviewer', { count: loosens.length }), ' ', h('span', { class: 'quiet' }, time(waiting.since))),
        h('button', { type: 'button', 'aria-expanded': String(this.#open), onclick: () => {
          this.#open = !this.#open;
          this.#paint();
          this.element.querySelector('[aria-expanded]')?.focus();
        } }, t(this.#open ? 'serverform.hide' : 'serverform.review'))),
      this.#open && h('div', { class: 'reload-body' },
        h('table', { class: 'fields both compare' },
          h('thead', null, h('tr', null, [t('serverform.setting'), t('serverform.inForce'), t('serverform.afterChange')].map((c) => h('th', { scope: 'col' }, c)))),
          h('tbody', null, loosens.map(({ key, from, to }) => h('tr', null, h('th', { scope: 'row' }, quote(key, 200)), cell(from, 'delete'), cell(to, 'insert'))))),
        (waiting.content ?? []).map((part) => contentOf(part)),
        this.#error && h('p', { class: 'decision-error', role: 'alert' }, icon('alert'), h('span', null, visibleString(this.#error))),
        this.#canDecide
          ? h('div', { class: 'reload-buttons' },
            h('button', { type: 'button', class: 'approve', ...needsGateway(() => this.#isBlocked()), onclick: () => this.#consent('accept', waiting.digest) }, icon('check'), t('serverform.consentToChange')),
            h('button', { type: 'button', class: 'reject', ...needsGateway(() => this.#isBlocked()), onclick: () => this.#consent('refuse', waiting.digest) }, icon('cross'), t('serverform.refuseChange')))
          : h('p', { class: 'quiet' }, t('common.onlyReviewer'))));
  }

  #refused(refusal) {
    const problems = refusal.problems ?? [];
    return h('div', { class: 'reload-item tone-red' },
      h('div', { class: 'reload-line' }, icon('alert'),
        h('p', null, h('strong', null, t('serverform.fileInvalid')), ' ', h('span', { class: 'quiet' }, time(refusal.at))),
        h('button', { type: 'button', class: 'ghost icon-only', 'aria-label': t('serverform.hide'), title: t('serverform.hide'), onclick: () => {
          this.#dismissed = JSON.stringify(refusal);
          this.#paint();
        } }, icon('cross'))),
      h('ul', { class: 'reload-problems' }, problems.slice(0, 5).map((p) => h('li', null, quote(problemLine(p), 400))),
        problems.length > 5 && h('li', { class: 'quiet' }, t('serverform.moreProblems', { count: problems.length - 5 }))));
  }

  #isBlocked() {
    return this.#busy || Date.now() < this.#notBefore;
  }

  async #consent(verdict, digest) {
    if (this.#isBlocked()) return;
    this.#busy = true;
    this.#error = '';
    this.#paint();
    try {
      const status = await this.#api.consent(digest, verdict);
      this.#open = false;
      this.#busy = false;
      this.#show(status);
    } catch (error) {
      this.#error = error.status === 409 ? t('serverform.fileChangedShown') : explain(error);
      this.#busy = false;
      await this.load();
    }
    this.#paint();
  }
}

// What the gateway writes in place of a value that is not there.
const MISSING = /^no (such rule|such issuer|recipe that needs consent)$/;

const OPS = { same: 'equal', removed: 'delete', added: 'insert' };

/** Shows changed lines of the configuration. */
export const configLines = (name, lines) => lineDiff({ field: name, label: name, before: null, after: null, lines: lines.map(({ op, text }) => ({ op: OPS[op] ?? 'note', text })) });

/** Shows the lines of a key that change, because they are what a reviewer consents to. */
function contentOf({ key, lines, cut }) {
  const altered = lines.some(({ op }) => op !== 'same');
  return h('div', { class: 'reload-content' },
    configLines(key, lines),
    !altered && h('p', { class: 'quiet' }, t('serverform.hiddenValue')),
    cut && h('p', { class: 'banner tone-amber' }, icon('alert'), h('span', null, t('serverform.fileCut'))));
}

function cell(value, op) {
  if (value === null || value === undefined || value === '' || MISSING.test(value)) {
    return h('td', { class: 'none' }, h('span', { class: 'quiet', 'aria-hidden': 'true' }, '–'), h('span', { class: 'sr-only' }, t('serverform.none')));
  }
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return h('td', { class: op }, h('span', { class: 'sign', 'aria-hidden': 'true' }, op === 'insert' ? '+' : '−'), longText(text, { chars: 400, lines: 8 }));
}

const problemLine = (p) => (typeof p === 'string' ? p : [p.place, p.key, [p.message, p.remedy].filter(Boolean).join('. ')].filter(Boolean).join(': '));

/** Returns the problems of a rejected file, or null. A change that a reviewer refused has no problems. */
function refusalOf(status) {
  return status?.last?.result === 'refused' && status.last.problems?.length ? { at: status.last.at, problems: status.last.problems } : null;
}
