// Tests how a person reviews documents that an agent proposes.

import assert from 'node:assert/strict';
import { mkdir, readFile, realpath, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { startGatewayWith } from '../clients/fixture.mjs';
import { temporaryData } from '../clients/gateway.mjs';
import { connectPeer } from '../clients/peer.mjs';
import { assertClean, becomes, button, dashboard, launch, row, waitForOutcome } from './lib/browser.mjs';
import { pause } from './lib/gateway.mjs';
import { approve, openChange, outcome, propose, screenshotChange, shows } from './lib/upstreams.mjs';

const front = ['---', 'doc_type: problem', 'title: Connection pool exhausted', 'date: 2026-11-20', 'summary: The pool ran dry under load',
  'significance: performance', 'problem_type: performance', 'symptoms: [requests time out]', 'root_cause: connections were never returned',
  'solution: return them in a finally block', '---'];
const body = ['# Connection pool exhausted', '', 'Under load the pool ran dry: an early return kept its connection.', ''];
const DOCUMENT = [...front, ...body].join('\n');
let browser;
let gateway;
let agent;
let page;
let root;

before(async () => {
  root = await realpath(await temporaryData());
  await put('notes/deploy.md', '# Deployments\n\nWe deploy on Tuesdays.\n');
  const docs = { enabled: true, projects: { handbook: { root, folder: 'knowledge' } } };
  gateway = await startGatewayWith({ modules: { tracker: { enabled: false }, docs } });
  browser = await launch();
  agent = await connectPeer('legacy', { http: gateway.mcp }, { name: 'writer', capabilities: {} });
  await agent.call('activate_project', { project_name: 'handbook' });
  page = await dashboard(browser, gateway, { key: gateway.key, patience: 60_000 });
});
after(async () => {
  await agent?.close();
  await browser?.close();
  await gateway?.stop();
  if (root) await rm(root, { recursive: true, force: true });
});

const file = (...name) => join(root, 'knowledge', ...name);
const text = (...name) => readFile(file(...name), 'utf8');
async function put(name, content) {
  await mkdir(dirname(file(name)), { recursive: true });
  await writeFile(file(name), content);
}
const field = (label) => page.locator('.beside-now', { hasText: label });

test('a new document shows its front matter and file, and is approved', async () => {
  const id = await propose(agent, 'index_document', { path: 'problems/pool.md', content: DOCUMENT });
  await row(page, 'Add the problem “Connection pool exhausted”').click();
  await field('root_cause').first().waitFor();
  await field('connections were never returned').first().waitFor();
  await shows(page, 'File', DOCUMENT.trimEnd().split('\n').map((line) => `+${line}`));
  await screenshotChange(page, 'docs-1-new');
  await assert.rejects(stat(file('problems/pool.md')), 'nothing is written yet');
  await approve(page);
  await waitForOutcome(page, 'Applied');
  await screenshotChange(page, 'docs-1-applied');
  assert.equal(await text('problems/pool.md'), DOCUMENT);
  assert.equal((await outcome(agent, id)).status, 'applied');
  const found = await agent.call('semantic_search', { query: 'why does the connection pool run dry' });
  assert.equal(found.structuredContent.results[0].path, 'problems/pool.md', 'the next search finds it');
  assertClean(page);
});

test('a changed and a promoted document show only what differs', async () => {
  const changed = DOCUMENT.replace('return them in a finally block', 'release them in a guard').replace('an early return', 'an early exit');
  const id = await propose(agent, 'index_document', { path: 'problems/pool.md', content: changed });
  await openChange(page, gateway, id);
  await field('release them in a guard').first().waitFor();
  await page.locator('.beside-now .line.delete', { hasText: 'an early return' }).first().waitFor();
  await becomes(() => page.locator('.beside-now', { hasText: 'front_matter.title' }).count(), 0);
  await screenshotChange(page, 'docs-2-changed');
  await approve(page);
  await waitForOutcome(page, 'Applied');
  assert.equal(await text('problems/pool.md'), changed);

  const promotion = await propose(agent, 'update_promotion_level', { document_path: 'problems/pool.md', promotion_level: 'critical' });
  await openChange(page, gateway, promotion);
  await field('Promotion level').first().waitFor();
  await screenshotChange(page, 'docs-3-promoted');
  await approve(page);
  await waitForOutcome(page, 'Applied');
  assert.equal(await text('problems/pool.md'), changed.replace('\n---\n#', '\npromotion_level: critical\n---\n#'));
  assertClean(page);
});

test('a deletion lists the files that it removes', async () => {
  const id = await propose(agent, 'delete_documents', { project_name: 'handbook' });
  await openChange(page, gateway, id);
  await shows(page, 'Files', ['-notes/deploy.md', '-problems/pool.md']);
  await screenshotChange(page, 'docs-4-deleted');
  await approve(page);
  // The second press counts only after a pause.
  await button(page, 'Approve deletion').waitFor();
  await pause(600);
  await button(page, 'Approve deletion').click();
  await waitForOutcome(page, 'Applied');
  await assert.rejects(stat(file('notes/deploy.md')));
  await assert.rejects(stat(file('problems/pool.md')));
  assertClean(page);
});
