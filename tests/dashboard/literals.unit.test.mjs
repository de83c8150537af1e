// Tests that visible texts stand in the files of the languages, and none in the modules of the dashboard.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { tokensOf, visibleLiterals } from './lib/literals.mjs';

const MODULES = new URL('../../src/rest/assets/js/', import.meta.url);
// Modules without any text: the texts themselves, and the words of programming languages.
const EXEMPT = /^locales\/|^core\/tokens\.js$/;
// Names that are the same in all languages.
const NAMES = ['Countersign', 'Countersign (', 'JSON', 'CSV', 'HTTP ', ' HTTP ', 'MCP ', 'Streamable HTTP', 'Claude Desktop', 'Claude Code', 'Cursor', 'VS Code', 'Codex', 'Gemini CLI', 'Goose', 'English', 'Deutsch', 'Enter', 'Esc'];
// Literals that look like texts and are none, by module.
const ALLOWED = {
  // Parts of commands and of configuration files.
  'core/agentsetup.js': ['--env ', '  countersign:', '    type: stdio', '    name: countersign', '    enabled: true', '    cmd: ', '    args: ', '    envs: { ', '    timeout: 300', 'Bearer ', 'claude mcp add ', '--scope user countersign -- ', 'codex mcp add countersign '],
  'views/signin.js': ['countersign open', 'countersign keys create --role reviewer --name you'],
  // The name of a header.
  'core/api.js': ['Date'],
  // Keys of groups and of what a heading depends on.
  'core/groups.js': ['bundle ', 'plan ', 'group '],
  'ui/row.js': ['plan '],
  // Sequences of keys.
  'core/keys.js': ['g ', 'g i', 'g h', 'g o', 'g p', 'g r', 'g a', 'g s', 'g k', 'g v', 'g w'],
  // Errors that only tests see.
  'core/locale.js': ['there is no text ', ' needs '],
  // White space of JSON.
  'core/rawjson.js': [' \\t\\r\\n'],
  // A note of the gateway, which is recognized and not shown.
  'ui/diff.js': ['(does not exist)'],
  // An example of the format.
  'ui/serverform.js': ['{ "mcpServers": { … } }'],
  // Keys of folds and buttons, by which the focus and the open folds are found again.
  'ui/tools.js': ['read ', 'known ', 'accept ', 'row ', 'revoke '],
  // The label of a rule without a name.
  'views/policy.js': ['rule '],
  // A selector.
  'views/bundle.js': ['button, a, summary, input'],
};

const modules = readdirSync(MODULES, { recursive: true }).filter((name) => name.endsWith('.js')).sort();
const sourceOf = (name) => readFileSync(new URL(name, MODULES), 'utf8');

test('no visible text is left in code', () => {
  const found = modules.filter((name) => !EXEMPT.test(name)).flatMap((name) => visibleLiterals(sourceOf(name))
    .filter(({ text }) => !NAMES.includes(text) && !ALLOWED[name]?.includes(text)).map(({ text, line }) => `${name}:${line} ${JSON.stringify(text)}`));
  assert.deepEqual(found, [], 'move these into js/locales/, or allow what nobody reads');
});

test('what is allowed as a literal is still there', () => {
  const unused = Object.entries(ALLOWED).flatMap(([name, texts]) => texts.filter((text) => !visibleLiterals(sourceOf(name)).some((found) => found.text === text)).map((text) => `${name} ${JSON.stringify(text)}`));
  assert.deepEqual(unused, []);
});

test('texts are found wherever a module can show them', () => {
  const cases = [
    ["h('p', null, 'Approve')", ['Approve']],
    ["h('p', { class: 'two words' }, yes ? 'approve' : t('a.b'))", ['approve']],
    ["h('p', null, [icon('check'), `${n} left`])", [' left']],
    ["h('a', { 'aria-label': isOpen ? `Close ${name}` : t('a.open') })", ['Close ']],
    ["h('button', { title: 'edit' })", ['edit']],
    ["fill(box, 'none')", ['none']],
    ["announce('done')", ['done']],
    ["button.textContent = 'more';", ['more']],
    ["const NOTE = 'It was approved.';", ['It was approved.']],
    ["[['since ', time(at)]].map(fact)", ['since ']],
    ["['Tool', 'Calls'].map((name) => h('th', null, name))", ['Tool', 'Calls']],
    ["return { label: 'run' };", ['run']],
    ["select('age', 'Age', [])", ['Age']],
  ];
  for (const [source, expected] of cases) assert.deepEqual(visibleLiterals(source).map(({ text }) => text), expected, source);
});

test('what only programs read is no text', () => {
  const sources = [
    "h('span', { class: `badge tone-${tone}${on ? ' is on' : ''}` }, icon('check'), t('list.seen'))",
    "document.querySelector('input, select')?.focus()", "if (state === 'pending') fill(box, state === 'stale' ? a : b)", "import { h } from '../core/dom.js';",
    "h('kbd', { 'aria-hidden': 'true' }, 'A')", "throw new TypeError('only routes of this page are linked')", "// It's a comment", "const x = /'two words'/.test(y);",
    "fill(group, ['form', 'json'].map((name) => button(name)))", "element.classList.add('changed')", "h('div', { data: { key: `fold ${name}` } })",
  ];
  for (const source of sources) assert.deepEqual(visibleLiterals(source), [], source);
});

test('the literals of a module are read with their lines', () => {
  const literals = tokensOf("a('x');\n/* 'y' */ b(`p ${c('q', { d: `r` })} s\n`, /['`]/, 1 / 2, 't');").filter(({ type }) => type === 'string' || type === 'template');
  assert.deepEqual(literals.map(({ text, line }) => [text, line]), [['x', 1], ['p ', 2], ['q', 2], ['r', 2], [' s\n', 3], ['t', 3]]);
});
