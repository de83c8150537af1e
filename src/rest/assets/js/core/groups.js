// Groups changes of one plan, or of one agent, session and tool, under a heading. Pure.

const MIN_ROWS = 3;
const MIN_PLAN_ROWS = 2;
// A larger group starts collapsed.
const MAX_OPEN_ROWS = 25;

// Each one-shot call has a session of its own, so such calls are grouped by agent.
const sessionOf = ({ session, transport }) => (transport === 'rest' ? '' : session ?? '');

// Caches keys, because each repaint needs thousands of them.
const keys = new WeakMap();

export function groupKey(row) {
  let key = keys.get(row);
  if (key === undefined) {
    const { proposer, provider, tool, toolOperation, plan } = row;
    key = plan ? `plan ${plan.id}` : `group ${JSON.stringify([proposer?.principal, sessionOf(proposer ?? {}), provider, tool, toolOperation])}`;
    keys.set(row, key);
  }
  return key;
}

/**
 * Returns the rows with a heading before each group: `{id, group: true, plan, rows, open}`. A group takes the position of its
 * newest change. `toggled` maps the keys of groups that the user opened or closed to true or false.
 */
export function groupRows(rows, toggled) {
  const groups = new Map();
  for (const row of rows) {
    const key = groupKey(row);
    const group = groups.get(key);
    if (group) group.push(row);
    else groups.set(key, [row]);
  }
  const items = [];
  for (const [key, members] of groups) {
    const plan = members[0].plan ?? null;
    if (members.length < (plan ? MIN_PLAN_ROWS : MIN_ROWS)) continue;
    if (plan) members.sort((a, b) => a.plan.index - b.plan.index);
    groups.set(key, { id: key, group: true, plan, rows: members, open: toggled.get(key) ?? members.length <= MAX_OPEN_ROWS });
  }
  const placed = new Set();
  for (const row of rows) {
    const key = groupKey(row);
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
