// What people do with the mock's changes: votes, edits, undoing, looking again, standing rules, many at once.

import { Problem, token } from './core.mjs';
import { hash, preview, WRITES } from './tracker.mjs';

export const DEFAULT_TERMS = { reviewers: [], quorum: 1, onExpiry: 'expire', requireComment: false, edit: 'allowed', onReview: 'return', holdFor: 45, undoFor: 0, previewRequired: false, openPage: false };
const LIVE = ['module', 'dry_run', 'before_after'];
const FIELDS = { create_issue: ['projectId', 'title', 'type', 'priority', 'description', 'estimatedHours', 'parentId', 'status'] };

export class Reviews {
  constructor(core) {
    this.core = core;
  }

  /** Refuses what comes too late for what was shown. */
  #still(change, { version, digest }, states) {
    if (!states.includes(change.state)) throw conflict(change, 'CHANGE_NOT_PENDING', `The change is ${change.state}.`);
    if (version !== change.version || (digest && digest !== change.digest)) throw conflict(change, 'VERSION_CONFLICT', `The change is at version ${change.version}.`);
  }

  decide(change, who, { decision, comment = null, version, digest }, { delay = 40 } = {}) {
    const { core } = this;
    const { terms } = change;
    this.#still(change, { version, digest }, ['pending', 'stale']);
    if (terms.reviewers.length && !terms.reviewers.some((name) => name === who.role || name === who.name || core.groups?.[name]?.includes(who.name))) throw new Problem(403, 'FORBIDDEN', `Only ${terms.reviewers.join(', ')} may decide on it.`);
    if (terms.requireComment && !comment) throw new Problem(422, 'COMMENT_REQUIRED', 'The rule asks for a comment with each decision.');
    const vote = (verdict) => change.decisions.push({ reviewer: who.name, owner: who.owner ?? who.name, verdict, comment, at: new Date().toISOString(), version });
    if (decision === 'reject') {
      vote('reject');
      core.move(change, 'rejected', 'rejected', who.name, { comment });
      return change;
    }
    if (own(change, who)) throw new Problem(403, 'SELF_APPROVAL', 'Whoever proposed a change cannot approve it.');
    if (terms.previewRequired && (change.preview.failed || !LIVE.includes(change.preview.kind))) throw new Problem(409, 'PREVIEW_REQUIRED', 'The rule asks for a preview, and there is none.');
    if (change.decisions.some((d) => d.verdict === 'approve' && (d.owner ?? d.reviewer) === (who.owner ?? who.name))) throw new Problem(409, 'ALREADY_VOTED', 'You have approved it already.');
    if (!this.#again(change)) throw conflict(change, 'CHANGE_STALE', 'What it would alter has changed.');
    vote('approve');
    const approvals = change.decisions.filter((d) => d.verdict === 'approve').length;
    if (approvals < terms.quorum) {
      core.move(change, 'pending', 'voted', who.name, { comment });
      return change;
    }
    if (terms.undoFor) change.runAfter = new Date(Date.now() + terms.undoFor * 1000).toISOString();
    core.move(change, 'approved', 'approved', who.name, { comment });
    const { version: approved } = change;
    setTimeout(() => core.execute(change, approved), terms.undoFor ? terms.undoFor * 1000 : delay);
    return change;
  }

  // Looks again; false where the target has moved: then the new diff stands beside the old one.
  #again(change) {
    const { core } = this;
    let fresh;
    try {
      fresh = preview(core.tracker, change.tool, change.arguments);
    } catch (error) {
      change.fault = { code: 'TOOL_EXECUTION_ERROR', message: error.message };
      core.move(change, 'stale', 'stale', 'system');
      return false;
    }
    if (fresh.fingerprint === change.fingerprint) return true;
    const previousDiff = change.diff;
    core.move(change, 'stale', 'stale', 'system');
    Object.assign(change, fresh, { previousDiff });
    change.decisions = [];
    delete change.fault;
    core.sign(change);
    core.move(change, 'pending', 'refreshed', 'system');
    return false;
  }

  refresh(change, sent) {
    this.#still(change, sent, ['pending', 'stale']);
    const { state } = change;
    if (this.#again(change) && state === 'stale') {
      delete change.fault;
      this.core.move(change, 'pending', 'refreshed', 'system');
    }
    return change;
  }

  undo(change, who, sent) {
    this.#still(change, sent, ['approved']);
    if (!change.runAfter || Date.parse(change.runAfter) <= Date.now()) throw conflict(change, 'CHANGE_NOT_PENDING', 'It runs already.');
    if (who.role !== 'admin' && !change.decisions.some((d) => d.verdict === 'approve' && d.reviewer === who.name)) throw new Problem(403, 'FORBIDDEN', 'Only who approved it may take that back.');
    change.decisions = [];
    delete change.runAfter;
    this.core.move(change, 'pending', 'unapproved', who.name);
    return change;
  }

  edit(change, who, { arguments: args, version, comment = null }, source) {
    this.#still(change, { version }, ['pending', 'stale']);
    if (change.terms.edit === 'forbidden') throw new Problem(403, 'EDIT_FORBIDDEN', 'The rule does not allow to edit this change.');
    if (own(change, who)) throw new Problem(403, 'SELF_APPROVAL', 'Whoever proposed a change cannot edit it.');
    const details = faults(change.tool, args);
    if (details.length) throw new Problem(422, 'VALIDATION_FAILED', `invalid arguments for ${change.tool}: ${details[0].pointer}: ${details[0].message}`, { details: { errors: details } });
    const fresh = preview(this.core.tracker, change.tool, args);
    const from = hash(change.source);
    change.proposedSource ??= change.source;
    Object.assign(change, { arguments: args, source, ...fresh, decisions: [] });
    change.edits = [...(change.edits ?? []), { by: who.name, comment, at: new Date().toISOString(), from, to: hash(source) }];
    delete change.previousDiff;
    this.core.sign(change);
    this.core.move(change, 'pending', 'edited', who.name, { comment, from, argumentsHash: hash(source) });
    return change;
  }

  bulk(who, { decision, comment, changes }) {
    if (!Array.isArray(changes) || changes.length < 1 || changes.length > 100) throw new Problem(400, 'INVALID_PARAMS', '`changes` names 1 to 100 changes.');
    return changes.map(({ id, version, digest }) => {
      try {
        const change = this.core.find(id);
        if (decision === 'approve' && !digest) throw new Problem(422, 'VALIDATION_FAILED', 'An approval in bulk needs the digest.');
        if (decision === 'approve' && change.diff.truncated) throw new Problem(409, 'TRUNCATED', 'Its diff is not shown wholly.');
        return { id, change: this.decide(change, who, { decision, comment, version, digest }) };
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        return { id, problem: error };
      }
    });
  }

  rule(change, who, { verdict, arguments: which, principal, for: seconds, comment = null }) {
    if (!['allow', 'deny'].includes(verdict) || (verdict === 'allow' && !(seconds > 0 && seconds <= 30 * 86_400))) throw new Problem(422, 'VALIDATION_FAILED', 'An allowing rule lasts at most 30 days.', { details: { errors: [{ pointer: '/for', rule: 'maximum', message: 'at most 30 days' }] } });
    const rule = {
      id: `srl_${token(18)}`, verdict, provider: change.provider, tool: change.tool, toolHash: change.toolHash, principal: principal === 'same' ? change.proposer.principal : null,
      argumentsHash: which === 'exact' ? hash(change.source) : null, arguments: which === 'exact' ? change.arguments : null, fromChange: change.id, createdBy: who.name,
      createdAt: new Date().toISOString(), expiresAt: seconds ? new Date(Date.now() + seconds * 1000).toISOString() : null, revokedAt: null, revokedBy: null, uses: 0, comment,
    };
    this.core.rules.unshift(rule);
    this.core.save();
    for (const listener of this.core.listeners) listener({ type: 'rule.created', at: rule.createdAt, actor: who.name, rule });
    return rule;
  }

  revoke(id, who) {
    const rule = this.core.rules.find((r) => r.id === id);
    if (!rule) throw new Problem(404, 'NOT_FOUND', 'There is no such rule.');
    if (rule.revokedAt) throw new Problem(409, 'VERSION_CONFLICT', 'the standing rule is over already');
    Object.assign(rule, { revokedAt: new Date().toISOString(), revokedBy: who.name });
    this.core.save();
    for (const listener of this.core.listeners) listener({ type: 'rule.revoked', at: rule.revokedAt, actor: who.name, rule });
    return rule;
  }
}

const conflict = (change, code, detail) => new Problem(409, code, detail, { change });

const own = ({ proposer }, who) => proposer.principal === who.name || (proposer.owner ?? proposer.principal) === (who.owner ?? who.name);

// As much of a schema as the tests need.
function faults(tool, args) {
  const out = [];
  const note = (pointer, rule, message) => out.push({ pointer, rule, message });
  if (tool === 'create_issue') {
    if (typeof args.title !== 'string') note('/title', 'type', 'is not of type "string"');
    else if (args.title.length > 200) note('/title', 'maxLength', 'is longer than 200 characters');
    else if (!args.title) note('/title', 'minLength', 'is shorter than 1 character');
    if (!['Bug', 'Task', 'Story', 'Epic'].includes(args.type)) note('/type', 'enum', `${JSON.stringify(args.type)} is not one of "Bug", "Task", "Story" or "Epic"`);
    if (args.estimatedHours !== undefined && typeof args.estimatedHours !== 'number') note('/estimatedHours', 'type', 'is not of type "number"');
  }
  for (const key of Object.keys(args)) if (FIELDS[tool] && !FIELDS[tool].includes(key)) note(`/${key}`, 'additionalProperties', 'is not a field of this tool');
  if (!WRITES[tool]) note('', 'tool', 'no such tool');
  return out;
}
