// Tries every shipped recipe for Jira and Confluence with the real server mcp-atlassian on fakes of their APIs.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { shareServer, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS } from './vendors.mjs';

const ISSUE = { issue_key: 'SHOP-1' };
const PAGE = { page_id: '102' };

const issue = (jira, key = 'SHOP-1') => jira.issues.find(one => one.key === key)?.fields;
const newest = jira => jira.issues.at(-1).fields;
const comments = (jira, key = 'SHOP-1') => issue(jira, key).comment.comments;
const sprintOf = (jira, key) => issue(jira, key).customfield_10020?.[0].id;
const page = (confluence, id = '102') => confluence.pages.find(one => one.id === id);
const titled = (confluence, title) => confluence.pages.find(one => one.title === title);
const NOT_READ_BACK = { isReadBack: false };
const ADDITIVE = { wrong: '`destructiveHint: true`, but it only adds' };

const CALLS = [
    ['jira_create_issue', { project_key: 'SHOP', summary: 'Refunds', issue_type: 'Task', description: 'There are **none**.' }, { summary: ['+Refunds'], description: ['+There are **none**.'] }, jira => [newest(jira).description, 'There are *none*.']],
    ['jira_batch_create_issues', { issues: JSON.stringify([{ project_key: 'SHOP', summary: 'One', issue_type: 'Task' }, { project_key: 'SHOP', summary: 'Two', issue_type: 'Bug' }]) },
        { Issues: ['+  "SHOP, Bug: Two",'] }, jira => [newest(jira).summary, 'Two']],
    ['jira_update_issue', { ...ISSUE, fields: JSON.stringify({ summary: 'Prices are far too low', description: 'Please **look**.', labels: ['web', 'pricing'], priority: { name: 'High' } }), additional_fields: JSON.stringify({ duedate: '2030-01-31' }) },
        { summary: ['-Prices are wrong', '+Prices are far too low'], description: ['-They are too low.'], duedate: ['+2030-01-31'] },
        jira => [[issue(jira).summary, issue(jira).description, issue(jira).duedate], ['Prices are far too low', 'Please *look*.', '2030-01-31']]],
    ['jira_assign_issue', { ...ISSUE, assignee: 'bob' }, { assignee: ['+bob'] }, jira => [issue(jira).assignee.name, 'bob']],
    ['jira_assign_issue, nobody', ISSUE, { assignee: ['-Bob Ross'] }, jira => [issue(jira).assignee, null]],
    ['jira_transition_issue', { ...ISSUE, transition_id: '21', comment: 'Going' }, { status: ['-To Do', '+set by the transition'], Transition: [' Start'] }, jira => [issue(jira).status.name, 'In Progress']],
    ['jira_link_to_epic', { ...ISSUE, epic_key: 'SHOP-3' }, { epic: ['+SHOP-3'] }, jira => [issue(jira).parent.key, 'SHOP-3'], ADDITIVE],
    ['jira_create_issue_link', { link_type: 'Relates', inward_issue_key: 'SHOP-1', outward_issue_key: 'SHOP-3' }, { Links: ['+  "Relates SHOP-3"'] }, jira => [jira.links.at(-1).to, 'SHOP-3']],
    ['jira_create_remote_issue_link', { ...ISSUE, url: 'https://example.com/a', title: 'Example' }, { 'Links to other sites': ['+  "Example: https://example.com/a"'] }, jira => [jira.remoteLinks['SHOP-1'][0].object.title, 'Example']],
    ['jira_add_comment', { ...ISSUE, body: 'Found **it**' }, { Comment: ['+Found **it**'] }, jira => [comments(jira).at(-1).body, 'Found *it*']],
    ['jira_edit_comment', { ...ISSUE, comment_id: '201', body: 'I can not confirm.' }, { Comment: ['-I can confirm.', '+I can not confirm.'] }, jira => [comments(jira)[0].body, 'I can not confirm.']],
    ['jira_add_worklog', { ...ISSUE, time_spent: '1h 30m', comment: 'Looked' }, { time: ['+1h 30m'] }, jira => [jira.worklogs['SHOP-1'][0].timeSpentSeconds, 5400], ADDITIVE],
    ['jira_add_watcher', { ...ISSUE, user_identifier: 'bob' }, { Watchers: ['+  "bob"'] }, jira => [jira.watchers['SHOP-1'].map(({ name }) => name), ['ada', 'bob']]],
    ['jira_remove_watcher', { ...ISSUE, username: 'ada' }, { Watchers: ['-  "ada"'] }, jira => [jira.watchers['SHOP-1'].map(({ name }) => name), ['bob']]],
    ['jira_create_sprint', { board_id: '1', name: 'Sprint 2', start_date: '2035-03-01T00:00:00.000Z', end_date: '2035-03-10T00:00:00.000Z', goal: 'More' }, { name: ['+Sprint 2'] }, jira => [jira.sprints.at(-1).goal, 'More']],
    ['jira_add_issues_to_sprint', { sprint_id: '601', issue_keys: 'SHOP-1,SHOP-2' }, { 'Issues in the sprint': ['+  "SHOP-1",', '+  "SHOP-2"'] }, jira => [sprintOf(jira, 'SHOP-2'), 601], ADDITIVE],
    ['jira_update_sprint', { sprint_id: '601', name: 'Sprint one' }, { 'Issues in the sprint': ['   "SHOP-2 Add a search"'] }, jira => [jira.sprints[0].name, 'Sprint one'], NOT_READ_BACK],
    ['jira_move_issues_to_backlog', { issue_keys: 'SHOP-2' }, { 'Issues in a sprint': ['-  "SHOP-2 Add a search"'] }, jira => [sprintOf(jira, 'SHOP-2'), undefined]],
    ['jira_create_version', { project_key: 'SHOP', name: '2.0', description: 'Next', release_date: '2035-01-01' }, { name: ['+2.0'], 'release date': ['+2035-01-01'] }, jira => [jira.versions.at(-1).description, 'Next']],
    ['jira_batch_create_versions', { project_key: 'SHOP', versions: JSON.stringify([{ name: '3.0' }, { name: '4.0' }]) }, { Versions: ['+  "3.0",', '+  "4.0"'] }, jira => [jira.versions.at(-1).name, '4.0']],
    ['jira_create_customer_request', { service_desk_id: '1', request_type_id: '5', request_field_values: JSON.stringify({ summary: 'Where is my book?' }) }, { summary: ['+Where is my book?'] }, jira => [newest(jira).summary, 'Where is my book?'], ADDITIVE],
    ['jira_delete_issue', { issue_key: 'SHOP-2' }, { summary: ['-Add a search'] }, jira => [issue(jira, 'SHOP-2'), undefined]],

    ['confluence_create_page', { space_key: 'DOC', title: 'Return', content: '# Ask\n\nWrite *to* us.', parent_id: '101' }, { title: ['+Return'], content: ['+Write *to* us.'] }, (jira, wiki) => [titled(wiki, 'Return').parent, '101']],
    ['confluence_update_page', { ...PAGE, title: 'Deploy', content: '# Prepare\n\nTell nobody.\n\n# Run\n\nPress the button.' }, { content: ['-Tell everybody.', '+Tell nobody.'], version: ['-1', '+2'] }, (jira, wiki) => [page(wiki).storage.includes('Tell nobody.'), true]],
    ['confluence_update_page_section', { ...PAGE, heading_text: 'Run', new_content: 'Press **both** buttons.' }, { 'new text': ['+Press **both** buttons.'], 'Page now': [' Press the button.'], Page: ['   "title": "Deploy"'] }, (jira, wiki) => [page(wiki).storage.includes('<strong>both</strong>'), true]],
    ['confluence_move_page', { ...PAGE, target_parent_id: '103' }, { parent: ['-101', '+103'] }, (jira, wiki) => [page(wiki).parent, '103']],
    ['confluence_copy_page', { source_page_id: '102', destination_space_key: 'OPS', new_title: 'Deploy again' }, { title: ['+Deploy again'], space: ['+OPS'] }, (jira, wiki) => [titled(wiki, 'Deploy again').space, 'OPS'], ADDITIVE],
    ['confluence_set_page_restrictions', { ...PAGE, read_users: ['ada'], edit_groups: ['staff'] }, { readers: ['+  "ada"'], 'editing groups': ['+  "staff"'] }, (jira, wiki) => [page(wiki).restrictions.read.user[0].username, 'ada']],
    ['confluence_add_label', { ...PAGE, name: 'checked' }, { Labels: ['+  "checked",'] }, (jira, wiki) => [page(wiki).labels.map(({ name }) => name), ['howto', 'checked']]],
    ['confluence_add_comment', { ...PAGE, body: 'The red one' }, { Comment: ['+The red one'] }, (jira, wiki) => [wiki.comments.at(-1).storage, '<p>The red one</p>']],
    ['confluence_add_inline_comment', { ...PAGE, body: 'Why?', text_selection: 'Tell' }, { Comment: ['+Why?'] }, (jira, wiki) => [wiki.comments.at(-1).location, 'inline'], ADDITIVE],
    ['confluence_upload_attachment', { content_id: '103', filename: 'plan.txt', content_base64: Buffer.from('A new plan').toString('base64') }, { version: ['-1', '+2'] }, (jira, wiki) => [page(wiki, '103').attachments[0].text, 'A new plan']],
    ['confluence_delete_page', { page_id: '103' }, { title: ['-Old notes'] }, (jira, wiki) => [page(wiki, '103'), undefined]]
];

const startServer = shareServer('atlassian');

test('every recipe for Atlassian shows what its tool does', async t => {
    const behind = await startServer();
    for (const [name, , , , options] of CALLS.filter(([, , , , options]) => options?.wrong)) {
        const { annotations } = behind.definitions.find(tool => tool.name === name.split(',')[0]);
        assert.equal(annotations.destructiveHint, true, `${name}: ${options.wrong}`);
    }
    const tried = new TriedServer({ title: 'Jira and Confluence', how: `The real server ${VENDORS.atlassian.package} on fakes of the APIs of Jira and Confluence Data Center.` });
    await tryCalls(t, behind, CALLS, tried);
    await t.test('the page about the servers tried says so', () => tried.check());
});

test('changes in Jira and Confluence meanwhile make a change stale', async t => {
    const behind = await startServer();
    await tryConcurrentChanges(t, behind, [
        ['jira_update_issue', { ...ISSUE, fields: '{"summary":"Mine"}' }, jira => (issue(jira).summary = 'Theirs'), { summary: ['-Theirs'] }],
        ['jira_transition_issue', { ...ISSUE, transition_id: '31' }, jira => (issue(jira).status = { ...issue(jira).status, name: 'Blocked' }), { status: ['-Blocked'] }],
        ['jira_edit_comment', { ...ISSUE, comment_id: '201', body: 'Mine' }, jira => (comments(jira)[0].body = 'Theirs'), { Comment: ['-Theirs'] }],
        ['confluence_update_page', { ...PAGE, title: 'Deploy', content: 'Mine' }, (jira, wiki) => Object.assign(page(wiki), { storage: '<p>Theirs</p>', version: 2 }), { content: ['-Theirs'], version: ['+3'] }],
        ['confluence_delete_page', { page_id: '103' }, (jira, wiki) => (page(wiki, '103').storage = '<p>Keep me</p>'), { content: ['-Keep me'] }]
    ]);
});

test('strange answers of Jira and Confluence give no preview, and nothing is written', async t => {
    const behind = await startServer();
    page(behind.fakes[1].state, '101').storage = `<p>${'x'.repeat(6 << 20)}</p>`;
    await tryStrangeAnswers(t, behind, [
        ['jira_update_issue', { ...ISSUE, fields: '{"summary":"x"}' }, 'nonsense', /jira_get_issue/],
        ['jira_update_issue', { ...ISSUE, fields: '{"summary"' }, 'normal', /JSON/],
        ['jira_delete_issue', ISSUE, 'odd', /jira_get_issue|key|keep/],
        ['confluence_update_page', { ...PAGE, title: 'x', content: 'x' }, 'nonsense', /page|keep/],
        ['confluence_update_page_section', { ...PAGE, heading_text: 'Nowhere', new_content: 'x' }, 'normal', /the heading Nowhere/],
        // It is slow, too.
        ['confluence_update_page', { page_id: '101', title: 'x', content: 'x' }, 'normal', /confluence_get_page|large|long|limit|keep/]
    ]);
});

test('a call that Jira or Confluence accepts without doing anything is noticed', async t => {
    const behind = await startServer();
    await trySilentWrites(t, behind, [
        ['jira_update_issue', { ...ISSUE, fields: '{"summary":"x"}' }],
        ['jira_transition_issue', { ...ISSUE, transition_id: '21' }],
        ['jira_assign_issue', { ...ISSUE, assignee: 'bob' }],
        ['confluence_update_page', { ...PAGE, title: 'x', content: 'x' }],
        ['confluence_add_label', { ...PAGE, name: 'x' }],
        ['confluence_delete_page', { page_id: '103' }]
    ]);
    // The server drops a field that it does not know, and says that the issue was updated.
    await t.test('a field that the server ignores', async () => {
        const { verification } = await behind.apply(await behind.propose('jira_update_issue', { ...ISSUE, fields: '{"sumary":"x"}' }));
        assert.equal(verification.verified, 'differs');
    });
});
