// Tests signing in and out with keys and links, refusals, and what the browser stores.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertClean, becomes, dashboard, exposeModules, focused, holds, launch, live, newPage, row, signIn, status, waitForNotice } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

let browser;
let gateway;
before(async () => {
  browser = await launch();
  gateway = await Gateway.start();
  await gateway.proposeIssue('Waits behind the sign-in');
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

/** Ends the sign-in of the page, which notices it on the way to the history, and signs in again. */
async function signInAgain(page) {
  await page.context().clearCookies();
  // The address is used because the links disappear if the page notices the end first.
  await page.evaluate(() => { location.hash = '#/history'; });
  await page.getByText('sign-in has ended').waitFor();
  await page.getByLabel('Access key').fill(gateway.key('reviewer', 'alice'));
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'History' }).waitFor();
}

test('without a credential the page shows only how to get one', async () => {
  const page = await newPage(browser, gateway);
  await page.goto(`${gateway.url}/#/inbox`);
  await page.getByRole('heading', { name: 'Countersign' }).waitFor();
  await page.getByText('countersign keys create --role reviewer --name you').waitFor();
  await page.getByText('countersign open').first().waitFor();
  await focused(page, '#key');
  await becomes(() => page.getByText('Waits behind').count(), 0);
  assert.equal(await page.evaluate(async () => (await fetch('/api/changes')).status), 401);
  assertClean(page, status(401));
  await page.context().close();
});

test('a key signs in without being stored, and the cookie alone grants nothing', async () => {
  const page = await newPage(browser, gateway);
  const key = gateway.key('reviewer', 'alice');
  await signIn(page, gateway, key);
  await row(page, 'Waits behind the sign-in').waitFor();
  await becomes(() => page.locator('.me-name').innerText(), 'alice');
  await becomes(() => page.locator('.me-role').innerText(), 'reviewer');
  const kept = await page.evaluate(() => JSON.stringify([{ ...sessionStorage }, { ...localStorage }, document.cookie]));
  assert.ok(!kept.includes(key));
  const [cookie] = (await page.context().cookies()).filter((c) => c.name === 'countersign_session');
  assert.equal(cookie.httpOnly, true);
  assert.equal(cookie.sameSite, 'Strict');
  assert.equal(await page.evaluate(async () => (await fetch('/api/changes')).status), 401);
  await page.reload();
  await live(page);
  assertClean(page, status(401));
  await page.context().close();
});

test('a wrong key and an agent’s key are refused with a reason', async () => {
  const page = await newPage(browser, gateway);
  await page.goto(gateway.url);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByText('Paste a key first').waitFor();
  await page.getByLabel('Access key').fill('not-a-key');
  await page.keyboard.press('Enter');
  await page.getByText('not known here').waitFor();
  await page.getByLabel('Access key').fill(gateway.key('agent', 'robot'));
  await page.keyboard.press('Enter');
  await page.getByText('This key is for agents').waitFor();
  assertClean(page, status(401), status(403));
  await page.context().close();
});

test('a link signs in once, and its code leaves the address at once', async () => {
  const link = gateway.link();
  const page = await newPage(browser, gateway);
  await page.goto(link);
  await live(page);
  await row(page, 'Waits behind the sign-in').waitFor();
  await holds(() => page.url(), (url) => !url.includes('code='));
  await holds(() => page.evaluate(() => history.length), (n) => n <= 2);
  await page.context().close();

  const again = await newPage(browser, gateway);
  await again.goto(link);
  await again.getByText('This link has already been used').waitFor();
  await holds(() => again.url(), (url) => !url.includes('code='));
  assertClean(again, status(401));
  // The whole link can be pasted too.
  await again.getByLabel('Access key').fill(gateway.link());
  await again.getByRole('button', { name: 'Sign in' }).click();
  await live(again);
  await again.context().close();
});

test('signing out forgets the secret and ends the session at the gateway', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/history' });
  const secret = await holds(() => page.evaluate(() => sessionStorage.getItem('countersign.secret')), Boolean);
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByLabel('Access key').waitFor();
  await becomes(() => page.evaluate(() => sessionStorage.getItem('countersign.secret')), null);
  assert.equal(await page.evaluate(async (s) => (await fetch('/api/me', { headers: { 'X-Countersign-Secret': s } })).status, secret), 401);
  await becomes(() => page.getByText('Waits behind').count(), 0);
  assertClean(page, status(401));
  await page.context().close();
});

test('tabs share a sign-in and a sign-out', async () => {
  const first = await dashboard(browser, gateway);
  const second = await newPage(browser, gateway, { context: first.context() });
  await second.goto(gateway.url);
  await live(second);
  await second.getByRole('button', { name: 'Sign out' }).click();
  await first.getByText('signed out in another tab').waitFor();
  assertClean(first, status(401));
  assertClean(second, status(401));
  await first.context().close();
});

test('a link of somebody else asks before it replaces the sign-in of all tabs', async () => {
  const first = await newPage(browser, gateway);
  await exposeModules(first);
  await signIn(first, gateway);
  const second = await newPage(browser, gateway, { context: first.context() });
  const names = () => Promise.all([first, second].map((page) => page.locator('.me-name').innerText()));
  const dialog = second.getByRole('dialog', { name: 'Sign in as somebody else?' });
  await second.goto(gateway.link());
  await dialog.locator('p', { hasText: 'You are signed in as alice' }).waitFor();
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await becomes(names, ['alice', 'alice']);
  await first.evaluate(() => window.load('js/core/announce.js').notice('Only for alice', { tone: 'red' }));
  await second.goto(gateway.link());
  await dialog.getByRole('button', { name: 'Sign in' }).click();
  await holds(names, ([one, other]) => one === other && one !== 'alice');
  await becomes(() => first.locator('.notice').count(), 0);
  await live(first);
  await live(second);
  assertClean(first, status(401), status(403));
  assertClean(second, status(401), status(403));
  await first.context().close();
});

test('only a link that can still be used asks, in one dialog', async () => {
  const page = await dashboard(browser, gateway);
  const elsewhere = await newPage(browser, gateway);
  const dialogs = page.locator('dialog[open]');
  const use = async (link) => {
    await elsewhere.goto('about:blank');
    await elsewhere.goto(link);
    await live(elsewhere);
  };
  const links = [gateway.link(), gateway.link(), gateway.link()];
  await use(links[0]);
  await page.goto(links[0]);
  await waitForNotice(page, 'This link has already been used');
  await becomes(() => dialogs.count(), 0);
  for (const link of links.slice(1)) {
    const refused = page.waitForResponse((response) => response.url().endsWith('/api/sign-in') && response.status() === 403);
    await page.goto(link);
    await refused;
    await dialogs.locator('p', { hasText: 'You are signed in as alice' }).waitFor();
    await becomes(() => page.locator('dialog').count(), 1);
  }
  await use(links[2]);
  await dialogs.getByRole('button', { name: 'Sign in' }).click();
  await dialogs.getByText('This sign-in has expired or was finished elsewhere').waitFor();
  await becomes(() => page.locator('.me-name').innerText(), 'alice');
  assertClean(page, status(401), status(403));
  await elsewhere.context().close();
  await page.context().close();
});

test('a tab that answers late still shares its sign-in', async () => {
  const first = await dashboard(browser, gateway);
  await first.evaluate(() => {
    const post = BroadcastChannel.prototype.postMessage;
    window.held = [];
    BroadcastChannel.prototype.postMessage = function (message) { window.held.push(() => post.call(this, message)); };
  });
  const second = await newPage(browser, gateway, { context: first.context() });
  await second.goto(gateway.url);
  await second.getByLabel('Access key').waitFor();
  await first.waitForFunction(() => window.held.length > 0);
  await first.evaluate(() => window.held.forEach((send) => send()));
  await live(second);
  assertClean(second, status(401));
  await first.context().close();
});

test('a late answer to an ended sign-in does not end the next one', async () => {
  const page = await dashboard(browser, gateway);
  const { promise: isSignedIn, resolve: release } = Promise.withResolvers();
  await page.route('**/api/audit?*', async (route) => {
    await isSignedIn;
    await route.fulfill({ status: 401, headers: { 'Content-Type': 'application/problem+json' }, body: '{"code":"UNAUTHORIZED","status":401}' });
  });
  const asked = page.waitForRequest('**/api/audit?*');
  await page.evaluate(() => { location.hash = '#/audit'; });
  await asked;
  await signInAgain(page);
  const answered = page.waitForResponse('**/api/audit?*');
  release();
  await (await answered).finished();
  await page.evaluate(() => new Promise((resolve) => setTimeout(resolve)));
  await becomes(() => page.getByText('sign-in has ended').count(), 0);
  await becomes(() => page.getByRole('heading', { name: 'History' }).count(), 1);
  assertClean(page, status(401));
  await page.context().close();
});

test('after an ended sign-in the user returns to the same view', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/audit' });
  await signInAgain(page);
  assertClean(page, status(401));
  await page.context().close();
});

test('after too many attempts the page shows how long to wait', async () => {
  const page = await newPage(browser, gateway);
  await page.goto(gateway.url);
  await page.route('**/api/sign-in', (route) => route.fulfill({ status: 429, headers: { 'Retry-After': '42', 'Content-Type': 'application/problem+json' }, body: '{"code":"RATE_LIMITED","status":429}' }));
  await page.getByLabel('Access key').fill('anything');
  await page.keyboard.press('Enter');
  await page.getByText('Try again in 42 s').waitFor();
  assertClean(page, status(429));
  await page.context().close();
});
