// The README's snippets, taken from the README and run against a gateway: what it says is what works.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { startGateway } from './gateway.mjs';

const root = new URL('../..', import.meta.url).pathname;
const readme = readFileSync(join(root, 'README.md'), 'utf8');
const blocks = [...readme.matchAll(/```(\w+)\n(.*?)```/gs)].map(([, language, text]) => ({ language, text }));

/** The one snippet in that language that has this text in it. */
function snippet(language, words) {
  const found = blocks.filter((block) => block.language === language && block.text.includes(words));
  assert.equal(found.length, 1, `one ${language} snippet with ${words}`);
  return found[0].text;
}

function run(gateway, command, args, text, extension) {
  // Beside the packages that it imports.
  const dir = mkdtempSync(join(root, 'tests/clients/.readme-'));
  try {
    const file = join(dir, `snippet.${extension}`);
    writeFileSync(file, text.replaceAll('127.0.0.1:8080', new URL(gateway.url).host));
    const ran = spawnSync(command, [...args, file], { encoding: 'utf8', timeout: 60_000 });
    assert.equal(ran.status, 0, ran.stderr);
    return ran.stdout;
  } finally {
    rmSync(dir, { recursive: true });
  }
}

test('the snippets of the README do what it says', async (t) => {
  const gateway = await startGateway();
  t.after(() => gateway.stop());
  const proposed = run(gateway, 'sh', [], snippet('sh', 'Say hello'), 'sh');
  assert.match(proposed, /Change pending approval\. ID: chg_/);
  assert.match(run(gateway, 'sh', [], snippet('sh', 'Mcp-Method'), 'sh'), /"resultType":"complete"/);
  assert.match(run(gateway, process.execPath, [], snippet('js', '@modelcontextprotocol/client'), 'mjs'), /create_issue/);
  assert.match(run(gateway, process.execPath, [], snippet('js', 'websocket.js'), 'mjs'), /CORE/);
  const python = join(root, 'tests/.cache/venv-v2/bin/python');
  if (existsSync(python)) {
    assert.match(run(gateway, python, [], snippet('python', 'asyncio'), 'py'), /create_issue/);
  } else {
    t.diagnostic('the Python snippet is run once the Python suite has installed its SDK');
  }
});
