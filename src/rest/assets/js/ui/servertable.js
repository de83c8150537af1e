// The compact table of all servers: those that do not work come first.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { routeTo } from '../core/router.js';
import { count, quote, visibleString } from '../core/text.js';

const RANKS = { down: 0, needs_connection: 2, connecting: 2, up: 3 };

/** Returns true for a server that does not work: it is down, or is still trying after a failure. */
export const isBroken = (server) => server.status === 'down' || (server.status === 'connecting' && Boolean(server.lastError)) || server.breaker === 'open';

const rank = (server) => (isBroken(server) ? Math.min(1, RANKS[server.status] ?? 1) : RANKS[server.status] ?? 2);

/** Returns the numbers of a server's tools by state, as texts without those of zero. */
export function toolStates({ verdicts, review }) {
  if (!verdicts) return [];
  const waiting = review ? review.new + review.changed + review.reads + (review.known ?? 0) : 0;
  const numbers = { 'serverform.toolsRun': verdicts.allow, 'serverform.toolsReviewed': verdicts.review, 'serverform.toolsDenied': verdicts.deny, 'serverform.toolsDepend': verdicts.depends, 'serverform.toolsWaiting': waiting };
  return Object.entries(numbers).filter(([, n]) => n > 0).map(([key, n]) => t(key, { count: n }));
}

/** Returns the table. `states` has the label, tone and icon of each status. */
export function serverTable(servers, states) {
  const sorted = [...servers].sort((a, b) => rank(a) - rank(b));
  return h('table', { class: 'records server-table' },
    h('thead', null, h('tr', null, [t('serverform.server'), t('serverform.state'), t('serverform.tools'), t('serverform.commandOrAddress')].map((c) => h('th', { scope: 'col' }, c)))),
    h('tbody', null, sorted.map((server) => {
      const { label, tone, icon: name } = states[server.status] ?? { label: visibleString(String(server.status)), tone: 'grey', icon: 'question' };
      const tools = toolStates(server);
      return h('tr', { class: isBroken(server) && 'broken' },
        h('td', { data: { label: t('serverform.server') } }, h('a', { class: 'server-link', href: routeTo('servers', server.name) }, quote(server.name, 64))),
        h('td', { data: { label: t('serverform.state') } }, h('span', { class: `badge state tone-${tone}` }, icon(name), label), server.era && h('span', { class: 'quiet' }, ` ${visibleString(server.era)}`),
          server.status !== 'up' && server.lastError && h('div', { class: 'quiet server-error' }, quote(server.lastError, 160))),
        h('td', { data: { label: t('serverform.tools') } }, tools.length ? tools.map((text, at) => [at > 0 && ' · ', h('span', { class: 'nowrap' }, text)]) : h('span', { class: 'quiet' }, server.tools > 0 ? count(server.tools) : t('serverform.noTools'))),
        h('td', { data: { label: t('serverform.commandOrAddress') } }, server.target ? h('code', null, quote(server.target, 160)) : h('span', { class: 'quiet' }, t('serverform.builtIn'))));
    })));
}
