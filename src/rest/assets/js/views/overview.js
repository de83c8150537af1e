// Shows what waits, what was decided and how fast, what failed, which servers are down, and the calls of the last hours.

import { fill, h, refill } from '../core/dom.js';
import { UNSUCCESSFUL } from '../core/filters.js';
import { language, t } from '../core/locale.js';
import { Poller } from '../core/poller.js';
import { go, routeTo } from '../core/router.js';
import { count, quote } from '../core/text.js';
import { now, relative } from '../core/time.js';
import { toolName } from '../core/vocab.js';
import { barChart } from '../ui/chart.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';

const POLL_INTERVAL = 30_000;
// Joins a burst of events into one read.
const BURST = 1000;
/** The ranges, which are also ages by which the history is filtered. */
const RANGES = { '24h': t('core.age.24h'), '30d': t('core.age.30d') };

const hour = new Intl.DateTimeFormat(language, { weekday: 'short', hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
const day = new Intl.DateTimeFormat(language, { month: 'short', day: 'numeric' });

/** Returns a duration in its largest units, such as `4 min` or `2.5 h`. */
export function duration(ms) {
  if (ms === null) return '—';
  for (const [unit, size] of [['d', 86_400_000], ['h', 3_600_000], ['min', 60_000], ['s', 1000]]) {
    if (ms >= size) return t(`overview.duration.${unit}`, { count: Number((ms / size).toFixed(ms / size < 10 ? 1 : 0)) });
  }
  return ms >= 1 ? t('overview.duration.ms', { count: Math.round(ms) }) : t('overview.duration.us', { count: Math.round(ms * 1000) });
}

export class OverviewView {
  element;
  #api;
  #range = '24h';
  #poller;
  #parts;

  constructor({ api }) {
    this.#api = api;
    this.#parts = { ranges: h('div', { class: 'layouts', role: 'group', 'aria-label': t('overview.range') }), body: h('div', { class: 'page-body overview' }, skeleton(6)) };
    this.element = h('div', { class: 'page' },
      h('div', { class: 'page-head' }, h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, t('shell.view.overview')), h('span', { class: 'pane-tools' }, this.#parts.ranges))),
      this.#parts.body);
  }

  route({ query }) {
    const range = RANGES[query.get('range')] ? query.get('range') : '24h';
    if (this.#poller && range === this.#range) return;
    this.#range = range;
    fill(this.#parts.ranges, Object.entries(RANGES).map(([name, label]) => h('button', { type: 'button', class: 'layout', 'aria-pressed': String(name === range), data: { range: name }, onclick: () => this.#choose(name) }, label)));
    this.#poller?.stop();
    this.#poller = new Poller({
      read: (signal) => this.#api.overview(range, signal),
      show: (overview) => this.#paint(overview),
      failed: (error) => fill(this.#parts.body, errorState(error, () => this.#poller.poll())),
      every: POLL_INTERVAL,
      burst: BURST,
    });
  }

  #choose(range) {
    go(routeTo('overview', null, { range }));
    this.#parts.ranges.querySelector(`[data-range="${range}"]`).focus();
  }

  dispose() {
    this.#poller?.stop();
  }

  refresh() {
    this.#poller?.poll();
  }

  event() {
    this.#poller?.pollSoon();
  }

  serverEvent() {
    this.#poller?.pollSoon();
  }

  #paint(overview) {
    const { waiting, totals, decisionTimes, serversDown, calls, complete } = overview;
    const isEmpty = !waiting.count && !Object.values(totals).some(Boolean) && !serversDown.length && !calls.some((period) => period.calls);
    if (isEmpty) return fill(this.#parts.body, emptyState('overview', t('overview.none'), t('overview.noneHow')));
    const age = this.#range;
    const end = hour.format(now());
    const history = (more) => routeTo('history', null, { age, ...more });
    refill(this.#parts.body,
      !complete && h('p', { class: 'quiet' }, t('overview.incomplete')),
      h('ul', { class: 'tiles' },
        tile(t('overview.waiting'), count(waiting.count), routeTo('inbox'), waiting.oldestAt ? t('overview.oldest', { time: relative(Date.parse(waiting.oldestAt)) }) : t('overview.nothingWaits'), waiting.count > 0 && 'amber'),
        tile(t('overview.timeToDecision'), duration(decisionTimes.medianMs), history(), decisionTimes.count ? t('overview.median', { time: duration(decisionTimes.p90Ms) }) : t('overview.noDecisions')),
        tile(t('overview.approved'), count(totals.approved), history({ state: 'applied' }), t('overview.ofProposed', { count: totals.proposed })),
        tile(t('overview.rejected'), count(totals.rejected), history({ state: 'rejected' }), t('overview.rejectedHow')),
        tile(t('overview.failed'), count(totals.failed), history({ state: UNSUCCESSFUL }), t('overview.failedHow'), totals.failed > 0 && 'red'),
        tile(t('overview.serversDown'), count(serversDown.length), routeTo('servers'), serversDown.length ? quote(serversDown.join(', '), 60) : t('overview.allReached'), serversDown.length > 0 && 'red')),
      waiting.count > 0 && h('section', { class: 'waiting-ages' }, h('h2', null, t('overview.byAge')),
        barChart({ title: t('overview.waitingChanges'), column: t('overview.ageColumn'), series: [{ name: t('overview.waiting'), tone: 'amber' }], points: waiting.ages.map(({ below, count: n }) => ({ label: t(`overview.age.${below}`), values: [n] })) })),
      h('section', null, h('h2', null, t('overview.decisions')),
        barChart({
          title: RANGES[age], end: age === '24h' ? end : day.format(now()), series: [{ name: t('overview.approved'), tone: 'green' }, { name: t('overview.rejected'), tone: 'grey' }, { name: t('overview.failed'), tone: 'red' }],
          points: overview.periods.map((period) => ({ label: (age === '24h' ? hour : day).format(Date.parse(period.from)), values: [period.approved, period.rejected, period.failed] })),
        })),
      groups(t('overview.byAgent'), t('overview.agent'), overview.agents, ({ name }) => name, ({ name }) => ({ principal: name }), history),
      groups(t('overview.byTool'), t('overview.tool'), overview.tools, ({ server, name }) => toolName({ provider: server, tool: name }), ({ server, name }) => ({ server, tool: name }), history),
      h('section', null, h('h2', null, t('overview.lastCalls')),
        h('p', { class: 'quiet' }, t('overview.calls', { count: calls.reduce((sum, period) => sum + period.calls, 0) }), ' ', h('a', { href: routeTo('sessions') }, t('shell.view.sessions'))),
        h('div', { class: 'chart-pair' },
          barChart({ title: t('overview.callsTitle'), end, series: [{ name: t('overview.answered'), tone: 'accent' }, { name: t('overview.failed'), tone: 'red' }], points: calls.map((period) => ({ label: hour.format(Date.parse(period.from)), values: [period.calls - period.failed, period.failed] })) }),
          barChart({ title: t('overview.averageTime'), end, series: [{ name: t('overview.average'), tone: 'accent' }], format: (us) => duration(us / 1000), points: calls.map((period) => ({ label: hour.format(Date.parse(period.from)), values: [period.averageUs] })) }))));
  }
}

const tile = (name, value, href, detail, tone) => h('li', null, h('a', { class: `tile${tone ? ` tone-${tone}` : ''}`, href },
  h('span', { class: 'tile-name' }, name), h('span', { class: 'tile-value' }, value), h('span', { class: 'tile-detail' }, detail)));

// Shows a table of outcomes. Each number leads to the history, which has the states of changes instead of their decisions.
function groups(title, column, rows, nameOf, filterOf, history) {
  if (!rows.length) return null;
  const columns = [['proposed', {}], ['approved', { state: 'applied' }], ['rejected', { state: 'rejected' }], ['failed', { state: UNSUCCESSFUL }]];
  const cell = (row, [key, filter]) => h('td', { class: 'num', data: { label: t(`overview.${key}`) } }, row[key] > 0 ? h('a', { href: history({ ...filterOf(row), ...filter }) }, count(row[key]), h('span', { class: 'sr-only' }, ' ', t(`overview.cell.${key}`))) : h('span', { class: 'quiet' }, '0'));
  return h('section', null, h('h2', null, title), h('table', { class: 'records outcomes' },
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, column), columns.map(([key]) => h('th', { scope: 'col', class: 'num' }, t(`overview.${key}`))))),
    h('tbody', null, rows.map((row) => h('tr', null, h('td', { data: { label: column } }, h('a', { href: history(filterOf(row)) }, quote(nameOf(row), 80))), columns.map((c) => cell(row, c)))))));
}
