// The labels and icons of states, operations, events and transports, in one table for the whole dashboard.

export const OPERATIONS = {
  CREATE: { label: 'Create', icon: 'plus', tone: 'green' },
  UPDATE: { label: 'Update', icon: 'pencil', tone: 'amber' },
  DELETE: { label: 'Delete', icon: 'trash', tone: 'red' },
  // A call whose effect is unknown.
  CALL: { label: 'Call', icon: 'call', tone: 'grey' },
};

export const STATES = {
  pending: { label: 'Pending', tone: 'amber', icon: 'clock', explanation: 'Waiting for a decision.' },
  stale: { label: 'Stale', tone: 'amber', icon: 'refresh', explanation: 'The target has changed since this was proposed.' },
  approved: { label: 'Approved', tone: 'accent', icon: 'check', explanation: 'Approved; about to run.' },
  executing: { label: 'Running', tone: 'accent', icon: 'play', explanation: 'Running now.' },
  outcome_unknown: { label: 'Outcome unknown', tone: 'red', icon: 'question', explanation: 'It started, but the outcome is not known.' },
  applied: { label: 'Applied', tone: 'green', icon: 'check', explanation: 'The change was applied.' },
  failed: { label: 'Failed', tone: 'red', icon: 'alert', explanation: 'It was approved but could not be applied.' },
  rejected: { label: 'Rejected', tone: 'red', icon: 'cross', explanation: 'Nothing was changed.' },
  expired: { label: 'Expired', tone: 'grey', icon: 'clock', explanation: 'Nobody decided in time. Nothing was changed.' },
  withdrawn: { label: 'Withdrawn', tone: 'grey', icon: 'undo', explanation: 'The proposer withdrew it. Nothing was changed.' },
};

/** The states that need a person. An unknown outcome has to be settled by one. */
export const INBOX_STATES = ['pending', 'stale', 'outcome_unknown'];
/** The states of the history. Changes that are still to be decided are in the inbox only. */
export const HISTORY_STATES = Object.keys(STATES).filter((state) => state !== 'pending' && state !== 'stale');

export const EVENTS = {
  created: { label: 'proposed this change', icon: 'plus', tone: 'grey' },
  voted: { label: 'voted', icon: 'check', tone: 'accent' },
  failing_call_returned: { label: 'proposed a call that must fail, and got it back', icon: 'undo', tone: 'grey' },
  escalated: { label: 'let further people decide, because nobody had', icon: 'person', tone: 'amber' },
  edited: { label: 'edited the change', icon: 'pencil', tone: 'grey' },
  approved: { label: 'approved', icon: 'check', tone: 'green' },
  unapproved: { label: 'undid the approval', icon: 'undo', tone: 'amber' },
  rejected: { label: 'rejected', icon: 'cross', tone: 'red' },
  expired: { label: 'expired the change', icon: 'clock', tone: 'grey' },
  withdrawn: { label: 'withdrew the change', icon: 'undo', tone: 'grey' },
  stale: { label: 'found that the target had changed', icon: 'refresh', tone: 'amber' },
  refreshed: { label: 'computed a fresh diff', icon: 'refresh', tone: 'accent' },
  executing: { label: 'started to run it', icon: 'play', tone: 'accent' },
  asked: { label: 'asked the agent’s client for input', icon: 'question', tone: 'accent' },
  answered: { label: 'closed a question from the tool', icon: 'play', tone: 'grey' },
  applied: { label: 'applied the change', icon: 'check', tone: 'green' },
  failed: { label: 'could not apply the change', icon: 'alert', tone: 'red' },
  outcome_unknown: { label: 'lost track of the outcome', icon: 'question', tone: 'red' },
  late_result: { label: 'received a result that came too late', icon: 'clock', tone: 'amber' },
  settled: { label: 'settled the outcome', icon: 'check', tone: 'accent' },
  verified: { label: 'read the target back', icon: 'eye', tone: 'grey' },
  standing_rule_created: { label: 'created a standing rule', icon: 'rule', tone: 'accent' },
  standing_rule_revoked: { label: 'revoked a standing rule', icon: 'undo', tone: 'amber' },
  standing_rule_expired: { label: 'expired a standing rule', icon: 'clock', tone: 'grey' },
  standing_rule_used: { label: 'recorded uses of a standing rule', icon: 'rule', tone: 'grey' },
  standing_rule_orphaned: { label: 'found that the creator of a standing rule may no longer decide', icon: 'alert', tone: 'amber' },
  standing_rules_used: { label: 'recorded uses of standing rules', icon: 'rule', tone: 'grey' },
  configuration_accepted: { label: 'approved a configuration change', icon: 'check', tone: 'green' },
  configuration_refused: { label: 'rejected a configuration change', icon: 'cross', tone: 'red' },
  configuration_started: { label: 'started with a configuration nobody approved', icon: 'alert', tone: 'amber' },
  servers_edited: { label: 'edited servers in the configuration file', icon: 'servers', tone: 'accent' },
  server_tried: { label: 'tested a server', icon: 'servers', tone: 'grey' },
  server_trial_requested: { label: 'asked to test a server', icon: 'eye', tone: 'amber' },
  server_trial_refused: { label: 'refused the test of a server', icon: 'cross', tone: 'red' },
  key_created: { label: 'created a key', icon: 'person', tone: 'accent' },
  key_revoked: { label: 'revoked a key', icon: 'undo', tone: 'amber' },
  person_revoked: { label: 'revoked a person', icon: 'undo', tone: 'amber' },
  account_connected: { label: 'connected an account at a server', icon: 'check', tone: 'accent' },
  account_disconnected: { label: 'disconnected an account at a server', icon: 'unplugged', tone: 'amber' },
  policy_recorded: { label: 'recorded the policy in force', icon: 'audit', tone: 'grey' },
  records_anchored: { label: 'anchored existing keys, acceptances and rules in the trail', icon: 'audit', tone: 'grey' },
  redacted: { label: 'removed old arguments and diffs', icon: 'trash', tone: 'grey' },
  restored: { label: 'started from a backup', icon: 'refresh', tone: 'amber' },
  definitions_seen: { label: 'recorded the tools of a new server', icon: 'eye', tone: 'grey' },
  definitions_accepted: { label: 'accepted tool definitions', icon: 'check', tone: 'green' },
  definitions_accepted_as_reads: { label: 'accepted known reads, which run without review', icon: 'check', tone: 'amber' },
  definitions_bound: { label: 'recorded which server provides the accepted tools', icon: 'eye', tone: 'grey' },
  definitions_revoked: { label: 'revoked accepted tool definitions', icon: 'undo', tone: 'amber' },
};

/** The results of reading the target of an applied change again after the run. */
export const VERIFICATIONS = {
  not_read: { explanation: 'Not read back yet. This is tried once, right after the run.', icon: 'eye', tone: 'grey' },
  matches: { explanation: 'Read back: as approved.', icon: 'check', tone: 'green', event: 'read the target back: it is as approved' },
  differs: { explanation: 'Read back: differs from what was approved.', icon: 'alert', tone: 'red', event: 'read the target back: it differs from what was approved' },
  unreadable: { explanation: 'Could not be read back.', icon: 'question', tone: 'amber', event: 'could not read the target back' },
};

/** The events by topic, for the filter of the audit trail. */
export const EVENT_GROUPS = [
  ['Decisions', ['voted', 'approved', 'rejected', 'unapproved']],
  ['Changes', ['created', 'failing_call_returned', 'escalated', 'edited', 'stale', 'refreshed', 'withdrawn', 'expired']],
  ['Execution', ['executing', 'asked', 'answered', 'applied', 'failed', 'outcome_unknown', 'late_result', 'settled', 'verified']],
  ['Standing rules', ['standing_rule_created', 'standing_rule_revoked', 'standing_rule_expired', 'standing_rule_orphaned', 'standing_rule_used', 'standing_rules_used']],
  ['Configuration, keys and data', ['configuration_accepted', 'configuration_refused', 'configuration_started', 'servers_edited', 'server_tried', 'server_trial_requested', 'server_trial_refused', 'key_created', 'key_revoked', 'person_revoked', 'account_connected', 'account_disconnected', 'policy_recorded', 'records_anchored', 'redacted', 'restored']],
  ['Tool definitions', ['definitions_seen', 'definitions_accepted', 'definitions_accepted_as_reads', 'definitions_bound', 'definitions_revoked']],
];

export const TRANSPORTS = { http: 'HTTP', websocket: 'WebSocket', stdio: 'stdio', sse: 'HTTP + SSE', rest: 'Plain HTTP' };

/** Returns the name of an event without `change.`: `change.created` and `created` are the same event. */
export const eventName = (type) => String(type).replace(/^change\./, '');
export const stateOf = (state) => STATES[state] ?? { label: String(state), tone: 'grey', icon: 'question', explanation: '' };
export const operationOf = (operation) => OPERATIONS[operation] ?? { label: String(operation), icon: 'pencil', tone: 'grey' };
export const eventOf = (type) => EVENTS[eventName(type)] ?? { label: eventName(type).replaceAll('_', ' '), icon: 'clock', tone: 'grey' };

// Labels of entries about a rule that a reviewer made for a whole tool instead of from a change.
const TOOL_RULE = {
  standing_rule_created: 'let a tool run without review',
  standing_rule_used: 'recorded calls of a tool that runs without review',
  standing_rule_revoked: 'no longer lets a tool run without review',
};

export function entryOf({ event, details }) {
  const entry = eventOf(event);
  const found = VERIFICATIONS[details?.verified];
  if (found?.event) return { label: found.event, icon: found.icon, tone: found.tone };
  const rule = details?.rule;
  const isToolRule = rule && !rule.fromChange && rule.verdict === 'allow';
  return isToolRule && TOOL_RULE[eventName(event)] ? { ...entry, label: TOOL_RULE[eventName(event)] } : entry;
}

export const transportOf = (transport) => TRANSPORTS[transport] ?? String(transport);

/** Returns the operation to show: an update whose effect is unknown is shown as a call. */
export const shownOperation = ({ operation, preview }) => (operation === 'UPDATE' && preview?.kind === 'arguments' ? 'CALL' : operation);

/** Returns the name by which rules refer to a call: that of the tool, or `tool/operation`. */
export const subjectOf = ({ tool, preview }) => preview?.toolOperation ? `${tool}/${preview.toolOperation}` : tool;

/** Returns `filesystem / edit_file`: the server and the server's own name of the tool, with the operation if it carries many. */
export function toolName(change) {
  const { provider } = change;
  const subject = subjectOf(change);
  return `${provider} / ${subject.startsWith(`${provider}__`) ? subject.slice(provider.length + 2) : subject}`;
}

/** Returns the name of a proposer for people: that of the identity provider if it gave one. */
export const proposerName = (proposer) => proposer.claims?.displayName ?? proposer.principal;

/** Returns the name of the reviewer who made a decision for people. */
export const reviewerName = ({ displayName, reviewer }) => displayName ?? reviewer;

export const isDecidable = (state) => state === 'pending' || state === 'stale';
