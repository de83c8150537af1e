// Tries every shipped recipe for GitHub on a stand-in with state: the review shows the state before and after, the approved call has that
// effect, and the gateway finds it when it reads the state again. Also tries answers that no recipe expects.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { GitHubStandIn, PACKAGE, definitions } from '../fixtures/github/server.mjs';
import { blobSha, commit, filesOf } from '../fixtures/github/state.mjs';
import { startGatewayWith } from './fixture.mjs';
import { eventually } from './gateway.mjs';
import { connectPeer } from './peer.mjs';
import { TriedServer } from './servers-tried.mjs';

const MARKS = { equal: ' ', note: ' ', insert: '+', delete: '-', skip: '@' };
const SHOP = { owner: 'acme', repo: 'shop' };
const ISSUE = { ...SHOP, issue_number: 1 };
const PULL = { ...SHOP, pullNumber: 5 };

/** Returns what a field shows: marked lines, or the value before and after. */
function shownLines({ lines, before, after }) {
    if (lines) return lines.map(({ op, text }) => `${MARKS[op]}${text}`);
    return [before, after].flatMap((value, n) => ((value ?? null) === null ? [] : `${'-+'[n]}${value}`));
}

/** Starts a gateway in front of a stand-in. `propose` and `apply` make a change and run it. */
async function startBehindGitHub(t) {
    const github = await GitHubStandIn.start();
    t.after(() => github.stop());
    const server = { url: github.url, prefix: '', required: true, trust_annotations: true, previews: 'github' };
    const gateway = await startGatewayWith({ modules: { tracker: { enabled: false } }, mcpServers: { github: server } });
    t.after(() => gateway.stop());
    const peer = await connectPeer('modern', { http: gateway.mcp });
    t.after(() => peer.close());
    await eventually('the tools are listed', async () => (await peer.tools()).some(({ name }) => name === 'issue_write'));
    const propose = async (tool, args) => {
        const answer = await peer.call(tool, args);
        assert.equal(answer.structuredContent?.status, 'pending', JSON.stringify(answer));
        return gateway.change(answer.structuredContent.changeId);
    };
    /** Approves the change and returns it as it was read back. */
    const apply = async change => {
        await gateway.approve(change.id);
        await gateway.reached(change.id, 'applied');
        return eventually(`change ${change.id} is read back`, async () => {
            const now = await gateway.change(change.id);
            return now.verification?.verified !== 'not_read' && now;
        });
    };
    return { github, gateway, propose, apply };
}

const issue = (github, number = 1) => github.repository().issues.get(number);
const pull = (github, number = 5) => github.repository().pulls.get(number);
const file = (github, path, branch = 'main') => filesOf(github.repository(), branch).get(path);
const idOf = (github, number) => issue(github, number).id;
const latest = map => [...map.values()].at(-1);
const project = github => github.state.projects.get('acme/4');
const discussion = github => github.repository().discussions.get(9);
/** The annotation of tools that replace or remove something, although they are said to be additive. */
const REPLACES = '`destructiveHint: false`';

/**
 * The calls, in this order: the tool (and the variant), its arguments, what the review shows by label, the effect on the stand-in as
 * a pair of what is there and what should be, and which annotation is wrong.
 */
const CALLS = [
    ['create_or_update_file', g => ({ ...SHOP, path: 'README.md', branch: 'main', content: '# Shop\n\nOne\n2\nThree\n', message: 'Shorten', sha: blobSha(file(g, 'README.md')) }),
        { 'README.md': ['-Two', '+2'] }, g => [file(g, 'README.md'), '# Shop\n\nOne\n2\nThree\n']],
    ['create_or_update_file, new', { ...SHOP, path: 'docs/price.js', branch: 'main', content: 'x\n', message: 'Add' }, { 'docs/price.js': ['+x'] }, g => [file(g, 'docs/price.js'), 'x\n']],
    // Its name ends like that of another file.
    ['create_or_update_file, similar', { ...SHOP, path: 'price.js', branch: 'main', content: 'y\n', message: 'Add' }, { 'price.js': ['+y'] }, g => [file(g, 'price.js'), 'y\n']],
    ['push_files', { ...SHOP, branch: 'main', message: 'Both', files: [{ path: 'price.js', content: 'z\n' }, { path: 'new.txt', content: 'new\n' }] },
        { 'price.js': ['-y', '+z'], 'new.txt': ['+new'] }, g => [[file(g, 'price.js'), file(g, 'new.txt')], ['z\n', 'new\n']]],
    ['delete_file', { ...SHOP, path: 'docs/old.md', branch: 'main', message: 'Remove' }, { 'docs/old.md': ['-Outdated'] }, g => [file(g, 'docs/old.md'), undefined]],
    ['create_branch', { ...SHOP, branch: 'topic', from_branch: 'feature' }, { 'newest commit': ['+that of feature'] },
        g => [g.repository().branches.get('topic'), g.repository().branches.get('feature')]],
    ['create_repository', { name: 'fresh', organization: 'acme', description: 'New', private: false }, { name: ['+fresh'], private: ['+false'] }, g => [g.repository('acme/fresh').private, false]],
    ['create_repository, own', { name: 'mine' }, { 'Repositories with this name': [' []'] }, g => [g.repository('alice/mine').private, true]],
    ['fork_repository', { owner: 'tools', repo: 'lint', organization: 'acme' }, { Repository: ['   "name": "tools/lint",'] }, g => [g.repository('acme/lint').fork, true]],
    ['star_repository', { ...SHOP }, { starred: ['-false', '+true'] }, g => [g.state.starred.has('acme/shop'), true]],
    ['unstar_repository', { ...SHOP }, { starred: ['-true', '+false'] }, g => [g.state.starred.has('acme/shop'), false]],

    ['issue_write, update', { ...ISSUE, method: 'update', title: 'Checkout fails with 500', labels: ['bug', 'urgent'], milestone: 2 },
        { title: ['-Checkout fails', '+Checkout fails with 500'], labels: ['+  "urgent"'] }, g => [[issue(g).title, issue(g).labels, issue(g).milestone], ['Checkout fails with 500', ['bug', 'urgent'], 2]]],
    ['issue_write, close', { ...ISSUE, method: 'update', state: 'closed', state_reason: 'not_planned' }, { state: ['-open', '+closed'], reason: ['+not_planned'] },
        g => [[issue(g).state, issue(g).stateReason], ['closed', 'not_planned']]],
    ['issue_write, create', { ...SHOP, method: 'create', title: 'Refunds', body: 'Missing', labels: ['bug'], assignees: ['bob'] },
        { title: ['+Refunds'], body: ['+Missing'] }, g => [latest(g.repository().issues).title, 'Refunds']],
    ['create_issue', { ...SHOP, title: 'Invoices', body: 'Missing' }, { title: ['+Invoices'] }, g => [latest(g.repository().issues).title, 'Invoices']],
    ['update_issue_title', { ...ISSUE, title: 'Checkout' }, { title: ['+Checkout'] }, g => [issue(g).title, 'Checkout'], REPLACES],
    ['update_issue_body', { ...ISSUE, body: 'It fails\nalways' }, { body: ['-with 500', '+always'] }, g => [issue(g).body, 'It fails\nalways'], REPLACES],
    ['update_issue_labels', { ...ISSUE, labels: ['docs', { name: 'bug', rationale: 'It fails' }] }, { labels: ['+  "docs",'], 'as given': ['+    "rationale": "It fails"'] }, g => [issue(g).labels, ['docs', 'bug']], REPLACES],
    ['update_issue_assignees', { ...ISSUE, assignees: ['carol'] }, { assignees: ['-  "bob"', '+  "carol"'] }, g => [issue(g).assignees, ['carol']], REPLACES],
    ['update_issue_type', { ...ISSUE, issue_type: 'Bug' }, { type: ['+Bug'] }, g => [issue(g).type, 'Bug'], REPLACES],
    ['update_issue_state', { ...ISSUE, state: 'open' }, { state: ['-closed', '+open'] }, g => [issue(g).state, 'open'], REPLACES],
    ['update_issue_milestone', { ...ISSUE, milestone: 1 }, { Issue: ['   "milestone": "Summer",'] }, g => [issue(g).milestone, 1], REPLACES],
    ['set_issue_fields', { ...ISSUE, fields: [{ field_id: 'IFT_1', number_value: 3 }] }, { Fields: ['     "name": "Effort",'] }, g => [issue(g).fields.get('Effort'), '3'], REPLACES],
    ['add_issue_comment', { ...ISSUE, body: 'Found it' }, { comment: ['+Found it'] }, g => [issue(g).comments.at(-1).body, 'Found it']],
    ['add_issue_comment, reaction', { ...ISSUE, reaction: 'eyes' }, { eyes: ['-0', '+1'] }, g => [issue(g).reactions, ['eyes']]],
    ['add_issue_comment, reaction to a comment', g => ({ ...ISSUE, comment_id: issue(g).comments[0].id, reaction: '+1' }), { 'Reactions: +1': ['-0', '+1'] }, g => [issue(g).comments[0].reactions, ['+1']]],
    ['add_issue_reaction', { ...ISSUE, content: 'heart' }, { heart: ['-0', '+1'] }, g => [issue(g).reactions, ['eyes', 'heart']]],
    ['sub_issue_write, add', g => ({ ...ISSUE, method: 'add', sub_issue_id: idOf(g, 4) }), { 'Present sub-issues': ['   "9003 is #2 Find the cause",'] }, g => [issue(g).subIssues, [2, 3, 4]]],
    ['sub_issue_write, remove', g => ({ ...ISSUE, method: 'remove', sub_issue_id: idOf(g, 4) }), { 'Sub-issues': ['-  "9005"'] }, g => [issue(g).subIssues, [2, 3]]],
    ['sub_issue_write, reprioritize', g => ({ ...ISSUE, method: 'reprioritize', sub_issue_id: idOf(g, 2), after_id: idOf(g, 3) }), { 'Present sub-issues': ['   "9003 is #2 Find the cause",'] }, g => [issue(g).subIssues, [3, 2]]],
    ['add_sub_issue', g => ({ ...ISSUE, sub_issue_id: idOf(g, 4) }), { 'Sub-issues': ['+  "9005"'] }, g => [issue(g).subIssues, [3, 2, 4]]],
    ['remove_sub_issue', g => ({ ...ISSUE, sub_issue_id: idOf(g, 4) }), { 'Sub-issues': ['-  "9005"'] }, g => [issue(g).subIssues, [3, 2]]],
    ['reprioritize_sub_issue', g => ({ ...ISSUE, sub_issue_id: idOf(g, 3), after_id: idOf(g, 2) }), { 'Present sub-issues': ['   "9003 is #2 Find the cause"'] }, g => [issue(g).subIssues, [2, 3]], REPLACES],
    ['issue_dependency_write', { ...ISSUE, method: 'add', type: 'blocked_by', related_issue_number: 4 }, { 'Blocked by': ['+  "acme/shop#4"'] }, g => [issue(g).blockedBy, [4]]],
    ['issue_dependency_write, remove', { ...ISSUE, method: 'remove', type: 'blocked_by', related_issue_number: 4 }, { 'Blocked by': ['-  "acme/shop#4"'] }, g => [issue(g).blockedBy, []]],
    ['label_write, create', { ...SHOP, method: 'create', name: 'slow', color: 'ededed' }, { name: ['+slow'] }, g => [g.repository().labels.get('slow').color, 'ededed']],
    ['label_write, update', { ...SHOP, method: 'update', name: 'slow', new_name: 'speed', description: 'Too slow' }, { name: ['-slow', '+speed'] }, g => [g.repository().labels.get('speed').description, 'Too slow']],
    ['label_write, delete', { ...SHOP, method: 'delete', name: 'speed' }, { name: ['-speed'] }, g => [g.repository().labels.has('speed'), false]],
    ['assign_copilot_to_issue', { ...ISSUE }, { Assignees: ['+  "Copilot"'] }, g => [issue(g).assignees, ['carol', 'Copilot']]],
    ['assign_copilot_to_issue_with_intent', { ...SHOP, issue_number: 2, confidence: 'HIGH', is_suggestion: false, rationale: 'Small' }, { Assignees: ['+  "Copilot"'] }, g => [issue(g, 2).assignees, ['Copilot']]],

    ['update_pull_request', { ...PULL, title: 'Raise prices', reviewers: ['carol'] }, { title: ['-Raise the price', '+Raise prices'], reviewers: ['+  "carol"'] }, g => [[issue(g, 5).title, pull(g).reviewers], ['Raise prices', ['carol']]]],
    ['update_pull_request_title', { ...PULL, title: 'Raise all prices' }, { title: ['+Raise all prices'] }, g => [issue(g, 5).title, 'Raise all prices'], REPLACES],
    ['update_pull_request_body', { ...PULL, body: 'To 120' }, { body: ['+To 120'] }, g => [issue(g, 5).body, 'To 120'], REPLACES],
    ['update_pull_request_draft_state', { ...PULL, draft: true }, { draft: ['-false', '+true'] }, g => [pull(g).draft, true], REPLACES],
    ['update_pull_request_state', { ...PULL, state: 'closed' }, { state: ['-open', '+closed'] }, g => [issue(g, 5).state, 'closed'], REPLACES],
    ['update_pull_request, reopen', { ...PULL, state: 'open', draft: false }, { state: ['-closed', '+open'] }, g => [[issue(g, 5).state, pull(g).draft], ['open', false]]],
    ['request_pull_request_reviewers', { ...PULL, reviewers: ['dave', 'acme/core'] }, { reviewers: ['+  "dave"'] }, g => [pull(g).reviewers.includes('dave'), true]],
    ['request_copilot_review', { ...PULL }, { Reviewers: ['+  "Copilot"'] }, g => [pull(g).reviewers.at(-1), 'copilot-pull-request-reviewer[bot]']],
    ['create_pull_request', { ...SHOP, title: 'Topic', head: 'topic', base: 'main', body: 'See', draft: true, reviewers: ['bob'] }, { title: ['+Topic'], head: ['+topic'] }, g => [latest(g.repository().pulls).head, 'topic']],
    ['pull_request_review_write, create', { ...PULL, method: 'create' }, { Reviews: ['+    "state": "PENDING"'] }, g => [pull(g).reviews.at(-1).state, 'PENDING']],
    ['add_comment_to_pending_review', { ...PULL, path: 'src/price.js', line: 1, body: 'Why?', subjectType: 'LINE' }, { 'Comments on the file': ['+      "Why?"'] }, g => [pull(g).threads.at(-1).comments[0].body, 'Why?']],
    ['add_pull_request_review_comment', { ...PULL, path: 'src/price.js', line: 1, body: 'And why?', subjectType: 'LINE' }, { 'Comments on the file': ['+      "And why?"'] }, g => [pull(g).threads.at(-1).comments[0].body, 'And why?']],
    ['pull_request_review_write, submit', { ...PULL, method: 'submit_pending', event: 'COMMENT', body: 'Hm' }, { Reviews: ['+    "state": "COMMENTED"'] }, g => [pull(g).reviews.at(-1).state, 'COMMENTED']],
    ['pull_request_review_write, resolve', { ...PULL, method: 'resolve_thread', threadId: 'PRRT_1' }, { resolved: ['-false', '+true'] }, g => [pull(g).threads[0].isResolved, true]],
    ['create_pull_request_review', { ...PULL }, { Reviews: ['+    "state": "PENDING"'] }, g => [pull(g).reviews.at(-1).state, 'PENDING']],
    ['submit_pending_pull_request_review', { ...PULL, event: 'APPROVE', body: 'Fine' }, { Reviews: ['+    "state": "APPROVED"'] }, g => [pull(g).reviews.at(-1).state, 'APPROVED']],
    ['create_pull_request_review, again', { ...PULL }, { Reviews: ['+    "state": "PENDING"'] }, g => [pull(g).reviews.length, 3]],
    ['delete_pending_pull_request_review', { ...PULL }, { Reviews: ['-    "state": "PENDING"'] }, g => [pull(g).reviews.length, 2]],
    ['create_pull_request_review, once more', { ...PULL }, { Reviews: ['+    "state": "PENDING"'] }, g => [pull(g).reviews.length, 3]],
    ['pull_request_review_write, delete', { ...PULL, method: 'delete_pending' }, { Reviews: ['-    "state": "PENDING"'] }, g => [pull(g).reviews.length, 2]],
    ['add_reply_to_pull_request_comment', g => ({ ...PULL, commentId: pull(g).threads[0].comments[0].id, body: 'Costs' }), { Thread: ['+  "Costs"'] }, g => [pull(g).threads[0].comments.at(-1).body, 'Costs']],
    ['update_pull_request_branch', { ...PULL }, { Branches: ['   "title": "Raise all prices"'] }, g => [file(g, 'CHANGELOG.md', 'feature'), '# Changes\n']],
    ['merge_pull_request', { ...PULL, merge_method: 'squash' }, { merged: ['-false', '+true'], Changes: ['-export const price = 100;', '+export const price = 120;'] }, g => [file(g, 'src/price.js'), 'export const price = 120;\n']],

    ['actions_run_trigger, run', { ...SHOP, method: 'run_workflow', workflow_id: 'release.yml', ref: 'main' }, { Workflow: ['   "name": "Release",'] }, g => [g.repository().runs.get(803).status, 'queued']],
    ['actions_run_trigger, cancel', { ...SHOP, method: 'cancel_workflow_run', run_id: 802 }, { Run: ['   "status": "in_progress"'] }, g => [g.repository().runs.get(802).conclusion, 'cancelled']],
    ['actions_run_trigger, rerun', { ...SHOP, method: 'rerun_workflow_run', run_id: 801 }, { attempt: ['-1', '+2'] }, g => [g.repository().runs.get(801).attempt, 2]],
    ['actions_run_trigger, delete logs', { ...SHOP, method: 'delete_workflow_run_logs', run_id: 801 }, { Logs: ['-There are logs.'] }, g => [g.repository().runs.get(801).hasLogs, false]],

    ['create_gist', { filename: 'a.md', content: 'One\n', description: 'First', public: true }, { content: ['+One'], public: ['+true'] }, g => [latest(g.state.gists).files.get('a.md'), 'One\n']],
    ['update_gist', { gist_id: 'g1', filename: 'notes.md', content: 'One\n2\n' }, { content: ['-Two', '+2'] }, g => [g.state.gists.get('g1').files.get('notes.md'), 'One\n2\n']],

    ['discussion_comment_write, add', { ...SHOP, discussionNumber: 9, method: 'add', body: 'A shop' }, { comment: ['+A shop'] }, g => [discussion(g).comments.at(-1).body, 'A shop']],
    ['discussion_comment_write, reply', { ...SHOP, discussionNumber: 9, method: 'reply', commentNodeID: 'DC_1', body: 'No' }, { Replies: ['+  "No"'] }, g => [discussion(g).comments[0].replies.at(-1).body, 'No']],
    ['discussion_comment_write, update', { ...SHOP, discussionNumber: 9, method: 'update', commentNodeID: 'DC_2', body: 'Maybe' }, { comment: ['-Yes', '+Maybe'] }, g => [discussion(g).comments[0].replies[0].body, 'Maybe']],
    ['discussion_comment_write, answer', { ...SHOP, discussionNumber: 9, method: 'mark_answer', commentNodeID: 'DC_1' }, { answer: ['-false', '+true'] }, g => [discussion(g).comments[0].isAnswer, true]],
    ['discussion_comment_write, delete', { ...SHOP, discussionNumber: 9, method: 'delete', commentNodeID: 'DC_2' }, { comment: ['-Maybe'] }, g => [discussion(g).comments[0].replies.length, 1]],

    ['manage_notification_subscription', { notificationID: '501', action: 'ignore' }, { Notification: ['   "title": "Checkout fails",'] }, g => [g.state.subscriptions.get('501'), 'ignore']],
    ['dismiss_notification', { threadID: '501', state: 'done' }, { unread: ['-true', '+false'] }, g => [g.state.notifications.has('501'), false]],
    ['mark_all_notifications_read', { ...SHOP }, { Unread: ['-  "acme/shop: Raise the price"'] }, g => [g.state.notifications.get('502').unread, false]],

    ['projects_write, create project', { method: 'create_project', owner: 'acme', owner_type: 'org', title: 'Plans' }, { title: ['+Plans'] }, g => [latest(g.state.projects).title, 'Plans']],
    ['projects_write, add item', { method: 'add_project_item', owner: 'acme', owner_type: 'org', project_number: 4, item_type: 'issue', item_owner: 'acme', item_repo: 'shop', issue_number: 2 },
        { repository: ['+acme/shop'], number: ['+2'] }, g => [latest(project(g).items).number, 2]],
    ['projects_write, update item', { method: 'update_project_item', owner: 'acme', owner_type: 'org', project_number: 4, item_id: 41, updated_field: { name: 'Status', value: 'Done' } },
        { value: ['-Todo', '+Done'] }, g => [project(g).items.get(41).values.get(31), 'Done']],
    ['projects_write, delete item', { method: 'delete_project_item', owner: 'acme', owner_type: 'org', project_number: 4, item_id: 41 }, { Item: ['-acme/shop#1 Checkout'] }, g => [project(g).items.has(41), false]],
    ['projects_write, status update', { method: 'create_project_status_update', owner: 'acme', owner_type: 'org', project_number: 4, status: 'AT_RISK', body: 'Late' }, { status: ['+AT_RISK'] }, g => [project(g).updates.at(-1).body, 'Late']],
    ['projects_write, create view', { method: 'create_project_view', owner: 'acme', owner_type: 'org', project_number: 4, name: 'Table', layout: 'table' }, { name: ['+Table'] }, g => [latest(project(g).views).name, 'Table']],
    ['projects_write, update view', { method: 'update_project_view', owner: 'acme', owner_type: 'org', project_number: 4, view_id: 'PVTV_1', name: 'Wall', filter: 'is:open' }, { name: ['-Board', '+Wall'] }, g => [project(g).views.get('PVTV_1').filter, 'is:open']],
    ['projects_write, delete view', { method: 'delete_project_view', owner: 'acme', owner_type: 'org', project_number: 4, view_id: 'PVTV_1' }, { name: ['-Wall'] }, g => [project(g).views.has('PVTV_1'), false]]
];

/** Calls whose state afterwards cannot be read, or not at once, so that it is neither shown nor read back. */
const NOT_READ_BACK = [
    'create_repository, own', 'fork_repository', 'update_issue_milestone', 'set_issue_fields', 'sub_issue_write, reprioritize', 'reprioritize_sub_issue',
    'update_pull_request_branch', 'actions_run_trigger, run', 'actions_run_trigger, cancel', 'manage_notification_subscription'
];

test('every recipe for GitHub shows what its tool does', async t => {
    const { github, gateway, propose, apply } = await startBehindGitHub(t);
    const tried = new TriedServer({ title: 'GitHub', how: `Tried with a stand-in that holds state and has the definitions of ${PACKAGE}.` });
    for (const [name, given, shows, effect, wrong] of CALLS) {
        const [tool] = name.split(',');
        await t.test(name, async () => {
            const change = await propose(tool, typeof given === 'function' ? given(github) : given);
            assert.equal(change.preview.failed, undefined);
            for (const [label, lines] of Object.entries(shows)) {
                const field = change.diff.fields.find(field => field.label === label);
                assert.ok(field, `${label} is not among ${change.diff.fields.map(field => field.label)}`);
                for (const line of lines) assert.ok(shownLines(field).includes(line), `${label} does not show ${JSON.stringify(line)}: ${JSON.stringify(shownLines(field))}`);
            }
            const before = github.writes().length;
            const applied = await apply(change);
            assert.deepEqual(github.writes().slice(before).map(call => call.name), [tool], 'the call was made once');
            const [actual, expected] = effect(github);
            assert.deepEqual(actual, expected);
            const { verified } = applied.verification ?? {};
            assert.equal(verified, NOT_READ_BACK.includes(name) ? undefined : 'matches', JSON.stringify(applied.verification));
            if (wrong) assert.equal(definitions.find(definition => definition.name === tool).annotations.destructiveHint, false);
            tried.add(name, applied, { wrong });
        });
    }
    await t.test('the page about the servers tried says so', () => tried.check());
    await t.test('the question before a deletion is shown, and answered by the approval', async () => {
        const [tool, args] = ['delete_repository', { owner: 'acme', repo: 'attic' }];
        const change = await propose(tool, args);
        assert.deepEqual(shownLines(change.diff.fields.find(({ label }) => label === 'name')), ['-attic']);
        const question = change.diff.fields.find(({ field }) => field === '$confirm');
        assert.match(JSON.stringify(question), /acme\/attic/);
        await gateway.approve(change.id);
        await gateway.reached(change.id, 'applied');
        assert.ok(!github.repository('acme/attic'), 'it was deleted');
    });
});

/** Approves with the version that was seen. Asserts that it is refused as outdated, and returns the change with the current diff. */
async function expectStale(gateway, { id, version, digest }) {
    const refused = await gateway.api('POST', `/changes/${id}/decision`, { decision: 'approve', version, digest });
    assert.equal(refused.status, 409, JSON.stringify(refused.body));
    assert.equal(refused.body.code, 'CHANGE_STALE');
    return refused.body.change;
}

test('a change of what a review showed makes it outdated', async t => {
    const { github, gateway, propose, apply } = await startBehindGitHub(t);
    /** Each call, what somebody else does meanwhile, and a line that the new review shows. */
    const cases = [
        ['create_or_update_file', { ...SHOP, path: 'README.md', branch: 'main', content: 'Mine\n', message: 'Write', sha: blobSha(file(github, 'README.md')) },
            () => commit(github.state, github.repository(), 'main', { 'README.md': 'Theirs\n' }, 'Rewrite'), 'README.md', '-Theirs'],
        ['push_files', { ...SHOP, branch: 'main', message: 'Push', files: [{ path: 'docs/new.md', content: 'Mine\n' }] },
            () => commit(github.state, github.repository(), 'main', { 'docs/new.md': 'Theirs\n' }, 'Be first'), 'docs/new.md', '-Theirs'],
        ['issue_write', { ...ISSUE, method: 'update', title: 'Mine' }, () => github.call('issue_write', { ...ISSUE, method: 'update', title: 'Theirs' }), 'title', '-Theirs'],
        ['merge_pull_request', { ...PULL }, () => commit(github.state, github.repository(), 'feature', { 'src/price.js': 'export const price = 999;\n' }, 'More'), 'Changes', '+export const price = 999;'],
        ['label_write', { ...SHOP, method: 'create', name: 'new', color: '000000' }, () => github.call('label_write', { ...SHOP, method: 'create', name: 'new', color: 'ffffff' }), 'color', '-ffffff'],
        ['update_gist', { gist_id: 'g1', filename: 'notes.md', content: 'Mine\n' }, () => github.call('update_gist', { gist_id: 'g1', filename: 'notes.md', content: 'Theirs\n' }), 'content', '-Theirs']
    ];
    for (const [tool, args, meanwhile, label, line] of cases) {
        await t.test(tool, async () => {
            const change = await propose(tool, args);
            meanwhile();
            const now = await expectStale(gateway, change);
            const field = now.diff.fields.find(field => field.label === label);
            assert.ok(shownLines(field).some(shown => shown.trimEnd() === line), JSON.stringify(field));
        });
    }
    assert.deepEqual(github.writes(), []);
    await t.test('what changes by itself does not', async () => {
        const change = await propose('update_issue_body', { ...ISSUE, body: 'Mine' });
        github.call('add_issue_comment', { ...ISSUE, body: 'By the way' });
        github.call('add_issue_reaction', { ...ISSUE, content: 'heart' });
        assert.equal((await apply(change)).verification.verified, 'matches');
    });
});

test('answers that a recipe does not expect fail its preview, and nothing is written', async t => {
    const { github, propose } = await startBehindGitHub(t);
    const write = { ...SHOP, path: 'README.md', branch: 'main', content: 'x\n', message: 'm' };
    const update = { ...ISSUE, method: 'update', title: 'x' };
    const without = key => ({ content: [{ text }] }) => ({ content: [{ type: 'text', text: JSON.stringify({ ...JSON.parse(text), [key]: undefined }) }] });
    commit(github.state, github.repository(), 'main', { 'large.txt': 'x'.repeat(2 << 20) }, 'Add a large file');
    const cases = [
        ['create_or_update_file', write, ['get_file_contents', 'nonsense'], /looks at/],
        ['create_or_update_file', write, ['get_file_contents', 'huge'], /larger|large|long|many/],
        ['create_or_update_file', write, ['get_file_contents', 'down'], /get_file_contents answered: failed to reach GitHub: 502/],
        ['create_or_update_file', { ...write, path: 'docs' }, [], /looks at/],
        ['create_or_update_file', { ...write, path: 'large.txt' }, [], /looks at/],
        ['create_or_update_file', { ...write, branch: 'nowhere' }, [], /failed to resolve git reference/],
        ['push_files', { ...SHOP, branch: 'main', message: 'm', files: Array.from({ length: 51 }, (_, n) => ({ path: `${n}`, content: '' })) }, [], /50/],
        ['issue_write', update, ['issue_read', 'nonsense'], /JSON/],
        ['issue_write', update, ['issue_read', without('title')], /title/],
        ['issue_write', update, ['issue_read', 'huge'], /larger|large|long|many/],
        ['issue_write', { ...update, issue_number: 404 }, [], /404 Not Found/],
        ['merge_pull_request', PULL, ['pull_request_read', without('head')], /head/],
        ['update_gist', { gist_id: 'g1', filename: 'notes.md', content: 'x' }, ['get_gist', without('files')], /files/],
        ['pull_request_review_write', { ...PULL, method: 'resolve_thread', threadId: 'PRRT_9' }, [], /keep/],
        ['label_write', { ...SHOP, method: 'delete', name: 'bug' }, ['get_label', 'nonsense'], /JSON/]
    ];
    for (const [tool, args, [reader, fault], expected] of cases) {
        await t.test(`${tool} ${typeof fault === 'function' ? 'without a field' : (fault ?? JSON.stringify(args).slice(0, 60))}`, async () => {
            if (reader) github.misbehave(reader, fault);
            const change = await propose(tool, args);
            github.behave();
            assert.match(change.preview.failed, expected);
            assert.equal(change.preview.kind, 'arguments');
        });
    }
    assert.deepEqual(github.writes(), []);
});

test('arguments that the state at GitHub does not have are shown beside it', async t => {
    const { propose } = await startBehindGitHub(t);
    const file = { ...SHOP, branch: 'main', path: 'README.md', content: 'x\n' };
    const cases = [
        ['create_or_update_file', { ...file, message: 'm', allow_symlink_write: true }, { allow_symlink_write: 'true' }],
        // The summary shows only the first line of a message.
        ['create_or_update_file', { ...file, message: 'Shorten\n\nCloses #1' }, { message: undefined }],
        ['merge_pull_request', { ...PULL, commit_title: 'Raise', commit_message: 'Skip the checks' }, { commit_title: 'Raise', commit_message: 'Skip the checks' }],
        ['issue_write', { ...SHOP, method: 'create', title: 'x', milestone: 2 }, { milestone: '2' }],
        ['update_issue_state', { ...ISSUE, state: 'closed', is_suggestion: true, rationale: 'Fixed' }, { is_suggestion: 'true', rationale: 'Fixed' }],
        ['create_repository', { name: 'fresh', organization: 'acme', autoInit: true }, { autoInit: 'true' }],
        ['assign_copilot_to_issue', { ...ISSUE, base_ref: 'feature', custom_instructions: 'Push to main' }, { base_ref: 'feature', custom_instructions: 'Push to main' }],
        ['mark_all_notifications_read', { lastReadAt: '2026-01-01T00:00:00Z' }, { lastReadAt: '2026-01-01T00:00:00Z' }]
    ];
    for (const [tool, args, expected] of cases) {
        await t.test(`${tool} shows ${Object.keys(expected).join(' and ')}`, async () => {
            const { preview, diff } = await propose(tool, args);
            assert.deepEqual([preview.kind, preview.failed], ['before_after', undefined]);
            for (const [name, value] of Object.entries(expected)) {
                const field = diff.fields.find(({ field }) => field === name);
                assert.ok(field, `${name} is not among ${diff.fields.map(({ field }) => field)}`);
                if (value !== undefined) assert.equal(field.after, value);
            }
            // What the recipe shows already is not repeated.
            assert.ok(!diff.fields.some(({ field }) => ['owner', 'repo', 'method'].includes(field)), JSON.stringify(diff));
        });
    }
    await t.test('teams that are asked for a review are named', async () => {
        const change = await propose('request_pull_request_reviewers', { ...PULL, reviewers: ['dave', 'acme/core'] });
        assert.match(change.summary, /of teams: acme\/core$/);
    });
});

test('a call that GitHub accepts without doing anything is noticed', async t => {
    const { github, propose, apply } = await startBehindGitHub(t);
    const cases = [
        ['create_or_update_file', { ...SHOP, path: 'a.txt', branch: 'main', content: 'x\n', message: 'm' }],
        ['issue_write', { ...ISSUE, method: 'update', title: 'x' }],
        ['issue_write', { ...SHOP, method: 'create', title: 'x' }],
        ['add_issue_comment', { ...ISSUE, body: 'x' }],
        ['merge_pull_request', PULL],
        ['create_gist', { filename: 'x', content: 'x' }]
    ];
    for (const [tool, args] of cases) {
        await t.test(`${tool} ${args.method ?? ''}`, async () => {
            github.misbehave(tool, 'ignored');
            const { verification } = await apply(await propose(tool, args));
            assert.equal(verification.verified, 'differs', JSON.stringify(verification));
        });
    }
});
