// Tests the export of the audit trail by days and in both formats.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { assertClean, becomes, dashboard, launch } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

let browser;
let gateway;
before(async () => {
  browser = await launch();
  gateway = await Gateway.start();
  await gateway.decide(await gateway.proposeIssue('Recorded in the trail'), 'reject', '=1+1');
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

async function save(page, { format, from, to }) {
  await page.getByRole('button', { name: 'Export…' }).click();
  const dialog = page.getByRole('dialog', { name: 'Export the audit trail' });
  if (format) await dialog.getByLabel(format).check();
  if (from) await dialog.getByLabel('From').fill(from);
  if (to) await dialog.getByLabel('To and including').fill(to);
  const [file] = await Promise.all([page.waitForEvent('download'), dialog.getByRole('button', { name: 'Export', exact: true }).click()]);
  await dialog.waitFor({ state: 'detached' });
  return { name: file.suggestedFilename(), text: readFileSync(await file.path(), 'utf8') };
}

test('an export contains the trail as JSON lines or CSV, bounded by days', async () => {
  const page = await dashboard(browser, gateway, { key: gateway.key('viewer', 'vera'), route: '/#/audit' });
  const lines = await save(page, {});
  assert.match(lines.name, /^countersign-audit-\d{4}-\d\d-\d\d\.jsonl$/);
  const entries = lines.text.trim().split('\n').map((line) => JSON.parse(line));
  const { head } = (await gateway.api('audit')).value;
  assert.equal(entries.at(-1).hash.replace(/^sha256:/, ''), head.hash.replace(/^sha256:/, ''));
  assert.deepEqual(entries.map((e) => e.seq), entries.map((_, i) => i + 1));
  const csv = await save(page, { format: /^CSV/ });
  assert.match(csv.name, /\.csv$/);
  assert.match(csv.text, /^\uFEFF?"?seq"?,/);
  assert.equal((await save(page, { from: '2001-01-01', to: '2001-01-02' })).text.trim(), '');
  await page.getByRole('button', { name: 'Export…' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('From').fill('2002-01-02');
  await dialog.getByLabel('To and including').fill('2002-01-01');
  await dialog.getByRole('button', { name: 'Export', exact: true }).click();
  await dialog.getByText('The first day is after the last one').waitFor();
  assertClean(page);
  await page.context().close();
});

test('the trail of a single change offers no export', async () => {
  const { entries } = (await gateway.api('audit')).value;
  const page = await dashboard(browser, gateway, { route: `/#/audit/${entries.find((entry) => entry.changeId).changeId}` });
  await page.locator('.records').waitFor();
  await becomes(() => page.getByRole('button', { name: 'Export…' }).count(), 0);
  await page.context().close();
});
