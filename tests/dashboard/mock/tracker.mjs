// A small stand-in for the tracker module: previews and runs writes on issues held in memory.

import { createHash, randomUUID } from 'node:crypto';

export const WRITES = {
  create_project: ['Create project', 'CREATE'], create_issue: ['Create issue', 'CREATE'], update_issue: ['Update issue', 'UPDATE'],
  update_status: ['Update status', 'UPDATE'], assign_issue: ['Assign issue', 'UPDATE'], add_comment: ['Add comment', 'CREATE'], delete_issue: ['Delete issue', 'DELETE'],
};

export const newTracker = () => ({ projects: [{ id: randomUUID(), key: 'DEMO', name: 'Sample project' }], issues: [], people: [], comments: [] });

const LABELS = { title: 'Title', type: 'Type', description: 'Description', priority: 'Priority', status: 'Status', assigneeId: 'Assignee', estimatedHours: 'Estimated hours', parentId: 'Parent', projectId: 'Project', key: 'Key', name: 'Name', content: 'Comment' };

class Refusal extends Error {}
const need = (value, message) => {
  if (!value) throw new Refusal(message);
  return value;
};

export function read(tracker, tool, args) {
  if (tool === 'list_projects') return { projects: tracker.projects };
  if (tool === 'list_issues') return { issues: tracker.issues };
  if (tool === 'get_issue') return { issue: need(tracker.issues.find((i) => i.id === args.issueId), 'no such issue') };
  return null;
}

/** `{operation, target, summary, diff, fingerprint}`. */
export function preview(tracker, tool, args) {
  const operation = WRITES[tool][1];
  const issue = () => need(tracker.issues.find((i) => i.id === args.issueId), 'no such issue');
  const of = (entityType, entity, summary, before, after) => ({
    operation,
    target: { entityType, id: entity?.id ?? null, label: entity ? label(entity) : after.title ?? after.name ?? '', lockKey: entity?.id ?? 'tracker' },
    summary, diff: diffOf(before, after), fingerprint: hash(entity ?? tool),
  });
  switch (tool) {
    case 'create_project':
      return of('project', null, `Create project “${args.name}”`, {}, args);
    case 'create_issue': {
      const project = need(tracker.projects.find((p) => p.id === args.projectId), 'no such project');
      need(args.title, 'a title is needed');
      const after = { title: args.title, type: args.type, status: 'Backlog', priority: 'Medium', ...args, projectId: project.name };
      return of('issue', null, `Create ${args.type} “${args.title}” in ${project.key}`, {}, after);
    }
    case 'update_issue': {
      const now = issue();
      const { issueId, ...fields } = args;
      return of('issue', now, `Update ${label(now)}`, now, { ...now, ...fields });
    }
    case 'update_status': {
      const now = issue();
      return of('issue', now, `Move ${now.key} from ${now.status} to ${args.newStatus}`, now, { ...now, status: args.newStatus });
    }
    case 'assign_issue': {
      const now = issue();
      return of('issue', now, `Assign ${now.key} to ${person(tracker, args.assigneeId)}`, { assigneeId: now.assigneeId }, { assigneeId: person(tracker, args.assigneeId) });
    }
    case 'add_comment': {
      const now = issue();
      return { ...of('comment', now, `Comment on ${label(now)}`, {}, { content: args.content }), operation: 'CREATE' };
    }
    default: {
      const now = issue();
      return of('issue', now, `Delete ${label(now)}`, now, {});
    }
  }
}

/** Does it; returns a tool result. */
export function run(tracker, tool, args) {
  const done = (text, value) => ({ content: [{ type: 'text', text }], structuredContent: value });
  if (tool === 'create_project') {
    const project = { id: randomUUID(), key: (args.key ?? args.name.slice(0, 4)).toUpperCase(), name: args.name };
    tracker.projects.push(project);
    return done(`Created project ${project.key}.`, { project });
  }
  if (tool === 'create_issue') {
    const project = tracker.projects.find((p) => p.id === args.projectId);
    const n = tracker.issues.filter((i) => i.projectId === project.id).length + 1;
    const issue = { id: randomUUID(), key: `${project.key}-${n}`, status: 'Backlog', priority: 'Medium', ...args };
    tracker.issues.push(issue);
    return done(`Created ${issue.key}.`, { issue });
  }
  const issue = need(tracker.issues.find((i) => i.id === args.issueId), 'no such issue');
  if (tool === 'add_comment') {
    tracker.comments.push({ issueId: issue.id, content: args.content });
    return done(`Commented on ${issue.key}.`, { issueKey: issue.key });
  }
  if (tool === 'delete_issue') {
    tracker.issues.splice(tracker.issues.indexOf(issue), 1);
    return done(`Deleted ${issue.key}.`, { issueKey: issue.key });
  }
  const { issueId, newStatus, ...fields } = args;
  Object.assign(issue, fields, newStatus ? { status: newStatus } : {});
  return done(`Updated ${issue.key}.`, { issue });
}

const person = (tracker, id) => tracker.people.find((p) => p.id === id)?.name ?? id ?? null;
const label = (entity) => (entity.title ? `${entity.key} ${entity.title}` : entity.name);
export const hash = (value) => `sha256:${createHash('sha256').update(JSON.stringify(value)).digest('hex')}`;

const HIDDEN = new Set(['id', 'key', 'issueId']);

function diffOf(before, after) {
  const fields = [];
  for (const field of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (HIDDEN.has(field)) continue;
    const [was, now] = [before[field] ?? null, after[field] ?? null];
    if (was === now) continue;
    const text = (v) => (v === null ? null : String(v));
    const long = [was, now].some((v) => String(v ?? '').length > 120 || String(v ?? '').includes('\n'));
    fields.push({ field, label: LABELS[field] ?? field, before: text(was), after: text(now), ...(long ? { lines: lineDiff(text(was), text(now)) } : {}) });
  }
  return { fields, truncated: false };
}

// The longest common subsequence; quadratic, which is enough for samples.
export function lineDiff(before, after) {
  const a = before === null ? [] : before.split('\n');
  const b = after === null ? [] : after.split('\n');
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  }
  const out = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      out.push({ op: 'equal', text: a[i] });
      i += 1;
      j += 1;
    } else if (i < a.length && (j === b.length || table[i + 1][j] >= table[i][j + 1])) {
      out.push({ op: 'delete', text: a[i] });
      i += 1;
    } else {
      out.push({ op: 'insert', text: b[j] });
      j += 1;
    }
  }
  return fold(out);
}

function fold(lines) {
  const near = (i) => lines.slice(Math.max(0, i - 3), i + 4).some((l) => l.op !== 'equal');
  const out = [];
  lines.forEach((line, i) => {
    if (line.op !== 'equal' || near(i)) out.push(line);
    else if (out.at(-1)?.op === 'skip') out.at(-1).text = String(Number(out.at(-1).text) + 1);
    else out.push({ op: 'skip', text: '1' });
  });
  return out;
}
