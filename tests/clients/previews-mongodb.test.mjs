// Tries every shipped recipe for MongoDB with the real server mongodb-mcp-server on SecantusDB, which has the wire protocol of MongoDB.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { startBehind, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS, fillShop } from './vendors.mjs';

const at = (collection, more = {}) => ({ connectionId: 'preconfigured', database: 'shop', collection, ...more });
const names = async shop => (await shop.listCollections().toArray()).map(({ name }) => name).sort();
const all = (shop, collection, filter = {}) => shop.collection(collection).find(filter, { sort: { _id: 1 } }).toArray();
const withoutId = documents => documents.map(({ _id, ...rest }) => rest);

const UPDATE = { $set: { 'stock.where': 'cellar', seen: { $date: '2026-01-01T00:00:00Z' } }, $inc: { price: 1 } };

const CALLS = [
    ['insert-many', at('items', { documents: [{ name: 'ink', price: 5, since: { $date: '2026-01-01T00:00:00Z' } }, { name: 'pad', price: 1 }] }),
        { Documents: ['+    "name": "ink",'], 'Documents in the collection': [' 3'] }, async shop => [withoutId(await all(shop, 'items', { price: { $in: [5, 1] } })), [{ name: 'ink', price: 5, since: new Date('2026-01-01') }, { name: 'pad', price: 1 }]]],
    ['insert-many, many', at('many', { documents: Array.from({ length: 60 }, (_, n) => ({ _id: n, n })) }), { 'Documents in the collection': [' 0'] }, async shop => [(await all(shop, 'many')).length, 60]],
    ['update-many', at('items', { filter: { price: { $gt: 8 } }, update: UPDATE }), { Documents: ['-    "price": 9,', '+    "price": 10,', '+      "where": "cellar"'], 'Matching documents': [' 2'] },
        async shop => [(await all(shop, 'items', { seen: new Date('2026-01-01') })).map(({ price, stock }) => [price, stock]), [[10, { count: 7, where: 'cellar' }], [21, { where: 'cellar' }]]]],
    ['update-many, many', at('many', { update: { $mul: { n: 2 } } }), { 'Matching documents': [' 60, of which the first 50 are shown and compared'] }, async shop => [(await all(shop, 'many'))[59].n, 118]],
    ['update-many, upsert', at('items', { filter: { name: 'cap' }, update: { $set: { price: 3 } }, upsert: true }), { 'Matching documents': [' 0'] }, async shop => [withoutId(await all(shop, 'items', { name: 'cap' })), [{ name: 'cap', price: 3 }]], { isReadBack: false }],
    ['delete-many', at('items', { filter: { price: 21 } }), { Documents: ['-    "name": "desk",'], 'Question of the server': [' If the server asks a question that matches /^You are about to delete documents from the /, the answer is: accept {"confirmation":"Yes"}'] },
        async shop => [await all(shop, 'items', { price: 21 }), []]],
    ['create-index', at('items', { name: 'by_price', definition: [{ type: 'classic', keys: { price: 1 } }] }), { Indexes: ['+    "price": 1'] }, async shop => [(await shop.collection('items').indexes()).map(({ name }) => name), ['_id_', 'by_price']]],
    ['drop-index', at('items', { indexName: 'by_price', type: 'classic' }), { 'Index: name': ['-by_price'] }, async shop => [(await shop.collection('items').indexes()).length, 1]],
    ['create-collection', at('fresh'), { 'Collections of the database': [' items, many, old'] }, async shop => [await names(shop), ['fresh', 'items', 'many', 'old']]],
    ['rename-collection', at('fresh', { newName: 'old', dropTarget: true }), { Collections: ['-fresh', ' old'], 'Documents that have the new name': [' 1'] }, async shop => [await names(shop), ['items', 'many', 'old']]],
    ['aggregate, into a collection', at('items', { pipeline: [{ $match: { price: 2 } }, { $out: 'cheap' }] }), { pipeline: ['+[{"$match":{"price":2}},{"$out":"cheap"}]'], 'Documents in the collection': [' 5'] }, async shop => [withoutId(await all(shop, 'cheap')), [{ name: 'pen', price: 2 }]],
        { isReadBack: false, wrong: '`readOnlyHint: true`, but it can write into a collection' }],
    ['drop-collection', at('many'), { Documents: [' 60'], Indexes: [' _id_'] }, async shop => [await names(shop), ['cheap', 'items', 'old']]],
    ['drop-database', { connectionId: 'preconfigured', database: 'shop' }, { 'Database: name': ['-shop'], 'Collections of the database': [' cheap, items, old'] }, async shop => [await names(shop), []]]
];

// One gateway, because the database and the server start slowly.
test('every recipe for MongoDB shows what its tool does', async t => {
    const behind = await startBehind(t, 'mongodb', { reviewed: ['aggregate'] });
    const how = `The real server ${VENDORS.mongodb.package} on SecantusDB, a database with the wire protocol of MongoDB. Its annotations of \`aggregate\`, \`aggregate-db\`, \`connect\`, \`disconnect\` and \`export\` are wrong: they claim that these tools are read-only, but the tools do more.`;
    const tried = new TriedServer({ title: 'MongoDB', how });
    await tryCalls(t, behind, CALLS, tried);
    await t.test('the page about the servers tried says so', () => tried.check());

    // The database is empty now.
    await fillShop(behind.fake.state);
    await tryConcurrentChanges(t, behind, [
        ['update-many', at('items', { filter: { price: 2 }, update: { $set: { price: 3 } } }), shop => shop.collection('items').updateOne({ _id: 1 }, { $set: { name: 'quill' } }), { Documents: ['     "name": "quill",'] }],
        ['delete-many', at('items', { filter: { price: { $gt: 8 } } }), shop => shop.collection('items').insertOne({ _id: 4, price: 30 }), { 'Matching documents': [' 3'] }],
        ['insert-many', at('items', { documents: [{ a: 1 }] }), shop => shop.collection('items').insertOne({ _id: 5 }), { 'Documents in the collection': [' 5'] }],
        ['drop-collection', at('old'), shop => shop.collection('old').insertOne({ _id: 9 }), { Documents: [' 2'] }]
    ]);
    await tryStrangeAnswers(t, behind, [
        ['update-many', at('items', { filter: {}, update: { $set: { price: 1 } } }), 'nonsense', /answered|nothing at/],
        ['delete-many', at('items', { filter: {} }), 'odd', /no answer to/],
        ['update-many', at('items', { update: { $inc: { name: 1 } } }), 'normal', /what the update expects/],
        ['drop-index', at('nowhere', { indexName: 'x', type: 'classic' }), 'nonsense', /answered|nothing at/]
    ]);
    await trySilentWrites(t, behind, [
        ['update-many', at('items', { filter: { price: 2 }, update: { $set: { price: 3 } } })],
        ['insert-many', at('items', { documents: [{ _id: 77, a: 1 }] })],
        ['delete-many', at('items', { filter: { price: 2 } })],
        ['create-index', at('items', { definition: [{ type: 'classic', keys: { price: 1 } }] })],
        ['drop-collection', at('old')]
    ]);
    assert.equal(await behind.fake.state.collection('items').countDocuments(), 5);
});
