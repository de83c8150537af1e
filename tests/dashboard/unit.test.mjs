// Tests the dashboard's pure modules without a browser.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { ApiError, explain } from '../../src/rest/assets/js/core/api.js';
import { differences } from '../../src/rest/assets/js/core/compare.js';
import { Collection, matchingRows } from '../../src/rest/assets/js/core/collection.js';
import { facets, filterRows, filterQuery, readFilter, requestOf, stateCounts } from '../../src/rest/assets/js/core/filters.js';
import { Feed } from '../../src/rest/assets/js/core/feed.js';
import { groupRows } from '../../src/rest/assets/js/core/groups.js';
import { compareLines } from '../../src/rest/assets/js/core/linediff.js';
import { Poller } from '../../src/rest/assets/js/core/poller.js';
import { pretty } from '../../src/rest/assets/js/core/rawjson.js';
import { parseRoute, routeTo } from '../../src/rest/assets/js/core/router.js';
import { compareServers } from '../../src/rest/assets/js/core/serverstate.js';
import { SseParser } from '../../src/rest/assets/js/core/sse.js';
import { cut, linesOf, shortMiddle, visibleString } from '../../src/rest/assets/js/core/text.js';
import { Triage } from '../../src/rest/assets/js/core/triage.js';
import { entryOf, EVENT_GROUPS, EVENTS, eventOf, HISTORY_STATES, shownOperation, toolName } from '../../src/rest/assets/js/core/vocab.js';
import { auditRequest, isNarrowed, readAuditFilter } from '../../src/rest/assets/js/ui/auditfilter.js';
import { splitFields } from '../../src/rest/assets/js/ui/callargs.js';
import { columns, emphasis, foldEqual, pairUp } from '../../src/rest/assets/js/ui/difflines.js';
import { spanOf } from '../../src/rest/assets/js/ui/export.js';
import { countsApproval, hasVoted, isApprovedByDeputy, isBarredAsProposer, isReviewerOf, representedBy, reviewersOf } from '../../src/rest/assets/js/ui/terms.js';
import { hasRecipe, unannotatedTools } from '../../src/rest/assets/js/ui/tools.js';
import { truncatedLength } from '../../src/rest/assets/js/ui/longtext.js';
import { checkLinks } from '../../src/rest/assets/js/views/audit.js';
import { stateOfRule } from '../../src/rest/assets/js/views/rules.js';

test('visibleString replaces invisible characters with marks', () => {
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

test('a reviewer is told whose account a call lacks', () => {
  const error = new ApiError(403, { code: 'AUTHORIZATION', detail: 'the server crm must be connected first' });
  assert.equal(explain(error), 'The call uses its proposer’s account at the server, or the gateway’s: the server crm must be connected first.');
  const other = (detail) => explain(new ApiError(422, { detail }, '', null));
  assert.equal(other('there is a server `files` already'), 'There is a server “files” already');
  assert.equal(other('policy.rules: rule 1 has no `then`'), 'policy.rules: rule 1 has no “then”');
});

test('cut and truncatedLength never split a character', () => {
  assert.equal(cut('ab👍', 3), 'ab');
  assert.equal(cut('ab👍', 4), 'ab👍');
  assert.equal(shortMiddle('node server.mjs', 15), 'node server.mjs');
  assert.equal(shortMiddle('/usr/bin/node /opt/server.mjs', 15), '/usr/…server.mjs');
  assert.equal(shortMiddle('abc👍d👍ef', 7), 'ab…d👍ef');
  assert.equal(truncatedLength('a\nb\nc\nd', 100, 2), 3);
  assert.equal(truncatedLength('abcdef', 3, 10), 3);
  assert.equal(truncatedLength('abc', 100, 10), 3);
});

test('the labels of events are unique', () => {
  const labels = EVENT_GROUPS.flatMap(([, events]) => events.map((event) => EVENTS[event].label));
  assert.deepEqual(labels.filter((label, i) => labels.indexOf(label) !== i), []);
});

test('linesOf ignores a final line break', () => {
  assert.deepEqual(linesOf('hello\n'), ['hello']);
  assert.deepEqual(linesOf('a\n\nb'), ['a', '', 'b']);
  assert.deepEqual([linesOf(''), linesOf('\n'), linesOf('\n\n')], [[''], [''], ['', '']]);
});

test('SseParser accepts a stream in pieces of any size', () => {
  const stream = '\uFEFFid: 7\r\nevent: change.created\r\ndata: {"a":\ndata: 1}\n\n: comment\n\nevent: empty\n\ndata:x\r\rid: 9\ndata: y\n\n';
  const expected = [{ type: 'change.created', data: '{"a":\n1}', id: '7' }, { type: 'message', data: 'x', id: null }, { type: 'message', data: 'y', id: '9' }];
  for (const size of [1, 2, 3, 5, 7, 1000]) {
    const events = [];
    const parser = new SseParser((e) => events.push(e));
    for (let i = 0; i < stream.length; i += size) parser.push(stream.slice(i, i + size));
    assert.deepEqual(events, expected, `in pieces of ${size}`);
  }
});

test('foldEqual numbers and folds lines, pairUp pairs them', () => {
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
  assert.equal(foldEqual([{ op: 'skip', text: '5' }, { op: 'equal', text: 'other' }], 'a\nb')[0].rows, null, 'lines of another text are not shown');
});

test('notes have no line number, and each file of a diff starts at line 1', () => {
  const note = (text) => ({ op: 'note', text });
  const lines = [note('diff --git a/a b/a'), note('--- a/a'), { op: 'skip', text: '6' }, note('@@ -7,2 +7,2 @@ fn a'), { op: 'equal', text: 'x' }, { op: 'delete', text: 'y' }, note('\\ No newline at end of file'), { op: 'insert', text: 'z' }, note('diff --git a/b b/b'), { op: 'insert', text: '--- a/c' }, { op: 'insert', text: 'new' }];
  const rows = pairUp(foldEqual(lines, null));
  assert.deepEqual(rows.map(({ op, oldNo, newNo }) => [op, oldNo, newNo].filter((v) => v !== undefined)), [
    ['note'], ['note'], ['fold'], ['note'], ['equal', 7, 7], ['delete', 8, null], ['note'], ['insert', null, 8], ['note'], ['insert', null, 1], ['insert', null, 2],
  ]);
  assert.equal(columns(rows).filter((r) => r.op === 'note').length, 5);
});

test('emphasis marks differing words', () => {
  assert.deepEqual(emphasis('Fix login', 'Fix the login'), [['Fix ', '', 'login'], ['Fix ', 'the', ' login']]);
  assert.deepEqual(emphasis('High', 'Critical'), [null, null]);
  assert.deepEqual(emphasis('a b', 'a  b'), [['a', ' ', 'b'], ['a', '  ', 'b']]);
  assert.deepEqual(emphasis(null, 'x'), [null, null]);
});

test('differences lists what changed since the reviewer looked', () => {
  const change = (state, fields) => ({ change: { state, summary: 's', target: { label: 't' }, diff: { fields } }, source: '{}' });
  const old = change('pending', [{ field: 'title', label: 'Title', before: 'a', after: 'b' }, { field: 'x', label: 'X', before: null, after: '1' }]);
  const now = change('pending', [{ field: 'title', label: 'Title', before: 'a2', after: 'b' }]);
  assert.deepEqual(differences(old, now), [{ label: 'Title, before', was: 'a', now: 'a2' }, { label: 'X, after', was: '1', now: null }]);
  assert.deepEqual(differences(old, old), []);
  // A field whose diff the server computed has lines and no values.
  const staged = (...names) => change('pending', [{ field: '$read1', label: 'Staged', before: null, after: null, lines: names.flatMap((name) => [{ op: 'note', text: `+++ b/${name}` }, { op: 'insert', text: name }]) }]);
  assert.deepEqual(differences(staged('a'), staged('b', 'a')), [{ label: 'Staged', was: null, now: '+++ b/b\n+ b' }]);
  assert.deepEqual(differences(staged('a'), staged('a')), []);
});

test('checkLinks finds a broken link', () => {
  const entries = [{ seq: 3, prevHash: 'b', hash: 'c' }, { seq: 2, prevHash: 'a', hash: 'b' }, { seq: 1, prevHash: '0', hash: 'a' }];
  assert.deepEqual(checkLinks(entries, { seq: 3, hash: 'c' }), { compared: 3, broken: new Set() });
  entries[1].hash = 'x';
  assert.deepEqual([...checkLinks(entries, { seq: 3, hash: 'c' }).broken], [3]);
  assert.deepEqual([...checkLinks([entries[0]], { seq: 3, hash: 'other' }).broken], [3]);
  assert.equal(checkLinks([{ seq: 9, prevHash: 'q', hash: 'r' }, { seq: 4, prevHash: 'a', hash: 'b' }], null).compared, 0, 'entries that are not neighbours are not compared');
});

test('routes keep special characters in ids', () => {
  assert.deepEqual({ ...parseRoute(routeTo('history', 'chg_a/b?c#d', { state: 'applied' })), query: null }, { view: 'history', id: 'chg_a/b?c#d', part: null, query: null });
  assert.equal(parseRoute('#/servers/a%20b/connect?x').part, 'connect');
  assert.equal(parseRoute('').view, 'inbox');
  assert.equal(parseRoute('#/inbox/%E0%A4%A').id, null);
});

const change = (n, more = {}) => ({ id: `chg_${n}`, version: 1, state: 'pending', summary: `Change ${n}`, createdAt: new Date(1e12 + n * 1000).toISOString(), ...more });
const pending = (c) => c.state === 'pending';

test('a collection accepts pages and events in any order without duplicates', async () => {
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
  // The page contains an older version of 2, which has left the collection since.
  assert.deepEqual(collection.items.map((c) => c.id), ['chg_4', 'chg_3', 'chg_1']);
  assert.equal(collection.get('chg_3').summary, 'Newer');
  assert.equal(collection.size(['pending']), 3);
});

test('a collection keeps the open change until it is closed', () => {
  const collection = new Collection({ accepts: pending, load: async () => ({ changes: [], nextCursor: null }) });
  collection.status = 'ready';
  for (const n of [1, 2, 3]) collection.apply(change(n));
  collection.keep('chg_2');
  collection.apply(change(2, { version: 2, state: 'applied' }));
  assert.deepEqual(collection.items.map((c) => c.id), ['chg_3', 'chg_2', 'chg_1']);
  assert.equal(collection.size(['pending']), 2, 'it no longer counts');
  assert.deepEqual(collection.countsByState, { pending: 2, applied: 1 });
  collection.keep(null);
  assert.deepEqual(collection.items.map((c) => c.id), ['chg_3', 'chg_1']);
  assert.deepEqual(collection.countsByState, { pending: 2, applied: 0 });
});

test('an approved change shows the change that it waits for', async () => {
  const approved = (more) => change(1, { state: 'approved', terms: { quorum: 1 }, ...more });
  let page = [approved({ waitsFor: { change: 'chg_9' } })];
  const collection = new Collection({ accepts: () => true, load: async () => ({ changes: page, nextCursor: null }) });
  const waits = () => collection.get('chg_1').waitsFor;
  collection.apply(approved());
  assert.equal(waits(), null, 'events do not contain it');
  await collection.reload();
  assert.equal(waits(), 'chg_9');
  page = [approved({ waitsFor: { change: 'chg_8' } })];
  await collection.reload();
  assert.equal(waits(), 'chg_8', 'another change has the target now');
  collection.apply(approved({ version: 2, state: 'executing' }));
  assert.equal(waits(), null);
});

test('a flood of events causes few repaints, a local decision one at once', async () => {
  const collection = new Collection({ accepts: () => true, load: async () => ({ changes: [], nextCursor: null }) });
  collection.status = 'ready';
  let repaints = 0;
  let shown = 0;
  collection.subscribe(({ items }) => {
    repaints += 1;
    shown = items.length;
  });
  const seen = async (n) => { while (shown < n) await new Promise((resolve) => { setTimeout(resolve, 1); }); };
  collection.apply(change(1));
  await seen(1);
  for (let n = 2; n <= 500; n += 1) {
    collection.apply(change(n));
    if (n % 100 === 0) await new Promise((resolve) => { setTimeout(resolve, 1); });
  }
  await seen(500);
  assert.ok(repaints <= 7, `${repaints} repaints`);
  collection.apply(change(7, { version: 2, state: 'rejected' }));
  collection.apply(change(501), false);
  await seen(501);
  assert.deepEqual(collection.countsByState, { pending: 500, rejected: 1 });
});

test('the feed resumes, drops known events and notices a gap', async () => {
  globalThis.document = { addEventListener() {}, removeEventListener() {} };
  globalThis.addEventListener = () => {};
  globalThis.removeEventListener = () => {};
  const event = (seq) => `id: ${seq}\nevent: change.created\ndata: {"type":"change.created","seq":${seq}}\n\n`;
  const streams = [
    'event: hello\ndata: {"type":"hello","seq":5}\n\n' + event(5) + event(6) + event(7),
    ': resumed\n\n' + event(7) + event(8) + 'event: session.opened\ndata: {"type":"session.opened","session":{}}\n\n' + event(10),
    // A single event is no longer stored.
    'event: reset\ndata: {"type":"reset","seq":11}\n\n' + event(12),
    // The store was replaced by a backup.
    'event: reset\ndata: {"type":"reset","seq":3}\n\n' + event(4) + event(5),
  ];
  const received = [];
  const resumedFrom = [];
  await new Promise((resolve) => {
    const feed = new Feed(async (signal, seq) => {
      resumedFrom.push(seq);
      if (resumedFrom.length === 2) return new Response('', { status: 503 });
      return new Response(streams.shift());
    }, {
      hello: (seq) => received.push(`hello ${seq}`),
      reset: () => received.push('reset'),
      event: (e) => received.push(e.seq ?? e.type),
      refused: () => received.push('refused'),
      state: (state, { status }) => {
        if (status) received.push(`HTTP ${status}`);
        if (state === 'waiting' && streams.length === 0) {
          feed.stop();
          resolve();
        }
      },
    });
    feed.start();
  });
  assert.deepEqual(resumedFrom, [null, 7, 7, 10, 12]);
  assert.deepEqual(received, ['hello 5', 6, 7, 'HTTP 503', 8, 'session.opened', 'reset', 10, 'reset', 12, 'reset', 4, 5]);
});

test('a text filter requires every word', () => {
  const collection = new Collection({ accepts: () => true, load: async () => ({}) });
  collection.apply(change(1, { summary: 'Delete the old runbook' }));
  collection.apply(change(2, { summary: 'Update the runbook' }));
  assert.deepEqual(matchingRows(collection.items, 'RUNBOOK old').map((c) => c.id), ['chg_1']);
  assert.equal(matchingRows(collection.items, '').length, 2);
});

test('compareLines compares texts line by line', () => {
  const ops = (before, after) => compareLines(before, after).map(({ op, text }) => `${{ equal: ' ', delete: '-', insert: '+' }[op]}${text}`);
  assert.deepEqual(ops('a\nb\nc\nd', 'a\nx\nc\nd\ne'), [' a', '-b', '+x', ' c', ' d', '+e']);
  assert.deepEqual(ops('same', 'same'), [' same']);
  assert.deepEqual(ops('', 'a'), ['-', '+a']);
  assert.deepEqual(ops('b\na', 'a\nb'), ['-b', ' a', '+b']);
  // Both texts can be reconstructed from every diff.
  const random = () => Array.from({ length: 40 }, () => 'abc'[Math.floor(Math.random() * 3)]).join('\n');
  for (let n = 0; n < 50; n += 1) {
    const [before, after] = [random(), random()];
    const lines = compareLines(before, after);
    assert.equal(lines.filter((l) => l.op !== 'insert').map((l) => l.text).join('\n'), before);
    assert.equal(lines.filter((l) => l.op !== 'delete').map((l) => l.text).join('\n'), after);
  }
  const large = (c) => Array.from({ length: 3000 }, (_, i) => `${c}${i}`).join('\n');
  assert.equal(compareLines(large('a'), large('b')).length, 6000);
});

test('a definition is indented and otherwise unchanged', () => {
  const source = '{"name":"x","n":12345678901234567890123,"a":[1,{"b":"\\u202e"}],"e":{}}';
  assert.equal(pretty(source), '{\n  "name": "x",\n  "n": 12345678901234567890123,\n  "a": [\n    1,\n    {\n      "b": "\\u202e"\n    }\n  ],\n  "e": {}\n}');
});

test('emphasis marks separate words, but not equal punctuation between them', () => {
  assert.deepEqual(emphasis('the quick brown fox jumps', 'the slow brown fox leaps'), [['the ', 'quick', ' brown fox ', 'jumps', ''], ['the ', 'slow', ' brown fox ', 'leaps', '']]);
  assert.deepEqual(emphasis('call(a, b) now', 'call(c, d) now'), [['call(', 'a, b', ') now'], ['call(', 'c, d', ') now']]);
  for (const [a, b] of [['a b c d e f', 'a x c d y f'], ['one', 'one two'], ['x'.repeat(3000), 'y']]) {
    for (const [text, parts] of [[a, emphasis(a, b)[0]], [b, emphasis(a, b)[1]]]) if (parts) assert.equal(parts.join(''), text);
  }
});

test('columns contain every line once and keep pairs together', () => {
  const row = (op, text) => ({ op, text });
  const rows = pairUp([row('equal', 'same'), row('delete', 'first line here'), row('delete', 'second line of it'), row('insert', 'a new one'), row('insert', 'second line of them'), row('insert', 'last'), { op: 'fold', size: 3, rows: null }]);
  const pairs = columns(rows);
  assert.deepEqual(pairs.map((p) => (p.op === 'pair' ? [p.left?.text ?? null, p.right?.text ?? null] : p.op)), [
    ['same', 'same'], ['first line here', null], [null, 'a new one'], ['second line of it', 'second line of them'], [null, 'last'], 'fold',
  ]);
});

test('readFilter reads known values from the address and drops others', () => {
  const filter = readFilter(new URLSearchParams('state=pending&tool=a%26b&age=24h&q=x+y&group=none&other=1'));
  assert.deepEqual(filterQuery(filter), { state: 'pending', tool: 'a&b', age: '24h', q: 'x y', group: 'none' });
  assert.deepEqual(filterQuery(readFilter(new URLSearchParams('state=nonsense&age=never&group=all'))), {});
  assert.deepEqual(requestOf(readFilter(new URLSearchParams('age=over-1h&state=stale')), 3_600_000), { states: ['stale'], tool: '', server: '', principal: '', q: '', since: '', until: '1970-01-01T00:00:00.000Z' });
});

test('filters narrow rows, and facets and states are counted', () => {
  const now = 10 * 86_400_000;
  const made = (id, tool, principal, state, ageHours) => ({ id, tool, provider: 'p', state, proposer: { principal }, at: now - ageHours * 3_600_000, text: `${tool} ${principal} ${state}` });
  const rows = [made('1', 'a', 'x', 'pending', 0.5), made('2', 'a', 'y', 'pending', 2), made('3', 'b', 'y', 'stale', 30)];
  const ids = (more) => filterRows(rows, { ...readFilter(new URLSearchParams()), ...more }, now).map((r) => r.id).join('');
  assert.equal(ids({}), '123');
  assert.equal(ids({ tool: 'a', principal: 'y' }), '2');
  assert.equal(ids({ age: '1h' }), '1');
  assert.equal(ids({ age: 'over-1h' }), '23');
  assert.equal(ids({ q: 'y stale' }), '3');
  assert.deepEqual(['failed', 'outcome_unknown', 'applied'].map((state) => filterRows([made('4', 'a', 'x', state, 1)], readFilter(new URLSearchParams('state=unsuccessful')), now).length), [1, 1, 0]);
  const filter = { ...readFilter(new URLSearchParams()), tool: 'a', principal: 'gone' };
  assert.deepEqual(facets(rows, filter, now), { tool: [['a', 0]], server: [], principal: [['gone', 0], ['x', 1], ['y', 1]] });
  assert.deepEqual(stateCounts(rows, { ...filter, principal: '' }, now), { pending: 2 });
});

test('groups take the position of their newest change, large ones are closed', () => {
  let n = 0;
  const made = (principal, session, transport = 'http') => ({ id: String(n += 1), tool: 't', provider: 'p', proposer: { principal, session, transport } });
  const rows = [made('a', '1'), made('b', '2'), made('a', '1'), made('a', '1'), made('a', 'other')];
  const show = (items) => items.map((i) => (i.group ? `[${i.rows.length}${i.open ? '' : ' closed'}]` : i.id)).join(' ');
  assert.equal(show(groupRows(rows, new Map())), '[3] 1 3 4 2 5');
  const key = groupRows(rows, new Map())[0].id;
  assert.equal(show(groupRows(rows, new Map([[key, false]]))), '[3 closed] 2 5');
  assert.equal(show(groupRows(Array.from({ length: 30 }, (_, i) => made('flood', String(i), 'rest')), new Map())), '[30 closed]');
  assert.equal(show(groupRows(rows.slice(0, 3), new Map())), '1 2 3', 'two changes form no group');
  const bundle = { id: 'b', servers: ['s'] };
  const bundleOf = (id) => (['1', '2'].includes(id) ? bundle : null);
  const bundled = groupRows(rows.slice(0, 3), new Map(), bundleOf);
  assert.equal(show(bundled), '[2] 1 2 3', 'two changes of a bundle form a group, whatever their tools');
  assert.deepEqual([bundled[0].id, bundled[0].bundle], ['bundle b', bundle]);
});

test('a change is selected only in the version that was seen', () => {
  const triage = new Triage();
  const change = (version) => ({ id: 'c', version, digest: `d${version}`, state: 'pending', diff: { truncated: false }, operation: 'UPDATE', summary: 's' });
  assert.equal(triage.toggle(change(1)), 'unseen');
  triage.markSeen(change(1));
  assert.equal(triage.toggle(change(2)), 'unseen');
  assert.equal(triage.toggle({ ...change(1), state: 'stale' }), 'decided');
  assert.equal(triage.toggle(change(1)), 'selected');
  assert.deepEqual(triage.selected.map(({ id, version, digest }) => [id, version, digest]), [['c', 1, 'd1']]);
  assert.equal(triage.deselectModified(() => change(1)), 0);
  assert.equal(triage.deselectModified(() => change(2)), 1);
  assert.equal(triage.size, 0);
});

test('a standing rule ends when it is revoked or expires', () => {
  const at = Date.parse('2026-01-01T12:00:00Z');
  assert.equal(stateOfRule({ expiresAt: null, revokedAt: null }, at), 'active');
  assert.equal(stateOfRule({ expiresAt: '2026-01-01T12:00:01Z' }, at), 'active');
  assert.equal(stateOfRule({ expiresAt: '2026-01-01T12:00:00Z' }, at), 'expired');
  assert.equal(stateOfRule({ expiresAt: '2026-01-01T13:00:00Z', expiredAt: '2026-01-01T11:00:00Z' }, at), 'expired');
  assert.equal(stateOfRule({ expiresAt: '2026-01-01T11:00:00Z', revokedAt: '2026-01-01T10:00:00Z' }, at), 'revoked');
});

test('spanOf covers whole days, even at the end of a month', () => {
  const { since, until } = spanOf('2026-01-31', '2026-01-31');
  assert.deepEqual([new Date(since).getDate(), new Date(since).getHours()], [31, 0]);
  assert.deepEqual([new Date(until).getMonth(), new Date(until).getDate(), new Date(until).getHours()], [1, 1, 0]);
  assert.deepEqual(spanOf('', ''), { since: null, until: null });
});

test('hasRecipe matches names with and without the prefix of the server', () => {
  assert.equal(hasRecipe('fs__write_file', ['write_file']), true);
  assert.equal(hasRecipe('write_file', ['write_file']), true);
  assert.equal(hasRecipe('fs__overwrite_file', ['write_file']), false);
});

test('only tools without a readOnlyHint are offered to run without review', () => {
  const offered = (...hints) => unannotatedTools(hints.map((hint, i) => ({ name: `${i}`, mayLetRun: i < 4, definition: JSON.stringify({ annotations: hint }), annotations: { readOnlyHint: hint?.readOnlyHint ?? false } }))).map((tool) => tool.name);
  assert.deepEqual(offered(undefined, null, {}, { readOnlyHint: null }, {}), ['0', '1', '2', '3']);
  assert.deepEqual(offered({}, { readOnlyHint: false }, null), ['0', '2']);
  assert.deepEqual(offered({ readOnlyHint: false }, { readOnlyHint: false }), []);
  assert.deepEqual(offered({}, { readOnlyHint: true }), [], 'the server declares which tools only read');
});

test('browser tests never assert on a single read of a page', () => {
  const singleRead = /assert\.\w+\((?:await |\(await |!?page\.url)(?:(?!gateway\.|fetch\()[^\n])*?\.(?:count|allInnerTexts|allTextContents|innerText|textContent|isVisible|isHidden|isDisabled|isEnabled|isChecked|inputValue|getAttribute|boundingBox|title|url)\(/;
  for (const name of readdirSync(new URL('.', import.meta.url)).filter((n) => n.endsWith('.test.mjs') && n !== 'unit.test.mjs')) {
    for (const [i, line] of readFileSync(new URL(name, import.meta.url), 'utf8').split('\n').entries()) assert.doesNotMatch(line, singleRead, `${name}:${i + 1}`);
  }
});

test('the border of a field has three times the contrast of its surroundings', () => {
  const css = readFileSync(new URL('../../src/rest/assets/css/base.css', import.meta.url), 'utf8');
  const colours = (name) => new RegExp(`--${name}: light-dark\\(#(\\w+), #(\\w+)\\)`).exec(css).slice(1);
  const luminance = (hex) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, n) => {
    const value = parseInt(hex.slice(2 * n, 2 * n + 2), 16) / 255;
    return sum + weight * (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  }, 0);
  const contrast = (...pair) => pair.map(luminance).sort((a, b) => b - a).reduce((light, dark) => (light + 0.05) / (dark + 0.05));
  for (const ground of ['bg', 'surface', 'raised', 'sunken']) {
    colours(ground).forEach((colour, theme) => assert.ok(contrast(colours('field-line')[theme], colour) >= 3, `${ground} #${colour}`));
  }
});

test('a rule lets everybody, a role or a group decide', () => {
  const mayDecide = (reviewers, me) => isReviewerOf({ terms: { reviewers } }, { mayDecide: true, role: 'reviewer', groups: [], ...me });
  for (const [reviewers, me, expected] of [
    [[], {}, true], [[], { mayDecide: false }, false], [['reviewer'], {}, true], [['reviewer'], { role: 'admin' }, true],
    [['admin'], {}, false], [['admin'], { role: 'admin' }, true], [['dba'], {}, false], [['dba'], { role: 'admin' }, false],
    [['dba'], { groups: ['dba'] }, true], [['dba'], { groups: ['dba'], mayDecide: false }, false], [['dba', 'admin'], { role: 'admin' }, true],
  ]) assert.equal(mayDecide(reviewers, me), expected, JSON.stringify([reviewers, me]));
  assert.equal(isReviewerOf({}, { mayDecide: true, role: 'reviewer' }), true);
});

test('an escalation lets further people decide from its time on', () => {
  const me = { mayDecide: true, role: 'reviewer', groups: ['oncall'] };
  const ago = (seconds, reviewers = ['dba']) => ({ createdAt: new Date(Date.now() - seconds * 1000).toISOString(), terms: { reviewers, escalate: { after: 600, to: ['oncall', 'dba'] } } });
  assert.deepEqual([isReviewerOf(ago(590), me), isReviewerOf(ago(601), me)], [false, true]);
  assert.deepEqual([reviewersOf(ago(590)), reviewersOf(ago(601))], [['dba'], ['dba', 'oncall']]);
  assert.deepEqual(reviewersOf(ago(601, [])), [], 'every reviewer may decide anyway');
  assert.equal(isReviewerOf({ terms: ago(601).terms }, me), false, 'without a time there is no escalation');
});

test('the proposer is recognised by name, owner, key and other claims', () => {
  const me = { name: 'https://id.example#alice', keyId: 'person:https://id.example#alice', otherNames: ['https://id.example#oid'] };
  const isBarred = (proposer, terms) => isBarredAsProposer({ proposer: { principal: 'robot', ...proposer }, terms }, me);
  const agent = { owner: me.name, claims: {} };
  for (const [proposer, expected] of [
    [{}, false], [{ principal: me.name }, true], [{ owner: me.name }, true], [{ keyId: me.keyId }, true], [{ keyId: 'key_2' }, false],
    [{ owner: 'https://id.example#oid' }, true], [{ owner: 'https://id.example#x', claims: { otherNames: me.otherNames } }, true],
    [{ owner: 'https://id.example#x', claims: { otherNames: [me.name] } }, true],
    [{ owner: 'https://id.example#x', claims: { otherNames: ['https://id.example#oid-2'] } }, false],
    [{ keyCreators: ['bob', me.name] }, true], [{ keyCreators: ['bob'] }, false],
  ]) assert.equal(isBarred(proposer), expected, JSON.stringify(proposer));
  assert.deepEqual([isBarred(agent), isBarred(agent, { ownAgents: true })], [true, false]);
  assert.equal(isBarred({ owner: 'https://id.example#oid', claims: {} }, { ownAgents: true }), true, 'other claims grant nothing');
});

test('a vote keeps a change selected, a new digest does not', () => {
  const triage = new Triage();
  const change = { id: 'c', version: 1, digest: 'd', state: 'pending', diff: { truncated: false }, operation: 'UPDATE', summary: 's' };
  triage.markSeen(change);
  assert.equal(triage.toggle(change), 'selected');
  const voted = { id: 'c', version: 2, digest: 'd', state: 'pending' };
  assert.equal(triage.deselectModified(() => voted), 0);
  assert.deepEqual(triage.selected.map(({ version, digest }) => [version, digest]), [[2, 'd']]);
  assert.ok(triage.hasSeen(voted), 'it may be selected again');
  assert.equal(triage.deselectModified(() => ({ ...voted, state: 'stale' })), 1);
  triage.toggle(voted);
  assert.equal(triage.deselectModified(() => ({ ...voted, version: 3, digest: 'e' })), 1);
  triage.toggle(voted);
  assert.equal(triage.deselectModified(() => null), 1, 'it is no longer pending');
});

test('an update whose effect is unknown is shown as a call', () => {
  assert.equal(shownOperation({ operation: 'UPDATE', preview: { kind: 'arguments' } }), 'CALL');
  assert.equal(shownOperation({ operation: 'DELETE', preview: { kind: 'arguments' } }), 'DELETE');
  assert.equal(shownOperation({ operation: 'UPDATE', preview: { kind: 'before_after' } }), 'UPDATE');
  assert.equal(toolName({ provider: 'filesystem', tool: 'filesystem__edit_file' }), 'filesystem / edit_file');
  assert.equal(toolName({ provider: 'tracker', tool: 'create_issue' }), 'tracker / create_issue');
  const fields = [{ field: 'path', after: 'a' }, { field: '$description', after: 'Writes.' }];
  assert.deepEqual(splitFields({ fields }), { fields: [fields[0]], tool: 'Writes.' });
  assert.equal(splitFields({ fields: [] }).tool, null);
});

test('audit entries distinguish rules for a whole tool', () => {
  const rule = { id: 'srl_1', verdict: 'allow', tool: 'fs__read', fromChange: null, createdBy: 'alice' };
  const label = (event, more = {}) => entryOf({ event, details: { rule: { ...rule, ...more } } }).label;
  assert.equal(label('standing_rule_created'), 'let a tool run without review');
  assert.equal(label('standing_rule_used'), 'recorded calls of a tool that runs without review');
  assert.equal(label('standing_rule_revoked'), 'no longer lets a tool run without review');
  assert.equal(label('standing_rule_orphaned'), eventOf('standing_rule_orphaned').label);
  assert.equal(label('standing_rule_created', { fromChange: 'chg_1' }), 'created a standing rule');
  assert.equal(label('standing_rule_used', { fromChange: 'chg_1' }), 'recorded uses of a standing rule');
  assert.equal(entryOf({ event: 'approved' }).label, 'approved');
});

test('the audit filter is kept in the address and offers every event', () => {
  const filter = readAuditFilter(new URLSearchParams('q=a+b&event=approved,voted&actor=bob&age=24h&x=1'));
  assert.deepEqual(filter, { q: 'a b', event: 'approved,voted', actor: 'bob', age: '24h' });
  assert.equal(readAuditFilter(new URLSearchParams('event=%3Cb%3E&age=never')).event, '');
  const now = Date.parse('2026-11-22T12:00:00Z');
  assert.deepEqual(auditRequest(filter, now), { q: 'a b', event: 'approved,voted', actor: 'bob', since: '2026-11-21T12:00:00.000Z', until: '' });
  assert.equal(auditRequest({ ...filter, age: 'over-1h' }, now).until, '2026-11-22T11:00:00.000Z');
  assert.deepEqual(filterQuery({ q: '', event: 'approved', actor: '', age: '' }), { event: 'approved' });
  assert.ok(isNarrowed(filter) && !isNarrowed(readAuditFilter(new URLSearchParams())));
  assert.deepEqual(EVENT_GROUPS.flatMap(([, events]) => events).sort(), Object.keys(EVENTS).sort());
});

test('broken servers come first in the list, and built-in modules last among those that work', () => {
  const servers = [['tracker', 'module', 'up'], ['files', 'upstream', 'up'], ['new', 'upstream', 'connecting'], ['broken', 'upstream', 'down']].map(([name, kind, status]) => ({ name, kind, status }));
  assert.deepEqual(servers.sort(compareServers).map(({ name }) => name), ['broken', 'new', 'files', 'tracker']);
});

test('the history offers no undecided state', () => {
  assert.ok(!HISTORY_STATES.includes('pending') && !HISTORY_STATES.includes('stale') && HISTORY_STATES.includes('outcome_unknown'));
  assert.equal(readFilter(new URLSearchParams('state=pending'), HISTORY_STATES).state, '');
  assert.equal(readFilter(new URLSearchParams('state=pending')).state, 'pending');
});

test('a deputy decides for the groups of somebody who is away and did not propose the change', () => {
  const until = new Date(Date.now() + 60_000).toISOString();
  const me = { name: 'bob', owner: 'bob', mayDecide: true, role: 'reviewer', groups: [], deputyFor: [{ name: 'alice', groups: ['dba'], until }] };
  const change = (reviewers, proposer = 'robot') => ({ proposer: { principal: proposer }, terms: { reviewers }, decisions: [] });
  const represented = (of, user = me) => representedBy(of, user).map(({ name }) => name);
  assert.deepEqual([represented(change(['dba'])), isReviewerOf(change(['dba']), me)], [['alice'], true]);
  for (const [of, user] of [
    [change(['dba'], 'alice'), me], [change(['admin']), me], [change(['oncall']), me], [change(['dba']), { ...me, mayDecide: false }],
    [change(['dba']), { ...me, deputyFor: [{ ...me.deputyFor[0], until: new Date(Date.now() - 1000).toISOString() }] }],
  ]) assert.deepEqual([represented(of, user), isReviewerOf(of, user)], [[], false], JSON.stringify([of, user]));
  assert.deepEqual(represented(change(['reviewer'])), [], 'a right of their own');
  const voted = { decisions: [{ verdict: 'approve', reviewer: 'bob', deputyFor: { name: 'laptop', owner: 'alice' } }] };
  assert.deepEqual([isApprovedByDeputy(voted, { name: 'alice' }), isApprovedByDeputy(voted, { name: 'carol' }), hasVoted(voted, me)], [true, false, true]);
});

test('an approval counts unless the reviewer may have voted, or edited where editors may not approve', () => {
  const me = { name: 'carol', owner: 'carol', keyId: 'key_1', otherNames: ['root'], mayDecide: true, role: 'reviewer', groups: [] };
  const counts = (change, user = me) => countsApproval({ proposer: { principal: 'robot' }, decisions: [], terms: { quorum: 1, edit: 'allowed' }, ...change }, user);
  const vote = (more) => ({ terms: { quorum: 2, edit: 'allowed' }, decisions: [{ verdict: 'approve', reviewer: 'bob', ...more }] });
  const edited = (terms, edit = { by: 'carol' }) => ({ terms: { quorum: 1, edit: 'allowed', ...terms }, edits: [edit] });
  for (const [change, expected] of [
    [{}, true], [vote({}), true], [vote({ owner: 'carol' }), false], [vote({ keyId: 'key_1' }), false], [vote({ otherNames: ['root'] }), false],
    [vote({ deputyFor: { name: 'carol' } }), false], [{ ...vote({ reviewer: 'carol' }), decisions: [{ verdict: 'reject', reviewer: 'carol' }] }, true],
    [edited({}), true], [edited({ quorum: 2 }), false], [edited({ edit: 'other' }), false], [edited({ edit: 'other' }, { by: 'bob' }), true],
    [edited({ edit: 'other' }, { by: 'bob', otherNames: ['root'] }), false],
  ]) assert.equal(counts(change), expected, JSON.stringify(change));
  const deputy = { ...me, deputyFor: [{ name: 'alice', groups: ['dba'], until: new Date(Date.now() + 60_000).toISOString() }] };
  const ofDba = (change) => counts({ ...change, terms: { quorum: 2, edit: 'allowed', reviewers: ['dba'] } }, deputy);
  assert.deepEqual([ofDba(vote({})), ofDba(vote({ reviewer: 'alice' }))], [true, false], 'the absent person and the deputy have one vote');
});

test('a poller shows no answer that is older than the shown one', async () => {
  const answers = [];
  const shown = [];
  const poller = new Poller({ read: () => new Promise((resolve) => answers.push(resolve)), show: (data) => shown.push(data), failed: assert.fail, every: 1e9 });
  const later = poller.poll();
  answers[1]('new');
  await later;
  answers[0]('old');
  const last = poller.poll();
  answers[2]('newest');
  await last;
  poller.stop();
  assert.deepEqual(shown, ['new', 'newest']);
});
