// Tries every shipped recipe for Atlassian's hosted server on a stand-in with state.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { CLOUD } from '../fixtures/stand-ins/atlassian.mjs';
import { startBehind, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers, tryUnnamedArguments } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';

const cloudId = CLOUD;
const ISSUE = { cloudId, issueIdOrKey: 'SHOP-1' };
const PAGE = { cloudId, pageId: '101', contentFormat: 'markdown' };
const issue = (state, key = 'SHOP-1') => state.issues.find(one => one.key === key);
const comments = (state, key) => issue(state, key).fields.comment.comments;
const execute = (name, inputs) => ({ name, cloudId, inputs });

test("every recipe for Atlassian's hosted server shows what its tool does", async t => {
    const behind = await startBehind(t, 'hostedAtlassian');
    const how = 'A stateful stand-in with the names and arguments recorded from mcp.atlassian.com, because this server exists only as a hosted service. Each operation of `executeWrite` and `executeDestructive` counts as a tool, as for policy.';
    const tried = new TriedServer({ title: 'Atlassian (hosted)', how });
    await tryCalls(t, behind, [
        ['createJiraIssue', { cloudId, projectKey: 'SHOP', issueTypeName: 'Bug', summary: 'Refunds fail', description: 'Since Monday' }, { summary: ['+Refunds fail'], 'Newest issues': ['   "SHOP-2 Add a search",'] }, s => [s.issues.at(-1).fields.issuetype.name, 'Bug']],
        ['editJiraIssue', { ...ISSUE, fields: { summary: 'Prices are too low', labels: ['urgent', 'pricing'], priority: { name: 'High' }, assignee: { accountId: '5b1' } } },
            { summary: ['-Prices are wrong', '+Prices are too low'], 'priority.name': ['-Medium', '+High'], labels: ['+  "urgent"'] }, s => [issue(s).fields.assignee.displayName, 'Ada Lovelace']],
        ['transitionJiraIssue', { ...ISSUE, transition: { id: '31' } }, { Transition: [' Move to Done, to Done'], Issue: ['   "status": "To Do",'] }, s => [issue(s).fields.status.name, 'Done'], { isReadBack: false }],
        ['addCommentToJiraIssue', { ...ISSUE, commentBody: 'Fixed' }, { Comment: ['+Fixed'] }, s => [comments(s).at(-1).body, 'Fixed']],
        ['addOrEditJiraIssueComment, add', { ...ISSUE, commentBody: 'Really' }, { Comment: ['+Really'] }, s => [comments(s).at(-1).body, 'Really']],
        ['addOrEditJiraIssueComment, edit', { ...ISSUE, commentId: '801', commentBody: 'I cannot confirm.' }, { Comment: ['-I can confirm.', '+I cannot confirm.'] }, s => [comments(s)[0].body, 'I cannot confirm.']],
        ['createConfluencePage', { cloudId, spaceId: '65', parentId: '101', title: 'Refunds', body: '# Refunds\n', contentFormat: 'markdown' }, { body: ['+# Refunds'], Parent: [' Prices'] }, s => [s.pages.at(-1).title, 'Refunds']],
        ['updateConfluencePage', { ...PAGE, body: '# Prices\n\nA book costs 27.\n', versionMessage: 'Raise' }, { body: ['-A book costs 25.', '+A book costs 27.'] }, s => [s.pages[0].version.number, 4]],
        ['createConfluenceFooterComment', { cloudId, pageId: '101', body: 'Yes' }, { Comment: ['+Yes'] }, s => [s.comments.at(-1).body, 'Yes']],
        ['executeWrite/addOrEditJiraIssueComment', execute('addOrEditJiraIssueComment', { issueIdOrKey: 'SHOP-2', commentBody: 'Soon' }), { Comment: ['+Soon'] }, s => [comments(s, 'SHOP-2').at(-1).body, 'Soon']],
        ['executeWrite/addOrEditJiraIssueComment, edit', execute('addOrEditJiraIssueComment', { issueIdOrKey: 'SHOP-1', commentId: '801', commentBody: 'Who knows' }), { Comment: ['-I cannot confirm.', '+Who knows'] }, s => [comments(s)[0].body, 'Who knows']],
        ['executeDestructive/deleteJiraComment', execute('deleteJiraComment', { issueIdOrKey: 'SHOP-1', commentId: '802' }), { Comment: ['-Never mind.'] }, s => [comments(s).some(({ id }) => id === '802'), false]],
        ['executeDestructive/deleteJiraIssue', execute('deleteJiraIssue', { issueIdOrKey: 'SHOP-3' }), { summary: ['-Obsolete'] }, s => [issue(s, 'SHOP-3'), undefined]]
    ], tried);
    await t.test('the page about the servers tried says so', () => tried.check());
    await t.test('known operations that read pass, and unknown ones are reviewed', async () => {
        const known = await behind.peer.call('executeRead', execute('listConfluenceSpaces', {}));
        assert.match(known.content[0].text, /"key":"SHOP"/);
        const unknown = await behind.propose('executeRead', execute('exportEverything', {}));
        assert.equal(unknown.review.mark, 'OPERATION_UNKNOWN');
    });
});

test('changes at Atlassian meanwhile make a change stale', async t => {
    const behind = await startBehind(t, 'hostedAtlassian');
    await tryConcurrentChanges(t, behind, [
        ['editJiraIssue', { ...ISSUE, fields: { summary: 'Mine' } }, s => (issue(s).fields.summary = 'Theirs'), { summary: ['-Theirs', '+Mine'] }],
        ['updateConfluencePage', { ...PAGE, body: 'Mine\n' }, s => (s.pages[0].body = 'Theirs\n'), { body: ['-Theirs', '+Mine'] }],
        ['executeDestructive', execute('deleteJiraIssue', { issueIdOrKey: 'SHOP-3' }), s => (issue(s, 'SHOP-3').fields.status.name = 'In Progress'), { status: ['-In Progress'] }]
    ]);
    await t.test('what changes by itself does not', async () => {
        const change = await behind.propose('editJiraIssue', { ...ISSUE, fields: { labels: ['x'] } });
        issue(behind.fake.state).fields.updated = '2026-03-01T00:00:00.000+0000';
        assert.equal((await behind.apply(change)).verification.verified, 'matches');
    });
});

test("what a recipe for Atlassian's hosted server does not expect gives no preview, and nothing is written", async t => {
    const behind = await startBehind(t, 'hostedAtlassian');
    issue(behind.fake.state, 'SHOP-2').fields.description = 'x'.repeat(6 << 20);
    await tryStrangeAnswers(t, behind, [
        ['editJiraIssue', { ...ISSUE, fields: { summary: 'x' } }, 'nonsense', /JSON/],
        ['editJiraIssue', { ...ISSUE, fields: { summary: 'x' } }, 'odd', /fields/],
        ['editJiraIssue', { cloudId, issueIdOrKey: 'SHOP-2', fields: { summary: 'x' } }, 'normal', /larger|large|long|many/],
        ['addOrEditJiraIssueComment', { ...ISSUE, commentId: '999', commentBody: 'x' }, 'normal', /keep/],
        ['createConfluencePage', { cloudId, spaceId: '65', parentId: '999', body: 'x' }, 'normal', /not found/],
        ['executeDestructive', execute('deleteJiraIssue', {}), 'normal', /issueIdOrKey/],
        ['executeDestructive', execute('deleteEverything', {}), 'normal', /does not know the operation/]
    ]);
});

test("arguments that the state at Atlassian does not have are shown beside it", async t => {
    const behind = await startBehind(t, 'hostedAtlassian');
    const visibility = { type: 'role', value: 'Administrators' };
    const shown = ['+{"type":"role","value":"Administrators"}'];
    await tryUnnamedArguments(t, behind, [
        ['createJiraIssue', { cloudId, projectKey: 'SHOP', issueTypeName: 'Bug', summary: 'x', additional_fields: { customfield_1: 7 } }, { summary: ['+x'], additional_fields: ['+{"customfield_1":7}'] }],
        // People who report are not compared.
        ['editJiraIssue', { ...ISSUE, fields: { summary: 'x', reporter: { accountId: '5b2' } } }, { summary: ['+x'], 'fields.reporter': ['+{"accountId":"5b2"}'] }],
        ['addCommentToJiraIssue', { ...ISSUE, commentBody: 'x', commentVisibility: visibility }, { Comment: ['+x'], commentVisibility: shown }],
        ['updateConfluencePage', { ...PAGE, body: 'x', status: 'draft' }, { body: ['+x'], status: ['+draft'] }],
        ['executeWrite', execute('addOrEditJiraIssueComment', { issueIdOrKey: 'SHOP-1', commentBody: 'x', commentVisibility: visibility }), { Comment: ['+x'], 'inputs.commentVisibility': shown }],
        ['executeDestructive', execute('deleteJiraIssue', { issueIdOrKey: 'SHOP-3', deleteSubtasks: true }), { summary: ['-Obsolete'], 'inputs.deleteSubtasks': ['+true'] }]
    ]);
});

test('a call that Atlassian accepts without doing anything is noticed', async t => {
    const behind = await startBehind(t, 'hostedAtlassian');
    await trySilentWrites(t, behind, [
        ['editJiraIssue', { ...ISSUE, fields: { summary: 'x' } }],
        ['updateConfluencePage', { ...PAGE, body: 'x' }],
        ['executeDestructive', execute('deleteJiraIssue', { issueIdOrKey: 'SHOP-3' })]
    ]);
});
