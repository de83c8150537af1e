// Tests that the inbox updates without a reload, even after connections are lost.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { freePort } from '../clients/gateway.mjs';
import { assertClean, becomes, button, dashboard, disconnected, heading, holds, launch, live, newPage, open, row, settles, signIn, status } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';
import { Wire } from './lib/wire.mjs';

let browser;
let gateway;
before(async () => {
  browser = await launch();
  // It is killed and started again on its port.
  gateway = await Gateway.start({ port: await freePort() });
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

test('an empty inbox shows a message, and a new change opens by itself', async () => {
  const page = await dashboard(browser, gateway);
  await page.getByText("You're all caught up").waitFor();
  await becomes(() => page.title(), 'Inbox · Countersign');
  await page.evaluate(() => { window.loadedOnce = true; });

  const id = await gateway.proposeIssue('Arrives by itself', { description: 'One line\nand another' });
  await heading(page).filter({ hasText: 'Arrives by itself' }).waitFor();
  await page.locator('.lines ins', { hasText: 'and another' }).waitFor();
  await button(page, 'Approve').waitFor();
  await becomes(() => page.title(), '(1) Inbox · Countersign');
  await becomes(() => page.locator('nav [data-view=inbox] .count').textContent(), '1 waiting');
  await page.locator('#announcer', { hasText: 'Arrives by itself' }).waitFor({ state: 'attached' });
  await gateway.decide(id, 'reject');
  await becomes(() => page.title(), 'Inbox · Countersign');
  assert.ok(await page.evaluate(() => window.loadedOnce), 'the page was not loaded again');
  assertClean(page);
  await page.context().close();
});

test('a new change does not replace the page of a link that was just followed', async () => {
  const page = await newPage(browser, gateway);
  // Holds the event of the link until `followLink`.
  await page.addInitScript(() => addEventListener('hashchange', (event) => {
    if (!event.isTrusted) return;
    event.stopImmediatePropagation();
    window.followLink = () => dispatchEvent(new Event('hashchange'));
  }));
  await signIn(page, gateway);
  await page.getByText("You're all caught up").waitFor();
  await page.locator('nav').getByRole('link', { name: 'Sessions' }).click();
  const id = await gateway.proposeIssue('Arrives meanwhile');
  await row(page, 'Arrives meanwhile').waitFor();
  await page.evaluate(() => window.followLink());
  await page.getByRole('heading', { name: 'Sessions' }).waitFor();
  await becomes(() => page.url(), `${gateway.url}/#/sessions`);
  await gateway.decide(id, 'reject');
  assertClean(page);
  await page.context().close();
});

test('a new change appears within a second', async () => {
  const page = await dashboard(browser, gateway);
  await page.evaluate(() => {
    window.seen = {};
    new MutationObserver(() => {
      for (const title of document.querySelectorAll('.row-title')) window.seen[title.textContent] ??= Date.now();
    }).observe(document.body, { subtree: true, childList: true });
  });
  // One of many attempts must be that fast, because the machine may be busy.
  const delays = [];
  while (delays.length < 60 && !delays.some((ms) => ms < 1000)) {
    const title = `Timed ${delays.length}`;
    await gateway.proposeIssue(title);
    const answered = Date.now();
    await row(page, title).waitFor();
    delays.push(await page.evaluate((t) => Object.entries(window.seen).find(([text]) => text.includes(t))[1], title) - answered);
  }
  assert.ok(Math.min(...delays) < 1000, `after ${delays} ms`);
  assertClean(page);
  await page.context().close();
});

test('a burst of changes arrives completely, once and in order', async () => {
  const page = await dashboard(browser, gateway);
  // Another change is open, so that the list does not scroll to one of these.
  await heading(page).waitFor();
  const titles = Array.from({ length: 25 }, (_, i) => `Burst ${String(i).padStart(2, '0')}`);
  for (const title of titles) await gateway.proposeIssue(title);
  await page.getByRole('searchbox').fill('burst');
  await row(page, 'Burst 24').waitFor();
  await page.locator('.pane-title', { hasText: '25 of' }).waitFor();
  const order = titles.toReversed();
  const rows = () => page.locator('.row-place').evaluateAll((all) => all.map((r) => [Number(r.getAttribute('aria-posinset')), r.innerText]));
  await settles(rows, (shown) => {
    assert.ok(shown.length > 5);
    for (const [place, text] of shown) assert.ok(text.includes(order[place - 1]), `row ${place} is ${text}`);
  });
  assertClean(page);
  await page.context().close();
});

test('a decision of another reviewer updates the open change', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/inbox?group=none' });
  const id = await gateway.proposeIssue('Decided elsewhere');
  await open(page, 'Decided elsewhere');
  await gateway.decide(id, 'reject', 'Somebody else said no');
  await page.locator('.outcome', { hasText: 'Rejected' }).waitFor();
  await page.locator('.outcome blockquote', { hasText: 'Somebody else said no' }).waitFor();
  await becomes(() => button(page, 'Approve').count(), 0);
  await row(page, 'Decided elsewhere').locator('.badge', { hasText: 'Rejected' }).waitFor();
  // It leaves the list when another change is opened.
  const other = await gateway.proposeIssue('The next one');
  await open(page, 'The next one');
  await row(page, 'Decided elsewhere').waitFor({ state: 'detached' });
  await gateway.decide(other, 'reject');
  assertClean(page);
  await page.context().close();
});

test('after a lost connection no change is missing or duplicated', async (t) => {
  const wire = await Wire.to(gateway.port);
  t.after(() => wire.end());
  const page = await newPage(browser, wire);
  await signIn(page, wire, gateway.key('reviewer', 'alice'), '/#/inbox?group=none');
  const kept = await gateway.proposeIssue('Rejected meanwhile');
  await open(page, 'Rejected meanwhile');
  wire.cut();
  await page.locator('.connection', { hasText: 'Offline' }).waitFor();
  for (const n of [1, 2, 3]) await gateway.proposeIssue(`While away ${n}`);
  await gateway.decide(kept, 'reject');
  await page.locator('.gone', { hasText: 'cannot be reached' }).waitFor();
  wire.mend();
  await live(page);
  await page.locator('.outcome', { hasText: 'Rejected' }).waitFor();
  await open(page, 'While away 1');
  await page.getByRole('searchbox').fill('while away');
  await page.locator('.pane-title', { hasText: '3 of' }).waitFor();
  await page.getByRole('searchbox').fill('');
  await row(page, 'While away 3').waitFor();
  await becomes(() => row(page, 'Rejected meanwhile').count(), 0);
  await becomes(() => page.locator('.gone').isVisible(), false);
  assertClean(page, disconnected);
  await page.context().close();
});

test('a view that was opened while the gateway was away is read again', async (t) => {
  const wire = await Wire.to(gateway.port);
  t.after(() => wire.end());
  await gateway.decide(await gateway.proposeIssue('Decided before'), 'reject');
  const id = await gateway.proposeIssue('Opened while away');
  const page = await newPage(browser, wire);
  await signIn(page, wire, gateway.key('reviewer', 'alice'), '/#/sessions');
  for (const [route, content] of [['audit', '.audit-records'], ['history', '.row-title'], ['overview', '.tile'], [`inbox/${id}`, '.change-id']]) {
    wire.cut();
    await page.locator('.connection', { hasText: 'Offline' }).waitFor();
    await page.evaluate((r) => { location.hash = `#/${r}`; }, route);
    await page.locator('.empty.error').waitFor();
    wire.mend();
    await page.locator(content).first().waitFor();
    await becomes(() => page.locator('.empty.error').count(), 0, route);
  }
  await gateway.decide(id, 'reject');
  assertClean(page, disconnected);
  await page.context().close();
});

test('a view that was loaded before the first connection is read again', async () => {
  const id = await gateway.proposeIssue('Decided before the feed');
  const page = await newPage(browser, gateway);
  const { promise: isDecided, resolve: release } = Promise.withResolvers();
  let attempts = 0;
  await page.route('**/api/events', async (route) => {
    attempts += 1;
    if (attempts === 1) return route.abort();
    await isDecided;
    return route.continue();
  });
  const listed = page.waitForResponse(/api\/changes\?.*rejected/);
  const isLive = signIn(page, gateway, gateway.key('reviewer', 'alice'), '/#/history');
  await (await listed).finished();
  await gateway.decide(id, 'reject');
  release();
  await isLive;
  await row(page, 'Decided before the feed').waitFor();
  assertClean(page, /ERR_FAILED/);
  await page.context().close();
});

test('focus, folds and rows stay in place while events repaint a page', async () => {
  await gateway.decide(await gateway.proposeIssue('Before the repaints'), 'reject');
  await gateway.mcp({ name: 'focus-probe', version: '1' });
  for (const [route, selector, fold] of [['audit', '.audit-records .subject a'], ['sessions', '.records tbody a'], ['policy', '.policy-tools a'], ['overview', '.outcomes a', '.overview details']]) {
    const page = await dashboard(browser, gateway, { route: `/#/${route}` });
    await page.locator(selector).first().focus();
    const href = await page.evaluate(() => document.activeElement.getAttribute('href'));
    if (fold) await page.locator(fold).first().evaluate((details) => { details.open = true; });
    const paints = () => page.evaluate(() => window.paints);
    await page.evaluate((s) => {
      window.paints = 0;
      new MutationObserver(() => { window.paints += 1; }).observe(document.querySelector('.page-body'), { childList: true, subtree: true });
      window.row = document.querySelector(s).closest('tr');
    }, selector);
    await gateway.decide(await gateway.proposeIssue(`Repaints ${route}`), 'reject');
    await gateway.mcp({ name: 'focus-probe-too', version: '1' });
    await holds(paints, (n) => n > 0, route);
    await becomes(() => page.evaluate(() => document.activeElement.getAttribute('href')), href, route);
    if (fold) await becomes(() => page.locator(fold).first().evaluate((details) => details.open), true);
    if (route === 'audit') await becomes(() => page.evaluate(() => window.row.isConnected), true, 'a row is kept');
    assertClean(page);
    await page.context().close();
  }
});

test('an event repairs an audit trail that could not be read', async () => {
  await gateway.decide(await gateway.proposeIssue('Before the failure'), 'reject');
  const page = await dashboard(browser, gateway, { route: '/#/audit' });
  await page.locator('.audit-records').waitFor();
  await page.route('**/api/audit?*', (route) => route.abort());
  await page.goto(`${gateway.url}/#/audit?event=rejected`);
  await page.locator('.empty.error').waitFor();
  await page.unroute('**/api/audit?*');
  await gateway.decide(await gateway.proposeIssue('After the failure'), 'reject');
  await page.locator('.audit-records .subject', { hasText: 'After the failure' }).first().waitFor();
  assertClean(page, /ERR_FAILED/);
  await page.context().close();
});

test('nothing can be decided while the gateway cannot be reached', async (t) => {
  const own = await Gateway.start({ review: { undoFor: 600 } });
  t.after(() => own.end());
  const wire = await Wire.to(own.port);
  t.after(() => wire.end());
  const approved = await own.proposeIssue('Approved before');
  const pending = await own.proposeIssue('Still pending');
  const page = await newPage(browser, wire);
  await signIn(page, wire, own.key('reviewer', 'alice'));
  await open(page, 'Approved before', approved);
  await button(page, 'Approve').click();
  await button(page, 'Undo').waitFor();
  await open(page, 'Still pending', pending);
  const notice = page.locator('.undo:not([hidden])');
  await notice.locator('.undo-left').waitFor();
  const actions = page.locator('footer.decision, .detail-actions, .undo').getByRole('button', { name: /Approve|Reject|Edit|Undo/ });
  const states = () => actions.evaluateAll((all) => all.map((action) => action.disabled));
  await becomes(states, [false, false, false, false]);
  const nav = () => page.locator('.top nav').evaluate((element) => element.getBoundingClientRect().right);
  const width = await nav();
  wire.cut();
  await becomes(states, [true, true, true, true]);
  await becomes(nav, width, 'the navigation stays in place');
  await notice.getByText('The gateway cannot be reached; whether this runs is unknown.').waitFor();
  await becomes(() => notice.locator('.undo-left').isVisible(), false);
  for (const key of ['a', 'r', 'e', 'u']) await page.keyboard.press(key);
  await becomes(() => page.locator('footer.decision').getAttribute('data-mode'), 'idle');
  await becomes(() => page.locator('dialog[open]').count(), 0);
  wire.mend();
  await becomes(states, [false, false, false, false]);
  await notice.locator('.undo-left').waitFor();
  assertClean(page, disconnected);
  await page.context().close();
});

test('an offline footer stays after the time to undo is over', async (t) => {
  const own = await Gateway.start({ review: { undoFor: 600 } });
  t.after(() => own.end());
  const wire = await Wire.to(own.port);
  t.after(() => wire.end());
  const id = await own.proposeIssue('Approved before');
  const page = await newPage(browser, wire);
  await page.clock.install();
  await signIn(page, wire, own.key('reviewer', 'alice'));
  await open(page, 'Approved before', id);
  await button(page, 'Approve').click();
  await button(page, 'Undo').waitFor();
  wire.cut();
  const unknown = page.locator('footer.decision').getByText('whether this runs is unknown');
  await unknown.waitFor();
  await page.locator('.outcome-head', { hasText: 'whether this runs is unknown' }).waitFor();
  await page.clock.fastForward(601_000);
  await becomes(() => button(page, 'Undo').count(), 0);
  await unknown.waitFor();
  assertClean(page, disconnected);
  await page.context().close();
});

test('decisions are possible while only the live feed is interrupted', async () => {
  const id = await gateway.proposeIssue('Decided without the feed');
  const page = await newPage(browser, gateway);
  await page.route('**/api/events', (route) => route.abort());
  await page.goto(`${gateway.url}/#/inbox/${id}`);
  await page.getByLabel('Access key').fill(gateway.key('reviewer', 'alice'));
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.locator('.gone').waitFor();
  await button(page, 'Approve').click();
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  assertClean(page, /ERR_FAILED/);
  await page.context().close();
});

test('the list catches up after the gateway is killed and restarted', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/inbox?group=none' });
  await gateway.proposeIssue('Before the restart');
  await row(page, 'Before the restart').waitFor();
  await gateway.halt('SIGKILL');
  await page.locator('.connection', { hasText: 'Offline' }).waitFor();
  await gateway.run();
  await gateway.proposeIssue('After the restart');
  // The sign-in is still valid.
  await live(page);
  await row(page, 'After the restart').waitFor();
  await becomes(() => row(page, 'Before the restart').count(), 1);
  await becomes(() => row(page, 'After the restart').count(), 1);
  assertClean(page, disconnected);
  await page.context().close();
});

test('ending sign-ins in the terminal signs the browser out', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/inbox' });
  await live(page);
  assert.match(gateway.cli('keys', 'sign-out'), /signed out/);
  await page.getByText('sign-in has ended').waitFor();
  await page.getByLabel('Access key').fill(gateway.key('reviewer', 'alice'));
  await page.getByRole('button', { name: 'Sign in' }).click();
  await live(page);
  assertClean(page, disconnected, status(401));
  await page.context().close();
});

test('the number of sessions tells how many are connected', async () => {
  await gateway.mcp({ name: 'session-left', version: '1' });
  const page = await newPage(browser, gateway);
  await page.route('**/api/sessions?*', async (route) => {
    const answer = await (await route.fetch()).json();
    await route.fulfill({ json: { sessions: answer.sessions.slice(0, 1).map((session) => ({ ...session, connected: false, lastActiveAt: '2026-01-01T00:00:00Z' })), total: 1 } });
  });
  await signIn(page, gateway, undefined, '/#/sessions');
  await becomes(() => page.locator('.page-head .pane-title').innerText(), 'Sessions\n0 of 1 connected');
  await page.unrouteAll({ behavior: 'wait' });
  assertClean(page);
  await page.context().close();
});

test('a new session appears on the sessions page', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/sessions' });
  await gateway.mcp({ name: 'session-probe', version: '3.2.1' });
  await page.locator('.records tr', { hasText: 'session-probe' }).first().waitFor();
  await page.locator('.records tr', { hasText: '2025-11-25' }).first().waitFor();
  assertClean(page);
  await page.context().close();
});
