// Puts what belongs together under one head: changes of one agent, session and tool. Pure.

const LEAST = 3;
// A flood is closed until somebody opens it; what is less is read as a list.
const FLOOD = 25;

// A one-shot call is a session of its own: there the agent alone says what belongs together.
const sessionOf = ({ session, transport }) => (transport === 'rest' ? '' : session ?? '');

// Asked for thousands of rows at every repaint.
const keys = new WeakMap();

export function groupKey(row) {
  let key = keys.get(row);
  if (key === undefined) {
    const { proposer, provider, tool } = row;
    key = `group ${JSON.stringify([proposer?.principal, sessionOf(proposer ?? {}), provider, tool])}`;
    keys.set(row, key);
  }
  return key;
}

/**
 * Rows in the order of a list with heads among them: `{id, group: true, rows, open}`. A group stands where its newest
 * change would; `turned` holds the keys of those that somebody has opened or closed, with what they chose.
 */
export function grouped(rows, turned) {
  const groups = new Map();
  for (const row of rows) {
    const key = groupKey(row);
    const group = groups.get(key);
    if (group) group.push(row);
    else groups.set(key, [row]);
  }
  const out = [];
  for (const [key, members] of groups) {
    if (members.length < LEAST) continue;
    groups.set(key, { id: key, group: true, rows: members, open: turned.get(key) ?? members.length <= FLOOD });
  }
  const done = new Set();
  for (const row of rows) {
    const key = groupKey(row);
    const group = groups.get(key);
    if (Array.isArray(group)) {
      out.push(row);
    } else if (!done.has(key)) {
      done.add(key);
      out.push(group);
      if (group.open) out.push(...group.rows);
    }
  }
  return out;
}
