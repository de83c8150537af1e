// The page of webhooks, against the mock, whose webhooks fail on request; the door is tested with the gateway.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { assertClean, becomes, dashboard, fitsScreen, launch, status } from './lib/browser.mjs';
import { Gateway, real } from './lib/gateway.mjs';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

let browser;
let gateway;
const options = { skip: real && 'the mock is asked to do what a receiver would' };
before(async () => {
  browser = await launch();
  if (!real) gateway = await Gateway.start();
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});
const hooks = (all) => gateway.api('mock/hooks', { body: all });

test('position, deliveries and failing are seen live, and what waits is sent again', options, async () => {
  for (let i = 0; i < 30; i += 1) await gateway.proposeIssue(`Told ${i}`);
  const page = await dashboard(browser, gateway, { route: '/#/inbox' });
  await page.getByRole('link', { name: 'Webhooks' }).click();
  await page.getByText('No webhooks', { exact: true }).waitFor();
  await hooks({ tickets: { url: 'https://tickets.example/hook' }, chat: { url: 'https://chat.example/x' } });
  await page.reload();
  const tickets = page.locator('.hook', { hasText: 'tickets.example' });
  await tickets.getByText('Working').waitFor();
  await tickets.getByText('30 of 30').waitFor();
  await tickets.getByText('Deliveries').click();
  await tickets.locator('tbody tr').nth(24).waitFor();
  await tickets.getByRole('button', { name: 'Load older' }).click();
  await tickets.locator('tbody tr').nth(29).waitFor();
  await hooks({ tickets: { url: 'https://tickets.example/hook', failing: true, error: 'it answered 503' }, chat: { url: 'https://chat.example/x' } });
  await page.locator('.notice', { hasText: 'Webhook tickets is failing' }).waitFor();
  await tickets.getByText('Failing').waitFor();
  await tickets.getByText('1 event', { exact: true }).waitFor();
  await tickets.locator('tbody tr').first().getByText('Waiting').waitFor();
  await becomes(() => tickets.locator('tbody tr').count(), 30, 'what was asked for further back stays');
  await tickets.getByRole('button', { name: 'Test' }).click();
  await page.locator('.notice', { hasText: 'The test of tickets failed: it answered 503' }).waitFor();
  await page.locator('.hook', { hasText: 'chat.example' }).getByRole('button', { name: 'Test' }).click();
  await page.locator('.notice', { hasText: 'The test of chat was delivered: it answered 204' }).waitFor();
  await tickets.getByRole('button', { name: 'Send again' }).click();
  await page.locator('.notice', { hasText: '2 deliveries that had been given up' }).waitFor();
  assertClean(page);
  await page.context().close();
});

test('a viewer cannot send anything', options, async () => {
  const page = await dashboard(browser, gateway, { key: gateway.key('viewer', 'vera'), route: '/#/webhooks' });
  await page.locator('.hook').first().waitFor();
  await becomes(() => page.getByRole('button', { name: 'Send again' }).count(), 0);
  await becomes(() => page.getByRole('button', { name: 'Test' }).count(), 0);
  await page.context().close();
});

test('narrow, wide, light and dark: nothing is cut off and everybody can use it', options, async () => {
  await gateway.proposeIssue('Told of');
  const long = 'a-name-that-is-longer-than-anybody-would-choose-'.repeat(3);
  await hooks({ [long]: { url: `https://tickets.example/${long}`, failing: true, error: 'it answered 503 \u202eesrever\u202c '.repeat(8) }, chat: { url: 'https://chat.example/x' } });
  for (const [width, dark] of [[360, false], [1280, true], [1280, false]]) {
    const page = await dashboard(browser, gateway, { width, height: 800, dark, route: '/#/webhooks', bypassCSP: true });
    await page.getByText('Deliveries').first().click();
    await page.locator('.deliveries tbody tr').first().waitFor();
    await fitsScreen(page, `at ${width} pixels`);
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
    assert.deepEqual(violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 120))]), []);
    if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/hooks-${width}${dark ? '-dark' : ''}.png` });
    await page.context().close();
  }
});

test('a gateway without the door has no such page in sight, and says so to whom a link led there', options, async () => {
  await gateway.api('mock/doors', { body: { doors: [] } });
  const page = await dashboard(browser, gateway, { route: '/#/webhooks' });
  await page.getByText('No webhooks here').waitFor();
  await becomes(() => page.getByRole('link', { name: 'Webhooks' }).count(), 0);
  assertClean(page, status(404));
  await page.context().close();
});
