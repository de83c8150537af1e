// Tests working through many changes: filters, groups, duplicates, bulk decisions and notifications.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertClean, becomes, dashboard, disconnected, focused, heading, holds, launch, live, matches, newPage, open, row, signIn, waitForNotice } from './lib/browser.mjs';
import { eventually, Gateway, pause } from './lib/gateway.mjs';
import { Wire } from './lib/wire.mjs';

let browser;
let gateway;
before(async () => {
  browser = await launch();
  gateway = await Gateway.start();
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

const waitForCount = (page, text) => page.locator('.pane-title .quiet', { hasText: text }).waitFor();

test('filters narrow the live list and are kept in the address', async () => {
  const issueId = await gateway.issue('Filtered base');
  await gateway.proposeIssue('Filter one');
  await gateway.propose('add_comment', { issueId, content: 'Filter two' }, { key: gateway.key('agent', 'filter-bot') });
  const page = await dashboard(browser, gateway);
  await waitForCount(page, /^2$/);
  await page.getByRole('button', { name: 'Filters' }).click();
  await page.getByLabel('Tool', { exact: true }).selectOption({ label: 'add_comment (1)' });
  await waitForCount(page, '1 of 2');
  await matches(() => page.url(), /[?&]tool=add_comment/);
  await becomes(() => row(page, 'Filter one').count(), 0);
  // A new change is counted at once and shown only if it matches.
  await gateway.propose('add_comment', { issueId, content: 'Filter three' });
  await gateway.proposeIssue('Filter four');
  await waitForCount(page, '2 of 4');
  await page.getByLabel('Agent').selectOption('filter-bot');
  await waitForCount(page, '1 of 4');
  await page.reload();
  await live(page);
  await waitForCount(page, '1 of 4');
  await becomes(() => page.getByLabel('Tool', { exact: true }).inputValue(), 'add_comment');
  await page.getByRole('button', { name: 'Clear', exact: true }).click();
  await waitForCount(page, /^4$/);
  await holds(() => page.url(), (url) => !url.includes('tool='));
  await page.getByLabel('Age', { exact: true }).selectOption('over-24h');
  await page.getByText('Nothing matches').waitFor();
  await page.getByRole('button', { name: 'Clear the filter' }).click();
  await waitForCount(page, /^4$/);
  assertClean(page);
  await page.context().close();
});

test('the gateway filters and searches the history', async () => {
  const id = await gateway.proposeIssue('Needle in the history');
  await gateway.decide(id, 'reject');
  const page = await dashboard(browser, gateway, { route: '/#/history?state=rejected' });
  await row(page, 'Needle in the history').waitFor();
  const request = page.waitForRequest((r) => r.url().includes('/api/changes?') && r.url().includes('q=needle'));
  await page.getByRole('searchbox').fill('needle');
  await request;
  await waitForCount(page, /^1$/);
  await focused(page, '[type=search]', 'the focus stays in the field');
  await matches(() => page.url(), /state=rejected/);
  await matches(() => page.url(), /q=needle/);
  await page.getByRole('searchbox').fill('no such thing');
  await page.getByText('Nothing matches').waitFor();
  assertClean(page);
  await page.context().close();
});

test('a link to a change opens it in the right view', async () => {
  const id = await gateway.proposeIssue('Linked from a chat');
  await gateway.decide(id, 'reject', 'Not now');
  const page = await dashboard(browser, gateway, { route: `/#/changes/${id}` });
  await heading(page).filter({ hasText: 'Linked from a chat' }).waitFor();
  await page.locator('.outcome', { hasText: 'Not now' }).waitFor();
  assertClean(page);
  await page.context().close();
});

test('changes of one agent and tool are grouped, and duplicates are marked', async () => {
  const key = gateway.key('agent', 'group-bot');
  for (const n of [1, 2, 3]) await gateway.proposeIssue(`Grouped ${n}`, {}, { key });
  const page = await dashboard(browser, gateway);
  const head = page.locator('.group-row', { hasText: 'group-bot' });
  await head.waitFor();
  await becomes(() => head.locator('.group-count').innerText(), '3');
  await becomes(() => head.getAttribute('aria-expanded'), 'true');
  // The group becomes a bundle, which has a head of its own.
  await page.locator('.row-place', { has: head }).getByRole('link', { name: 'Review together' }).waitFor();
  await head.click();
  await row(page, 'Grouped 1').waitFor({ state: 'detached' });
  await head.click();
  await row(page, 'Grouped 1').waitFor();
  const duplicate = await gateway.proposeIssue('Grouped 3', {}, { key });
  await page.locator('.row', { hasText: 'Grouped 3' }).locator('.badge', { hasText: 'Duplicate' }).waitFor();
  await becomes(() => head.locator('.group-count').innerText(), '4');
  // The duplicate links to the original change.
  await open(page, 'Grouped 3', duplicate);
  await page.locator('.banner.duplicate').getByRole('link').click();
  await page.locator('.banner.duplicate').waitFor({ state: 'detached' });
  await page.keyboard.press('c');
  await row(page, 'Grouped 1').waitFor({ state: 'detached' });
  await page.goto(`${gateway.url}/#/inbox?group=none`);
  await head.waitFor({ state: 'detached' });
  assertClean(page);
  await page.context().close();
});

test('a large group is closed until the focus moves into it', async () => {
  const key = gateway.key('agent', 'flood-bot');
  for (let n = 0; n < 30; n += 1) await gateway.proposeIssue(`Flood ${n}`, {}, { key });
  const page = await dashboard(browser, gateway);
  const head = page.locator('.group-row', { hasText: 'flood-bot' });
  await head.waitFor();
  await becomes(() => head.getAttribute('aria-expanded'), 'false');
  await becomes(() => row(page, 'Flood 12').count(), 0);
  await heading(page).waitFor();
  await page.keyboard.press('k');
  await heading(page).filter({ hasText: 'Flood 0' }).waitFor();
  await row(page, 'Flood 0').waitFor();
  const { value } = await gateway.api('changes?status=pending&limit=200');
  await gateway.api('decisions', { body: { decision: 'reject', changes: value.changes.filter((c) => c.summary.includes('Flood')).map(({ id, version, digest }) => ({ id, version, digest })) } });
  await row(page, 'Flood 3').waitFor({ state: 'detached' });
  assertClean(page);
  await page.context().close();
});

test('only opened changes are decided together, and each result is shown', async () => {
  const key = gateway.key('agent', 'bulk-bot');
  const ids = [];
  for (const n of [1, 2, 3]) ids.push(await gateway.proposeIssue(`Bulk ${n}`, {}, { key }));
  const page = await dashboard(browser, gateway);
  await open(page, 'Bulk 3');
  await page.keyboard.press('x');
  await page.locator('.bulk', { hasText: '1 selected' }).waitFor();
  // An unopened change is refused with a reason.
  await row(page, 'Bulk 1').locator('xpath=..').locator('.select-box').click();
  await waitForNotice(page, 'Open it first');
  await page.locator('.bulk', { hasText: '1 selected' }).waitFor();
  await open(page, 'Bulk 2');
  await page.keyboard.press('x');
  await open(page, 'Bulk 1');
  await page.keyboard.press('x');
  await page.locator('.bulk', { hasText: '3 selected' }).waitFor();
  // A box that was clicked has the focus, and keys still work.
  const box = row(page, 'Bulk 2').locator('xpath=..').locator('.select-box');
  await box.click();
  await page.locator('.bulk', { hasText: '2 selected' }).waitFor();
  await box.click();
  await page.locator('.bulk', { hasText: '3 selected' }).waitFor();
  const request = page.waitForRequest((r) => r.url().endsWith('/api/decisions'));
  // Another reviewer decides one of them before this page learns of it.
  await page.route('**/api/decisions', async (route) => {
    await gateway.decide(ids[1], 'reject', 'Faster');
    await route.continue();
  });
  await page.keyboard.press('a');
  const dialog = page.getByRole('dialog', { name: 'Approve 3 changes?' });
  await becomes(() => dialog.locator('.bulk-list li').count(), 3);
  await dialog.getByLabel('Comment').fill('All read');
  await dialog.getByRole('button', { name: 'Approve 3 changes' }).click();
  const sent = (await request).postDataJSON();
  assert.deepEqual(sent.changes.map((c) => c.id).sort(), [...ids].sort());
  for (const { id, version, digest } of sent.changes) assert.ok(version >= 1 && digest, id);
  await dialog.getByText('2 of 3 decided').waitFor();
  await dialog.locator('li', { hasText: 'Bulk 2' }).getByText('Not decided').waitFor();
  await becomes(() => dialog.locator('.bulk-mark', { hasText: /Approved|Applied|Running/ }).count(), 2);
  await dialog.getByRole('button', { name: 'Close' }).last().click();
  await page.locator('.bulk').waitFor({ state: 'hidden' });
  assert.equal((await gateway.reaches(ids[0], 'applied')).decisions[0].comment, 'All read');
  await gateway.reaches(ids[2], 'applied');
  assert.equal((await gateway.change(ids[1])).state, 'rejected');
  assertClean(page);
  await page.context().close();
});

test('a change that is modified after it was selected is deselected', async () => {
  const id = await gateway.proposeIssue('Selected and altered');
  const page = await dashboard(browser, gateway);
  await open(page, 'Selected and altered');
  await page.keyboard.press('x');
  await page.locator('.bulk', { hasText: '1 selected' }).waitFor();
  await gateway.decide(id, 'reject');
  await waitForNotice(page, 'no longer selected');
  await page.locator('.bulk').waitFor({ state: 'hidden' });
  assertClean(page);
  await page.context().close();
});

test('notifications are enabled by a click and announce waiting changes', async (t) => {
  const wire = await Wire.to(gateway.port);
  t.after(() => wire.end());
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  const page = await newPage(browser, wire, { context });
  await page.addInitScript(() => {
    window.permissionRequests = 0;
    window.notifications = [];
    // Chromium without a user interface grants no permission.
    window.Notification = class {
      static permission = 'default';
      static async requestPermission() {
        window.permissionRequests += 1;
        return (Notification.permission = 'granted');
      }
      constructor(title, options) {
        window.notifications.push([title, options.body]);
        window.lastNotification = this;
      }
      close() {}
    };
    // The page of a test never loses the focus.
    document.hasFocus = () => false;
  });
  await signIn(page, wire, gateway.key('reviewer', 'alice'));
  await gateway.proposeIssue('Silent change');
  await row(page, 'Silent change').waitFor();
  await becomes(() => page.evaluate(() => [window.permissionRequests, window.notifications]), [0, []]);
  await page.getByRole('button', { name: 'Notify me of new changes' }).click();
  await page.getByRole('button', { name: 'Notifications are on' }).waitFor();
  await becomes(() => page.evaluate(() => window.permissionRequests), 1);
  const id = await gateway.proposeIssue('Announced \u202E change');
  await eventually('a notification', () => page.evaluate(() => window.notifications.length === 1));
  const [[title, body]] = await page.evaluate(() => window.notifications);
  assert.match(title, /A change is waiting for review/);
  assert.match(body, /Announced/);
  assert.doesNotMatch(body, /\u202E/);
  await page.evaluate(() => window.lastNotification.onclick());
  await heading(page).filter({ hasText: 'Announced' }).waitFor();
  await holds(() => page.url(), (url) => url.includes(id));
  // A burst causes one notification. Its events arrive together, because the page was disconnected meanwhile.
  wire.cut();
  await page.locator('.connection', { hasText: 'Offline' }).waitFor();
  for (const n of [1, 2, 3]) await gateway.proposeIssue(`Announced in a burst ${n}`);
  wire.mend();
  await row(page, 'Announced in a burst 3').waitFor();
  await eventually('one more', () => page.evaluate(() => window.notifications.length >= 2));
  await pause(1200);
  const titles = await page.evaluate(() => window.notifications.map(([t]) => t));
  assert.ok(titles.length < 4, String(titles));
  assertClean(page, disconnected);
  await context.close();
});
