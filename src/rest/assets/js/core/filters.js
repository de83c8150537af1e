// Which changes somebody wants to see: the same for the address, for rows that are here and for the gateway. Pure.

import { matching } from './collection.js';
import { STATES } from './vocab.js';

const HOUR = 3_600_000;
/** Ages by name: within or beyond so many milliseconds. */
export const AGES = {
  '1h': { label: 'Last hour', within: HOUR }, '24h': { label: 'Last 24 hours', within: 24 * HOUR }, '7d': { label: 'Last 7 days', within: 168 * HOUR },
  'over-1h': { label: 'Older than an hour', beyond: HOUR }, 'over-24h': { label: 'Older than a day', beyond: 24 * HOUR },
};
/** What can be chosen from a list, with its name for people. */
export const FACETS = [['tool', 'Tool'], ['server', 'Server'], ['principal', 'Agent']];
const VALUE = { tool: (row) => row.tool, server: (row) => row.provider, principal: (row) => row.proposer?.principal };
const MAX = 200;

/** Out of the query of a route; what is unknown is left out, as is a state that is none of `states`. */
export function readFilter(query, states = Object.keys(STATES)) {
  const text = (key) => (query.get(key) ?? '').slice(0, MAX);
  return {
    state: states.includes(query.get('state')) ? query.get('state') : '', tool: text('tool'), server: text('server'), principal: text('principal'),
    age: AGES[query.get('age')] ? query.get('age') : '', q: text('q'), group: query.get('group') === 'none' ? 'none' : '',
  };
}

/** For the query of a route: only what is chosen. */
export const filterQuery = (filter) => Object.fromEntries(Object.entries(filter).filter(([, value]) => value));

/** How many of the lists are narrowed, beside state and text. */
export const narrowed = (filter) => ['tool', 'server', 'principal', 'age'].filter((key) => filter[key]).length;

const isWithin = (row, age, now) => {
  const { within, beyond } = AGES[age];
  return within ? row.at >= now - within : row.at < now - beyond;
};

/** Whether a row belongs, the text aside. */
export function fits(row, filter, now) {
  if (filter.state && row.state !== filter.state) return false;
  for (const [key] of FACETS) if (filter[key] && VALUE[key](row) !== filter[key]) return false;
  return !filter.age || isWithin(row, filter.age, now);
}

export function filtered(rows, filter, now) {
  const some = filter.state || narrowed(filter) > 0;
  return matching(some ? rows.filter((row) => fits(row, filter, now)) : rows, filter.q);
}

/** As the gateway is asked. */
export function request(filter, now) {
  const { state, tool, server, principal, q, age } = filter;
  const at = (ms) => new Date(now - ms).toISOString();
  return {
    states: state ? [state] : [], tool, server, principal, q,
    since: AGES[age]?.within ? at(AGES[age].within) : '', until: AGES[age]?.beyond ? at(AGES[age].beyond) : '',
  };
}

/** `{tool: [[name, n], …], …}`: what there is to choose, with how many each would leave. */
export function facets(rows, filter, now) {
  const out = {};
  const texts = matching(rows, filter.q);
  for (const [key] of FACETS) {
    const counts = new Map();
    const others = { ...filter, [key]: '' };
    for (const row of texts) {
      if (!fits(row, others, now)) continue;
      const name = VALUE[key](row);
      if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    if (filter[key] && !counts.has(filter[key])) counts.set(filter[key], 0);
    out[key] = [...counts].sort((a, b) => a[0].localeCompare(b[0]));
  }
  return out;
}

const met = { tool: new Set(), server: new Set(), principal: new Set() };

/** As `facets` where the gateway filters: every name that has been seen, without figures. */
export function known(rows, filter) {
  const out = {};
  for (const [key] of FACETS) {
    for (const row of rows) if (VALUE[key](row) && met[key].size < MAX) met[key].add(VALUE[key](row));
    out[key] = [...new Set([...met[key], ...(filter[key] ? [filter[key]] : [])])].sort().map((name) => [name, null]);
  }
  return out;
}

/** How many there are in each state, whatever state is chosen. */
export function stateCounts(rows, filter, now) {
  const counts = {};
  for (const row of filtered(rows, { ...filter, state: '' }, now)) counts[row.state] = (counts[row.state] ?? 0) + 1;
  return counts;
}
