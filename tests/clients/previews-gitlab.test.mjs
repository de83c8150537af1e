// Tries every shipped recipe for GitLab with the real server @zereight/mcp-gitlab on a fake of GitLab's API.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { shareServer, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS } from './vendors.mjs';

const SHOP = { project_id: 'acme/shop' };
const ISSUE = { ...SHOP, issue_iid: '1' };
const REQUEST = { ...SHOP, merge_request_iid: '1' };

const issue = (state, iid = 1) => state.issues.find(one => one.iid === iid);
const request = (state, iid = 1) => state.mergeRequests.find(one => one.iid === iid);
const discussions = (state, of) => state.discussions[of];
const notes = (state, of) => state.discussions[of].flatMap(one => one.notes);
const noteOf = (state, id) => Object.keys(state.discussions).flatMap(of => notes(state, of)).find(note => note.id === id);
const reactions = (state, of) => (state.awards[of] ?? []).map(({ name }) => name);
const wiki = (state, slug) => state.wikis.find(page => page.slug === slug);
const named = (list, name) => list.find(one => one.name === name);
const titled = (list, title) => list.find(one => one.title === title);
const NOT_READ_BACK = { isReadBack: false };

const CALLS = [
    ['create_or_update_file', { ...SHOP, file_path: 'README.md', branch: 'main', content: '# Shop\n\nSells books.\n', commit_message: 'Say what' },
        { 'README.md': ['-Sells things.', '+Sells books.'] }, s => [s.branches.main['README.md'], '# Shop\n\nSells books.\n']],
    ['create_or_update_file, new', { ...SHOP, file_path: 'docs/a.md', branch: 'main', content: 'new\n', commit_message: 'Add' }, { 'docs/a.md': ['+new'] }, s => [s.branches.main['docs/a.md'], 'new\n']],
    ['push_files', { ...SHOP, branch: 'add-tax', commit_message: 'All', files: [{ file_path: 'src/price.txt', content: '12\n', action: 'update' }, { file_path: 'new.txt', content: 'new\n' }, { file_path: 'README.md', action: 'delete' }] },
        { 'src/price.txt': ['-10', '+12'], 'new.txt': ['+new'], 'README.md': ['-Sells things.'] },
        s => [[s.branches['add-tax']['src/price.txt'], s.branches['add-tax']['new.txt'], s.branches['add-tax']['README.md']], ['12\n', 'new\n', undefined]]],
    ['create_branch', { ...SHOP, branch: 'topic', ref: 'main' }, { name: ['+topic'] }, s => [s.branches.topic, s.branches.main]],
    ['protect_branch', { ...SHOP, branch_name: 'topic', push_access_level: 30 }, { 'push access': ['+  "developers, maintainers"'], 'merge access': ['+  "maintainers"'] }, s => [named(s.protected, 'topic').push_access_levels[0].access_level, 30]],
    ['unprotect_branch', { ...SHOP, branch_name: 'topic' }, { name: ['-topic'] }, s => [s.protected, []]],
    ['update_default_branch', { ...SHOP, default_branch: 'topic' }, { default_branch: ['-main', '+topic'] }, s => [s.project.default_branch, 'topic']],
    ['create_commit_status', { ...SHOP, sha: 'main', state: 'success', name: 'build' }, { status: ['+success'] }, s => [named(s.statuses, 'build').status, 'success']],
    ['create_commit_status, again', { ...SHOP, sha: 'main', state: 'failed', name: 'build', description: 'Broken' }, { status: ['-success', '+failed'] }, s => [named(s.statuses, 'build').status, 'failed']],
    ['update_project', { ...SHOP, description: 'Books', merge_method: 'ff' }, { description: ['-The shop', '+Books'], merge_method: ['-merge', '+ff'] }, s => [[s.project.description, s.project.merge_method], ['Books', 'ff']]],
    ['create_repository', { name: 'Fresh', description: 'New' }, { name: ['+Fresh'], visibility: ['+private'] }, s => [named(s.projects, 'Fresh').description, 'New']],
    ['fork_repository', { ...SHOP, namespace: 'bob' }, { forked: ['+true'] }, s => [s.projects.at(-1).path_with_namespace, 'bob/shop']],
    ['create_group', { name: 'Books', path: 'books' }, { exists: ['+true'] }, s => [named(s.groups, 'Books').path, 'books']],

    ['create_issue', { ...SHOP, title: 'Refunds', description: 'Missing', labels: ['web', 'bug'], assignee_ids: [2] }, { title: ['+Refunds'] }, s => [titled(s.issues, 'Refunds').labels, ['web', 'bug']]],
    ['update_issue', { ...ISSUE, title: 'Prices are far too low', labels: ['bug', 'urgent'], assignee_ids: [2], state_event: 'close' },
        { title: ['-Prices are wrong', '+Prices are far too low'], labels: ['+  "urgent"'], state: ['-opened', '+closed'], 'New assignees': ['   "2 is Bob Ross"'] }, s => [[issue(s).title, issue(s).state], ['Prices are far too low', 'closed']]],
    ['update_issue_description_patch', { ...ISSUE, patch_type: 'search_replace', patch: '<<<<<<< SEARCH\ntoo low\n=======\nfar too low\n>>>>>>> REPLACE' },
        { 'Description now': [' They are too low.'] }, s => [issue(s).description, 'They are far too low.\nPlease look.\n'], NOT_READ_BACK],
    ['create_issue_link', { ...ISSUE, target_project_id: 'acme/shop', target_issue_iid: '3', link_type: 'blocks' }, { link: ['+blocks'] }, s => [s.links.at(-1).target, 3]],
    ['delete_issue_link', { ...ISSUE, issue_link_id: '61' }, { to: ['-Add a search'] }, s => [s.links.map(({ id }) => id).includes(61), false]],
    ['create_issue_note', { ...ISSUE, body: 'Found it' }, { Comment: ['+Found it'] }, s => [notes(s, 'issues/1').at(-1).body, 'Found it']],
    ['update_issue_note', s => ({ ...ISSUE, discussion_id: discussions(s, 'issues/1')[0].id, note_id: '21', body: 'I can not confirm.' }), { body: ['-I can confirm.', '+I can not confirm.'] }, s => [noteOf(s, 21).body, 'I can not confirm.']],
    ['create_note, issue', { ...SHOP, noteable_type: 'issue', noteable_iid: '1', body: 'And this' }, { Comment: ['+And this'] }, s => [notes(s, 'issues/1').at(-1).body, 'And this']],
    ['create_note, merge request', { ...SHOP, noteable_type: 'merge_request', noteable_iid: '1', body: 'And that' }, { Comment: ['+And that'] }, s => [notes(s, 'merge_requests/1').at(-1).body, 'And that']],

    ['create_merge_request', { ...SHOP, title: 'Topic', source_branch: 'topic', target_branch: 'main', description: 'See' }, { title: ['+Topic'] }, s => [titled(s.mergeRequests, 'Topic').source_branch, 'topic']],
    ['update_merge_request', { ...REQUEST, title: 'Add the new tax', reviewer_ids: [2], draft: true }, { title: ['-Add the tax', '+Add the new tax'], draft: ['-false', '+true'] }, s => [[request(s).title, request(s).draft], ['Add the new tax', true]]],
    ['approve_merge_request', REQUEST, { 'approved by you': ['-false', '+true'] }, s => [s.approvals[1], [1]]],
    ['unapprove_merge_request', REQUEST, { 'approved by you': ['-true', '+false'] }, s => [s.approvals[1], []]],
    ['create_merge_request_note', { ...REQUEST, body: 'Nice' }, { Comment: ['+Nice'] }, s => [notes(s, 'merge_requests/1').at(-1).body, 'Nice']],
    ['update_merge_request_note', { ...REQUEST, note_id: '32', body: 'Looks good.' }, { Comment: ['-Looks fine.', '+Looks good.'] }, s => [noteOf(s, 32).body, 'Looks good.']],
    ['delete_merge_request_note', { ...REQUEST, note_id: '32' }, { Comment: ['-Looks good.'] }, s => [noteOf(s, 32), undefined]],
    ['create_merge_request_thread', { ...REQUEST, body: 'Why at all?' }, { Comment: ['+Why at all?'] }, s => [notes(s, 'merge_requests/1').at(-1).body, 'Why at all?']],
    ['resolve_merge_request_thread', s => ({ ...REQUEST, discussion_id: discussions(s, 'merge_requests/1')[0].id, resolved: true }), { resolved: ['-false', '+true'] }, s => [noteOf(s, 31).resolved, true]],
    ['create_merge_request_discussion_note', s => ({ ...REQUEST, discussion_id: discussions(s, 'merge_requests/1')[0].id, body: 'The law' }), { Reply: ['+The law'] }, s => [discussions(s, 'merge_requests/1')[0].notes.at(-1).body, 'The law']],
    ['update_merge_request_discussion_note', s => ({ ...REQUEST, discussion_id: discussions(s, 'merge_requests/1')[0].id, note_id: '31', body: 'Why 8.1 %?' }), { body: ['-Why 8.1?', '+Why 8.1 %?'] }, s => [noteOf(s, 31).body, 'Why 8.1 %?']],
    ['delete_merge_request_discussion_note', s => ({ ...REQUEST, discussion_id: discussions(s, 'merge_requests/1')[0].id, note_id: String(discussions(s, 'merge_requests/1')[0].notes[1].id) }),
        { Comment: ['-The law'] }, s => [discussions(s, 'merge_requests/1')[0].notes.length, 1]],
    ['create_draft_note', { ...REQUEST, body: 'Hm' }, { Draft: ['+Hm'] }, s => [s.draftNotes[1].at(-1).note, 'Hm']],
    ['update_draft_note', { ...REQUEST, draft_note_id: '41', body: 'Is this right at all?' }, { body: ['-Is this right?', '+Is this right at all?'] }, s => [s.draftNotes[1][0].note, 'Is this right at all?']],
    ['publish_draft_note', { ...REQUEST, draft_note_id: '41' }, { published: ['-false', '+true'] }, s => [notes(s, 'merge_requests/1').at(-1).body, 'Is this right at all?']],
    ['bulk_publish_draft_notes', REQUEST, { Drafts: ['-  "Hm"'] }, s => [notes(s, 'merge_requests/1').at(-1).body, 'Hm']],
    ['create_draft_note, again', { ...REQUEST, body: 'Never mind' }, { Draft: ['+Never mind'] }, s => [s.draftNotes[1].length, 1]],
    ['delete_draft_note', s => ({ ...REQUEST, draft_note_id: String(s.draftNotes[1][0].id) }), { Draft: ['-Never mind'] }, s => [s.draftNotes[1], []]],

    ['create_merge_request_emoji_reaction', { ...REQUEST, name: 'tada' }, { Reactions: ['+  "tada"'] }, s => [reactions(s, 'merge_requests/1'), ['rocket', 'tada']]],
    ['delete_merge_request_emoji_reaction', { ...REQUEST, award_id: '53' }, { Reaction: ['-rocket by ada'] }, s => [reactions(s, 'merge_requests/1'), ['tada']]],
    ['create_merge_request_note_emoji_reaction', { ...REQUEST, note_id: '31', name: 'tada' }, { Reactions: ['+  "tada"'] }, s => [reactions(s, 'merge_requests/1/notes/31'), ['eyes', 'tada']]],
    ['delete_merge_request_note_emoji_reaction', { ...REQUEST, note_id: '31', award_id: '54' }, { Reaction: ['-eyes by ada'] }, s => [reactions(s, 'merge_requests/1/notes/31'), ['tada']]],
    ['create_issue_emoji_reaction', { ...ISSUE, name: 'tada' }, { Reactions: ['   "thumbsup"'] }, s => [reactions(s, 'issues/1'), ['thumbsup', 'tada']]],
    ['delete_issue_emoji_reaction', { ...ISSUE, award_id: '51' }, { Reaction: ['-thumbsup by ada'] }, s => [reactions(s, 'issues/1'), ['tada']]],
    ['create_issue_note_emoji_reaction', { ...ISSUE, note_id: '21', name: 'tada' }, { Reactions: ['+  "tada"'] }, s => [reactions(s, 'issues/1/notes/21'), ['eyes', 'tada']]],
    ['delete_issue_note_emoji_reaction', { ...ISSUE, note_id: '21', award_id: '52' }, { Reaction: ['-eyes by ada'] }, s => [reactions(s, 'issues/1/notes/21'), ['tada']]],

    ['create_label', { ...SHOP, name: 'slow', color: '#00ff00' }, { name: ['+slow'] }, s => [named(s.labels, 'slow').color, '#00ff00']],
    ['update_label', { ...SHOP, label_id: 'slow', new_name: 'speed', color: '#0000ff' }, { name: ['-slow', '+speed'] }, s => [named(s.labels, 'speed').color, '#0000ff']],
    ['delete_label', { ...SHOP, label_id: '71' }, { name: ['-bug'] }, s => [named(s.labels, 'bug'), undefined]],
    ['mark_todo_done', { id: 81 }, { 'To-do: done': ['-false', '+true'] }, s => [s.todos[0].state, 'done']],
    ['mark_all_todos_done', {}, { 'To-dos': ['-  "mentioned: Add a search"'] }, s => [s.todos[1].state, 'done']],

    ['create_wiki_page', { ...SHOP, title: 'Prices', content: 'All of them\n' }, { title: ['+Prices'] }, s => [wiki(s, 'prices').content, 'All of them\n']],
    ['update_wiki_page', { ...SHOP, slug: 'home', content: 'Welcome to the shop.\n' }, { content: ['-Welcome.', '+Welcome to the shop.'] }, s => [wiki(s, 'home').content, 'Welcome to the shop.\n']],
    ['delete_wiki_page', { ...SHOP, slug: 'prices' }, { title: ['-Prices'] }, s => [wiki(s, 'prices'), undefined]],
    ['create_milestone', { ...SHOP, title: '2.0' }, { title: ['+2.0'] }, s => [titled(s.milestones, '2.0').state, 'active']],
    ['edit_milestone', { ...SHOP, milestone_id: '91', due_date: '2026-12-24', state_event: 'close' }, { state: ['-active', '+closed'], due_date: ['+2026-12-24'] }, s => [titled(s.milestones, '1.0').state, 'closed']],
    ['delete_milestone', { ...SHOP, milestone_id: '91' }, { title: ['-1.0'] }, s => [titled(s.milestones, '1.0'), undefined]],

    ['merge_merge_request', REQUEST, { state: ['-opened', '+merged'] }, s => [[request(s).state, s.branches.main['src/tax.txt']], ['merged', '8.1 %\n']]],
    ['delete_issue', { ...SHOP, issue_iid: '2' }, { title: ['-Add a search'] }, s => [issue(s, 2), undefined]],
    ['delete_branch', { ...SHOP, branch_name: 'add-tax' }, { name: ['-add-tax'] }, s => [s.branches['add-tax'], undefined]]
];

const startServer = shareServer('gitlab');

test('every recipe for GitLab shows what its tool does', async t => {
    const behind = await startServer();
    const tried = new TriedServer({ title: 'GitLab', how: `The real server ${VENDORS.gitlab.package} on a fake of GitLab's API.` });
    await tryCalls(t, behind, CALLS, tried);
    assert.deepEqual(behind.fake.unknown.filter(call => !call.includes('/approval_state')), [], 'the fake has all that the server asks for');
    await t.test('the page about the servers tried says so', () => tried.check());
});

test('changes in GitLab meanwhile make a change stale', async t => {
    const behind = await startServer();
    const write = { ...SHOP, file_path: 'README.md', branch: 'main', content: 'Mine\n', commit_message: 'm' };
    await tryConcurrentChanges(t, behind, [
        ['create_or_update_file', write, s => (s.branches.main['README.md'] = 'Theirs\n'), { 'README.md': ['-Theirs'] }],
        ['push_files', { ...SHOP, branch: 'main', commit_message: 'm', files: [{ file_path: 'x.txt', content: 'Mine\n' }] }, s => (s.branches.main['x.txt'] = 'Theirs\n'), { 'x.txt': ['-Theirs'] }],
        ['update_issue', { ...ISSUE, title: 'Mine' }, s => (issue(s).title = 'Theirs'), { title: ['-Theirs'] }],
        ['merge_merge_request', REQUEST, s => (s.branches['add-tax']['src/tax.txt'] = '100 %\n'), { state: ['+merged'] }],
        ['create_label', { ...SHOP, name: 'fresh', color: '#000000' }, s => s.labels.push({ id: 999, name: 'fresh', color: '#ffffff', description: null, priority: null }), { color: ['-#ffffff'] }],
        ['delete_wiki_page', { ...SHOP, slug: 'home' }, s => (wiki(s, 'home').content = 'More\n'), { content: ['-More'] }]
    ]);
});

test('strange answers of GitLab give no preview, and nothing is written', async t => {
    const behind = await startServer();
    const write = { ...SHOP, file_path: 'README.md', branch: 'main', content: 'x', commit_message: 'm' };
    behind.fake.state.branches.main['large.txt'] = 'x'.repeat(6 << 20);
    await tryStrangeAnswers(t, behind, [
        ['create_or_update_file', write, 'nonsense', /get_file_contents/],
        ['create_or_update_file', write, 'odd', /get_file_contents/],
        ['create_or_update_file', { ...write, file_path: 'large.txt' }, 'normal', /get_file_contents|large|long|limit|looks at/],
        ['create_or_update_file', { ...write, branch: 'nowhere' }, 'normal', /Branch Not Found/],
        ['create_or_update_file', { ...write, previous_path: 'docs/a.md' }, 'normal', /no variant/],
        ['push_files', { ...SHOP, branch: 'main', commit_message: 'm', files: Array.from({ length: 51 }, (_, n) => ({ file_path: `${n}`, content: '' })) }, 'normal', /50/],
        ['update_issue', { ...ISSUE, title: 'x' }, 'nonsense', /get_issue/],
        ['update_label', { ...SHOP, label_id: '71', color: '#000000' }, 'nonsense', /get_label/],
        ['resolve_merge_request_thread', { ...REQUEST, discussion_id: 'none', resolved: true }, 'normal', /404/]
    ]);
});

test('a call that GitLab accepts without doing anything is noticed', async t => {
    const behind = await startServer();
    await trySilentWrites(t, behind, [
        ['create_or_update_file', { ...SHOP, file_path: 'README.md', branch: 'main', content: 'x\n', commit_message: 'm' }],
        ['update_issue', { ...ISSUE, title: 'x' }],
        ['create_issue', { ...SHOP, title: 'x' }],
        ['create_merge_request_note', { ...REQUEST, body: 'x' }],
        ['merge_merge_request', REQUEST],
        ['delete_wiki_page', { ...SHOP, slug: 'home' }]
    ]);
});
