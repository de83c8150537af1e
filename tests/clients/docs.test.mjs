// Runs the snippets of the README and of docs/ against a gateway, so that they are known to work.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

import { startGatewayWith } from './fixture.mjs';
import { binary, environment, eventually, startGateway } from './gateway.mjs';
import { SERVERS } from './servers.mjs';

const root = new URL('../..', import.meta.url).pathname;

/** Returns the only snippet of the page in that language that contains `words`. */
function snippet(page, language, words) {
  const text = readFileSync(join(root, page), 'utf8');
  const blocks = [...text.matchAll(/```(\w+)\n(.*?)```/gs)].filter(([, name, block]) => name === language && block.includes(words));
  assert.equal(blocks.length, 1, `one ${language} snippet of ${page} with ${words}`);
  return blocks[0][2];
}

/** Creates a folder that is removed after the test. */
function folder(t, parent = os.tmpdir()) {
  const path = realpathSync(mkdtempSync(join(parent, '.snippets-')));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** Runs a snippet with the program on the PATH and this gateway, and returns its output. */
function run(t, gateway, command, args, text, extension, env = {}) {
  // The folder is beside the packages that the snippet imports.
  const dir = folder(t, join(root, 'tests/clients'));
  const file = join(dir, `snippet.${extension}`);
  writeFileSync(file, text.replaceAll('127.0.0.1:8080', new URL(gateway.url).host));
  writeFileSync(join(dir, 'countersign'), `#!/bin/sh\nexec "${binary}" "$@"\n`);
  chmodSync(join(dir, 'countersign'), 0o755);
  const variables = environment({ COUNTERSIGN_DATA: gateway.data, ...env });
  const result = spawnSync(command, [...args, file], { encoding: 'utf8', timeout: 60_000, env: { ...variables, PATH: `${dir}:${variables.PATH}` } });
  assert.equal(result.status, 0, `${text}\n${result.stdout}${result.stderr}`);
  return result.stdout;
}

const shell = (t, gateway, text, env) => run(t, gateway, 'sh', ['-e'], text, 'sh', env);

/** Makes the proposal of the README and returns the id of the change. */
function propose(t, gateway) {
  const proposed = shell(t, gateway, snippet('README.md', 'sh', 'Say hello'));
  assert.match(proposed, /Change pending approval\. ID: chg_/);
  return proposed.match(/chg_[\w-]+/)[0];
}

test('the README leads to the first approved change', async (t) => {
  const gateway = await startGateway();
  t.after(() => gateway.stop());
  const id = propose(t, gateway);
  const review = snippet('README.md', 'sh', 'changes approve').replaceAll('chg_…', id);
  assert.match(shell(t, gateway, review), /Say hello/);
  const change = await gateway.reached(id, 'applied');
  assert.equal(change.decisions[0].comment, 'yes, please');
  assert.match(shell(t, gateway, snippet('README.md', 'sh', 'audit verify')), /applied/);
});

test('the programs of docs/clients.md connect', async (t) => {
  const gateway = await startGateway();
  t.after(() => gateway.stop());
  const page = 'docs/clients.md';
  assert.match(shell(t, gateway, snippet(page, 'sh', 'Mcp-Method')), /"resultType":"complete"/);
  assert.match(shell(t, gateway, snippet(page, 'sh', '/tools/list_projects')), /CORE/);
  assert.match(run(t, gateway, process.execPath, [], snippet(page, 'js', '@modelcontextprotocol/client'), 'mjs'), /create_issue/);
  assert.match(run(t, gateway, process.execPath, [], snippet(page, 'js', 'websocket.js'), 'mjs'), /CORE/);
  const python = join(root, 'tests/.cache/venv-v2/bin/python');
  if (existsSync(python)) {
    assert.match(run(t, gateway, python, [], snippet(page, 'python', 'asyncio'), 'py'), /create_issue/);
  } else {
    t.diagnostic('the Python snippet is run once the Python suite has installed its SDK');
  }
});

test('the snippets of README and docs/servers.md accept the reads of a server', async (t) => {
  const documents = folder(t);
  mkdirSync(join(documents, 'files'));
  const files = SERVERS.filesystem.entry(join(documents, 'files'));
  const gateway = await startGatewayWith({ mcpServers: { files: { ...files, required: true } } });
  t.after(() => gateway.stop());
  const key = { COUNTERSIGN_KEY: gateway.key };
  await eventually('the tools are there', async () => (await gateway.api('GET', '/servers/files')).body.tools?.length > 0);
  // The commands need `--yes`, because there is no terminal for a confirmation.
  const withoutPrompt = (page, words) =>
    snippet(page, 'sh', words).replaceAll(/--(all|known)-reads/g, '$& --yes').replaceAll(/(accept files files__.*)/g, '$1 --yes');
  assert.match(shell(t, gateway, withoutPrompt('docs/servers.md', '--known-reads'), key), /files__list_directory/);
  assert.match(shell(t, gateway, withoutPrompt('README.md', 'servers accept'), key), /files__read_text_file/);
  assert.match(shell(t, gateway, withoutPrompt('docs/servers.md', 'servers revoke'), key), /files__read_file/);
});

test('the snippets of docs/people.md, docs/rest.md and docs/policy.md work', async (t) => {
  const gateway = await startGateway();
  t.after(() => gateway.stop());
  const key = { COUNTERSIGN_KEY: gateway.key };
  assert.match(shell(t, gateway, snippet('docs/people.md', 'sh', '--owner alice')), /^csk_/);
  const id = propose(t, gateway);
  const rest = shell(t, gateway, snippet('docs/rest.md', 'sh', 'decision').replaceAll('chg_…', id), key);
  assert.match(rest, /"state":"(approved|executing|applied)"/);
  await gateway.reached(id, 'applied');
  const output = shell(t, gateway, snippet('docs/policy.md', 'sh', 'policy test'), key);
  assert.match(output, /review/);
});

test('the snippets of docs/knowledge.md search a handbook with its own type', async (t) => {
  const handbook = folder(t);
  const page = 'docs/knowledge.md';
  mkdirSync(join(handbook, 'knowledge/schemas'), { recursive: true });
  writeFileSync(join(handbook, 'knowledge/pool.md'), '# Pools\n\nThe connection pool runs dry when nothing is returned.\n');
  writeFileSync(join(handbook, 'knowledge/schemas/runbook.schema.yaml'), snippet(page, 'text', 'name: runbook'));
  const gateway = await startGatewayWith({ modules: { docs: { enabled: true, projects: { handbook: { root: handbook, folder: 'knowledge' } } } } });
  t.after(() => gateway.stop());
  const ask = async (tool, args) => {
    const answer = await fetch(`${gateway.url}/tools/${tool}`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ project_name: 'handbook', ...args }) });
    return (await answer.json()).structuredContent;
  };
  assert.equal((await ask('activate_project')).total_docs, 1);
  assert.match(shell(t, gateway, snippet(page, 'sh', 'semantic_search')), /"path":"pool\.md"/);
  const types = (await ask('list_doc_types')).doc_types;
  assert.deepEqual(types.at(-1).front_matter.required.slice(-2), ['service', 'urgency']);
  assert.equal(types.at(-1).schema, 'schemas/runbook.schema.yaml');
});

test('the snippets of docs/operating.md make and restore a backup', async (t) => {
  const gateway = await startGateway();
  t.after(() => gateway.stop());
  const dir = folder(t);
  const withFolder = (words) => snippet('docs/operating.md', 'sh', words).replaceAll('/backups/', `${dir}/`).replaceAll('DIR', join(dir, 'restored'));
  propose(t, gateway);
  shell(t, gateway, withFolder('countersign backup'));
  // Verifying the trail of the copy replaces starting a gateway on it, which would not end.
  const restore = withFolder('install -m 600').replace('countersign --data', 'countersign audit verify --data');
  assert.equal(shell(t, gateway, restore), shell(t, gateway, 'countersign audit verify\n'));
});
