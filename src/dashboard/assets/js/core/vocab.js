// Words and icons for states, operations, events and transports: one table, so that they read alike everywhere.

export const OPERATIONS = {
  CREATE: { label: 'Create', icon: 'plus', tone: 'green' },
  UPDATE: { label: 'Update', icon: 'pencil', tone: 'amber' },
  DELETE: { label: 'Delete', icon: 'trash', tone: 'red' },
};

export const STATES = {
  pending: { label: 'Pending', tone: 'amber', icon: 'clock', says: 'Waits for a decision.' },
  stale: { label: 'Stale', tone: 'amber', icon: 'refresh', says: 'What it would alter has changed since it was proposed.' },
  approved: { label: 'Approved', tone: 'accent', icon: 'check', says: 'Approved; about to run.' },
  executing: { label: 'Running', tone: 'accent', icon: 'play', says: 'Running now.' },
  outcome_unknown: { label: 'Outcome unknown', tone: 'red', icon: 'question', says: 'It was started, and nobody knows how it ended.' },
  applied: { label: 'Applied', tone: 'green', icon: 'check', says: 'It was applied.' },
  failed: { label: 'Failed', tone: 'red', icon: 'alert', says: 'It was approved and could not be applied.' },
  rejected: { label: 'Rejected', tone: 'red', icon: 'cross', says: 'It was rejected. Nothing was altered.' },
  expired: { label: 'Expired', tone: 'grey', icon: 'clock', says: 'Nobody decided in time. Nothing was altered.' },
  withdrawn: { label: 'Withdrawn', tone: 'grey', icon: 'undo', says: 'Its proposer took it back. Nothing was altered.' },
};

/** What needs a person: an unknown outcome has to be settled by one. */
export const INBOX_STATES = ['pending', 'stale', 'outcome_unknown'];
export const FINAL_STATES = ['applied', 'failed', 'rejected', 'expired', 'withdrawn'];

export const EVENTS = {
  created: { label: 'asked for this change', icon: 'plus', tone: 'grey' },
  voted: { label: 'voted', icon: 'check', tone: 'accent' },
  edited: { label: 'edited the change', icon: 'pencil', tone: 'grey' },
  approved: { label: 'approved', icon: 'check', tone: 'green' },
  unapproved: { label: 'took the approval back', icon: 'undo', tone: 'amber' },
  rejected: { label: 'rejected', icon: 'cross', tone: 'red' },
  expired: { label: 'let it expire', icon: 'clock', tone: 'grey' },
  withdrawn: { label: 'withdrew the change', icon: 'undo', tone: 'grey' },
  stale: { label: 'found that the target had changed', icon: 'refresh', tone: 'amber' },
  refreshed: { label: 'computed a fresh diff', icon: 'refresh', tone: 'accent' },
  executing: { label: 'started to run it', icon: 'play', tone: 'accent' },
  asked: { label: 'asked the agent’s client for input', icon: 'question', tone: 'accent' },
  answered: { label: 'ended a question of the tool', icon: 'play', tone: 'grey' },
  applied: { label: 'applied the change', icon: 'check', tone: 'green' },
  failed: { label: 'could not apply the change', icon: 'alert', tone: 'red' },
  outcome_unknown: { label: 'lost track of how it ended', icon: 'question', tone: 'red' },
  settled: { label: 'settled the outcome', icon: 'check', tone: 'accent' },
  undone: { label: 'took the approval back', icon: 'undo', tone: 'amber' },
  standing_rule_created: { label: 'made a standing rule', icon: 'rule', tone: 'accent' },
  standing_rule_revoked: { label: 'revoked a standing rule', icon: 'undo', tone: 'amber' },
  standing_rule_expired: { label: 'let a standing rule expire', icon: 'clock', tone: 'grey' },
  standing_rule_used: { label: 'noted how often the standing rule made from this change was used', icon: 'rule', tone: 'grey' },
  standing_rule_orphaned: { label: 'found that the giver of a standing rule may decide no more', icon: 'alert', tone: 'amber' },
  standing_rules_used: { label: 'noted how often standing rules were used', icon: 'rule', tone: 'grey' },
  definitions_seen: { label: 'first saw the tools of a server', icon: 'eye', tone: 'grey' },
  definitions_accepted: { label: 'accepted definitions of tools', icon: 'check', tone: 'green' },
  definitions_bound: { label: 'noted what accepted tools are served by', icon: 'eye', tone: 'grey' },
  definitions_revoked: { label: 'took acceptances of tools back', icon: 'undo', tone: 'amber' },
  key_created: { label: 'made a key', icon: 'person', tone: 'accent' },
  key_revoked: { label: 'revoked a key', icon: 'undo', tone: 'amber' },
  records_anchored: { label: 'recorded the keys, acceptances and rules from before', icon: 'eye', tone: 'grey' },
};

export const TRANSPORTS = { http: 'HTTP', websocket: 'WebSocket', stdio: 'stdio', sse: 'HTTP + SSE', rest: 'Plain HTTP' };

/** `change.created` and `created` are the same event. */
export const eventName = (type) => String(type).replace(/^change\./, '');
export const stateOf = (state) => STATES[state] ?? { label: String(state), tone: 'grey', icon: 'question', says: '' };
export const operationOf = (operation) => OPERATIONS[operation] ?? { label: String(operation), icon: 'pencil', tone: 'grey' };
export const eventOf = (type) => EVENTS[eventName(type)] ?? { label: eventName(type), icon: 'clock', tone: 'grey' };
export const transportOf = (transport) => TRANSPORTS[transport] ?? String(transport);

/** `create`, `an issue`… for sentences about the target. */
export const decidable = (state) => state === 'pending' || state === 'stale';
