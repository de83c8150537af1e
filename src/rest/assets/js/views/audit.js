// Shows the audit trail of one change or of everything. Each entry carries the hash of the one before it, and the page
// compares neighbours.

import { fill, h, refill } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { explain } from '../core/api.js';
import { filterQuery } from '../core/filters.js';
import { parts, t } from '../core/locale.js';
import { count, quote, short, visible, visibleString } from '../core/text.js';
import { now, time } from '../core/time.js';
import { replaceRoute, routeTo } from '../core/router.js';
import { entryOf, eventName, stateOf } from '../core/vocab.js';
import { AuditFilter, auditRequest, isNarrowed, readAuditFilter } from '../ui/auditfilter.js';
import { copyButton } from '../ui/badges.js';
import { densityButton } from '../ui/density.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';
import { actor } from '../ui/timeline.js';
import { openExport } from '../ui/export.js';
import { longText } from '../ui/longtext.js';

const PAGE_SIZE = 50;
// A filtered search reads this many pages before it asks the user whether to go on.
const MAX_SEARCH_PAGES = 10;

export class AuditView {
  element;
  #api;
  #change = null;
  #filter = readAuditFilter(new URLSearchParams());
  #request = {};
  #entries = [];
  #titles = {};
  #cursor = null;
  #head = null;
  #generation = 0;
  #timer = null;
  #bar;
  #parts;
  // The rows of the entries.
  #table = null;

  constructor({ api }) {
    this.#api = api;
    this.#bar = new AuditFilter({ change: (filter) => replaceRoute(routeTo('audit', this.#change, filterQuery(filter))) });
    this.#parts = { export: h('button', { type: 'button', class: 'export', hidden: true, onclick: () => openExport({ load: (options) => api.exportAudit(options) }) }, icon('download'), t('audit.export')), sub: h('p', { class: 'quiet' }), head: h('div', { class: 'chain-head' }), body: h('div', { class: 'page-body' }, skeleton(8)) };
    this.element = h('div', { class: 'page audit' },
      h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, t('shell.view.audit')), h('span', { class: 'pane-tools' }, densityButton(), this.#parts.export)), this.#parts.sub), this.#bar.element, this.#parts.head, this.#parts.body);
  }

  dispose() {
    this.#generation += 1;
    clearTimeout(this.#timer);
    this.#bar.dispose();
  }

  route({ id, query }) {
    const filter = readAuditFilter(query);
    if (this.#generation > 0 && id === this.#change && JSON.stringify(filter) === JSON.stringify(this.#filter)) return;
    const isOtherChange = id !== this.#change || this.#generation === 0;
    this.#change = id;
    this.#filter = filter;
    this.#request = auditRequest(filter, now());
    this.#bar.show(filter);
    if (!isOtherChange) {
      this.#load();
      return;
    }
    this.#parts.export.hidden = this.#change !== null;
    this.#describe();
    fill(this.#parts.head);
    fill(this.#parts.body, skeleton(8));
    this.#load();
  }

  // Describes the trail: of everything, or of one change.
  #describe() {
    const id = this.#change;
    fill(this.#parts.sub, id
      ? [parts('audit.historyOf', { change: [this.#titles[id] && [h('strong', null, quote(this.#titles[id], 200)), ' '], h('code', null, visibleString(short(id, 60)))] }), ' · ', h('a', { href: routeTo('history', id) }, t('audit.openChange')), ' · ', h('a', { href: routeTo('audit') }, t('audit.showAll'))]
      : t('audit.about'));
  }

  event(event) {
    if (this.#change !== null && event.change.id !== this.#change) return;
    // Joins a burst of events into one read.
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      // There is nothing to add to while the page shows an error.
      if (this.#parts.body.querySelector('.empty.error')) this.#load();
      else this.#loadNewer();
    }, 300);
  }

  // Entries about rules belong to no change.
  ruleEvent() {
    if (this.#change === null) this.event({});
  }

  refresh() {
    this.#load();
  }

  keys() {
    return { '/': () => this.#bar.focus() };
  }

  async #load() {
    this.#generation += 1;
    const generation = this.#generation;
    try {
      const page = await this.#page(null, () => generation === this.#generation);
      if (!page) return;
      this.#titles = page.titles ?? {};
      this.#entries = page.entries;
      this.#cursor = page.nextCursor;
      this.#head = page.head;
      this.#describe();
      this.#paint();
    } catch (error) {
      if (generation === this.#generation && error.status !== 401) fill(this.#parts.body, errorState(error, () => this.#load()));
    }
  }

  // Returns the next page with entries, or null if it is no longer wanted.
  async #page(cursor, isWanted) {
    let page;
    let from = cursor;
    for (let step = 0; step < MAX_SEARCH_PAGES; step += 1) {
      page = await this.#api.audit({ ...this.#request, change: this.#change, limit: PAGE_SIZE, cursor: from });
      if (!isWanted()) return null;
      if (page.entries.length || !page.nextCursor) break;
      from = page.nextCursor;
    }
    return page;
  }

  async #loadNewer() {
    const generation = this.#generation;
    try {
      const page = await this.#api.audit({ ...this.#request, change: this.#change, limit: PAGE_SIZE });
      if (generation !== this.#generation) return;
      const isRenamed = Object.entries(page.titles ?? {}).some(([id, title]) => (this.#titles[id] ?? title) !== title);
      Object.assign(this.#titles, page.titles);
      const newest = this.#entries[0]?.seq ?? -1;
      const fresh = page.entries.filter((e) => e.seq > newest);
      // More entries have been added than a page holds, so the old ones no longer connect.
      const connects = fresh.length < PAGE_SIZE || !page.nextCursor;
      if (!connects) this.#cursor = page.nextCursor;
      this.#entries = connects ? [...fresh, ...this.#entries] : page.entries;
      this.#head = page.head;
      // The rows that are there stay in place for somebody who reads them.
      if (connects && !isRenamed && this.#entries.length > fresh.length) this.#table.prepend(...this.#rows(fresh, this.#paintHead()));
      else this.#paint();
    } catch {
      // The next event tries again, and the header shows that the gateway is unreachable.
    }
  }

  async #loadOlder(button) {
    const generation = this.#generation;
    button.disabled = true;
    try {
      const page = await this.#page(this.#cursor, () => generation === this.#generation);
      if (!page) return;
      Object.assign(this.#titles, page.titles);
      const oldest = this.#entries.at(-1)?.seq ?? Infinity;
      this.#entries.push(...page.entries.filter((e) => e.seq < oldest));
      this.#cursor = page.nextCursor;
      this.#paint();
    } catch (error) {
      button.disabled = false;
      button.textContent = t('common.loadOlderFailed', { problem: visibleString(explain(error)) });
    }
  }

  // Returns the links between the entries, which the head sums up.
  #paintHead() {
    const links = checkLinks(this.#entries, this.#head);
    refill(this.#parts.head, this.#headLine(links));
    this.#bar.show(this.#filter, this.#entries.map((e) => e.actor).filter(Boolean));
    return links;
  }

  #rows(entries, links) {
    return entries.map((entry) => this.#row(entry, this.#change === null, links.broken.has(entry.seq)));
  }

  #paint() {
    const links = this.#paintHead();
    const older = this.#cursor && h('p', { class: 'load-more' }, h('button', { type: 'button', onclick: (e) => this.#loadOlder(e.currentTarget) }, t(this.#entries.length ? 'common.loadOlder' : 'audit.searchOlder')));
    if (!this.#entries.length && isNarrowed(this.#filter)) {
      fill(this.#parts.body, emptyState('search', this.#cursor ? t('audit.nothingBackTo', { entry: Number(this.#cursor) }) : t('common.noMatch'),
        h('p', null, h('button', { type: 'button', class: 'link', onclick: () => replaceRoute(routeTo('audit', this.#change)) }, t('common.clearFilter')))), older);
      return;
    }
    if (!this.#entries.length) {
      fill(this.#parts.body, emptyState('audit', t('common.nothingYet'), t('audit.noneHow')));
      return;
    }
    const all = this.#change === null;
    this.#table = h('tbody', null, this.#rows(this.#entries, links));
    refill(this.#parts.body,
      h('table', { class: `records audit-records${all ? ' all' : ''}` },
        h('thead', null, h('tr', null, ['number', 'when', 'who', 'what', all && 'subject', 'hash'].filter(Boolean).map((column) => h('th', { scope: 'col' }, t(`audit.column.${column}`))))),
        this.#table),
      older);
  }

  #headLine({ compared, broken }) {
    if (!this.#head) return null;
    const isIntact = broken.size === 0;
    return [
      h('div', { class: 'with-copy' }, h('span', { class: 'quiet' }, t('audit.head', { number: this.#head.seq }), ' '),
        h('code', { class: 'breakable' }, visibleString(this.#head.hash)), copyButton(String(this.#head.hash), t('audit.copyHead'))),
      isIntact ? compared > 0 && h('p', { class: 'chain-ok' }, icon('check'), h('span', null, parts('audit.compared', { count: compared, command: h('code', null, 'countersign audit verify') })))
        : h('p', { class: 'banner tone-red', role: 'alert' }, icon('alert'), h('span', null, h('strong', null, t('audit.broken')), ' ', parts('audit.brokenHow', { command: h('code', null, 'countersign audit verify') }))),
    ];
  }

  // Shows the title of a change with its id.
  #subject({ changeId: id, seq }) {
    const title = this.#titles[id];
    return h('span', { class: 'subject' }, h('a', { href: routeTo('audit', id), data: { key: String(seq) } }, h('span', { class: 'sr-only' }, t('audit.happenedTo'), ' '), title ? quote(title, 160) : h('code', { class: 'id brief' }, visible(id))),
      title && h('code', { class: 'id brief', title: visibleString(id) }, visible(id)));
  }

  #row(entry, all, broken) {
    const { label, icon: name, tone } = entryOf(entry);
    const comment = entry.details?.comment;
    return h('tr', { class: broken ? 'broken' : null },
      h('td', { class: 'num', data: { label: t('audit.column.number') } }, count(entry.seq)),
      h('td', { class: 'nowrap', data: { label: t('audit.column.when') } }, time(entry.at, 'day'), ' ', time(entry.at, 'clock')),
      h('td', { data: { label: t('audit.column.who') } }, actor(entry.actor)),
      h('td', { class: `tone-${tone}`, data: { label: t('audit.column.what') } },
        h('span', { class: 'event' }, icon(name), h('span', null, visibleString(label), entry.to && entry.from && entry.from !== entry.to && entry.to !== eventName(entry.event) && h('span', { class: 'quiet' }, ` → ${stateOf(entry.to).label}`))),
        comment && h('blockquote', null, longText(String(comment), { chars: 240, lines: 4 }))),
      all && h('td', { data: { label: t('audit.column.subject') } }, !entry.changeId ? subjectOf(entry.details) : this.#subject(entry)),
      h('td', { data: { label: t('audit.column.hash') } }, h('span', { class: 'hash', title: t('audit.after', { hash: visibleString(entry.prevHash ?? '') }) },
        broken ? icon('alert') : null, h('code', null, visible(bareHash(entry.hash).slice(0, 12))))));
  }
}

/** Shows the subject of an entry that belongs to no change. */
function subjectOf(details) {
  const rule = details?.rule;
  if (typeof rule?.id === 'string') {
    return h('span', null, h('a', { href: routeTo('rules', rule.id) }, h('code', null, quote(rule.tool ?? rule.id, 80))),
      rule.createdBy && h('span', { class: 'quiet' }, parts(rule.verdict === 'deny' ? 'audit.deniedBy' : 'audit.allowedBy', { name: quote(rule.createdBy, 60) })));
  }
  const rules = Array.isArray(details?.rules) ? details.rules.filter((r) => typeof r?.id === 'string') : [];
  if (rules.length === 1) return h('a', { href: routeTo('rules', rules[0].id) }, typeof rules[0].tool === 'string' ? parts('audit.ruleFor', { tool: quote(rules[0].tool, 80) }) : t('audit.theRule'));
  if (rules.length > 1) return t('audit.rules', { count: rules.length });
  if (typeof details?.key?.name === 'string') return h('span', null, parts('audit.key', { name: quote(details.key.name, 80) }));
  if (typeof details?.server !== 'string') return h('span', { class: 'quiet' }, '—');
  const n = Array.isArray(details.tools) ? details.tools.length : 0;
  return h('span', null, quote(details.server, 60), n > 0 && h('span', { class: 'quiet' }, ' · ', t('audit.tools', { count: n })));
}

const bareHash = (hash) => String(hash ?? '').replace(/^sha256:/, '');

/** Checks the links between neighbours: `{compared, broken}`, where `broken` holds sequence numbers. Pure. */
export function checkLinks(entries, head) {
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
