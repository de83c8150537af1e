// Draws small charts as SVG, each with the same numbers in a table for screen readers and for whoever wants to read them.

import { h, svg } from '../core/dom.js';
import { t } from '../core/locale.js';
import { count } from '../core/text.js';

const WIDTH = 600;
const HEIGHT = 120;
const GAP = 0.2;
// A chart with more bars only has the first and the last label.
const MAX_LABELS = 6;

/**
 * Creates a chart of stacked bars. `series` has `{name, tone}` of each part, `points` has `{label, values}` of each bar, and
 * `format(n)` writes a value; `column` is the heading of the labels in the table. Labels of times are the beginnings of their
 * periods, and `end` is the end of the last one.
 */
export function barChart({ title, series, points, format = count, column = t('controls.chartFrom'), end = points.at(-1)?.label }) {
  const sums = points.map(({ values }) => values.reduce((sum, value) => sum + (value ?? 0), 0));
  const max = Math.max(...sums, 0);
  const step = WIDTH / Math.max(points.length, 1);
  const bars = points.flatMap(({ values }, n) => {
    let top = HEIGHT;
    return values.map((value, part) => {
      const height = max > 0 ? (HEIGHT * (value ?? 0)) / max : 0;
      if (height === 0) return null;
      top -= height;
      return svg('rect', { class: `bar tone-${series[part].tone}`, x: (n * step + (step * GAP) / 2).toFixed(2), y: top.toFixed(2), width: (step * (1 - GAP)).toFixed(2), height: height.toFixed(2) });
    });
  });
  const legend = series.length > 1 && h('ul', { class: 'legend' }, series.map(({ name, tone }) => h('li', null, h('span', { class: `swatch tone-${tone}`, 'aria-hidden': 'true' }), name)));
  const summary = t('controls.chartSummary', { title, count: points.length, max: format(max) });
  return h('figure', { class: 'chart' },
    h('figcaption', null, h('span', { class: 'chart-title' }, title), legend, h('span', { class: 'quiet chart-max' }, max > 0 ? t('controls.chartMax', { max: format(max) }) : t('controls.chartNone'))),
    svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': summary }, svg('path', { class: 'chart-base', d: `M0 ${HEIGHT}H${WIDTH}` }), bars),
    h('div', { class: `chart-labels quiet${points.length > MAX_LABELS ? '' : ' all'}`, 'aria-hidden': 'true' }, (points.length > MAX_LABELS ? [points[0].label, end] : points.map(({ label }) => label)).map((label) => h('span', null, label))),
    h('details', { class: 'fold-section' }, h('summary', null, t('controls.chartTable')),
      h('div', { class: 'chart-table', tabindex: '0', role: 'region', 'aria-label': t('controls.chartTableOf', { title }) }, h('table', null,
        h('thead', null, h('tr', null, h('th', { scope: 'col' }, column), series.map(({ name }) => h('th', { scope: 'col', class: 'num' }, name)))),
        h('tbody', null, points.map(({ label, values }) => h('tr', null, h('th', { scope: 'row' }, label), values.map((value) => h('td', { class: 'num' }, value === null ? '—' : format(value))))))))));
}
