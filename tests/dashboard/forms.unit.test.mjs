// Tests the modules of forms and of JSON as it is written, without a browser.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { agentSetups, shellWord } from '../../src/rest/assets/js/core/agentsetup.js';
import { fieldOf, formOf, sourceOfForm } from '../../src/rest/assets/js/core/argform.js';
import { compose, elementsOf, layout, members, pretty, sourceOf } from '../../src/rest/assets/js/core/rawjson.js';
import { fieldsOf, settingsOf } from '../../src/rest/assets/js/core/servertarget.js';
import { escapeHidden } from '../../src/rest/assets/js/core/text.js';
import { editedKeys } from '../../src/rest/assets/js/ui/policyform.js';

test('a form keeps what it does not show or what was not changed', () => {
  const old = { command: 'npx', args: ['-y', '@a/b', 'one\ntwo'], env: { K: '[secret]' }, timeout: '5s' };
  const fields = fieldsOf(old);
  assert.deepEqual(fields, { kind: 'npm', target: '@a/b', args: 'one\ntwo', pairs: 'K=[secret]' });
  assert.deepEqual(settingsOf(fields, old).settings, old);
  assert.deepEqual(settingsOf({ ...fields, args: 'x\n\n y', pairs: ' A = b=c ' }, old).settings, { command: 'npx', args: ['-y', '@a/b', 'x', ' y'], env: { A: 'b=c' }, timeout: '5s' });
  const hosted = { httpUrl: 'https://a.example/mcp', headers: { A: 'b' } };
  assert.deepEqual(settingsOf(fieldsOf(hosted), hosted).settings, hosted);
  assert.deepEqual(settingsOf({ kind: 'url', target: ' https://b.example ', args: 'x', pairs: 'A: b:c' }).settings, { url: 'https://b.example', headers: { A: 'b:c' } });
  assert.deepEqual(settingsOf({ kind: 'docker', target: 'i', args: '', pairs: '' }).settings, { command: 'docker', args: ['run', '-i', '--rm', 'i'] });
  for (const wrong of [{ kind: 'npm', target: ' ', args: '', pairs: '' }, { kind: 'npm', target: '-x', args: '', pairs: '' }, { kind: 'command', target: 'x', args: '', pairs: 'A' }, { kind: 'command', target: 'npx -y a', args: '', pairs: '' }, { kind: 'url', target: 'x', args: '', pairs: ':a' }]) {
    assert.ok(settingsOf(wrong).problem);
  }
  assert.deepEqual(settingsOf({ kind: 'command', target: '/opt/my server', args: '', pairs: '' }).settings, { command: '/opt/my server' });
});

test('sourceOf returns the exact text of a member', () => {
  const text = '{ "id" : "x\\"}", "nested":{"arguments":1}, "arguments" :  {"n":12345678901234567890.10, "2":1,"1":[ ],"a":"}\\\\", "a":2} , "z":0}';
  assert.equal(sourceOf(text, ['arguments']), '{"n":12345678901234567890.10, "2":1,"1":[ ],"a":"}\\\\", "a":2}');
  assert.equal(sourceOf(text, ['nested', 'arguments']), '1');
  assert.equal(sourceOf(text, ['none']), null);
  assert.equal(sourceOf('[1]', ['a']), null);
});

test('layout changes only the white space of JSON', () => {
  const source = '{"n":1e400,"deep":{"list":[1,[],{}, "a,b:{"],"t":true,"nil":null},"n":-0}';
  const lines = layout(source);
  assert.equal(lines.map((l) => l.tokens.map((t) => t.text).join('')).join('').replaceAll(': ', ':').replaceAll(', "a', ',"a'), source.replace(', "a', ',"a'));
  assert.deepEqual(lines[1], { indent: 1, tokens: [{ kind: 'key', text: '"n"' }, { kind: 'mark', text: ': ' }, { kind: 'number', text: '1e400' }, { kind: 'mark', text: ',' }] });
  assert.equal(lines.at(-1).indent, 0);
  for (const bad of ['{', '{"a"', '}', ']]', '{"a":}', ',,', '"', 'x']) layout(bad);
});

test('the setup of each client names the program, the address and the key', () => {
  const common = { program: '/opt/my tools/countersign', args: ['stdio', '--data', '/d'], url: 'http://h/mcp' };
  const setup = (key) => Object.fromEntries(agentSetups({ ...common, key }).map(({ id, text }) => [id, text]));
  const open = setup(null);
  assert.deepEqual(Object.keys(open), ['claude-desktop', 'claude-code', 'cursor', 'vscode', 'codex', 'gemini', 'goose', 'stdio', 'http']);
  assert.deepEqual(JSON.parse(open.cursor), { mcpServers: { countersign: { command: common.program, args: common.args } } });
  assert.equal(open['claude-code'], "claude mcp add --scope user countersign -- '/opt/my tools/countersign' stdio --data /d");
  assert.ok(!Object.values(open).some((text) => text.includes('COUNTERSIGN_AGENT_KEY')));
  const keyed = setup('csk_x');
  assert.equal(keyed.codex, "codex mcp add countersign --env COUNTERSIGN_AGENT_KEY=csk_x -- '/opt/my tools/countersign' stdio --data /d");
  assert.equal(JSON.parse(keyed.vscode).servers.countersign.env.COUNTERSIGN_AGENT_KEY, 'csk_x');
  assert.deepEqual(JSON.parse(keyed.http).mcpServers.countersign.headers, { Authorization: 'Bearer csk_x' });
  assert.ok(Object.values(keyed).every((text) => text.includes('csk_x')));
  assert.equal(shellWord("it's"), "'it'\\''s'");
});

test('a form keeps the exact text of untouched fields', () => {
  const source = '{"big":12345678901234567890,"text":"\\u0041","list":[1, 2],"yes":true,"nil":null,"odd":1.50e1}';
  const schema = { properties: { text: { type: 'string', title: 'Text' }, kind: { type: 'string', enum: ['a', 'b'] } }, required: ['text'] };
  const form = formOf(source, schema);
  assert.deepEqual(form.map((f) => [f.key, f.kind, f.required]), [['text', 'text', true], ['kind', 'choice', false], ['big', 'number', false], ['list', 'json', false], ['yes', 'flag', false], ['nil', 'json', false], ['odd', 'number', false]]);
  const entries = (changes = {}) => form.map((field) => ({ field, text: changes[field.key] ?? field.text, absent: field.source === null && changes[field.key] === undefined }));
  assert.deepEqual(members(sourceOfForm(entries())).sort((a, b) => (a.key < b.key ? -1 : 1)), members(source).sort((a, b) => (a.key < b.key ? -1 : 1)));
  assert.equal(sourceOfForm(entries({ text: 'B"', kind: 'b', odd: '' })), '{"text":"B\\"","kind":"b","big":12345678901234567890,"list":[1, 2],"yes":true,"nil":null}');
  assert.throws(() => sourceOfForm(entries({ big: 'x' })), SyntaxError);
  assert.throws(() => sourceOfForm(entries({ list: '[1' })), SyntaxError);
  assert.equal(formOf('{"a":1,"a":2}', schema), null, 'a duplicate key');
  assert.equal(formOf('[1]', schema), null);
  assert.deepEqual(['/a~1b/0', '', undefined, '/x'].map(fieldOf), ['a/b', null, null, 'x']);
});

test('members, compose and pretty keep every value', () => {
  const source = ' { "a" : [1,{"b":"}"}] , "c":"x" } ';
  assert.deepEqual(members(source), [{ key: 'a', source: '[1,{"b":"}"}]' }, { key: 'c', source: '"x"' }]);
  assert.deepEqual(JSON.parse(compose(members(source))), JSON.parse(source));
  assert.deepEqual(JSON.parse(pretty(source)), JSON.parse(source));
  assert.equal(members('3'), null);
  assert.deepEqual(members('{}'), []);
  const hidden = '{\n  "a": "x\u202e\u200b\u{e0041}"}';
  assert.equal(escapeHidden(hidden), '{\n  "a": "x\\u202e\\u200b\\udb40\\udc41"}');
  assert.deepEqual(JSON.parse(escapeHidden(hidden)), JSON.parse(hidden));
});

test('elementsOf keeps the exact text of elements', () => {
  const text = ' [ {"a": [1, "],"], "n": 12345678901234567890}, null ,"x\\"]" ]'.trimStart();
  assert.deepEqual(elementsOf(text), ['{"a": [1, "],"], "n": 12345678901234567890}', 'null', '"x\\"]"']);
  assert.deepEqual(elementsOf('[]'), []);
  assert.deepEqual(elementsOf('[ ]'), []);
});

test('a rule keeps the values of fields that were not edited', () => {
  const settings = { name: 'one', principals: ['Doe, Jane', 'bot'], when: 'a //\n || b', then: 'deny' };
  const shown = { name: 'one', when: 'a // || b', reason: '', tools: '', principals: 'Doe, Jane, bot' };
  assert.deepEqual(editedKeys(settings, shown, { ...shown, tools: 'x_{a,b}, y', reason: ' so ' }), { name: 'one', when: settings.when, reason: 'so', tools: ['x_{a,b}', 'y'], principals: settings.principals });
  assert.deepEqual(editedKeys(settings, shown, { ...shown, name: ' ', when: '', principals: 'bot' }), { principals: 'bot' });
});
