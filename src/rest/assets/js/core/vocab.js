// The labels and icons of states, operations, events and transports, in one table for the whole dashboard.

import { t } from './locale.js';

const OPERATIONS = {
  CREATE: { label: t('vocab.operation.CREATE'), icon: 'plus', tone: 'green' },
  UPDATE: { label: t('vocab.operation.UPDATE'), icon: 'pencil', tone: 'amber' },
  DELETE: { label: t('vocab.operation.DELETE'), icon: 'trash', tone: 'red' },
  // A call whose effect is unknown.
  CALL: { label: t('vocab.operation.CALL'), icon: 'call', tone: 'grey' },
};

export const STATES = {
  pending: { label: t('vocab.state.pending'), tone: 'amber', icon: 'clock', explanation: t('vocab.state.pending.explanation') },
  stale: { label: t('vocab.state.stale'), tone: 'amber', icon: 'refresh', explanation: t('vocab.state.stale.explanation') },
  approved: { label: t('vocab.state.approved'), tone: 'accent', icon: 'check', explanation: t('vocab.state.approved.explanation') },
  executing: { label: t('vocab.state.executing'), tone: 'accent', icon: 'play', explanation: t('vocab.state.executing.explanation') },
  outcome_unknown: { label: t('vocab.state.outcome_unknown'), tone: 'red', icon: 'question', explanation: t('vocab.state.outcome_unknown.explanation') },
  applied: { label: t('vocab.state.applied'), tone: 'green', icon: 'check', explanation: t('vocab.state.applied.explanation') },
  failed: { label: t('vocab.state.failed'), tone: 'red', icon: 'alert', explanation: t('vocab.state.failed.explanation') },
  rejected: { label: t('vocab.state.rejected'), tone: 'red', icon: 'cross', explanation: t('vocab.state.rejected.explanation') },
  expired: { label: t('vocab.state.expired'), tone: 'grey', icon: 'clock', explanation: t('vocab.state.expired.explanation') },
  withdrawn: { label: t('vocab.state.withdrawn'), tone: 'grey', icon: 'undo', explanation: t('vocab.state.withdrawn.explanation') },
};

/** The states that need a person. An unknown outcome has to be settled by one. */
export const INBOX_STATES = ['pending', 'stale', 'outcome_unknown'];
/** The states of the history. Changes that are still to be decided are in the inbox only. */
export const HISTORY_STATES = Object.keys(STATES).filter((state) => state !== 'pending' && state !== 'stale');

export const EVENTS = {
  created: { label: t('vocab.event.created'), icon: 'plus', tone: 'grey' },
  voted: { label: t('vocab.event.voted'), icon: 'check', tone: 'accent' },
  failing_call_returned: { label: t('vocab.event.failing_call_returned'), icon: 'undo', tone: 'grey' },
  escalated: { label: t('vocab.event.escalated'), icon: 'person', tone: 'amber' },
  edited: { label: t('vocab.event.edited'), icon: 'pencil', tone: 'grey' },
  approved: { label: t('vocab.event.approved'), icon: 'check', tone: 'green' },
  unapproved: { label: t('vocab.event.unapproved'), icon: 'undo', tone: 'amber' },
  rejected: { label: t('vocab.event.rejected'), icon: 'cross', tone: 'red' },
  expired: { label: t('vocab.event.expired'), icon: 'clock', tone: 'grey' },
  withdrawn: { label: t('vocab.event.withdrawn'), icon: 'undo', tone: 'grey' },
  stale: { label: t('vocab.event.stale'), icon: 'refresh', tone: 'amber' },
  refreshed: { label: t('vocab.event.refreshed'), icon: 'refresh', tone: 'accent' },
  executing: { label: t('vocab.event.executing'), icon: 'play', tone: 'accent' },
  asked: { label: t('vocab.event.asked'), icon: 'question', tone: 'accent' },
  answered: { label: t('vocab.event.answered'), icon: 'play', tone: 'grey' },
  applied: { label: t('vocab.event.applied'), icon: 'check', tone: 'green' },
  failed: { label: t('vocab.event.failed'), icon: 'alert', tone: 'red' },
  outcome_unknown: { label: t('vocab.event.outcome_unknown'), icon: 'question', tone: 'red' },
  late_result: { label: t('vocab.event.late_result'), icon: 'clock', tone: 'amber' },
  settled: { label: t('vocab.event.settled'), icon: 'check', tone: 'accent' },
  verified: { label: t('vocab.event.verified'), icon: 'eye', tone: 'grey' },
  standing_rule_created: { label: t('vocab.event.standing_rule_created'), icon: 'rule', tone: 'accent' },
  standing_rule_revoked: { label: t('vocab.event.standing_rule_revoked'), icon: 'undo', tone: 'amber' },
  standing_rule_expired: { label: t('vocab.event.standing_rule_expired'), icon: 'clock', tone: 'grey' },
  standing_rule_used: { label: t('vocab.event.standing_rule_used'), icon: 'rule', tone: 'grey' },
  standing_rule_orphaned: { label: t('vocab.event.standing_rule_orphaned'), icon: 'alert', tone: 'amber' },
  standing_rules_used: { label: t('vocab.event.standing_rules_used'), icon: 'rule', tone: 'grey' },
  configuration_accepted: { label: t('vocab.event.configuration_accepted'), icon: 'check', tone: 'green' },
  configuration_refused: { label: t('vocab.event.configuration_refused'), icon: 'cross', tone: 'red' },
  configuration_started: { label: t('vocab.event.configuration_started'), icon: 'alert', tone: 'amber' },
  policy_edited: { label: t('vocab.event.policy_edited'), icon: 'rule', tone: 'accent' },
  servers_edited: { label: t('vocab.event.servers_edited'), icon: 'servers', tone: 'accent' },
  server_tried: { label: t('vocab.event.server_tried'), icon: 'servers', tone: 'grey' },
  server_trial_requested: { label: t('vocab.event.server_trial_requested'), icon: 'eye', tone: 'amber' },
  server_trial_refused: { label: t('vocab.event.server_trial_refused'), icon: 'cross', tone: 'red' },
  server_edit_requested: { label: t('vocab.event.server_edit_requested'), icon: 'eye', tone: 'amber' },
  server_edit_accepted: { label: t('vocab.event.server_edit_accepted'), icon: 'check', tone: 'green' },
  server_edit_refused: { label: t('vocab.event.server_edit_refused'), icon: 'cross', tone: 'red' },
  key_created: { label: t('vocab.event.key_created'), icon: 'person', tone: 'accent' },
  key_revoked: { label: t('vocab.event.key_revoked'), icon: 'undo', tone: 'amber' },
  away: { label: t('vocab.event.away'), icon: 'clock', tone: 'amber' },
  back: { label: t('vocab.event.back'), icon: 'check', tone: 'grey' },
  person_revoked: { label: t('vocab.event.person_revoked'), icon: 'undo', tone: 'amber' },
  account_connected: { label: t('vocab.event.account_connected'), icon: 'check', tone: 'accent' },
  account_disconnected: { label: t('vocab.event.account_disconnected'), icon: 'unplugged', tone: 'amber' },
  policy_recorded: { label: t('vocab.event.policy_recorded'), icon: 'audit', tone: 'grey' },
  records_anchored: { label: t('vocab.event.records_anchored'), icon: 'audit', tone: 'grey' },
  redacted: { label: t('vocab.event.redacted'), icon: 'trash', tone: 'grey' },
  restored: { label: t('vocab.event.restored'), icon: 'refresh', tone: 'amber' },
  definitions_seen: { label: t('vocab.event.definitions_seen'), icon: 'eye', tone: 'grey' },
  definitions_accepted: { label: t('vocab.event.definitions_accepted'), icon: 'check', tone: 'green' },
  definitions_accepted_as_reads: { label: t('vocab.event.definitions_accepted_as_reads'), icon: 'check', tone: 'amber' },
  definitions_bound: { label: t('vocab.event.definitions_bound'), icon: 'eye', tone: 'grey' },
  definitions_revoked: { label: t('vocab.event.definitions_revoked'), icon: 'undo', tone: 'amber' },
};

/** The results of reading the target of an applied change again after the run. */
export const VERIFICATIONS = {
  not_read: { explanation: t('vocab.verification.not_read.explanation'), icon: 'eye', tone: 'grey' },
  matches: { explanation: t('vocab.verification.matches.explanation'), icon: 'check', tone: 'green', event: t('vocab.verification.matches.event') },
  differs: { explanation: t('vocab.verification.differs.explanation'), icon: 'alert', tone: 'red', event: t('vocab.verification.differs.event') },
  unreadable: { explanation: t('vocab.verification.unreadable.explanation'), icon: 'question', tone: 'amber', event: t('vocab.verification.unreadable.event') },
};

/** The events by topic, for the filter of the audit trail. */
export const EVENT_GROUPS = [
  [t('vocab.events.decisions'), ['voted', 'approved', 'rejected', 'unapproved']],
  [t('vocab.events.changes'), ['created', 'failing_call_returned', 'escalated', 'edited', 'stale', 'refreshed', 'withdrawn', 'expired']],
  [t('vocab.events.execution'), ['executing', 'asked', 'answered', 'applied', 'failed', 'outcome_unknown', 'late_result', 'settled', 'verified']],
  [t('vocab.events.standingRules'), ['standing_rule_created', 'standing_rule_revoked', 'standing_rule_expired', 'standing_rule_orphaned', 'standing_rule_used', 'standing_rules_used']],
  [t('vocab.events.configuration'), ['configuration_accepted', 'configuration_refused', 'configuration_started', 'policy_edited', 'servers_edited', 'server_tried', 'server_trial_requested', 'server_trial_refused', 'server_edit_requested', 'server_edit_accepted', 'server_edit_refused', 'key_created', 'key_revoked', 'person_revoked', 'away', 'back', 'account_connected', 'account_disconnected', 'policy_recorded', 'records_anchored', 'redacted', 'restored']],
  [t('vocab.events.definitions'), ['definitions_seen', 'definitions_accepted', 'definitions_accepted_as_reads', 'definitions_bound', 'definitions_revoked']],
];

export const TRANSPORTS = { http: 'HTTP', websocket: 'WebSocket', stdio: 'stdio', sse: 'HTTP + SSE', rest: t('vocab.plainHttp') };

/** Returns the name of an event without `change.`: `change.created` and `created` are the same event. */
export const eventName = (type) => String(type).replace(/^change\./, '');
export const stateOf = (state) => STATES[state] ?? { label: String(state), tone: 'grey', icon: 'question', explanation: '' };
export const operationOf = (operation) => OPERATIONS[operation] ?? { label: String(operation), icon: 'pencil', tone: 'grey' };
export const eventOf = (type) => EVENTS[eventName(type)] ?? { label: eventName(type).replaceAll('_', ' '), icon: 'clock', tone: 'grey' };

// Labels of entries about a rule that a reviewer made for a whole tool instead of from a change.
const TOOL_RULE = {
  standing_rule_created: t('vocab.toolRule.standing_rule_created'),
  standing_rule_used: t('vocab.toolRule.standing_rule_used'),
  standing_rule_revoked: t('vocab.toolRule.standing_rule_revoked'),
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
