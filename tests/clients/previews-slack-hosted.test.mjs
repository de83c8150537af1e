// Tries every shipped recipe for Slack's hosted server on a stand-in with state.
import { test } from 'node:test';

import { startBehind, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers, tryUnnamedArguments } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS } from './vendors.mjs';

const GENERAL = { channel_id: 'C00000001' };
const SALES = { channel_id: 'C00000002' };
const HELLO = { ...GENERAL, message_ts: '1780000000.000100' };
const CANVAS = { canvas_id: 'F00000001' };

const last = (state, channel) => state.messages[channel].at(-1);
const sections = state => Object.values(state.canvases.F00000001.sections);

const CALLS = [
    ['slack_send_message', { ...SALES, message: 'Prices rise on **Monday**.\nTell everybody.' }, { channel: ['+C00000002'], message: ['+Tell everybody.'], Channel: [' Channel: #sales (C00000002)'] }, s => [last(s, 'C00000002').text, 'Prices rise on **Monday**.\nTell everybody.']],
    ['slack_send_message, in a thread', { ...GENERAL, thread_ts: HELLO.message_ts, message: 'Good morning' }, { message: ['+Good morning'], 'In the thread of': [' Hello, all'] }, s => [last(s, 'C00000001').thread_ts, HELLO.message_ts]],
    ['slack_schedule_message', { ...SALES, message: 'Later', post_at: 1790000000 }, { Channel: [' Channel: #sales (C00000002)'] }, s => [s.scheduled.length, 1], { isReadBack: false }],
    ['slack_send_message_draft', { ...SALES, message: 'Perhaps' }, { Channel: [' Channel: #sales (C00000002)'] }, s => [s.drafts.length, 1], { isReadBack: false }],
    ['slack_add_reaction', { ...HELLO, emoji: 'heart' }, { Reactions: ['+:heart:'] }, s => [s.messages.C00000001[0].reactions.heart, ['U00000001']]],
    ['slack_create_conversation', { channel_name: 'makers', is_private: true, user_ids: ['U00000002'] }, { channel: ['+makers'], private: ['+true'], People: [' Bob Noyce <bob@example.com> (U00000002)'] }, s => [Object.values(s.channels).at(-1), '#makers']],
    ['slack_create_canvas', { title: 'Notes', content: '# Notes\n\nNothing yet' }, { content: ['+Nothing yet'] }, s => [Object.values(s.canvases).at(-1).title, 'Notes']],
    ['slack_update_canvas', { ...CANVAS, sections: [{ edit_type: 'replace', section_id: 'temp:C:2', content: 'Ask Ada.' }] }, { Sections: ['-Ask everybody.', '+Ask Ada.'] }, s => [sections(s), ['# Plan', 'Ask Ada.']]],
    ['slack_update_canvas, append', { ...CANVAS, action: 'append', content: 'Then raise them.' }, { Sections: ['+Then raise them.'] }, s => [sections(s).at(-1), 'Then raise them.']],
    ['slack_update_canvas, mixed', { ...CANVAS, sections: [{ edit_type: 'append', content: 'Soon.' }, { edit_type: 'replace', section_id: 'temp:C:1', content: '# Plans' }] }, { 'Canvas now': [' Then raise them.'], sections: ['+    "section_id": "temp:C:1",'] }, s => [sections(s)[0], '# Plans'], { isReadBack: false }]
];

test("every recipe for Slack's hosted server shows what its tool does", async t => {
    const behind = await startBehind(t, 'hostedSlack');
    const how = `A stand-in with ${VENDORS.hostedSlack.standsFor}, because the hosted server needs an account.`;
    const tried = new TriedServer({ title: 'Slack, hosted', how });
    await tryCalls(t, behind, CALLS, tried);
    await t.test('the page about the servers tried says so', () => tried.check());
});

test('changes in hosted Slack meanwhile make a change stale', async t => {
    const behind = await startBehind(t, 'hostedSlack');
    await tryConcurrentChanges(t, behind, [
        ['slack_add_reaction', { ...HELLO, emoji: 'heart' }, s => (s.messages.C00000001[0].reactions.eyes = ['U00000002']), { Reactions: ['+:heart:'] }],
        ['slack_update_canvas', { ...CANVAS, sections: [{ edit_type: 'delete', section_id: 'temp:C:2' }] }, s => (s.canvases.F00000001.sections['temp:C:2'] = 'Theirs'), { Sections: ['-Theirs'] }]
    ]);
});

test('strange answers of hosted Slack give no preview, and nothing is written', async t => {
    const behind = await startBehind(t, 'hostedSlack');
    await tryStrangeAnswers(t, behind, [
        ['slack_send_message', { ...SALES, message: 'x' }, 'down', /502/],
        ['slack_send_message', { channel_id: 'C404', message: 'x' }, 'normal', /channel_not_found/],
        ['slack_update_canvas', { ...CANVAS, action: 'append', content: 'x' }, 'nonsense', /JSON/],
        ['slack_update_canvas', { ...CANVAS, action: 'append', content: 'x' }, 'odd', /markdown_content/],
        ['slack_update_canvas', { ...CANVAS, sections: [{ edit_type: 'delete', section_id: 'temp:C:9' }] }, 'normal', /keep/],
        ['slack_create_conversation', { user_ids: ['U404'] }, 'normal', /user_not_found/]
    ]);
});

test('arguments that the state of hosted Slack does not have are shown beside it', async t => {
    const behind = await startBehind(t, 'hostedSlack');
    await tryUnnamedArguments(t, behind, [
        ['slack_send_message', { ...SALES, message: 'x', draft_id: 'D1', unfurl_app_links: true }, { message: ['+x'], draft_id: ['+D1'], unfurl_app_links: ['+true'] }],
        ['slack_update_canvas', { ...CANVAS, sections: [{ edit_type: 'prepend', section_id: 'temp:C:2', content: 'First' }] }, { Sections: ['+First'], 'sections[0].edit_type': ['+prepend'], 'sections[0].section_id': ['+temp:C:2'] }],
        ['slack_update_canvas', { ...CANVAS, action: 'replace', content: 'All' }, { 'Canvas now': [' # Plan'], action: ['+replace'], content: ['+All'] }]
    ]);
});

test('a call that hosted Slack ignores is noticed', async t => {
    const behind = await startBehind(t, 'hostedSlack');
    await trySilentWrites(t, behind, [
        ['slack_send_message', { ...SALES, message: 'x' }],
        ['slack_add_reaction', { ...HELLO, emoji: 'heart' }],
        ['slack_create_canvas', { title: 'x', content: 'x' }],
        ['slack_update_canvas', { ...CANVAS, sections: [{ edit_type: 'delete', section_id: 'temp:C:2' }] }]
    ]);
});
