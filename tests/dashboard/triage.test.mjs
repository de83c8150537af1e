// Working through many: filters and what the address keeps of them, groups, duplicates, deciding together, notifications.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertClean, becomes, dashboard, focused, heading, holds, launch, live, matches, newPage, open, row, signIn } from './lib/browser.mjs';
import { eventually, Gateway, pause } from './lib/gateway.mjs';

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

const counted = (page, text) => page.locator('.pane-title .quiet', { hasText: text }).waitFor();

test('filters narrow the list, live, and stand in the address', async () => {
  const issueId = await gateway.issue('Filtered base');
  await gateway.proposeIssue('Filter one');
  await gateway.propose('add_comment', { issueId, content: 'Filter two' }, { key: gateway.key('agent', 'filter-bot') });
  const page = await dashboard(browser, gateway);
  await counted(page, /^2$/);
  await page.getByRole('button', { name: 'Filters' }).click();
  await page.getByLabel('Tool', { exact: true }).selectOption({ label: 'add_comment (1)' });
  await counted(page, '1 of 2');
  await matches(() => page.url(), /[?&]tool=add_comment/);
  await becomes(() => row(page, 'Filter one').count(), 0);
  // What arrives is counted at once, and shown only if it belongs.
  await gateway.propose('add_comment', { issueId, content: 'Filter three' });
  await gateway.proposeIssue('Filter four');
  await counted(page, '2 of 4');
  await page.getByLabel('Agent').selectOption('filter-bot');
  await counted(page, '1 of 4');
  await page.reload();
  await live(page);
  await counted(page, '1 of 4');
  await becomes(() => page.getByLabel('Tool', { exact: true }).inputValue(), 'add_comment');
  await page.getByRole('button', { name: 'Clear', exact: true }).click();
  await counted(page, /^4$/);
  await holds(() => page.url(), (url) => !url.includes('tool='));
  await page.getByLabel('Age', { exact: true }).selectOption('over-24h');
  await page.getByText('Nothing matches').waitFor();
  await page.getByRole('button', { name: 'Clear the filter' }).click();
  await counted(page, /^4$/);
  assertClean(page);
  await page.context().close();
});

test('the history is filtered and searched by the gateway', async () => {
  const id = await gateway.proposeIssue('Needle in the history');
  await gateway.decide(id, 'reject');
  const page = await dashboard(browser, gateway, { route: '/#/history?state=rejected' });
  await row(page, 'Needle in the history').waitFor();
  const asked = page.waitForRequest((r) => r.url().includes('/api/changes?') && r.url().includes('q=needle'));
  await page.getByRole('searchbox').fill('needle');
  await asked;
  await counted(page, /^1$/);
  await focused(page, '[type=search]', 'the keyboard stays where one writes');
  await matches(() => page.url(), /state=rejected/);
  await matches(() => page.url(), /q=needle/);
  await page.getByRole('searchbox').fill('no such thing');
  await page.getByText('Nothing matches').waitFor();
  assertClean(page);
  await page.context().close();
});

test('a link to a change opens it, wherever it stands', async () => {
  const id = await gateway.proposeIssue('Linked from a chat');
  await gateway.decide(id, 'reject', 'Not now');
  const page = await dashboard(browser, gateway, { route: `/#/changes/${id}` });
  await heading(page).filter({ hasText: 'Linked from a chat' }).waitFor();
  await page.locator('.outcome', { hasText: 'Not now' }).waitFor();
  assertClean(page);
  await page.context().close();
});

test('what one agent asks for with one tool stands together, and duplicates are marked', async () => {
  const key = gateway.key('agent', 'group-bot');
  for (const n of [1, 2, 3]) await gateway.proposeIssue(`Grouped ${n}`, {}, { key });
  const page = await dashboard(browser, gateway);
  const head = page.locator('.group-row', { hasText: 'group-bot' });
  await head.waitFor();
  await becomes(() => head.locator('.group-count').innerText(), '3');
  await becomes(() => head.getAttribute('aria-expanded'), 'true');
  await head.click();
  await row(page, 'Grouped 1').waitFor({ state: 'detached' });
  await head.click();
  await row(page, 'Grouped 1').waitFor();
  await gateway.proposeIssue('Grouped 3', {}, { key });
  await page.locator('.row', { hasText: 'Grouped 3' }).locator('.badge', { hasText: 'Duplicate' }).waitFor();
  await becomes(() => head.locator('.group-count').innerText(), '4');
  // j passes over the head, and the duplicate says whose duplicate it is.
  await open(page, 'Grouped 3');
  await page.locator('.banner.duplicate').getByRole('link').click();
  await page.locator('.banner.duplicate').waitFor({ state: 'detached' });
  await page.keyboard.press('c');
  await row(page, 'Grouped 1').waitFor({ state: 'detached' });
  await page.goto(`${gateway.url}/#/inbox?group=none`);
  await head.waitFor({ state: 'detached' });
  assertClean(page);
  await page.context().close();
});

test('a flood is closed until somebody walks into it', async () => {
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

test('only what was opened is decided together, each result is shown', async () => {
  const key = gateway.key('agent', 'bulk-bot');
  const ids = [];
  for (const n of [1, 2, 3]) ids.push(await gateway.proposeIssue(`Bulk ${n}`, {}, { key }));
  const page = await dashboard(browser, gateway);
  await open(page, 'Bulk 3');
  await page.keyboard.press('x');
  await page.locator('.bulk', { hasText: '1 selected' }).waitFor();
  // Not opened: it is refused, and said why.
  await row(page, 'Bulk 1').locator('xpath=..').locator('.pick').click();
  await page.locator('.notice', { hasText: 'Open it first' }).waitFor();
  await page.locator('.bulk', { hasText: '1 selected' }).waitFor();
  await open(page, 'Bulk 2');
  await page.keyboard.press('x');
  await open(page, 'Bulk 1');
  await page.keyboard.press('x');
  await page.locator('.bulk', { hasText: '3 selected' }).waitFor();
  const asked = page.waitForRequest((r) => r.url().endsWith('/api/decisions'));
  // Somebody else is faster with one of them, and this page does not hear of it in time.
  await page.route('**/api/decisions', async (route) => {
    await gateway.decide(ids[1], 'reject', 'Faster');
    await route.continue();
  });
  await page.keyboard.press('a');
  const dialog = page.getByRole('dialog', { name: 'Approve 3 changes?' });
  await becomes(() => dialog.locator('.bulk-list li').count(), 3);
  await dialog.getByLabel('Comment').fill('All read');
  await dialog.getByRole('button', { name: 'Approve 3 changes' }).click();
  const sent = (await asked).postDataJSON();
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

test('what alters after it was picked is picked no more', async () => {
  const id = await gateway.proposeIssue('Picked and altered');
  const page = await dashboard(browser, gateway);
  await open(page, 'Picked and altered');
  await page.keyboard.press('x');
  await page.locator('.bulk', { hasText: '1 selected' }).waitFor();
  await gateway.decide(id, 'reject');
  await page.locator('.notice', { hasText: 'no longer selected' }).waitFor();
  await page.locator('.bulk').waitFor({ state: 'hidden' });
  assertClean(page);
  await page.context().close();
});

test('notifications are asked for with a click only, and tell of what waits', async () => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  await context.grantPermissions(['notifications'], { origin: gateway.url });
  const page = await newPage(browser, gateway, { context });
  await page.addInitScript(() => {
    window.asked = 0;
    window.told = [];
    const ask = Notification.requestPermission.bind(Notification);
    window.Notification = class {
      static permission = Notification.permission;
      static requestPermission() {
        window.asked += 1;
        return ask();
      }
      constructor(title, options) {
        window.told.push([title, options.body]);
        window.lastNotification = this;
      }
      close() {}
    };
    // A page of a test never loses the focus by itself.
    document.hasFocus = () => false;
  });
  await signIn(page, gateway);
  await gateway.proposeIssue('Silent still');
  await row(page, 'Silent still').waitFor();
  await becomes(() => page.evaluate(() => [window.asked, window.told]), [0, []]);
  await page.getByRole('button', { name: 'Notify me of new changes' }).click();
  await page.getByRole('button', { name: 'Notifications are on' }).waitFor();
  await becomes(() => page.evaluate(() => window.asked), 1);
  const id = await gateway.proposeIssue('Told \u202E of');
  await eventually('a notification', () => page.evaluate(() => window.told.length === 1));
  const [[title, body]] = await page.evaluate(() => window.told);
  assert.match(title, /A change is waiting for review/);
  assert.match(body, /Told/);
  assert.doesNotMatch(body, /\u202E/);
  await page.evaluate(() => window.lastNotification.onclick());
  await heading(page).filter({ hasText: 'Told' }).waitFor();
  await holds(() => page.url(), (url) => url.includes(id));
  // A burst is one.
  await Promise.all([1, 2, 3].map((n) => gateway.proposeIssue(`Told in a burst ${n}`)));
  await eventually('one more', () => page.evaluate(() => window.told.length >= 2));
  await pause(1200);
  const told = await page.evaluate(() => window.told.map(([t]) => t));
  assert.ok(told.length < 4, String(told));
  assertClean(page);
  await context.close();
});
