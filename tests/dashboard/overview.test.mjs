// Tests the overview: its numbers lead to the changes behind them, and it follows what happens.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertAccessible, assertClean, becomes, dashboard, fitsScreen, launch, matches, row, screenshot } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

let browser;
let gateway;

before(async () => {
  browser = await launch();
  gateway = await Gateway.start({ servers: { broken: { command: process.execPath, args: ['-e', 'process.exit(3)'] } } });
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

const tile = (page, name) => page.locator('.tile', { hasText: name });
const value = (page, name) => tile(page, name).locator('.tile-value').innerText();

test('numbers follow what happens and lead to the changes behind them', async () => {
  const empty = await Gateway.start();
  try {
    const page = await dashboard(browser, empty, { route: '/#/overview' });
    await page.getByText('Nothing to show yet').waitFor();
    assertClean(page);
    await page.context().close();
  } finally {
    await empty.end();
  }
  const page = await dashboard(browser, gateway, { route: '/#/overview' });
  await becomes(() => value(page, 'Servers down'), '1');
  const [rejected, approved] = [await gateway.proposeIssue('To reject'), await gateway.proposeIssue('To approve')];
  await gateway.proposeIssue('To wait');
  await becomes(() => value(page, 'Waiting'), '3');
  await gateway.decide(rejected, 'reject', 'No');
  await gateway.decide(approved, 'approve');
  await becomes(() => value(page, 'Rejected'), '1');
  await becomes(() => value(page, 'Approved'), '1');
  await becomes(() => value(page, 'Waiting'), '1');
  await matches(() => value(page, 'Time to decision'), /^[\d.]+ (ms|s|min)$/);
  const table = page.locator('section', { has: page.getByRole('heading', { name: 'By tool' }) });
  await becomes(() => table.locator('tbody td').allTextContents(), ['tracker / create_issue', '3 proposed', '1 approved', '1 rejected', '0']);
  // The numbers are also in a table.
  const chart = page.locator('.chart', { hasText: 'Rejected' });
  await chart.locator('summary').click();
  const ends = () => page.locator('.chart:not(.waiting-ages *) .chart-labels').evaluateAll((all) => new Set(all.map((labels) => labels.lastChild.textContent)).size);
  await becomes(ends, 1, 'all charts end now');
  await becomes(() => chart.locator('tbody tr').count(), 24);
  // The decisions may be in the hour before the last one.
  await becomes(async () => {
    const rows = await chart.locator('tbody tr').evaluateAll((all) => all.map((tr) => [...tr.querySelectorAll('td')].map((td) => Number(td.innerText))));
    return [0, 1, 2].map((column) => rows.reduce((sum, cells) => sum + cells[column], 0));
  }, [1, 1, 0]);
  await page.getByRole('button', { name: 'Last 30 days' }).click();
  await becomes(() => page.locator('.chart', { hasText: 'Rejected' }).locator('tbody tr').count(), 30);
  await becomes(() => page.evaluate(() => location.hash), '#/overview?range=30d');
  await becomes(() => tile(page, 'Failed').getAttribute('href'), '#/history?age=30d&state=unsuccessful', 'unknown outcomes are among the failed ones');
  await tile(page, 'Rejected').click();
  await row(page, 'To reject').waitFor();
  await becomes(() => row(page, 'To approve').count(), 0);
  await page.goto(`${gateway.url}/#/history?state=unsuccessful`);
  await page.locator('.chip[aria-pressed=true]', { hasText: 'Failed or outcome unknown' }).waitFor();
  await becomes(() => row(page, 'To reject').count(), 0);
  await page.goto(`${gateway.url}/#/history?q=wait`);
  await page.getByRole('link', { name: 'Waiting changes are in the inbox' }).click();
  await row(page, 'To wait').waitFor();
  assertClean(page);
  await page.context().close();
});

for (const [name, options] of [['light', {}], ['dark', { dark: true }], ['360', { width: 360, height: 740 }]]) {
  test(`the overview is readable and accessible, ${name}`, async () => {
    const page = await dashboard(browser, gateway, { ...options, bypassCSP: true, route: '/#/overview' });
    await tile(page, 'Waiting').waitFor();
    await page.locator('.chart summary').first().click();
    await assertAccessible(page);
    await fitsScreen(page, 'the overview is wider than the screen');
    await screenshot(page, `overview-${name}`, { fullPage: true });
    assertClean(page);
    await page.context().close();
  });
}

test('an unknown range is refused', async () => {
  const { status, value: problem } = await gateway.api('overview?range=1y');
  assert.deepEqual([status, problem.code], [400, 'INVALID_PARAMS']);
});
