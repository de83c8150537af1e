// The audit trail: of everything, or of one change. Each entry carries the hash of the one before it; where two
// neighbours are in sight, the page compares them.

import { h, fill } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { explain } from '../core/api.js';
import { count, plural, said, short, visible, visibleString } from '../core/text.js';
import { time } from '../core/time.js';
import { routeTo } from '../core/router.js';
import { eventName, eventOf, stateOf } from '../core/vocab.js';
import { copyButton } from '../ui/badges.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';
import { actor } from '../ui/timeline.js';
import { openExport } from '../ui/export.js';
import { longText } from '../ui/longtext.js';

const PAGE = 50;

export class AuditView {
  element;
  #api;
  #change = null;
  #entries = [];
  #cursor = null;
  #head = null;
  #generation = 0;
  #timer = null;
  #parts;

  constructor({ api }) {
    this.#api = api;
    this.#parts = { export: h('button', { type: 'button', class: 'export', hidden: true, onclick: () => openExport({ load: (wanted) => api.exportAudit(wanted) }) }, icon('download'), 'Export…'), sub: h('p', { class: 'quiet' }), head: h('div', { class: 'chain-head' }), body: h('div', { class: 'page-body' }, skeleton(8)) };
    this.element = h('div', { class: 'page audit' },
      h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, 'Audit'), this.#parts.export), this.#parts.sub), this.#parts.head, this.#parts.body);
  }

  dispose() {
    this.#generation += 1;
    clearTimeout(this.#timer);
  }

  route({ id }) {
    if (this.#generation > 0 && id === this.#change) return;
    this.#change = id;
    this.#offer();
    fill(this.#parts.sub, id
      ? [h('span', null, 'What happened to '), h('code', null, visibleString(short(id, 60))), ' · ', h('a', { href: routeTo('history', id) }, 'open the change'), ' · ', h('a', { href: routeTo('audit') }, 'everything')]
      : 'Every transition of every change, in one chain of hashes.');
    fill(this.#parts.head);
    fill(this.#parts.body, skeleton(8));
    this.#load();
  }

  // The whole trail is exported, so that is where it is offered.
  async #offer() {
    const offered = this.#change === null && await this.#api.has('/api/audit/export');
    this.#parts.export.hidden = this.#change !== null || !offered;
  }

  event(event) {
    if (this.#change !== null && event.change.id !== this.#change) return;
    // A burst of events is one look at the gateway.
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#newer();
    }, 300);
  }

  // Rules have entries of their own, which are of no change.
  ruleEvent() {
    if (this.#change === null) this.event({});
  }

  refresh() {
    this.#load();
  }

  async #load() {
    this.#generation += 1;
    const generation = this.#generation;
    try {
      const page = await this.#api.audit({ change: this.#change, limit: PAGE });
      if (generation !== this.#generation) return;
      this.#entries = page.entries;
      this.#cursor = page.nextCursor;
      this.#head = page.head;
      this.#paint();
    } catch (error) {
      if (generation === this.#generation && error.status !== 401) fill(this.#parts.body, errorState(error, () => this.#load()));
    }
  }

  async #newer() {
    const generation = this.#generation;
    try {
      const page = await this.#api.audit({ change: this.#change, limit: PAGE });
      if (generation !== this.#generation) return;
      const newest = this.#entries[0]?.seq ?? -1;
      const fresh = page.entries.filter((e) => e.seq > newest);
      // More has happened than fits on a page: what lies between would be missing.
      if (fresh.length === page.entries.length && page.nextCursor) {
        this.#entries = page.entries;
        this.#cursor = page.nextCursor;
      } else {
        this.#entries = [...fresh, ...this.#entries];
      }
      this.#head = page.head;
      this.#paint();
    } catch {
      // The next event tries again, and the header says that the gateway is gone.
    }
  }

  async #older(button) {
    const generation = this.#generation;
    button.disabled = true;
    try {
      const page = await this.#api.audit({ change: this.#change, limit: PAGE, cursor: this.#cursor });
      if (generation !== this.#generation) return;
      const oldest = this.#entries.at(-1)?.seq ?? Infinity;
      this.#entries.push(...page.entries.filter((e) => e.seq < oldest));
      this.#cursor = page.nextCursor;
      this.#paint();
    } catch (error) {
      button.disabled = false;
      button.textContent = `Load older (${visibleString(explain(error))})`;
    }
  }

  #paint() {
    const links = chain(this.#entries, this.#head);
    fill(this.#parts.head, this.#headLine(links));
    if (!this.#entries.length) {
      fill(this.#parts.body, emptyState('audit', 'Nothing has happened yet', 'The first entry is written when an agent proposes a change.'));
      return;
    }
    const all = this.#change === null;
    fill(this.#parts.body,
      h('table', { class: 'records' },
        h('thead', null, h('tr', null, ['No.', 'When', 'Who', 'What', all && 'Change', 'Hash'].filter(Boolean).map((c) => h('th', { scope: 'col' }, c)))),
        h('tbody', null, this.#entries.map((entry) => this.#row(entry, all, links.broken.has(entry.seq))))),
      this.#cursor && h('p', { class: 'load-more' }, h('button', { type: 'button', onclick: (e) => this.#older(e.currentTarget) }, 'Load older')));
  }

  #headLine({ compared, broken }) {
    if (!this.#head) return null;
    const ok = broken.size === 0;
    return [
      h('div', { class: 'with-copy' }, h('span', { class: 'quiet' }, `Head of the chain, no. ${count(this.#head.seq)} `),
        h('code', { class: 'breakable' }, visibleString(this.#head.hash)), copyButton(String(this.#head.hash), 'Copy the head’s hash')),
      ok ? compared > 0 && h('p', { class: 'chain-ok' }, icon('check'), `${count(compared)} links compared on this page. `, h('code', null, 'countersign audit verify'), ' checks the whole chain.')
        : h('p', { class: 'banner tone-red', role: 'alert' }, icon('alert'), h('span', null, h('strong', null, 'The chain is broken. '), 'An entry does not carry the hash of the one before it. Run ', h('code', null, 'countersign audit verify'), '.')),
    ];
  }

  #row(entry, all, broken) {
    const { label, icon: name, tone } = eventOf(entry.event);
    const comment = entry.details?.comment;
    return h('tr', { class: broken ? 'broken' : null },
      h('td', { class: 'num', data: { label: 'No.' } }, count(entry.seq)),
      h('td', { class: 'nowrap', data: { label: 'When' } }, time(entry.at, 'day'), ' ', time(entry.at, 'clock')),
      h('td', { data: { label: 'Who' } }, actor(entry.actor)),
      h('td', { class: `tone-${tone}`, data: { label: 'What' } },
        h('span', { class: 'event' }, icon(name), h('span', null, visibleString(label), entry.to && entry.from && entry.from !== entry.to && entry.to !== eventName(entry.event) && h('span', { class: 'quiet' }, ` → ${stateOf(entry.to).label}`))),
        comment && h('blockquote', null, longText(String(comment), { chars: 240, lines: 4 }))),
      all && h('td', { data: { label: 'Change' } }, !entry.changeId ? about(entry.details) : h('a', { class: 'mono', href: routeTo('audit', entry.changeId) }, h('span', { class: 'sr-only' }, 'What happened to '), visible(short(entry.changeId, 12)))),
      h('td', { data: { label: 'Hash' } }, h('span', { class: 'hash', title: `after ${visibleString(entry.prevHash ?? '')}` },
        broken ? icon('alert') : null, h('code', null, visible(bareHash(entry.hash).slice(0, 12))))));
  }
}

/** What an entry is about that is of no change. */
function about(details) {
  const rules = Array.isArray(details?.rules) ? details.rules.filter((r) => typeof r?.id === 'string') : [];
  if (rules.length === 1) return h('a', { href: routeTo('rules', rules[0].id) }, typeof rules[0].tool === 'string' ? ['rule for ', said(rules[0].tool, 80)] : 'the rule');
  if (rules.length > 1) return plural(rules.length, 'rule');
  if (typeof details?.server !== 'string') return h('span', { class: 'quiet' }, '—');
  const n = Array.isArray(details.tools) ? details.tools.length : 0;
  return h('span', null, said(details.server, 60), n > 0 && h('span', { class: 'quiet' }, ` · ${plural(n, 'tool')}`));
}

const bareHash = (hash) => String(hash ?? '').replace(/^sha256:/, '');

/** Compares the links between neighbours: `{compared, broken}`, where `broken` holds sequence numbers. Pure. */
export function chain(entries, head) {
  const broken = new Set();
  let compared = 0;
  if (head && entries[0]?.seq === head.seq) {
    compared += 1;
    if (entries[0].hash !== head.hash) broken.add(entries[0].seq);
  }
  for (let i = 0; i + 1 < entries.length; i += 1) {
    if (entries[i].seq !== entries[i + 1].seq + 1) continue;
    compared += 1;
    if (entries[i].prevHash !== entries[i + 1].hash) broken.add(entries[i].seq);
  }
  return { compared, broken };
}
