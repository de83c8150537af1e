// Tries every shipped recipe for Linear's hosted server on a stand-in with state.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { startBehind, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers, tryUnnamedArguments } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS } from './vendors.mjs';

const ISSUE = { id: 'SHOP-1' };
const newest = map => Object.values(map).at(-1);
const fields = (one, ...keys) => keys.map(key => one[key]);

const CALLS = [
    ['save_issue', { ...ISSUE, title: 'Checkout fails with 500', state: 'In Progress', priority: 1, labels: ['Urgent', 'Bug'], assignee: 'ada@example.com', estimate: 5, blocks: ['SHOP-2'], links: [{ url: 'https://example.com/log', title: 'Log' }] },
        { title: ['-Checkout fails', '+Checkout fails with 500'], state: ['-Backlog', '+In Progress'], priority: ['-Medium', '+Urgent'], labels: ['+  "Urgent"'], blocks: ['+  "SHOP-2"'], Assignee: [' Ada Lovelace <ada@example.com>'] },
        ({ issues: { 'SHOP-1': issue } }) => [[...fields(issue, 'title', 'priority', 'estimate', 'blocks'), issue.state.name, issue.assignee.name], ['Checkout fails with 500', 1, 5, ['SHOP-2'], 'In Progress', 'Ada Lovelace']]],
    ['save_issue, patch', { ...ISSUE, patch: [{ op: 'replace', old_string: '500', new_string: 'an error' }, { op: 'append', text: '\nSince Monday' }] },
        { description: ['-with 500', '+with an error', '+Since Monday'] }, s => [s.issues['SHOP-1'].description, 'It fails\nwith an error\nSince Monday']],
    ['save_issue, patch and fields', { ...ISSUE, patch: [{ op: 'append', text: '.' }], priority: 2, dueDate: '2026-12-01' },
        { description: ['+Since Monday.'], priority: ['-Urgent', '+High'], dueDate: ['+2026-12-01'] }, s => [fields(s.issues['SHOP-1'], 'priority', 'dueDate'), [2, '2026-12-01']]],
    ['save_issue, create', { team: 'Shop', title: 'Vouchers', description: 'Missing', priority: 2, labels: ['Bug'], assignee: 'me' },
        { title: ['+Vouchers'], priority: ['+High'], 'Issues with this title': [' []'] }, s => [fields(newest(s.issues), 'title', 'priority', 'labels'), ['Vouchers', 2, ['Bug']]]],
    ['save_comment', { issueId: 'SHOP-1', body: 'Found **it**' }, { Comment: ['+Found **it**'], Issue: [' SHOP-1 Checkout fails with 500 (In Progress)'] }, s => [fields(s.comments.at(-1), 'on', 'body'), ['SHOP-1', 'Found **it**']]],
    ['save_comment, rewrite', { id: 'c1', issueId: 'SHOP-1', body: 'How?' }, { Comment: ['-Why?', '+How?'] }, s => [s.comments[0].body, 'How?']],
    ['save_comment, on a project', { projectId: 'p1', body: 'Good' }, { Comment: ['+Good'], Project: [' Summer sale'] }, s => [fields(s.comments.at(-1), 'on', 'body'), ['p1', 'Good']]],
    ['create_attachment_from_upload', { issue: 'SHOP-1', assetUrl: 'https://uploads.linear.app/a', title: 'Screenshot' }, { Attachments: ['+  "Screenshot"'] }, s => [fields(newest(s.attachments), 'issue', 'title'), ['SHOP-1', 'Screenshot']]],
    ['create_attachment', { issue: 'SHOP-2', base64Content: 'YQ==', filename: 'a.txt', contentType: 'text/plain', sha256: 'x' }, { Attachments: ['+  "a.txt"'] }, s => [newest(s.attachments).title, 'a.txt']],
    ['prepare_attachment_upload', { issue: 'SHOP-1', filename: 'b.png', contentType: 'image/png', size: 9 }, { Issue: [' SHOP-1 Checkout fails with 500 (In Progress)'] }, () => [1, 1], { isReadBack: false }],
    ['delete_attachment', { id: 'f1' }, { title: ['-Log of the failure'] }, s => [s.attachments.f1, undefined]],
    ['create_issue_label', { name: 'Payments', color: '#123456' }, { name: ['+Payments'] }, s => [s.labels.at(-1).name, 'Payments']],
    ['save_project', { id: 'p1', state: 'Started', lead: 'Bob Noyce', targetDate: '2026-10-01', patch: [{ op: 'insert_after', anchor: '# Goal', text: '\n\nBy autumn' }] },
        { state: ['-Planned', '+Started'], lead: ['-Ada Lovelace', '+Bob Noyce'], description: ['+By autumn'] }, s => [[s.projects.p1.status, s.projects.p1.description], ['Started', '# Goal\n\nBy autumn\n\nSell more']]],
    ['save_project, create', { name: 'Winter sale', addTeams: ['Shop'], summary: 'Sell all' }, { name: ['+Winter sale'] }, s => [newest(s.projects).name, 'Winter sale']],
    ['save_milestone', { project: 'p1', id: 'm1', description: 'For all', targetDate: '2026-08-15' }, { description: ['-For friends', '+For all'], targetDate: ['+2026-08-15'] }, s => [s.milestones.m1.targetDate, '2026-08-15']],
    ['save_milestone, create', { project: 'p1', name: 'Launch' }, { name: ['+Launch'], Milestones: ['   "Beta"'] }, s => [newest(s.milestones).name, 'Launch']],
    ['save_initiative', { id: 'i1', status: 'Active', owner: 'Bob Noyce' }, { status: ['-Planned', '+Active'], owner: ['+Bob Noyce'] }, s => [s.initiatives.i1.status, 'Active']],
    ['save_initiative, create', { name: 'Trust', description: 'Be kind' }, { name: ['+Trust'], 'Initiatives with this name': ['   "Growth"'] }, s => [newest(s.initiatives).name, 'Trust']],
    ['create_initiative_label', { name: 'Bet' }, { name: ['+Bet'] }, s => [s.initiativeLabels[0].name, 'Bet']],
    ['save_status_update', { type: 'project', id: 'u1', body: 'All was well', health: 'atRisk' }, { body: ['-All is well', '+All was well'], health: ['-onTrack', '+atRisk'] }, s => [fields(s.updates.u1, 'body', 'health'), ['All was well', 'atRisk']]],
    ['save_status_update, create', { type: 'project', project: 'Summer sale', body: 'Late', health: 'offTrack' }, { body: ['+Late'], 'Updates so far': ['   "atRisk: All was well"'] }, s => [fields(newest(s.updates), 'project', 'body'), ['p1', 'Late']]],
    ['delete_status_update', { type: 'project', id: 'u1' }, { body: ['-All was well'] }, s => [s.updates.u1, undefined]],
    ['save_document', { id: 'd1', patch: [{ op: 'replace', old_string: 'everybody', new_string: 'Ada' }] }, { content: ['-Ask everybody.', '+Ask Ada.'] }, s => [s.documents.d1.content, '# Plan\n\nAsk Ada.\n\nThen sell.']],
    ['save_document, create', { project: 'p1', title: 'Notes', content: '# Notes' }, { content: ['+# Notes'], Project: [' Summer sale (Started)'] }, s => [fields(newest(s.documents), 'title', 'project'), ['Notes', 'p1']]],
    ['save_release', { id: 'r1', version: '1.0.1' }, { version: ['-1.0.0', '+1.0.1'] }, s => [s.releases.r1.version, '1.0.1']],
    ['save_release, create', { pipeline: 'Web', name: '2.0' }, { name: ['+2.0'], Releases: ['   "1.0"'] }, s => [newest(s.releases).name, '2.0']],
    ['save_release_note', { id: 'n1', content: 'Much' }, { content: ['-Nothing yet', '+Much'] }, s => [s.notes.n1.content, 'Much']],
    ['save_release_note, create', { pipeline: 'Web', title: 'What', content: 'All', releases: ['r1'] }, { content: ['+All'], Release: [' 1.0'] }, s => [newest(s.notes).content, 'All']],
    ['merge_diff', { urlOrId: 'd-1' }, { Diff: [' {"id":"d-1","title":"Fix the checkout","status":"open","headSha":"abc"}'] }, () => [1, 1], { isReadBack: false }],
    ['submit_diff_review', { urlOrId: 'd-1', decision: 'approved' }, { Threads: [' {"threads":[]}'] }, () => [1, 1], { isReadBack: false }],
    ['save_diff_comment', { urlOrId: 'd-1', body: 'Nice' }, { Threads: [' {"threads":[]}'] }, () => [1, 1], { isReadBack: false }]
];

test('every recipe for Linear shows what its tool does', async t => {
    const behind = await startBehind(t, 'linear');
    const how = `A stand-in with ${VENDORS.linear.standsFor}, because the hosted server needs an account.`;
    const tried = new TriedServer({ title: 'Linear', how });
    await tryCalls(t, behind, CALLS, tried);
    await t.test('the page about the servers tried says so', () => tried.check());
});

test('changes in Linear meanwhile make a change stale', async t => {
    const behind = await startBehind(t, 'linear');
    await tryConcurrentChanges(t, behind, [
        ['save_issue', { ...ISSUE, title: 'Mine' }, s => (s.issues['SHOP-1'].title = 'Theirs'), { title: ['-Theirs', '+Mine'] }],
        ['save_document', { id: 'd1', content: 'Mine' }, s => (s.documents.d1.content = 'Theirs'), { content: ['-Theirs'] }],
        ['delete_status_update', { type: 'project', id: 'u1' }, s => (s.updates.u1.body = 'Theirs'), { body: ['-Theirs'] }]
    ]);
});

test('strange answers of Linear give no preview, and nothing is written', async t => {
    const behind = await startBehind(t, 'linear');
    const update = { ...ISSUE, title: 'x' };
    await tryStrangeAnswers(t, behind, [
        ['save_issue', update, 'nonsense', /JSON/],
        ['save_issue', update, 'odd', /title/],
        ['save_issue', update, 'huge', /larger|large|long|many/],
        ['save_issue', update, 'down', /502/],
        ['save_issue', { id: 'SHOP-404', title: 'x' }, 'normal', /Entity not found: Issue/],
        ['save_issue', { title: 'x' }, 'normal', /team/],
        ['save_issue', { ...ISSUE, description: 'x', patch: [{ op: 'append', text: 'y' }] }, 'normal', /no variant/],
        ['save_project', { id: 'p1', description: 'x', patch: [{ op: 'append', text: 'y' }] }, 'normal', /no variant/],
        ['save_document', { id: 'd1', content: 'x', patch: [{ op: 'append', text: 'y' }] }, 'normal', /no variant/],
        ['save_issue', { ...ISSUE, patch: [{ op: 'replace', old_string: 'nowhere', new_string: 'x' }] }, 'normal', /edits/],
        ['save_comment', { issueId: 'SHOP-1', body: 'x' }, 'odd', /id/],
        ['save_document', { id: 'd1', content: 'x' }, 'odd', /title/],
        ['save_project', { id: 'p1', name: 'x' }, 'odd', /name/],
        ['delete_status_update', { type: 'project', id: 'u1' }, 'odd', /body/]
    ]);
});

test('arguments that the state of Linear does not have are shown beside it', async t => {
    const behind = await startBehind(t, 'linear');
    await tryUnnamedArguments(t, behind, [
        ['save_issue', { ...ISSUE, links: [{ url: 'https://example.com', title: 'Look' }] }, { links: ['+  "https://example.com",'], 'links[0].title': ['+Look'] }],
        ['save_project', { id: 'p1', name: 'x', links: [{ url: 'https://example.com', title: 'x' }] }, { name: ['+x'], links: ['+[{"url":"https://example.com","title":"x"}]'] }],
        ['save_initiative', { id: 'i1', name: 'x', parentInitiatives: ['i2'] }, { name: ['+x'], parentInitiatives: ['+["i2"]'] }],
        ['save_document', { id: 'd1', content: 'x', issue: 'SHOP-2' }, { content: ['+x'], issue: ['+SHOP-2'] }],
        ['save_release', { id: 'r1', name: 'x', completedAt: null }, { name: ['+x'], completedAt: ['+null'] }],
        ['save_release_note', { id: 'n1', content: 'x', releases: ['r1'] }, { content: ['+x'], releases: ['+["r1"]'] }]
    ]);
});

test('a call that Linear ignores is noticed', async t => {
    const behind = await startBehind(t, 'linear');
    await trySilentWrites(t, behind, [
        ['save_issue', { ...ISSUE, title: 'x' }],
        ['save_issue', { team: 'Shop', title: 'x' }],
        ['save_comment', { id: 'c1', issueId: 'SHOP-1', body: 'x' }],
        ['save_project', { id: 'p1', name: 'x' }],
        ['save_document', { id: 'd1', content: 'x' }],
        ['delete_attachment', { id: 'f1' }]
    ]);
    // Linear answers these calls as if they had succeeded.
    for (const [what, args] of [
        ['an argument that does not exist', { ...ISSUE, status: 'Done' }],
        ['a state that does not exist', { ...ISSUE, state: 'Finished' }],
        ['an unknown argument of a new issue', { team: 'Shop', title: 'x', assigneeEmail: 'ada@example.com' }]
    ]) {
        await t.test(what, async () => {
            const { verification } = await behind.apply(await behind.propose('save_issue', args));
            assert.equal(verification?.verified, 'differs', JSON.stringify(verification));
        });
    }
});
