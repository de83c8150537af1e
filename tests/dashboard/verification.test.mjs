// Tests what the dashboard shows of applied changes that were read back: as approved, different or unreadable.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { assertClean, becomes, dashboard, launch, row } from './lib/browser.mjs';
import { eventually, Gateway } from './lib/gateway.mjs';

// `write` does what the path says: nothing (silent), a text without line breaks at its ends (tidy), or what it should.
const SERVER = new URL('../review/verification/server.py', import.meta.url).pathname;

let browser;
let gateway;
let folder;
before(async () => {
  browser = await launch();
  folder = mkdtempSync(join(tmpdir(), 'countersign-texts-'));
  const previews = { write: { target: 'arguments.path', summary: 'Write {arguments.path}', label: 'Text', before: { tool: 'read', arguments: { path: 'arguments.path' }, missing: '^no such text$' }, after: 'arguments.text' } };
  gateway = await Gateway.start({ servers: { texts: { command: 'python3', args: [SERVER, join(folder, 'texts')], prefix: '', trust_annotations: true, required: true, previews } } });
  await eventually('the server is connected', async () => (await gateway.api('servers/texts')).value.tools?.some(({ name }) => name === 'write'));
});
after(async () => {
  await browser?.close();
  await gateway?.end();
  rmSync(folder, { recursive: true, force: true });
});

/** Writes a text and returns the change after it was read back. */
async function write(path, text) {
  const id = await gateway.propose('write', { path, text });
  await gateway.decide(id, 'approve');
  return gateway.verified(id);
}

test('the change page shows whether the target is as approved', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/history' });
  const shown = page.locator('.verification');
  for (const [path, text] of [
    ['plain', 'Read back: as approved.'],
    ['broken', 'Could not be read back. read answered: the index is damaged'],
    ['silent', 'Read back: differs from what was approved.'],
  ]) {
    const { id } = await write(path, 'new');
    await page.goto(`${gateway.url}/#/history/${id}`);
    await shown.filter({ hasText: text }).waitFor();
    const differences = path === 'silent' ? 1 : 0;
    await becomes(() => shown.locator('.diff').count(), differences);
    await becomes(() => row(page, `Write ${path}`).locator('.badge', { hasText: 'Differs' }).count(), differences);
  }
  // The server did nothing, so nothing is there.
  await becomes(() => shown.locator('thead th').allInnerTexts(), ['Field', 'Approved', 'Found']);
  await becomes(() => shown.locator('tbody td').allInnerTexts(), ['−\nnew', 'none']);
  await page.locator('.timeline', { hasText: 'read the target back: it differs from what was approved' }).waitFor();
  assertClean(page);
  await page.context().close();
});

test('an open page follows the verification', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/history' });
  const { id } = await write('tidy', 'one\ntwo\n');
  await row(page, 'Write tidy').locator('.badge', { hasText: 'Differs' }).waitFor();
  await row(page, 'Write tidy').click();
  const shown = page.locator('.verification');
  await shown.locator('.line-diff', { hasText: 'Text' }).waitFor();
  assert.deepEqual((await gateway.change(id)).verification.diff.fields[0].after, 'one\ntwo');
  const issue = await gateway.proposeIssue('Read me back');
  await gateway.decide(issue, 'approve');
  await row(page, 'Read me back').click();
  await shown.filter({ hasText: 'Read back: as approved.' }).waitFor();
  assertClean(page);
  await page.context().close();
});
