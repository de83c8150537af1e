// Tries every shipped recipe for Notion's hosted server on a stand-in with state.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { IDS } from '../fixtures/stand-ins/notion.mjs';
import { startBehind, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers, tryUnnamedArguments } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS } from './vendors.mjs';

const PAGE = { page_id: IDS.page };
const replace = (new_str, more) => ({ ...PAGE, command: 'replace_content', new_str, ...more });
const newest = map => Object.values(map).at(-1);
const content = state => state.pages[IDS.page].content;

const CALLS = [
    ['notion-update-page', { ...PAGE, command: 'update_content', content_updates: [{ old_str: 'everybody', new_str: 'Ada' }] }, { Content: ['-Ask everybody.', '+Ask Ada.'] }, s => [content(s), '# Plan\nAsk Ada.\n- Then raise them']],
    ['notion-update-page, insert', { ...PAGE, command: 'insert_content', content: 'At last\n', position: { type: 'end' } }, { Content: ['+At last'] }, s => [content(s).split('\n').at(-1), 'At last']],
    ['notion-update-page, replace', replace('# New\nText\n'), { Content: ['-Ask Ada.', '+Text'] }, s => [content(s), '# New\nText']],
    ['notion-update-page, properties', { page_id: IDS.blank, command: 'update_properties', properties: { title: 'Tidy up', Done: '__YES__' } }, { title: ['-Clean up', '+Tidy up'], Done: ['-__NO__', '+__YES__'] }, s => [s.pages[IDS.blank].properties, { Name: 'Tidy up', Done: '__YES__', Cost: 3 }]],
    ['notion-update-page, in the background', replace('Later', { allow_async: true }), { Content: ['-Text', '+Later'] }, s => [content(s), 'Later']],
    ['notion-update-page, properties in the background', { ...PAGE, command: 'update_properties', properties: { title: 'Costs' }, allow_async: true }, { title: ['-Prices', '+Costs'] }, s => [s.pages[IDS.page].properties.title, 'Costs']],
    ['notion-update-page, template', { ...PAGE, command: 'apply_template', template_id: IDS.template }, { Template: [' ## Goal'] }, s => [content(s), 'Later\n## Goal'], { isReadBack: false }],
    ['notion-update-page, verification', { ...PAGE, command: 'update_verification', verification_status: 'verified' }, { Page: [' Costs'] }, s => [s.pages[IDS.page].verified, 'verified'], { isReadBack: false }],
    ['notion-create-pages', { parent: { data_source_id: IDS.source }, pages: [{ properties: { title: 'Sell books', Cost: 5 }, content: 'All of them' }] }, { content: ['+All of them'], title: ['+Sell books'], Parent: [' Tasks (data_source)'] }, s => [newest(s.pages).properties, { Name: 'Sell books', Cost: 5 }]],
    ['notion-create-pages, several', { parent: { page_id: IDS.home }, pages: [{ properties: { title: 'One' } }, { properties: { title: 'Two' } }] }, { Pages: ['+      "title": "Two"'] }, s => [newest(s.pages).properties.title, 'Two'], { isReadBack: false }],
    ['notion-move-pages', { page_or_database_ids: [IDS.page, IDS.blank], new_parent: { type: 'page_id', page_id: IDS.template } }, { [`Parent of ${IDS.page}`]: [`+${IDS.template}`], 'New parent': [' Template (page)'] }, s => [s.pages[IDS.blank].parent, { page_id: IDS.template }]],
    ['notion-move-pages, to the private pages', { page_or_database_ids: [IDS.page], new_parent: { type: 'workspace' } }, { [`Parent of ${IDS.page}`]: ['+the private pages'] }, s => [s.pages[IDS.page].parent, undefined]],
    ['notion-duplicate-page', PAGE, { Page: [' Later'] }, s => [newest(s.pages).content, 'Later\n## Goal'], { isReadBack: false }],
    ['notion-create-database', { parent: { page_id: IDS.home }, title: 'Books', schema: 'CREATE TABLE ("Name" TITLE)' }, { Parent: [' Home (page)'] }, s => [newest(s.sources).name, 'Books'], { isReadBack: false }],
    ['notion-update-data-source', { data_source_id: IDS.source, title: 'Chores', statements: 'ADD COLUMN "Who" PEOPLE; RENAME COLUMN "Cost" TO "Price"; DROP COLUMN "Done"' }, { title: ['-Tasks', '+Chores'], columns: ['+  "Price",', '-  "Cost",'] }, s => [Object.keys(s.sources[IDS.source].schema), ['Name', 'Who', 'Price']]],
    ['notion-update-data-source, alter', { data_source_id: IDS.source, statements: 'ALTER COLUMN "Who" SET TEXT' }, { 'Data source now': ['     "Who": {'] }, s => [s.sources[IDS.source].schema.Who, 'set text'], { isReadBack: false }],
    ['notion-create-comment', { ...PAGE, markdown: 'Looks **good**\nto me' }, { Comment: ['+Looks **good**', '+to me'], Page: [' Costs'] }, s => [s.comments.at(-1).text, 'Looks **good**\nto me']],
    ['notion-update-data-source, to the trash', { data_source_id: IDS.source, in_trash: true }, { 'Data source now': ['   "name": "Chores",'] }, s => [s.sources[IDS.source].in_trash, true], { isReadBack: false }]
];

test("every recipe for Notion's hosted server shows what its tool does", async t => {
    const behind = await startBehind(t, 'hostedNotion');
    const how = `A stand-in with ${VENDORS.hostedNotion.standsFor}, because the hosted server needs an account.`;
    const tried = new TriedServer({ title: 'Notion, hosted', how });
    await tryCalls(t, behind, CALLS, tried);
    await t.test('the page about the servers tried says so', () => tried.check());
    await t.test('a task that still runs is not taken for the change', async () => {
        behind.fake.state.areTasksSlow = true;
        const { verification } = await behind.apply(await behind.propose('notion-update-page', replace('x', { allow_async: true })));
        assert.equal(verification.verified, 'unreadable');
        assert.match(verification.reason, /still runs/);
    });
});

test('changes in hosted Notion meanwhile make a change stale', async t => {
    const behind = await startBehind(t, 'hostedNotion');
    await tryConcurrentChanges(t, behind, [
        ['notion-update-page', replace('Mine'), s => (s.pages[IDS.page].content = 'Theirs'), { Content: ['-Theirs'] }],
        ['notion-update-page', { page_id: IDS.blank, command: 'update_properties', properties: { Done: '__YES__' } }, s => (s.pages[IDS.blank].properties.Done = 'unknown'), { Done: ['-unknown', '+__YES__'] }],
        ['notion-move-pages', { page_or_database_ids: [IDS.page], new_parent: { type: 'workspace' } }, s => (s.pages[IDS.page].parent = { data_source_id: IDS.source }), { [`Parent of ${IDS.page}`]: ['+the private pages'] }]
    ]);
});

test('strange answers of hosted Notion give no preview, and nothing is written', async t => {
    const behind = await startBehind(t, 'hostedNotion');
    await tryStrangeAnswers(t, behind, [
        ['notion-update-page', replace('x'), 'nonsense', /JSON/],
        ['notion-update-page', replace('x'), 'odd', /text/],
        ['notion-update-page', replace('x'), 'huge', /larger|large|long|many/],
        ['notion-update-page', replace('x'), 'down', /502/],
        ['notion-update-page', { ...PAGE, command: 'replace_content' }, 'normal', /new_str/],
        ['notion-update-page', { ...replace('x'), page_id: IDS.source.replace('4', '9') }, 'normal', /object_not_found/],
        ['notion-update-page', { ...PAGE, command: 'update_content', content_updates: [{ old_str: 'nowhere', new_str: 'x' }] }, 'normal', /edits/],
        ['notion-update-page', { ...PAGE, command: 'insert_content', content: 'x', position: { type: 'after_block' } }, 'normal', /a position/],
        ['notion-create-pages', { parent: { page_id: 'x' }, pages: [{ properties: {} }] }, 'normal', /object_not_found/],
        ['notion-update-data-source', { data_source_id: IDS.source, title: 'x' }, 'odd', /text/],
        ['notion-create-comment', { ...PAGE, markdown: 'x' }, 'odd', /title/]
    ]);
});

test('arguments that the state of hosted Notion does not have are shown beside it', async t => {
    const behind = await startBehind(t, 'hostedNotion');
    await tryUnnamedArguments(t, behind, [
        ['notion-update-page', replace('x', { allow_deleting_content: true }), { Content: ['+x'], allow_deleting_content: ['+true'] }],
        ['notion-create-pages', { pages: [{ properties: { title: 'x' }, icon: '📚', template_id: IDS.template }] }, { title: ['+x'], 'pages[0].icon': ['+📚'], 'pages[0].template_id': [`+${IDS.template}`] }],
        ['notion-create-pages', { pages: [{ properties: { title: 'x' } }, { properties: { title: 'y' }, cover: 'https://example.com/a.png' }] }, { Pages: ['+      "title": "y"'], 'pages[1].cover': ['+https://example.com/a.png'] }],
        ['notion-update-data-source', { data_source_id: IDS.source, title: 'x', description: 'All of them', is_inline: true }, { title: ['+x'], description: ['+All of them'], is_inline: ['+true'] }],
        ['notion-create-comment', { ...PAGE, rich_text: [{ text: { content: 'here', link: { url: 'https://example.com' } } }] }, { Comment: ['+here'], 'rich_text[0].text.link': ['+{"url":"https://example.com"}'] }]
    ]);
});

test('a call that hosted Notion ignores is noticed', async t => {
    const behind = await startBehind(t, 'hostedNotion');
    await trySilentWrites(t, behind, [
        ['notion-update-page', replace('x')],
        ['notion-update-page', { ...PAGE, command: 'update_properties', properties: { title: 'x' } }],
        ['notion-create-pages', { pages: [{ properties: { title: 'x' } }] }],
        ['notion-move-pages', { page_or_database_ids: [IDS.page], new_parent: { type: 'workspace' } }],
        ['notion-update-data-source', { data_source_id: IDS.source, title: 'x' }],
        ['notion-create-comment', { ...PAGE, markdown: 'x' }]
    ]);
});
