// Tests the page of webhooks with a receiver that succeeds or fails.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';
import { assertAccessible, assertClean, becomes, dashboard, fitsScreen, launch, screenshot, waitForNotice } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

// A name of the maximum length.
const LONG = 'a-name-that-is-longer-than-anybody-would-choose-'.repeat(2).slice(0, 64);

let browser;
let gateway;
let receiver;
/** The status that the receiver answers, except to `/chat`. */
let answer = 204;
before(async () => {
  browser = await launch();
  gateway = await Gateway.start();
  receiver = createServer((request, response) => {
    const succeeds = answer === 204 || request.url === '/chat';
    request.resume().on('end', () => response.writeHead(succeeds ? 204 : answer).end(succeeds ? '' : 'Out of \u202Eredro\u202C '.repeat(8)));
  });
  await new Promise((resolve) => { receiver.listen(0, '127.0.0.1', resolve); });
});
after(async () => {
  await browser?.close();
  await gateway?.end();
  receiver?.close();
});
const configure = (...names) => gateway.reconfigure({ webhooks: Object.fromEntries(names.map((name) => [name, { url: `http://127.0.0.1:${receiver.address().port}/${name}`, format: 'text' }])) });
const hook = (page, name) => page.locator('.hook', { has: page.getByRole('heading', { name, exact: true }) });

test('the webhook page shows deliveries and failures live and sends again', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/inbox' });
  await page.getByRole('link', { name: 'Webhooks' }).click();
  await page.getByText('No webhooks', { exact: true }).waitFor();
  configure('tickets', 'chat');
  const tickets = hook(page, 'tickets');
  await tickets.getByText('Working').waitFor();
  for (let i = 0; i < 30; i += 1) await gateway.proposeIssue(`Delivered ${i}`);
  await becomes(async () => (await gateway.api('webhooks')).value.webhooks.find(({ name }) => name === 'tickets').position, 30);
  await tickets.locator('dl div', { hasText: 'Waiting' }).getByText('nothing').waitFor();
  await tickets.getByText('Deliveries').click();
  await tickets.locator('tbody tr').nth(24).waitFor();
  await tickets.getByRole('button', { name: 'Load older' }).click();
  await tickets.locator('tbody tr').nth(29).waitFor();
  answer = 503;
  await gateway.proposeIssue('Not accepted');
  await waitForNotice(page, 'Webhook tickets is failing');
  await tickets.getByText('Failing').waitFor();
  await tickets.locator('dl div', { hasText: 'Waiting' }).getByText('1 event', { exact: true }).waitFor();
  await tickets.locator('tbody tr').first().getByText('Waiting').waitFor();
  await becomes(() => tickets.locator('tbody tr').count(), 31, 'older deliveries stay');
  await tickets.getByRole('button', { name: 'Test' }).click();
  await waitForNotice(page, 'The test of tickets failed: answered 503');
  await hook(page, 'chat').getByRole('button', { name: 'Test' }).click();
  await waitForNotice(page, 'The test of chat was delivered: it answered 204');
  // After 410 the gateway tries again only on request.
  answer = 410;
  await tickets.getByRole('button', { name: 'Send again' }).click();
  await tickets.locator('tbody tr').first().getByText('Given up').waitFor();
  answer = 204;
  await tickets.getByRole('button', { name: 'Send again' }).click();
  await waitForNotice(page, '1 delivery that had been given up');
  await tickets.getByText('Working').waitFor();
  assertClean(page);
  await page.context().close();
});

test('the webhook page fits all screens and is accessible', async () => {
  answer = 503;
  configure(LONG, 'chat');
  const first = await dashboard(browser, gateway, { route: '/#/webhooks' });
  await hook(first, LONG).waitFor();
  await gateway.proposeIssue('Announced');
  await hook(first, LONG).getByText('Failing').waitFor();
  await first.context().close();
  for (const [width, dark] of [[360, false], [1280, true]]) {
    const page = await dashboard(browser, gateway, { width, height: 800, dark, route: '/#/webhooks', bypassCSP: true });
    await page.getByText('Deliveries').first().click();
    await page.locator('.deliveries tbody tr').first().waitFor();
    await fitsScreen(page, `at ${width} pixels`);
    await assertAccessible(page);
    await screenshot(page, `hooks-${width}${dark ? '-dark' : ''}`);
    await page.context().close();
  }
});
