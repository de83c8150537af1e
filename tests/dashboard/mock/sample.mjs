// Realistic things to look at, hostile ones among them.

import { randomUUID } from 'node:crypto';

const DESCRIPTION = `After signing in through the company's identity provider, users end up on
\`/login?next=%2F\` again, and again.

## Steps
1. Open the dashboard in a private window
2. Choose "Continue with SSO"
3. Watch the address bar

## Expected
One redirect, then the dashboard.

## Notes
The session cookie is set with SameSite=Strict, so it is not sent on the
redirect that comes from the provider. Setting it to Lax on this one route
is enough; the CSRF token stays as it is.

Seen on Firefox 146 and Chromium 143, not on Safari.`;

const RUNBOOK = Array.from({ length: 40 }, (_, i) => `Step ${i + 1}: check that replica ${i + 1} has caught up before going on.`).join('\n');

export function fill(core) {
  const t = core.tracker;
  t.projects = [{ id: randomUUID(), key: 'CORE', name: 'Core platform' }, { id: randomUUID(), key: 'WEB', name: 'Website' }];
  t.people = [{ id: randomUUID(), name: 'Mara Lindqvist' }, { id: randomUUID(), name: 'Tomás Ferreira' }];
  const issue = (n, title, more = {}) => {
    const made = { id: randomUUID(), key: `CORE-${n}`, projectId: t.projects[0].id, type: 'Task', status: 'Todo', priority: 'Medium', title, ...more };
    t.issues.push(made);
    return made;
  };
  const login = issue(12, 'Fix login redirect loop', { type: 'Bug', priority: 'High', description: DESCRIPTION });
  const runbook = issue(7, 'Write the failover runbook', { description: RUNBOOK });
  const old = issue(3, 'Spike: evaluate Redis for session storage', { type: 'Task', estimatedHours: 8 });
  const rate = issue(21, 'Rate limit the public API', { status: 'InProgress' });
  const claude = { principal: 'local-agent', keyId: null, clientName: 'Claude Code', clientVersion: '2.1.0', session: 'V1StGXR8_Z5jdHi6B-myT9q2LcWpXe0a', transport: 'stdio', revision: '2025-11-25' };
  const cursor = { ...claude, clientName: 'Cursor', clientVersion: '1.9.4', session: 'k3Jd92mXq_Z5jdHi6B-myT9q2LcWpXe0', transport: 'websocket' };
  const ci = { principal: 'ci-bot', keyId: 'key_7', clientName: null, clientVersion: null, session: null, transport: 'rest', revision: null };
  const modern = { ...claude, principal: 'planner', clientName: 'planning-agent', clientVersion: '0.4.1', transport: 'http', revision: '2026-07-28' };
  const ago = (minutes) => new Date(Date.now() - minutes * 60_000);
  const ask = (tool, args, who, minutes) => core.propose(tool, JSON.stringify(args), who, ago(minutes));
  const approved = (c, minutes, comment = null) => {
    core.force(c, 'approved', 'approved', 'alice', { at: ago(minutes), details: { comment }, decision: { reviewer: 'alice', verdict: 'approve', comment } });
    core.force(c, 'executing', 'executing', 'system', { at: ago(minutes - 0.01) });
  };

  const done = ask('create_issue', { projectId: t.projects[0].id, title: 'Rotate the signing keys every 90 days', type: 'Story', priority: 'High' }, claude, 900);
  approved(done, 880, 'Good. Please link the policy document later.');
  done.result = { content: [{ type: 'text', text: 'Created CORE-24.' }], structuredContent: { issue: { key: 'CORE-24', status: 'Backlog' } } };
  core.force(done, 'applied', 'applied', 'system', { at: ago(879.9) });
  const failed = ask('update_status', { issueId: rate.id, newStatus: 'Done' }, cursor, 700);
  approved(failed, 650);
  core.force(failed, 'failed', 'failed', 'system', { at: ago(649.9), fault: { code: 'TOOL_EXECUTION_ERROR', message: 'CORE-21 cannot go from InProgress to Done. Allowed: Review, Todo, Cancelled.' } });
  const no = ask('delete_issue', { issueId: runbook.id }, ci, 500);
  core.force(no, 'rejected', 'rejected', 'bob', { at: ago(480), details: { comment: 'We still need this one.' }, decision: { reviewer: 'bob', verdict: 'reject', comment: 'We still need this one.' } });
  const late = ask('add_comment', { issueId: rate.id, content: 'Ping?' }, cursor, 2000);
  core.force(late, 'expired', 'expired', 'system', { at: ago(560), fault: { code: 'CHANGE_EXPIRED', message: 'Nobody decided within 24 h.' } });
  const back = ask('assign_issue', { issueId: rate.id, assigneeId: t.people[1].id }, modern, 300);
  core.force(back, 'withdrawn', 'withdrawn', 'planner', { at: ago(290) });

  const lost = ask('create_issue', { projectId: t.projects[1].id, title: 'Announce the maintenance window', type: 'Task' }, modern, 130);
  approved(lost, 128);
  core.force(lost, 'outcome_unknown', 'outcome_unknown', 'system', { at: ago(127), fault: { code: 'UPSTREAM_UNAVAILABLE', message: 'The gateway was stopped while the tool ran.' } });

  const soon = ask('create_project', { name: 'Billing migration', key: 'BILL' }, ci, 90);
  soon.expiresAt = new Date(Date.now() + 22 * 60_000).toISOString();
  ask('delete_issue', { issueId: old.id }, cursor, 64);
  const stale = ask('update_issue', { issueId: runbook.id, title: 'Write and rehearse the failover runbook', description: RUNBOOK.replace('replica 20 has', 'replica 20 (the one in Dublin) has').replace('Step 38:', 'Step 38 (by hand):').concat('\nStep 41: tell the people on call.') }, modern, 48);
  stale.previousDiff = structuredClone(stale.diff);
  stale.previousDiff.fields[0].before = 'Write the runbook';
  core.force(stale, 'stale', 'stale', 'system', { at: ago(20) });
  core.force(stale, 'pending', 'refreshed', 'system', { at: ago(20) });
  ask('add_comment', { issueId: login.id, content: 'I can reproduce this on staging with SameSite=Strict. A patch is ready on branch `fix/login-loop`; it sets `Lax` on the callback route only and adds a test for the redirect chain.' }, claude, 31);
  ask('assign_issue', { issueId: rate.id, assigneeId: t.people[0].id }, modern, 25);
  const gone = ask('update_status', { issueId: old.id, newStatus: 'Review' }, cursor, 19);
  core.force(gone, 'stale', 'stale', 'system', { at: ago(15), fault: { code: 'RESOURCE_NOT_FOUND', message: 'The issue does not exist any more.' } });
  ask('update_issue', { issueId: login.id, title: 'Fix login redirect loop after SSO', priority: 'Critical', estimatedHours: 3, description: DESCRIPTION.replace('is enough; the CSRF token stays as it is.', 'is enough.\n\nThe CSRF token has to be bound to the new cookie as well.').replace('Firefox 146', 'Firefox 147') }, claude, 9);
  ask('create_issue', { projectId: t.projects[0].id, title: '<img src=x onerror=alert(1)> Grant admin to \u202Eecila\u202C\u200B', type: 'Bug', description: '<script>alert(document.domain)</script>\n[click](javascript:alert(1))\nzero\u200Bwidth, bell\u0007, tag \u{E0041}\u{E0042}, tab\tend\n' + 'A'.repeat(3000) }, { ...cursor, clientName: '"><svg onload=alert(2)>\u202Egnp', clientVersion: '<b>9</b>' }, 6);
  ask('create_issue', { projectId: t.projects[0].id, title: 'Add a health check for the replication lag', type: 'Task', priority: 'High', parentId: login.id, estimatedHours: 5, description: 'Expose the lag of each replica as a gauge.\n\n- warn above 5 s\n- page above 30 s\n- a panel on the on-call dashboard' }, claude, 0.6);

  // What rules ask, how previews are made, and what comes in numbers.
  const asked = (tool, args, who, minutes, more) => core.propose(tool, JSON.stringify(args), who, ago(minutes), more);
  const two = asked('delete_issue', { issueId: rate.id }, ci, 14, { terms: { reviewers: ['dba', 'admin', 'alice', 'bob'], quorum: 3, requireComment: true, undoFor: 30, edit: 'forbidden', onExpiry: 'reject' } });
  two.decisions.push({ reviewer: 'bob', owner: 'bob', verdict: 'approve', comment: 'Checked with the team.', at: ago(5).toISOString(), version: 1 });
  core.force(two, 'pending', 'voted', 'bob', { at: ago(5), details: { comment: 'Checked with the team.' } });
  asked('create_project', { name: 'Data warehouse', key: 'DWH' }, modern, 12, { preview: { kind: 'arguments' }, terms: { previewRequired: true } });
  // As a server's own tool without a recipe comes.
  asked('create_project', { name: 'cards', key: 'CARD' }, claude, 3, {
    provider: 'sqlite', tool: 'sqlite__write_query', toolTitle: 'Write query', operation: 'CALL', summary: 'sqlite / write_query: UPDATE cards SET limit = 500 …', preview: { kind: 'arguments' },
    target: { entityType: 'tool', id: null, label: 'sqlite / write_query', lockKey: 'sqlite' },
    diff: { truncated: false, fields: [{ field: 'query', label: 'query', before: null, after: 'UPDATE cards\nSET limit = 500\nWHERE owner = 7', lines: ['UPDATE cards', 'SET limit = 500', 'WHERE owner = 7'].map((text) => ({ op: 'insert', text })) }, { field: 'dry', label: 'dry', before: null, after: 'false' }, { field: '$description', label: 'Tool description', before: null, after: 'Execute an INSERT, UPDATE, or DELETE query on the SQLite database' }] },
  });
  core.servers.happen({ connect: 'filesystem', silent: 'sqlite', down: 'warehouse', waiting: [{ key: 'policy.default', from: 'review_writes', to: 'allow' }, { key: 'mcpServers.filesystem.trust_annotations', from: 'false', to: 'true' }] });
  asked('update_status', { issueId: login.id, newStatus: 'Review' }, cursor, 11, { preview: { kind: 'before_after', failed: 'read_text_file answered “ENOENT: no such file or directory, open “/srv/app/config.toml”” after 41 ms.' } });
  const file = asked('update_issue', { issueId: runbook.id, description: RUNBOOK.replace('replica 4 has', 'replica 4 and replica 5 have').replace('Step 9: check', 'Step 9: check twice') }, claude, 8, { preview: { kind: 'before_after' } });
  for (const field of file.diff.fields) field.restricted = true;
  core.reviews.edit(file, { name: 'bob', role: 'reviewer' }, { version: 1, comment: 'Replica 5 is in another zone.', arguments: { issueId: runbook.id, description: RUNBOOK.replace('replica 4 has', 'replica 4 has really').replace('Step 9: check', 'Step 9: check twice') } },
    JSON.stringify({ issueId: runbook.id, description: RUNBOOK.replace('replica 4 has', 'replica 4 has really').replace('Step 9: check', 'Step 9: check twice') }));
  for (const field of file.diff.fields) field.restricted = true;
  for (const n of [1, 2, 3, 4]) asked('add_comment', { issueId: login.id, content: `Checked browser ${n > 2 ? 3 : n}: it works with the patch.` }, cursor, 5 - n);

  for (const who of [claude, cursor, modern]) {
    core.sessions.set(who.session + who.transport, { id: `${who.session.slice(0, 8)}…`, transport: who.transport, revision: who.revision, clientName: who.clientName, clientVersion: who.clientVersion, principal: who.principal, createdAt: ago(95).toISOString(), lastActiveAt: ago(1).toISOString(), connected: true, inFlight: who === cursor ? 2 : 0 });
  }
}

export function fillMany(core, n) {
  const save = core.save;
  core.save = () => {};
  const project = core.tracker.projects[0].id;
  const who = { principal: 'local-agent', keyId: null, clientName: 'load', clientVersion: '1', session: null, transport: 'http', revision: '2025-11-25' };
  for (let i = 1; i <= n; i += 1) core.propose('create_issue', JSON.stringify({ projectId: project, title: `Generated issue ${i}`, type: 'Bug' }), who, new Date(Date.now() - (n - i) * 1000));
  core.save = save;
  core.save();
}
