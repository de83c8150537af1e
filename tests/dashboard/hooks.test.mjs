// The page of webhooks, against the mock, whose webhooks fail on request; the door is tested with the gateway.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertClean, dashboard, launch, status } from './lib/browser.mjs';
import { Gateway, real } from './lib/gateway.mjs';

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
  await tickets.getByText('Works').waitFor();
  await tickets.getByText('30 of 30').waitFor();
  await tickets.getByText('Deliveries').click();
  await tickets.locator('tbody tr').nth(24).waitFor();
  await tickets.getByRole('button', { name: 'Load older' }).click();
  await tickets.locator('tbody tr').nth(29).waitFor();
  await hooks({ tickets: { url: 'https://tickets.example/hook', failing: true, error: 'it answered 503' }, chat: { url: 'https://chat.example/x' } });
  await page.locator('.notice', { hasText: 'The webhook tickets does not get through' }).waitFor();
  await tickets.getByText('Failing').waitFor();
  await tickets.getByText('1 event', { exact: true }).waitFor();
  await tickets.locator('tbody tr').first().getByText('Waits').waitFor();
  assert.equal(await tickets.locator('tbody tr').count(), 30, 'what was asked for further back stays');
  await tickets.getByRole('button', { name: 'Send again' }).click();
  await page.locator('.notice', { hasText: '2 deliveries that had been given up' }).waitFor();
  assertClean(page);
  await page.context().close();
});

test('a viewer cannot send again', options, async () => {
  const page = await dashboard(browser, gateway, { key: gateway.key('viewer', 'vera'), route: '/#/hooks' });
  await page.locator('.hook').first().waitFor();
  assert.equal(await page.getByRole('button', { name: 'Send again' }).count(), 0);
  await page.context().close();
});

test('a gateway without the door has no such page in sight, and says so to whom a link led there', options, async () => {
  await gateway.api('mock/doors', { body: { doors: [] } });
  const page = await dashboard(browser, gateway, { route: '/#/hooks' });
  await page.getByText('No webhooks here').waitFor();
  assert.equal(await page.getByRole('link', { name: 'Webhooks' }).count(), 0);
  assertClean(page, status(404));
  await page.context().close();
});
