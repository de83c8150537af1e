// Groups changes of one plan, of one bundle, or of one agent, session and tool, under a heading. Pure.

const MIN_ROWS = 3;
// Plans and bundles belong together even if there are only two changes.
const MIN_RELATED_ROWS = 2;
// A larger group starts collapsed.
const MAX_OPEN_ROWS = 25;

const NO_BUNDLE = () => null;

// Each one-shot call has a session of its own, so such calls are grouped by agent.
const sessionOf = ({ session, transport }) => (transport === 'rest' ? '' : session ?? '');

// Caches keys, because each repaint needs thousands of them.
const keys = new WeakMap();

/** Returns the key of the group of a row. `bundleOf(id)` returns the bundle of a change, or null. */
export function groupKey(row, bundleOf = NO_BUNDLE) {
  const bundle = row.plan ? null : bundleOf(row.id);
  if (bundle) return `bundle ${bundle.id}`;
  let key = keys.get(row);
  if (key === undefined) {
    const { proposer, provider, tool, toolOperation, plan } = row;
    key = plan ? `plan ${plan.id}` : `group ${JSON.stringify([proposer?.principal, sessionOf(proposer ?? {}), provider, tool, toolOperation])}`;
    keys.set(row, key);
  }
  return key;
}

/**
 * Returns the rows with a heading before each group: `{id, group: true, plan, bundle, rows, open}`. A group takes the position
 * of its newest change. `toggled` maps the keys of groups that the user opened or closed to true or false.
 */
export function groupRows(rows, toggled, bundleOf = NO_BUNDLE) {
  const groups = new Map();
  for (const row of rows) {
    const key = groupKey(row, bundleOf);
    const group = groups.get(key);
    if (group) group.push(row);
    else groups.set(key, [row]);
  }
  const items = [];
  for (const [key, members] of groups) {
    const plan = members[0].plan ?? null;
    const bundle = plan ? null : bundleOf(members[0].id);
    if (members.length < (plan || bundle ? MIN_RELATED_ROWS : MIN_ROWS)) continue;
    if (plan) members.sort((a, b) => a.plan.index - b.plan.index);
    groups.set(key, { id: key, group: true, plan, bundle, rows: members, open: toggled.get(key) ?? members.length <= MAX_OPEN_ROWS });
  }
  const placed = new Set();
  for (const row of rows) {
    const key = groupKey(row, bundleOf);
    const group = groups.get(key);
    if (Array.isArray(group)) {
      items.push(row);
    } else if (!placed.has(key)) {
      placed.add(key);
      items.push(group);
      if (group.open) items.push(...group.rows);
    }
  }
  return items;
}
