// Tries every shipped recipe for Google Workspace with the real server workspace-mcp on a fake of Google's APIs.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { startBehind, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers, tryUnnamedArguments } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS } from './vendors.mjs';

const newest = map => Object.values(map).at(-1);
const text = message => Buffer.from(message.payload.body.data, 'base64url').toString();
const header = (message, name) => message.payload.headers.find(one => one.name === name)?.value;
const EVENT = { event_id: 'e1' };
const TASK = { task_list_id: 'l1', task_id: 't1' };
const RANGE = { spreadsheet_id: 's1', range_name: 'Books!A2:B3' };
const FILE = { file_id: 'd1' };
const withAccount = cases => cases.map(([tool, args, ...rest]) => [tool, { user_google_email: 'ada@example.com', ...args }, ...rest]);

const CALLS = [
    ['send_gmail_message', { to: 'bob@example.com, carol@example.com', cc: 'dan@example.com', subject: 'Prices', body: 'Dear all,\n\nprices rise.', thread_id: 't9' },
        { Recipients: ['+bob@example.com, carol@example.com'], 'Recipients, copy': ['+dan@example.com'], Text: ['+prices rise.'], Thread: [' Shall we raise them?'] }, s => [[header(newest(s.messages), 'To'), text(newest(s.messages)).includes('prices rise.')], ['bob@example.com, carol@example.com', true]]],
    ['draft_gmail_message', { to: 'bob@example.com', subject: 'Perhaps', body: 'Hm' }, { Recipients: ['+bob@example.com'], Subject: ['+Perhaps'] }, s => [Object.keys(s.drafts).length, 1], { isReadBack: false }],
    ['modify_gmail_message_labels', { message_id: 'm1', add_label_ids: ['STARRED'] }, { Message: [' From: Bob Noyce <bob@example.com>'] }, s => [s.messages.m1.labelIds.includes('STARRED'), true], { isReadBack: false }],
    ['batch_modify_gmail_message_labels', { message_ids: ['m1'], remove_label_ids: ['INBOX'] }, { 'Message m1': [' Subject: Prices'] }, s => [s.messages.m1.labelIds.includes('INBOX'), false], { isReadBack: false }],
    ['manage_gmail_label, create', { action: 'create', name: 'Big' }, { name: ['+Big'] }, s => [newest(s.labels).name, 'Big']],
    ['manage_gmail_label, update', { action: 'update', label_id: 'Label_1', name: 'Sold' }, { name: ['-Sales', '+Sold'] }, s => [s.labels.Label_1.name, 'Sold']],
    ['manage_gmail_label, delete', { action: 'delete', label_id: 'Label_1' }, { name: ['-Sold'] }, s => [s.labels.Label_1, undefined]],
    ['manage_gmail_filter, create', { action: 'create', criteria: { from: 'x@example.com' }, filter_action: { addLabelIds: ['STARRED'] } }, { criteria: ['+  "from": "x@example.com"'] }, s => [newest(s.filters).criteria, { from: 'x@example.com' }]],
    ['manage_gmail_filter, delete', { action: 'delete', filter_id: 'f1' }, { Filter: ['-    • From: news@example.com'] }, s => [s.filters.f1, undefined]],
    ['manage_event, create', { action: 'create', summary: 'Party', start_time: '2026-09-02T18:00:00Z', end_time: '2026-09-02T20:00:00Z', attendees: ['bob@example.com'], location: 'Roof' }, { attendees: ['+  "bob@example.com"'], title: ['+Party'] }, s => [newest(s.events).summary, 'Party']],
    ['manage_event, update', { action: 'update', ...EVENT, summary: 'Price talks', attendees: ['bob@example.com', 'carol@example.com'] }, { title: ['-Price talk', '+Price talks'], attendees: ['+  "carol@example.com"'] }, s => [s.events.e1.attendees.length, 2]],
    ['manage_event, delete', { action: 'delete', ...EVENT }, { title: ['-Price talks'] }, s => [s.events.e1, undefined]],
    ['create_calendar', { summary: 'Team' }, { title: ['+Team'] }, s => [newest(s.calendars).summary, 'Team']],
    ['modify_sheet_values', { ...RANGE, values: [['Sea', '11'], ['Sun', "it's 12"]] }, { Rows: ['-    "10"', '+    "11"', '+    "it\'s 12"'], Spreadsheet: [' "Prices" (ID: s1)'] }, s => [s.sheets.s1.values[1], ['Sea', '11']]],
    ['modify_sheet_values, clear', { ...RANGE, clear_values: true }, { Rows: ['-    "11"'] }, s => [s.sheets.s1.values[1], ['', '']]],
    ['create_spreadsheet', { title: 'Costs' }, { title: ['+Costs'] }, s => [newest(s.sheets).title, 'Costs']],
    ['create_sheet', { spreadsheet_id: 's1', sheet_name: 'Films' }, { Sheets: ['+  "Films"'] }, s => [s.sheets.s1.tabs, ['Books', 'Films']]],
    ['manage_sheet_tab, rename', { spreadsheet_id: 's1', sheet_name: 'Films', action: 'rename', new_name: 'Movies' }, { Sheets: ['-  "Films"', '+  "Movies"'] }, s => [s.sheets.s1.tabs, ['Books', 'Movies']]],
    ['manage_sheet_tab, delete', { spreadsheet_id: 's1', sheet_name: 'Movies', action: 'delete' }, { Sheets: ['-  "Movies"'] }, s => [s.sheets.s1.tabs, ['Books']]],
    ['manage_task, create', { action: 'create', task_list_id: 'l1', title: 'Sell books', notes: 'All' }, { title: ['+Sell books'], 'Task list': [' Chores'] }, s => [newest(s.tasks.l1).title, 'Sell books']],
    ['manage_task, update', { action: 'update', ...TASK, status: 'completed', notes: 'Bob said yes' }, { status: ['-needsAction', '+completed'], notes: ['-Ask Bob', '+Bob said yes'] }, s => [s.tasks.l1.t1.status, 'completed']],
    ['manage_task, move', { action: 'move', ...TASK, parent: 't1' }, { Task: [' - Title: Raise prices'] }, s => [s.tasks.l1.t1.parent, 't1'], { isReadBack: false }],
    ['manage_task, delete', { action: 'delete', ...TASK }, { title: ['-Raise prices'] }, s => [s.tasks.l1.t1, undefined]],
    ['manage_task_list, create', { action: 'create', title: 'Work' }, { title: ['+Work'] }, s => [newest(s.lists).title, 'Work']],
    ['manage_task_list, update', { action: 'update', task_list_id: 'l1', title: 'Duties' }, { title: ['-Chores', '+Duties'] }, s => [s.lists.l1.title, 'Duties']],
    ['manage_task_list, delete', { action: 'delete', task_list_id: 'l1' }, { title: ['-Duties'] }, s => [s.lists.l1, undefined]],
    ['create_drive_folder', { folder_name: 'Bills' }, { name: ['+Bills'] }, s => [newest(s.files).name, 'Bills']],
    ['create_drive_file', { file_name: 'a.txt', content: 'Hello' }, { content: ['+Hello'] }, s => [newest(s.files).content, 'Hello']],
    ['create_drive_file, in a folder', { file_name: 'b.html', content: 'Hello', mime_type: 'text/html', folder_id: 'root' }, { type: ['+text/html'], folder: ['+root'] }, s => [newest(s.files).name, 'b.html']],
    ['copy_drive_file', { ...FILE, new_name: 'Copy.txt' }, { name: ['+Copy.txt'], File: [' Plan.txt'] }, s => [newest(s.files).name, 'Copy.txt']],
    ['update_drive_file', { ...FILE, name: 'Our plan.txt', add_parents: 'folder1' }, { name: ['-Plan.txt', '+Our plan.txt'], folders: ['+  "folder1",'] }, s => [s.files.d1.parents, ['root', 'folder1']]],
    ['manage_drive_access, grant', { ...FILE, action: 'grant', share_with: 'carol@example.com', role: 'writer' }, { 'People with access': ['+  "User: carol@example.com (writer)"'], File: [' Our plan.txt'] }, s => [s.permissions.d1.at(-1).emailAddress, 'carol@example.com']],
    ['manage_drive_access, revoke', { ...FILE, action: 'revoke', permission_id: 'p2' }, { 'People with access': ['-  "User: bob@example.com (reader) [id: p2]",'] }, s => [s.permissions.d1.some(({ id }) => id === 'p2'), false]],
    ['set_drive_file_permissions', { ...FILE, link_sharing: 'reader' }, { 'People with access': ['+  "Anyone with the link (reader)",'] }, s => [s.permissions.d1.at(-1).type, 'anyone']]
];

// One gateway for all, because the server takes seconds to start.
test('every recipe for Google Workspace shows what its tool does', async t => {
    const behind = await startBehind(t, 'google');
    await tryConcurrentChanges(t, behind, withAccount([
        ['manage_event', { action: 'update', ...EVENT, summary: 'Mine' }, s => (s.events.e1.location = 'Room 2'), { title: ['+Mine'] }],
        ['modify_sheet_values', { ...RANGE, values: [['Sea', '1']] }, s => (s.sheets.s1.values[1][1] = '10.5'), { Rows: ['-    "10.5"'] }],
        ['manage_drive_access', { ...FILE, action: 'revoke', permission_id: 'p2' }, s => (s.permissions.d1[1].role = 'writer'), { 'People with access': ['-  "User: bob@example.com (writer) [id: p2]"'] }]
    ]));
    behind.fake.state.sheets.s1.values[1][1] = '10';
    behind.fake.state.permissions.d1[1].role = 'reader';
    await tryStrangeAnswers(t, behind, withAccount([
        ['manage_event', { action: 'update', ...EVENT, summary: 'x' }, 'nonsense', /get_events/],
        ['modify_sheet_values', { ...RANGE, spreadsheet_id: 's404', values: [['x']] }, 'normal', /not found/],
        ['modify_sheet_values', { ...RANGE, values: 'nonsense' }, 'normal', /values|JSON/],
        ['manage_task', { action: 'create', task_list_id: 'l404', title: 'x' }, 'normal', /Not Found/],
        ['send_gmail_message', { to: 'bob@example.com', subject: 'x', body: 'x', thread_id: 't9' }, 'nonsense', /get_gmail_thread_content/],
        ['manage_drive_access', { ...FILE, action: 'grant' }, 'normal', /share_with/]
    ]));
    await trySilentWrites(t, behind, withAccount([
        ['send_gmail_message', { to: 'bob@example.com', subject: 'x', body: 'x' }],
        ['manage_event', { action: 'update', ...EVENT, location: 'Room 3' }],
        ['modify_sheet_values', { ...RANGE, values: [['x', 'y'], ['z', '1']] }],
        ['manage_task', { action: 'update', ...TASK, title: 'x' }],
        ['update_drive_file', { ...FILE, name: 'x' }]
    ]));
    const tried = new TriedServer({ title: 'Google Workspace', how: `The real server ${VENDORS.google.package} on a fake of Google's APIs.` });
    await t.test('a change of all events that follow is shown with its arguments', async () => {
        const { preview, summary, diff } = await behind.propose('manage_event', { user_google_email: 'ada@example.com', action: 'delete', ...EVENT, this_and_following: true });
        assert.equal(preview.failed, undefined);
        assert.match(summary, /and all that follow it/);
        assert.ok(diff.fields.some(({ field }) => field === 'this_and_following'), JSON.stringify(diff));
    });
    await tryUnnamedArguments(t, behind, withAccount([
        ['manage_event', { action: 'update', ...EVENT, summary: 'Mine', send_updates: 'all' }, { title: ['+Mine'], send_updates: ['+all'] }],
        ['manage_drive_access', { ...FILE, action: 'grant', share_with: 'eve@example.com', expiration_time: '2027-01-01T00:00:00Z' }, { 'People with access': ['+  "User: eve@example.com (reader)"'], expiration_time: ['+2027-01-01T00:00:00Z'] }],
        ['set_drive_file_permissions', { ...FILE, link_sharing: 'reader', writers_can_share: false }, { 'People with access': ['+  "Anyone with the link (reader)",'], writers_can_share: ['+false'] }]
    ]));
    await tryCalls(t, behind, withAccount(CALLS), tried);
    await t.test('the page about the servers tried says so', () => tried.check());
});
