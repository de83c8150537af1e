// The dashboard's pure modules, without a browser.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { differences } from '../../src/dashboard/assets/js/core/compare.js';
import { Collection, matching } from '../../src/dashboard/assets/js/core/collection.js';
import { Feed } from '../../src/dashboard/assets/js/core/feed.js';
import { lineDiff } from '../../src/dashboard/assets/js/core/linediff.js';
import { layout, sourceOf } from '../../src/dashboard/assets/js/core/rawjson.js';
import { parseRoute, routeTo } from '../../src/dashboard/assets/js/core/router.js';
import { SseParser } from '../../src/dashboard/assets/js/core/sse.js';
import { cut, visibleString } from '../../src/dashboard/assets/js/core/text.js';
import { emphasis, foldEqual, pairUp } from '../../src/dashboard/assets/js/ui/difflines.js';
import { indented } from '../../src/dashboard/assets/js/ui/definition.js';
import { boundary } from '../../src/dashboard/assets/js/ui/longtext.js';
import { chain } from '../../src/dashboard/assets/js/views/audit.js';

test('what cannot be seen is made visible', () => {
  const cases = [
    ['plain', 'plain'], ['a\u202Eb', 'a‹U+202E›b'], ['\u200B\u200B\u200B', '‹U+200B ×3›'], ['x\u0000\u001b[2J', 'x‹U+0000›‹U+001B›[2J'],
    ['\u2066\u2069\u200E\u061C', '‹U+2066›‹U+2069›‹U+200E›‹U+061C›'], ['\uFEFFa\u00ADb', '‹U+FEFF›a‹U+00AD›b'], ['\u{E0041}\u{E0042}', '‹U+E0041›‹U+E0042›'],
    ['\u2800\u3164\uFFA0', '‹U+2800›‹U+3164›‹U+FFA0›'], ['\uD800x', '‹U+D800›x'], ['a\nb\tc', 'a‹U+000A›b‹U+0009›c'], ['a\u2028b', 'a‹U+2028›b'],
    ['ünïcode 漢字 العربية 👍🏽', 'ünïcode 漢字 العربية 👍🏽'], ['❤\uFE0F', '❤\uFE0F'], ['👩\u200D💻', '👩\u200D💻'], ['1\uFE0F\u20E3', '1\uFE0F\u20E3'],
    ['a\u200Db', 'a‹U+200D›b'], ['a\uFE0F', 'a‹U+FE0F›'],
  ];
  for (const [text, shown] of cases) assert.equal(visibleString(text), shown);
  assert.equal(visibleString('a\nb\tc\r', { block: true }), 'a\nb\tc‹U+000D›');
  assert.equal(visibleString('a\nb\tc', { tabs: true }), 'a‹U+000A›b\tc');
});

test('cutting keeps characters whole', () => {
  assert.equal(cut('ab👍', 3), 'ab');
  assert.equal(cut('ab👍', 4), 'ab👍');
  assert.equal(boundary('a\nb\nc\nd', 100, 2), 3);
  assert.equal(boundary('abcdef', 3, 10), 3);
  assert.equal(boundary('abc', 100, 10), 3);
});

test('arguments are cut out of an answer as they stand there', () => {
  const text = '{ "id" : "x\\"}", "nested":{"arguments":1}, "arguments" :  {"n":12345678901234567890.10, "2":1,"1":[ ],"a":"}\\\\", "a":2} , "z":0}';
  assert.equal(sourceOf(text, ['arguments']), '{"n":12345678901234567890.10, "2":1,"1":[ ],"a":"}\\\\", "a":2}');
  assert.equal(sourceOf(text, ['nested', 'arguments']), '1');
  assert.equal(sourceOf(text, ['none']), null);
  assert.equal(sourceOf('[1]', ['a']), null);
});

test('the layout of JSON changes nothing but space', () => {
  const source = '{"n":1e400,"deep":{"list":[1,[],{}, "a,b:{"],"t":true,"nil":null},"n":-0}';
  const lines = layout(source);
  assert.equal(lines.map((l) => l.tokens.map((t) => t.text).join('')).join('').replaceAll(': ', ':').replaceAll(', "a', ',"a'), source.replace(', "a', ',"a'));
  assert.deepEqual(lines[1], { indent: 1, tokens: [{ kind: 'key', text: '"n"' }, { kind: 'mark', text: ': ' }, { kind: 'number', text: '1e400' }, { kind: 'mark', text: ',' }] });
  assert.equal(lines.at(-1).indent, 0);
  for (const bad of ['{', '{"a"', '}', ']]', '{"a":}', ',,', '"', 'x']) layout(bad);
});

test('an event stream may arrive in any pieces', () => {
  const stream = '\uFEFFid: 7\r\nevent: change.created\r\ndata: {"a":\ndata: 1}\n\n: comment\n\nevent: empty\n\ndata:x\r\rid: 9\ndata: y\n\n';
  const expected = [{ type: 'change.created', data: '{"a":\n1}', id: '7' }, { type: 'message', data: 'x', id: null }, { type: 'message', data: 'y', id: '9' }];
  for (const size of [1, 2, 3, 5, 7, 1000]) {
    const events = [];
    const parser = new SseParser((e) => events.push(e));
    for (let i = 0; i < stream.length; i += size) parser.push(stream.slice(i, i + size));
    assert.deepEqual(events, expected, `in pieces of ${size}`);
  }
});

test('lines are numbered, folded and paired', () => {
  const before = Array.from({ length: 30 }, (_, i) => `line ${i + 1}`);
  const lines = [{ op: 'skip', text: '10' }, { op: 'equal', text: 'line 11' }, { op: 'delete', text: 'line 12' }, { op: 'insert', text: 'line twelve' }, ...before.slice(12).map((text) => ({ op: 'equal', text }))];
  const rows = pairUp(foldEqual(lines, before.join('\n')));
  assert.equal(rows[0].op, 'fold');
  assert.equal(rows[0].rows.length, 10);
  assert.deepEqual([rows[1].oldNo, rows[1].newNo], [11, 11]);
  assert.deepEqual([rows[2].oldNo, rows[2].newNo, rows[3].oldNo, rows[3].newNo], [12, null, null, 12]);
  assert.deepEqual(rows[2].parts, ['line ', '12', '']);
  assert.deepEqual(rows[3].parts, ['line ', 'twelve', '']);
  assert.equal(rows.at(-1).op, 'fold', 'the long unchanged end is folded');
  assert.equal(rows.at(-1).size, 15);
  assert.equal(foldEqual([{ op: 'skip', text: '5' }, { op: 'equal', text: 'other' }], 'a\nb')[0].rows, null, 'a text that is not this one is not shown');
});

test('emphasis marks what differs, at words', () => {
  assert.deepEqual(emphasis('Fix login', 'Fix the login'), [['Fix ', '', 'login'], ['Fix ', 'the', ' login']]);
  assert.deepEqual(emphasis('High', 'Critical'), [null, null]);
  assert.deepEqual(emphasis('a b', 'a  b'), [['a', ' ', 'b'], ['a', '  ', 'b']]);
  assert.deepEqual(emphasis(null, 'x'), [null, null]);
});

test('differences name what a reviewer has not seen', () => {
  const change = (state, fields) => ({ change: { state, summary: 's', target: { label: 't' }, diff: { fields } }, source: '{}' });
  const old = change('pending', [{ field: 'title', label: 'Title', before: 'a', after: 'b' }, { field: 'x', label: 'X', before: null, after: '1' }]);
  const now = change('pending', [{ field: 'title', label: 'Title', before: 'a2', after: 'b' }]);
  assert.deepEqual(differences(old, now), [{ label: 'Title, before', was: 'a', now: 'a2' }, { label: 'X, after', was: '1', now: null }]);
  assert.deepEqual(differences(old, old), []);
});

test('a broken link of the chain is found', () => {
  const entries = [{ seq: 3, prevHash: 'b', hash: 'c' }, { seq: 2, prevHash: 'a', hash: 'b' }, { seq: 1, prevHash: '0', hash: 'a' }];
  assert.deepEqual(chain(entries, { seq: 3, hash: 'c' }), { compared: 3, broken: new Set() });
  entries[1].hash = 'x';
  assert.deepEqual([...chain(entries, { seq: 3, hash: 'c' }).broken], [3]);
  assert.deepEqual([...chain([entries[0]], { seq: 3, hash: 'other' }).broken], [3]);
  assert.equal(chain([{ seq: 9, prevHash: 'q', hash: 'r' }, { seq: 4, prevHash: 'a', hash: 'b' }], null).compared, 0, 'entries that are not neighbours are not compared');
});

test('routes survive what stands in ids', () => {
  assert.deepEqual({ ...parseRoute(routeTo('history', 'chg_a/b?c#d', { state: 'applied' })), query: null }, { view: 'history', id: 'chg_a/b?c#d', query: null });
  assert.equal(parseRoute('').view, 'inbox');
  assert.equal(parseRoute('#/inbox/%E0%A4%A').id, null);
});

const change = (n, more = {}) => ({ id: `chg_${n}`, version: 1, state: 'pending', summary: `Change ${n}`, createdAt: new Date(1e12 + n * 1000).toISOString(), ...more });
const pending = (c) => c.state === 'pending';

test('pages and events may come in any order, and nothing is there twice', async () => {
  let release;
  const gate = new Promise((resolve) => { release = resolve; });
  const pages = [[3, 2], [1]];
  const collection = new Collection({
    accepts: pending, eager: true,
    load: async ({ cursor }) => {
      if (!cursor) await gate;
      return { changes: pages[cursor ?? 0].map((n) => change(n)), nextCursor: cursor ? null : 1, counts: { pending: 3 } };
    },
  });
  const loading = collection.reload();
  collection.apply(change(4));
  collection.apply(change(2, { version: 2, state: 'rejected' }));
  collection.apply(change(3, { version: 5, summary: 'Newer' }));
  release();
  await loading;
  // The page still held 2 as it was before its event: that it has left counts.
  assert.deepEqual(collection.items.map((c) => c.id), ['chg_4', 'chg_3', 'chg_1']);
  assert.equal(collection.get('chg_3').summary, 'Newer');
  assert.equal(collection.size(['pending']), 3);
});

test('what somebody looks at stays until they look away', () => {
  const collection = new Collection({ accepts: pending, load: async () => ({ changes: [], nextCursor: null }) });
  collection.status = 'ready';
  for (const n of [1, 2, 3]) collection.apply(change(n));
  collection.keep('chg_2');
  collection.apply(change(2, { version: 2, state: 'applied' }));
  assert.deepEqual(collection.items.map((c) => c.id), ['chg_3', 'chg_2', 'chg_1']);
  assert.equal(collection.size(['pending']), 2, 'it does not count any more');
  collection.keep(null);
  assert.deepEqual(collection.items.map((c) => c.id), ['chg_3', 'chg_1']);
});

test('the feed resumes where it was, drops what it has seen, and notices a gap', async () => {
  globalThis.document = { addEventListener() {}, removeEventListener() {} };
  globalThis.addEventListener = () => {};
  globalThis.removeEventListener = () => {};
  const event = (seq) => `id: ${seq}\nevent: change.created\ndata: {"type":"change.created","seq":${seq}}\n\n`;
  const streams = [
    'event: hello\ndata: {"type":"hello","seq":5}\n\n' + event(5) + event(6) + event(7),
    ': resumed\n\n' + event(7) + event(8) + 'event: session.opened\ndata: {"type":"session.opened","session":{}}\n\n' + event(10),
  ];
  const told = [];
  const resumedFrom = [];
  await new Promise((resolve) => {
    const feed = new Feed(async (signal, seq) => {
      resumedFrom.push(seq);
      if (resumedFrom.length === 2) return new Response('', { status: 503 });
      return new Response(streams.shift());
    }, {
      hello: (seq) => told.push(`hello ${seq}`),
      reset: () => told.push('reset'),
      event: (e) => told.push(e.seq ?? e.type),
      refused: () => told.push('refused'),
      state: (state, { status }) => {
        if (status) told.push(`HTTP ${status}`);
        if (state === 'waiting' && streams.length === 0) {
          feed.stop();
          resolve();
        }
      },
    });
    feed.start();
  });
  assert.deepEqual(resumedFrom, [null, 7, 7]);
  assert.deepEqual(told, ['hello 5', 6, 7, 'HTTP 503', 8, 'session.opened', 'reset', 10]);
});

test('filters want every word', () => {
  const collection = new Collection({ accepts: () => true, load: async () => ({}) });
  collection.apply(change(1, { summary: 'Delete the old runbook' }));
  collection.apply(change(2, { summary: 'Update the runbook' }));
  assert.deepEqual(matching(collection.items, 'RUNBOOK old').map((c) => c.id), ['chg_1']);
  assert.equal(matching(collection.items, '').length, 2);
});

test('two definitions are compared line by line', () => {
  const ops = (before, after) => lineDiff(before, after).map(({ op, text }) => `${{ equal: ' ', delete: '-', insert: '+' }[op]}${text}`);
  assert.deepEqual(ops('a\nb\nc\nd', 'a\nx\nc\nd\ne'), [' a', '-b', '+x', ' c', ' d', '+e']);
  assert.deepEqual(ops('same', 'same'), [' same']);
  assert.deepEqual(ops('', 'a'), ['-', '+a']);
  assert.deepEqual(ops('b\na', 'a\nb'), ['-b', ' a', '+b']);
  // Whatever they are, both can be put together again.
  const random = () => Array.from({ length: 40 }, () => 'abc'[Math.floor(Math.random() * 3)]).join('\n');
  for (let n = 0; n < 50; n += 1) {
    const [before, after] = [random(), random()];
    const lines = lineDiff(before, after);
    assert.equal(lines.filter((l) => l.op !== 'insert').map((l) => l.text).join('\n'), before);
    assert.equal(lines.filter((l) => l.op !== 'delete').map((l) => l.text).join('\n'), after);
  }
  const large = (c) => Array.from({ length: 3000 }, (_, i) => `${c}${i}`).join('\n');
  assert.equal(lineDiff(large('a'), large('b')).length, 6000);
});

test('a definition is laid out as it was written', () => {
  const source = '{"name":"x","n":12345678901234567890123,"a":[1,{"b":"\\u202e"}],"e":{}}';
  assert.equal(indented(source), '{\n  "name": "x",\n  "n": 12345678901234567890123,\n  "a": [\n    1,\n    {\n      "b": "\\u202e"\n    }\n  ],\n  "e": {}\n}');
});
