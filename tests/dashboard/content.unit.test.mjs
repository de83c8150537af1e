// Tests the pure modules that read the content of fields: tokens, Markdown, rows, images and recipients.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { argumentText, imageOf, MAX_IMAGE_BYTES, wholeValue } from '../../src/rest/assets/js/core/images.js';
import { compareItems, itemsOf, itemTexts, recordOf } from '../../src/rest/assets/js/core/lists.js';
import { parseInline, parseMarkdown } from '../../src/rest/assets/js/core/markdown.js';
import { compareRecipients } from '../../src/rest/assets/js/core/recipients.js';
import { cellText, compareRows, hasRowsBeyond, MAX_ROWS } from '../../src/rest/assets/js/core/rowtable.js';
import { addTokens, tokenize, tokensOfParts } from '../../src/rest/assets/js/core/tokens.js';
import { joinFileHeaders } from '../../src/rest/assets/js/ui/difflines.js';
import { nameOfTarget } from '../../src/rest/assets/js/ui/facts.js';
import { computesEffect } from '../../src/rest/assets/js/ui/terms.js';

const LANGUAGES = ['javascript', 'typescript', 'rust', 'go', 'java', 'kotlin', 'swift', 'c', 'csharp', 'php', 'css', 'python', 'ruby', 'shell', 'hcl', 'toml', 'yaml', 'json', 'html', 'sql', 'unknown'];
const kinds = (line, language) => tokenize(line, language).tokens.filter((t) => t.kind).map((t) => `${t.kind}:${t.text}`);

test('tokens together are the line, whatever it contains', () => {
  const pieces = ['"', "'", '`', '/*', '*/', '//', '#', '--', '<!--', '-->', '"""', '\\', ' ', '\t', 'let', '0x1f', '1.5e3', '\u202e', '\u200b', '👩\u200D💻', '漢字', '\ud800', 'é', ':', '{', '</b>', "it''s"];
  let seed = 7;
  const random = (n) => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return seed % n;
  };
  for (let run = 0; run < 400; run += 1) {
    const lines = Array.from({ length: 4 }, () => Array.from({ length: random(12) }, () => pieces[random(pieces.length)]).join(''));
    for (const language of LANGUAGES) {
      let state = null;
      for (const line of lines) {
        const split = tokenize(line, language, state);
        ({ state } = split);
        assert.equal(split.tokens.map((t) => t.text).join(''), line, language);
      }
    }
  }
  const long = '/'.repeat(100_000);
  assert.deepEqual(tokenize(long, 'c').tokens, [{ kind: null, text: long }]);
});

test('tokens tell comments, strings, numbers and keywords apart', () => {
  const cases = [
    ["let a = 'x'; // no", 'javascript', ['keyword:let', "string:'x'", 'comment:// no']],
    ["fn f<'a>(c: char) { c == '\\'' }", 'rust', ['keyword:fn', "string:'\\''"]],
    ["UPDATE t SET n = 'it''s' -- x", 'sql', ['keyword:UPDATE', 'keyword:SET', "string:'it''s'", 'comment:-- x']],
    ['  - name: "a#b" # c', 'yaml', ['key:name', 'string:"a#b"', 'comment:# c']],
    ['{"a": "b", "c": 1}', 'json', ['key:"a"', 'string:"b"', 'key:"c"', 'number:1']],
    ['echo a#b "x', 'shell', ['string:"x']],
  ];
  for (const [line, language, expected] of cases) assert.deepEqual(kinds(line, language), expected, line);
});

test('a comment continues on the next line of its side', () => {
  const rows = addTokens([{ op: 'equal', text: '/* a' }, { op: 'delete', text: 'let x */' }, { op: 'insert', text: 'let y' }, { op: 'equal', text: 'let z */ let' }], 'rust');
  assert.deepEqual(rows.map((row) => row.tokens.map((t) => t.kind)), [['comment'], ['comment'], ['comment'], ['comment', null, 'keyword']]);
  const parts = tokensOfParts([{ kind: 'keyword', text: 'let' }, { kind: null, text: ' x' }], ['', 'le', 't x']);
  assert.deepEqual(parts, [[], [{ kind: 'keyword', text: 'le' }], [{ kind: 'keyword', text: 't' }, { kind: null, text: ' x' }]]);
});

test('Markdown becomes blocks with the numbers of their lines', () => {
  const blocks = parseMarkdown('---\ntitle: x\n---\n# A **b**\n\ntext\nmore\n\n- one\n  - two\n- [x] three\n\n> q\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```rust\nfn\n```\n---\n1. x');
  assert.deepEqual(blocks.map(({ type, from, to }) => [type, from, to]), [
    ['code', 1, 3], ['heading', 4, 4], ['paragraph', 6, 7], ['list', 9, 11], ['quote', 13, 13], ['table', 15, 17], ['code', 19, 21], ['rule', 22, 22], ['list', 23, 23],
  ]);
  assert.deepEqual(blocks[3].items.map((item) => item.done), [null, true]);
  assert.equal(blocks[3].items[0].blocks[1].items[0].blocks[0].inline[0].text, 'two');
  assert.deepEqual(blocks[5].rows[0].map((cell) => cell[0].text), ['1', '2']);
});

test('inline Markdown keeps addresses, HTML and what is not closed', () => {
  const types = (text) => parseInline(text).map((part) => part.type);
  assert.deepEqual(types('a **b** *c* ~~d~~ `e` [f](g) ![h](i) <https://j.example>').filter((t) => t !== 'text'), ['strong', 'emphasis', 'deleted', 'code', 'link', 'image', 'link']);
  assert.deepEqual(parseInline('[x](javascript:alert(1) "t")'), [{ type: 'link', parts: [{ type: 'text', text: 'x' }], address: 'javascript:alert(1)', title: 't' }]);
  for (const text of ['<b onclick=x>y</b>', '<!-- ignore all rules -->', '**open', 'snake_case_name', '2 * 3 * 4', '[x](a b)', '`open', '[ref]: https://a.example']) assert.deepEqual(parseInline(text), [{ type: 'text', text }], text);
});

test('hostile Markdown is read in bounded time and depth', () => {
  const depth = (blocks) => Math.max(0, ...blocks.map((b) => 1 + depth(b.blocks ?? (b.items ?? []).flatMap((i) => i.blocks))));
  const hostile = ['>'.repeat(30_000), Array.from({ length: 300 }, (_, n) => `${' '.repeat(n)}- x`).join('\n'), '- '.repeat(20_000), '*'.repeat(60_000), '**a '.repeat(9000), '['.repeat(60_000), '[a]('.repeat(15_000), '`'.repeat(60_000), '|'.repeat(30_000), '> - '.repeat(9000), '\\'.repeat(60_000), `${'a | '.repeat(3000)}\n${'--|'.repeat(3000)}`];
  for (const text of hostile) assert.ok(depth(parseMarkdown(text)) <= 11, text.slice(0, 8));
});

test('rows are paired by their first value, or else by position', () => {
  const table = compareRows('[{"id":1,"n":"a"},{"id":2,"n":"b"}]', '[{"id":2,"n":"c"},{"id":12345678901234567890}]');
  assert.deepEqual(table.columns, ['id', 'n']);
  assert.deepEqual(table.rows.map(({ op, cells }) => [op, ...cells.map((c) => c.now ?? c.was)]), [['delete', '1', '"a"'], ['update', '2', '"c"'], ['insert', '12345678901234567890', null]]);
  assert.deepEqual(compareRows('[{"a":1},{"a":1}]', '[{"a":2},{"a":1}]').rows.map((r) => r.op), ['update', 'equal']);
  for (const text of ['', '[]', '{}', '[1]', '[{"a":1,"a":2}]', '[{}]', '[{"a":1}…', 'null']) assert.equal(compareRows(null, text), null, text);
  assert.deepEqual(['"x"', '"1"', '""', '"true"', 'true', '"a\\nb"'].map(cellText), ['x', '"1"', '""', '"true"', 'true', 'a\nb']);
});

test('rows in another order are paired by position, and added rows keep theirs', () => {
  const ops = (before, after) => compareRows(before, after).rows.map(({ op, cells: [{ was, now }] }) => `${op} ${was} ${now}`);
  assert.deepEqual(ops('[{"id":1},{"id":2}]', '[{"id":2},{"id":1}]'), ['update 1 2', 'update 2 1']);
  assert.deepEqual(ops('[{"id":1},{"id":2},{"id":3}]', '[{"id":9},{"id":1},{"id":8},{"id":3},{"id":7}]'), ['insert null 9', 'equal 1 1', 'delete 2 null', 'insert null 8', 'equal 3 3', 'insert null 7']);
});

test('quotes of a column that has only texts are left out', () => {
  const texts = (before, after) => compareRows(before, after).rows.map(({ cells }) => cells.map(({ was, now, isText }) => cellText(now ?? was, { isText })));
  assert.deepEqual(texts('[{"id":1,"price":"5.00"},{"id":2,"price":null}]', '[{"id":1,"price":"6.00"},{"id":2,"price":"null"}]'), [['1', '6.00'], ['2', '"null"']]);
  assert.deepEqual(texts('[{"id":1,"price":"5.00"},{"id":2,"price":7}]', null), [['1', '"5.00"'], ['2', '7']]);
});

test('records are paired by their name where the first value is no identity', () => {
  const before = '[{"type":"person","name":"Ada"},{"type":"person","name":"Bob"}]';
  const ops = (names) => compareRows(before, '[{"type":"person","name":"Bob"}]', names).rows.map((r) => r.op);
  assert.deepEqual(ops(['name']), ['delete', 'equal']);
  assert.deepEqual(ops([]), ['update', 'delete']);
});

test('lists are compared item by item, and numbers keep their digits', () => {
  const ops = (before, after) => compareItems(before, after)?.map(({ op, text }) => `${op} ${text}`);
  assert.deepEqual(ops('["bug","web"]', '[\n  "bug",\n  "urgent",\n  "web"\n]'), ['equal bug', 'insert urgent', 'equal web']);
  assert.deepEqual(ops('[]', '["1","2"]'), ['insert 1', 'insert 2']);
  assert.deepEqual(ops('["1"]', '[1]'), ['delete "1"', 'insert 1']);
  assert.deepEqual(ops('[12345678901234567890]', null), ['delete 12345678901234567890']);
  assert.deepEqual(itemTexts(itemsOf('["a\\nb","","null"]')), ['"a\\nb"', '""', '"null"']);
  for (const text of ['', '{}', '[{}]', '[[1]]', '["a…', 'null']) assert.equal(compareItems(null, text), null, text);
});

test('a record of single values and lists is read in its order', () => {
  assert.deepEqual(recordOf('{"title":"A","open":true,"labels":["x","y"],"none":[]}'), [{ name: 'title', items: ['A'] }, { name: 'open', items: ['true'] }, { name: 'labels', items: ['x', 'y'] }, { name: 'none', items: [] }]);
  for (const text of ['{}', '[]', '1', '{"a":{}}', '{"a":[{}]}', '{"a":1,"a":2}', '{"a":']) assert.equal(recordOf(text), null, text);
});

test('the header of a file in a unified diff becomes one line', () => {
  const note = (text) => ({ op: 'note', text });
  const shown = (...lines) => joinFileHeaders([...lines.map(note), { op: 'insert', text: '--- x' }]).map(({ text, file }) => (file ? `file ${text}` : text));
  assert.deepEqual(shown('Staged changes:', 'diff --git a/src/a b/src/a', 'index 12ab..34cd 100644', '--- a/src/a', '+++ b/src/a'), ['Staged changes:', 'file src/a', '--- x']);
  assert.deepEqual(shown('Index: /a', '=====', '--- /a\toriginal', '+++ /a\tmodified'), ['file /a', '--- x']);
  assert.deepEqual(shown('--- /dev/null', '+++ b'), ['file b (new file)', '--- x']);
  assert.deepEqual(shown('--- a/x', '+++ /dev/null'), ['file a/x (removed)', '--- x']);
  assert.deepEqual(shown('diff --git a/x b/y', '--- a/x', '+++ b/y'), ['file x → y', '--- x']);
  const mode = ['diff --git a/x b/x', 'old mode 100644', 'new mode 100755'];
  assert.deepEqual(shown(...mode), [...mode, '--- x'], 'what changes something is kept');
});

test('the target is called by what was read of it', () => {
  const line = (op, ...texts) => texts.map((text) => ({ op, text }));
  const name = (...fields) => {
    const found = nameOfTarget({ target: { entityType: 'page' }, diff: { fields } });
    return found && [found.name, fields.indexOf(found.field), found.isWhole];
  };
  assert.deepEqual(name({ field: '$read1', label: 'Page', lines: line('equal', 'Plan') }), ['Plan', 0, true]);
  assert.deepEqual(name({ field: '$read1', label: 'Page', lines: line('equal', '{', '  "state": "open",', '  "title": "Plan"', '}') }), ['Plan', 0, false]);
  assert.deepEqual(name({ field: '$content.title', label: 'title', lines: line('note', 'Plan') }, { field: '$content.body', label: 'body', before: 'a', after: 'b' }), ['Plan', 0, true]);
  assert.deepEqual(name({ field: '$read1', label: 'Parent', lines: line('equal', 'Plan') }), null);
  assert.deepEqual(name({ field: '$read1', label: 'Page', lines: line('note', '(nothing is there)') }), null);
  assert.deepEqual(name({ field: '$content.title', label: 'title', before: 'Plan', after: 'Plans' }), null);
});

test('a preview of reads alone computes no effect', () => {
  const effect = (kind, ...fields) => computesEffect({ preview: { kind }, diff: { fields: fields.map((field) => ({ field })) } });
  assert.deepEqual([effect('before_after', 'path', '$read1'), effect('before_after', '$statement0', '$definition0.0')], [false, false]);
  assert.deepEqual([effect('before_after', '$content.title'), effect('before_after', '$rows0'), effect('dry_run', '$dryRun'), effect('module', 'title')], [true, true, true, true]);
});

test('rows beyond the limit are counted', () => {
  const rows = (n) => JSON.stringify(Array.from({ length: n }, (_, i) => ({ i })));
  assert.equal(compareRows(null, rows(MAX_ROWS + 3)).beyond, 3);
  const diff = (n, format) => ({ fields: [{ format, before: null, after: rows(n) }] });
  assert.deepEqual([diff(MAX_ROWS, 'rows'), diff(MAX_ROWS + 1, 'rows'), diff(MAX_ROWS + 1, 'json')].map(hasRowsBeyond), [false, true, false]);
});

test('only Base64 of known images is shown', () => {
  assert.equal(imageOf('data:image/svg+xml;base64,PHN2Zz4='), null);
  assert.equal(imageOf('iVBORw0KGgo"><script>'), null);
  assert.equal(imageOf('data:text/html;base64,iVBORw0KGgo='), null);
  assert.deepEqual(imageOf('data:image/svg+xml;base64,iVBORw0KGgo='), { kind: 'png', bytes: 8, url: 'data:image/png;base64,iVBORw0KGgo=' });
  assert.equal(imageOf(`iVBORw0KGgo${'A'.repeat(MAX_IMAGE_BYTES * 2)}`).url, null);
  assert.equal(argumentText('a', '{"a":"x","b":1}'), 'x');
  assert.deepEqual([argumentText('a', '{"a":"x","a":"y"}'), argumentText('b', '{"b":1}'), argumentText('toString', '{}')], [null, null, null]);
  assert.deepEqual([wholeValue('abc…', '{"x":"abcdef"}'), wholeValue('abc…', '{"x":"abd"}'), wholeValue('abc', '{}')], ['abcdef', 'abc…', 'abc']);
});

test('recipients are compared one by one', () => {
  assert.deepEqual(compareRecipients('a@x, b@x', '["a@x","c, d"]').map(({ op, name }) => `${op} ${name}`), ['equal a@x', 'insert c, d', 'delete b@x']);
  for (const text of ['["a",1]', '{"a":1}', '["a…']) assert.equal(compareRecipients(null, text), null, text);
});
