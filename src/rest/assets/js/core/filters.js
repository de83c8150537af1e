// Filters changes by the same criteria in the address, among loaded rows, and in requests to the gateway. Pure.

import { matchingRows } from './collection.js';
import { t } from './locale.js';
import { STATES } from './vocab.js';

const HOUR = 3_600_000;
/** Ages by name, in milliseconds: `within` for younger changes, `beyond` for older ones. */
export const AGES = {
  '1h': { label: t('core.age.1h'), within: HOUR }, '24h': { label: t('core.age.24h'), within: 24 * HOUR }, '7d': { label: t('core.age.7d'), within: 168 * HOUR }, '30d': { label: t('core.age.30d'), within: 720 * HOUR },
  'over-1h': { label: t('core.age.over1h'), beyond: HOUR }, 'over-24h': { label: t('core.age.over24h'), beyond: 24 * HOUR },
};
/** The criteria that are chosen from a list, with their labels. */
export const FACETS = [['tool', t('core.facet.tool')], ['server', t('core.facet.server')], ['principal', t('core.facet.principal')]];
const VALUE_OF = { tool: (row) => row.tool, server: (row) => row.provider, principal: (row) => row.proposer?.principal };
const MAX_TEXT = 200;
const MAX_SEEN_NAMES = 200;

/** A choice that stands for several states. */
export const UNSUCCESSFUL = 'unsuccessful';
/** Returns the states for which the chosen one stands. */
export const statesOf = (state) => (state === UNSUCCESSFUL ? ['failed', 'outcome_unknown'] : state ? [state] : []);

/** Reads a filter from the query of a route. Unknown values and states outside `states` are ignored. */
export function readFilter(query, states = Object.keys(STATES)) {
  const text = (key) => (query.get(key) ?? '').slice(0, MAX_TEXT);
  return {
    state: [...states, UNSUCCESSFUL].includes(query.get('state')) ? query.get('state') : '', tool: text('tool'), server: text('server'), principal: text('principal'),
    age: AGES[query.get('age')] ? query.get('age') : '', q: text('q'), group: query.get('group') === 'none' ? 'none' : '',
  };
}

/** Returns a filter as the query of a route, without empty values. */
export const filterQuery = (filter) => Object.fromEntries(Object.entries(filter).filter(([, value]) => value));

/** Returns the number of chosen criteria, without state and text. */
export const countCriteria = (filter) => ['tool', 'server', 'principal', 'age'].filter((key) => filter[key]).length;

const matchesAge = (row, age, now) => {
  const { within, beyond } = AGES[age];
  return within ? row.at >= now - within : row.at < now - beyond;
};

/** Returns true if a row matches all criteria except the text. */
function matchesCriteria(row, filter, now) {
  if (filter.state && !statesOf(filter.state).includes(row.state)) return false;
  for (const [key] of FACETS) if (filter[key] && VALUE_OF[key](row) !== filter[key]) return false;
  return !filter.age || matchesAge(row, filter.age, now);
}

export function filterRows(rows, filter, now) {
  const isFiltered = filter.state || countCriteria(filter) > 0;
  return matchingRows(isFiltered ? rows.filter((row) => matchesCriteria(row, filter, now)) : rows, filter.q);
}

/** Returns an age as the parameters `since` and `until` of the REST API. */
export function ageLimits(age, now) {
  const at = (ms) => new Date(now - ms).toISOString();
  return { since: AGES[age]?.within ? at(AGES[age].within) : '', until: AGES[age]?.beyond ? at(AGES[age].beyond) : '' };
}

/** Returns the filter as parameters of the REST API. */
export function requestOf(filter, now) {
  const { state, tool, server, principal, q, age } = filter;
  return { states: statesOf(state), tool, server, principal, q, ...ageLimits(age, now) };
}

/** Returns the choices of each criterion with the number of matching rows: `{tool: [[name, n], …], …}`. */
export function facets(rows, filter, now) {
  const choices = {};
  const rowsWithText = matchingRows(rows, filter.q);
  for (const [key] of FACETS) {
    const counts = new Map();
    const otherCriteria = { ...filter, [key]: '' };
    for (const row of rowsWithText) {
      if (!matchesCriteria(row, otherCriteria, now)) continue;
      const name = VALUE_OF[key](row);
      if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    if (filter[key] && !counts.has(filter[key])) counts.set(filter[key], 0);
    choices[key] = [...counts].sort((a, b) => a[0].localeCompare(b[0]));
  }
  return choices;
}

const seenNames = { tool: new Set(), server: new Set(), principal: new Set() };

/** Returns the choices where the gateway filters: every name that was seen, without numbers. */
export function seenChoices(rows, filter) {
  const choices = {};
  for (const [key] of FACETS) {
    for (const row of rows) if (VALUE_OF[key](row) && seenNames[key].size < MAX_SEEN_NAMES) seenNames[key].add(VALUE_OF[key](row));
    choices[key] = [...new Set([...seenNames[key], ...(filter[key] ? [filter[key]] : [])])].sort().map((name) => [name, null]);
  }
  return choices;
}

/** Returns the number of rows in each state, ignoring the chosen state. */
export function stateCounts(rows, filter, now) {
  const counts = {};
  for (const row of filterRows(rows, { ...filter, state: '' }, now)) counts[row.state] = (counts[row.state] ?? 0) + 1;
  return counts;
}
