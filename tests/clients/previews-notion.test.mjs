// Tries every shipped recipe for Notion with the real server @notionhq/notion-mcp-server on a fake of Notion's API.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { IDS } from '../fixtures/fakes/notion.mjs';
import { shareServer, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS } from './vendors.mjs';

const PAGE = { page_id: IDS.page };
const text = content => [{ text: { content } }];
const paragraph = content => ({ type: 'paragraph', paragraph: { rich_text: text(content) } });
const plain = parts => parts.map(part => part.plain_text).join('');

const lines = (state, page = IDS.page) => state.blocks[page].filter(block => !block.archived).map(block => plain(block[block.type].rich_text));
const property = (state, name, page = IDS.page) => state.pages[page].properties[name];
const newest = state => Object.values(state.pages).at(-1);

const CALLS = [
    ['API-update-page-markdown', { ...PAGE, type: 'update_content', update_content: { content_updates: [{ old_str: 'everybody', new_str: 'Ada' }, { old_str: 'Then raise', new_str: 'Raise' }] } },
        { Markdown: ['-Ask everybody.', '+Ask Ada.', '+- Raise them'], Page: [' Raise prices'] }, s => [lines(s), ['Plan', 'Ask Ada.', 'Raise them']]],
    ['API-update-page-markdown, whole', { page_id: IDS.other, type: 'replace_content', replace_content: { new_str: '# New\nText' } }, { Markdown: ['-Nothing here.', '+Text'] }, s => [lines(s, IDS.other), ['New', 'Text']]],
    ['API-patch-page', { ...PAGE, properties: { Done: { checkbox: true }, Note: { rich_text: text('Now') } } }, { properties: ['-    "value": false', '+    "value": true', '-    "value": "Soon"', '+    "value": "Now"'] }, s => [[property(s, 'Done').checkbox, plain(property(s, 'Note').rich_text)], [true, 'Now']]],
    ['API-post-page', { parent: { type: 'database_id', database_id: IDS.database }, properties: { Name: { title: text('Sell books') } }, children: [paragraph('All of them')] }, { blocks: ['+  "paragraph: All of them"'], properties: ['+    "value": "Sell books"'] }, s => [plain(newest(s).properties.Name.title), 'Sell books']],
    ['API-post-page, below a page', { parent: { type: 'page_id', page_id: IDS.parent }, properties: { title: { title: text('Below') } } }, { properties: ['+    "value": "Below"'], Parent: [' Home'] }, s => [newest(s).parent.page_id, IDS.parent]],
    ['API-move-page', { page_id: IDS.other, parent: { type: 'page_id', page_id: IDS.parent } }, { parent: [`-data source ${IDS.source}`, `+page ${IDS.parent}`], 'New parent': [' Home'] }, s => [s.pages[IDS.other].parent.page_id, IDS.parent]],
    ['API-patch-block-children', { block_id: IDS.page, children: [paragraph('And wait')] }, { Blocks: ['+  "paragraph: And wait"'] }, s => [lines(s).at(-1), 'And wait']],
    ['API-update-a-block', { block_id: IDS.block, heading_1: { rich_text: text('The plan') } }, { text: ['-Plan', '+The plan'] }, s => [lines(s)[0], 'The plan']],
    ['API-update-a-block, by type', { block_id: IDS.block, type: { heading_1: { rich_text: text('Our plan') } } }, { text: ['-The plan', '+Our plan'] }, s => [lines(s)[0], 'Our plan']],
    ['API-delete-a-block', { block_id: IDS.block }, { text: ['-Our plan'] }, s => [lines(s)[0], 'Ask Ada.']],
    ['API-create-a-comment', { parent: PAGE, rich_text: text('Because') }, { Comment: ['+Because'] }, s => [plain(s.comments.at(-1).rich_text), 'Because']],
    ['API-update-a-data-source', { data_source_id: IDS.source, title: text('Chores'), properties: { Cost: { number: { format: 'number' } }, Note: null } }, { title: ['-Tasks', '+Chores'] }, s => [Object.keys(s.sources[IDS.source].properties), ['Name', 'Done', 'Cost']]],
    ['API-create-a-data-source', { parent: { type: 'page_id', page_id: IDS.parent }, title: text('Books'), properties: { Name: { title: {} } } }, { title: ['+Books'] }, s => [plain(Object.values(s.sources).at(-1).title), 'Books']],
    ['API-patch-page, to the trash', { page_id: IDS.other, in_trash: true }, { 'in trash': ['-false', '+true'], Page: [' Clean up'] }, s => [s.pages[IDS.other].in_trash, true]]
];

const startServer = shareServer('notion');

test('every recipe for Notion shows what its tool does', async t => {
    const behind = await startServer();
    for (const name of ['API-post-search', 'API-query-data-source']) {
        assert.equal(behind.definitions.find(tool => tool.name === name).annotations.destructiveHint, true, `${name} only reads`);
    }
    const how = `The real server ${VENDORS.notion.package} on a fake of Notion's API. Its annotations of \`API-post-search\` and \`API-query-data-source\` are wrong: they claim that these tools are destructive, but the tools only read.`;
    const tried = new TriedServer({ title: 'Notion', how });
    await tryCalls(t, behind, CALLS, tried);
    await t.test('the page about the servers tried says so', () => tried.check());
});

test('changes in Notion meanwhile make a change stale', async t => {
    const behind = await startServer();
    await tryConcurrentChanges(t, behind, [
        ['API-update-page-markdown', { ...PAGE, type: 'replace_content', replace_content: { new_str: 'Mine' } }, s => (s.blocks[IDS.page][1].paragraph.rich_text[0].plain_text = 'Theirs'), { Markdown: ['-Theirs'] }],
        ['API-patch-page', { ...PAGE, properties: { Done: { checkbox: true } } }, s => (property(s, 'Done').checkbox = null), { properties: ['-    "value": null', '+    "value": true'] }],
        ['API-delete-a-block', { block_id: IDS.block }, s => (s.blocks[IDS.page][0].heading_1.rich_text[0].plain_text = 'Theirs'), { text: ['-Theirs'] }]
    ]);
});

test('strange answers of Notion give no preview, and nothing is written', async t => {
    const behind = await startServer();
    const replace = { ...PAGE, type: 'replace_content', replace_content: { new_str: 'x' } };
    await tryStrangeAnswers(t, behind, [
        ['API-update-page-markdown', replace, 'nonsense', /`keep`/],
        ['API-update-page-markdown', replace, 'odd', /markdown/],
        // The server returns the errors of Notion as answers.
        ['API-update-page-markdown', { ...replace, page_id: IDS.block }, 'normal', /markdown/],
        ['API-update-page-markdown', { ...PAGE, type: 'update_content', update_content: { content_updates: [{ old_str: 'nowhere', new_str: 'x' }] } }, 'normal', /after|text/],
        ['API-update-page-markdown', { ...PAGE, type: 'replace_content' }, 'normal', /replace_content/],
        ['API-patch-page', { page_id: IDS.block, in_trash: true }, 'normal', /in_trash/]
    ]);
});

test('a call that Notion refuses or ignores is noticed', async t => {
    const behind = await startServer();
    await trySilentWrites(t, behind, [
        ['API-update-page-markdown', { ...PAGE, type: 'replace_content', replace_content: { new_str: 'x' } }],
        ['API-patch-page', { ...PAGE, properties: { Done: { checkbox: true } } }],
        ['API-delete-a-block', { block_id: IDS.block }],
        ['API-update-a-data-source', { data_source_id: IDS.source, title: text('x') }]
    ]);
    // Notion's refusal is an answer of the server like others.
    await t.test('a property that does not exist', async () => {
        const { verification } = await behind.apply(await behind.propose('API-patch-page', { ...PAGE, properties: { Nowhere: { checkbox: true } } }));
        assert.equal(verification.verified, 'differs');
    });
});
