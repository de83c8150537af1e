// Tries every shipped recipe for Slack with the real server slack-mcp-server on a fake of Slack's Web API.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { shareServer, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS } from './vendors.mjs';

const GENERAL = 'C00000001';
const SALES = 'C00000002';
const GROUP = 'S00000001';
const HELLO = { channel_id: GENERAL, timestamp: '1780000000.000100' };

const reactions = (state, name) => state.messages[GENERAL][0].reactions.find(reaction => reaction.name === name)?.count;
const last = (state, channel = GENERAL) => state.messages[channel].at(-1);

/** The annotation of tools that are said to be destructive. */
const ADDS = { wrong: '`destructiveHint: true`, but it only adds' };

const CALLS = [
    ['conversations_add_message', { channel_id: SALES, text: 'Prices rise on **Monday**.\n\nTell everybody.' }, { channel: [`+${SALES}`], message: ['+Prices rise on **Monday**.'], Channel: [` #sales (${SALES})`] }, s => [last(s, SALES).text.startsWith('Prices rise on'), true], ADDS],
    ['conversations_add_message, in a thread', { channel_id: '#general', thread_ts: HELLO.timestamp, text: 'Good,\nmorning', content_type: 'text/plain' },
        { message: ['+Good,'], content_type: ['+text/plain'], Channel: [` #general (${GENERAL})`], 'In the thread of': [' Bob Noyce: "Hello, all"'] }, s => [[last(s).text, last(s).thread_ts], ['Good,\nmorning', HELLO.timestamp]], ADDS],
    ['reactions_add', { ...HELLO, emoji: 'wave' }, { 'people who reacted': ['-2', '+3'], Message: [' Bob Noyce: "Hello, all"'] }, s => [reactions(s, 'wave'), 3], ADDS],
    ['reactions_add, first', { ...HELLO, emoji: 'heart' }, { 'people who reacted': ['-0', '+1'] }, s => [reactions(s, 'heart'), 1], ADDS],
    ['reactions_remove', { ...HELLO, emoji: 'wave' }, { 'people who reacted': ['-3', '+2'] }, s => [reactions(s, 'wave'), 2]],
    ['reactions_remove, last', { ...HELLO, emoji: 'heart' }, { 'people who reacted': ['-1', '+0'] }, s => [reactions(s, 'heart'), undefined]],
    ['conversations_leave', { channel_id: SALES }, { member: ['-true', '+false'] }, s => [s.channels[1].is_member, false]],
    ['conversations_join', { channel_id: '#sales' }, { member: ['-false', '+true'], Channel: [` #sales (${SALES})`] }, s => [s.channels[1].is_member, true], ADDS],
    ['conversations_mark', { channel_id: SALES }, { unread: ['-1', '+0'] }, s => [s.marks[SALES], last(s, SALES).ts]],
    ['conversations_mark, up to a message', { channel_id: GENERAL, ts: HELLO.timestamp }, { Channel: [` #general (${GENERAL})`] }, s => [s.marks[GENERAL], HELLO.timestamp], { isReadBack: false }],
    ['usergroups_create', { name: 'Makers', handle: 'make', description: 'All, who make' }, { handle: ['+make'], 'User groups': [' Sellers (@sellers)'] }, s => [s.groups.at(-1).handle, 'make'], ADDS],
    ['usergroups_update', { usergroup_id: GROUP, name: 'Sales', description: 'All, who sell' }, { name: ['-Sellers', '+Sales'], description: ['+All, who sell'] }, s => [s.groups[0].name, 'Sales']],
    ['usergroups_users_update', { usergroup_id: GROUP, users: 'U00000002' }, { 'number of members': ['-2', '+1'], 'New members': [' Bob Noyce (@bob)'] }, s => [s.groups[0].users, ['U00000002']]],
    ['usergroups_me, join', { action: 'join', usergroup_id: GROUP }, { 'number of members': ['-1', '+2'] }, s => [s.groups[0].users, ['U00000002', 'U00000001']]],
    ['usergroups_me, leave', { action: 'leave', usergroup_id: GROUP }, { 'number of members': ['-2', '+1'] }, s => [s.groups[0].users, ['U00000002']]]
];

const startServer = shareServer('slack');

test('every recipe for Slack shows what its tool does', async t => {
    const behind = await startServer();
    const tried = new TriedServer({ title: 'Slack', how: `The real server ${VENDORS.slack.package} on a fake of Slack's Web API.` });
    await tryCalls(t, behind, CALLS, tried);
    await t.test('the page about the servers tried says so', () => tried.check());
});

test('changes in Slack meanwhile make a change stale', async t => {
    const behind = await startServer();
    await tryConcurrentChanges(t, behind, [
        ['reactions_add', { ...HELLO, emoji: 'wave' }, s => (s.messages[GENERAL][0].reactions[0].count = 7), { 'people who reacted': ['-7', '+8'] }],
        ['usergroups_update', { usergroup_id: GROUP, name: 'Mine' }, s => (s.groups[0].name = 'Theirs'), { name: ['-Theirs', '+Mine'] }],
        ['usergroups_users_update', { usergroup_id: GROUP, users: 'U00000002' }, s => (s.groups[0].user_count = 9), { 'number of members': ['-9', '+1'] }]
    ]);
});

test('strange answers of Slack give no preview, and nothing is written', async t => {
    const behind = await startServer();
    const message = { channel_id: GENERAL, text: 'x' };
    await tryStrangeAnswers(t, behind, [
        ['conversations_add_message', { ...message, thread_ts: HELLO.timestamp }, 'nonsense', /conversations_replies/],
        ['reactions_add', { ...HELLO, emoji: 'x' }, 'odd', /keep/],
        ['conversations_add_message', { ...message, thread_ts: '1.1' }, 'normal', /thread_not_found/],
        ['reactions_add', { ...HELLO, timestamp: '1.1', emoji: 'x' }, 'normal', /thread_not_found/],
        ['reactions_remove', { ...HELLO, emoji: 'heart' }, 'normal', /a reaction to remove/],
        ['usergroups_update', { usergroup_id: 'S404', name: 'x' }, 'normal', /keep/],
        ['usergroups_update', { usergroup_id: GROUP, name: 'x' }, 'nonsense', /usergroups_list/]
    ]);
});

test('a call that Slack ignores is noticed', async t => {
    const behind = await startServer();
    await trySilentWrites(t, behind, [
        ['conversations_add_message', { channel_id: GENERAL, text: 'x' }],
        ['conversations_add_message', { channel_id: GENERAL, text: 'x', thread_ts: HELLO.timestamp }],
        ['reactions_add', { ...HELLO, emoji: 'heart' }],
        ['conversations_leave', { channel_id: SALES }],
        ['usergroups_update', { usergroup_id: GROUP, name: 'x' }],
        ['usergroups_users_update', { usergroup_id: GROUP, users: 'U00000002' }]
    ]);
});
