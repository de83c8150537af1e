// Tests triage with the keyboard only.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { armed, assertClean, becomes, button, dashboard, focused, heading, launch, matches, open, pressTogether, row } from './lib/browser.mjs';
import { Gateway, pause } from './lib/gateway.mjs';

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

test('j and k move, a approves, r opens the comment, Escape cancels', async () => {
  const ids = [];
  for (const n of [1, 2, 3]) ids.push(await gateway.proposeIssue(`Triage ${n}`));
  const page = await dashboard(browser, gateway);
  await heading(page).filter({ hasText: 'Triage 3' }).waitFor();
  await page.keyboard.press('j');
  await heading(page).filter({ hasText: 'Triage 2' }).waitFor();
  await page.keyboard.press('k');
  await heading(page).filter({ hasText: 'Triage 3' }).waitFor();
  // The first change opened by itself, so presses are blocked for a moment.
  await armed(page);
  await page.keyboard.press('a');
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  await page.keyboard.press('j');
  await heading(page).filter({ hasText: 'Triage 2' }).waitFor();
  await page.keyboard.press('r');
  await focused(page, '#comment');
  await page.keyboard.type('a j k r are letters here');
  await page.keyboard.press('Escape');
  assert.equal((await gateway.change(ids[1])).state, 'pending');
  await page.keyboard.press('Escape');
  await page.keyboard.press('r');
  await page.keyboard.press('Control+Enter');
  await page.locator('.outcome', { hasText: 'Rejected' }).waitFor();
  const { decisions } = await gateway.change(ids[1]);
  assert.equal(decisions[0].comment, 'a j k r are letters here');
  assertClean(page);
  await page.context().close();
});

test('a decision keeps the focus on the change, also if it fails', async () => {
  for (const n of [1, 2]) await gateway.proposeIssue(`Focus ${n}`);
  const page = await dashboard(browser, gateway);
  await open(page, 'Focus 1');
  await armed(page);
  await page.route('**/decision', (route) => route.abort());
  await button(page, 'Approve').focus();
  await page.keyboard.press('Enter');
  await page.locator('.decision-error').waitFor();
  await focused(page, '[data-act=approve]');
  await page.unroute('**/decision');
  await page.keyboard.press('Enter');
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  await focused(page, 'article h2');
  await open(page, 'Focus 2');
  await armed(page);
  await page.keyboard.press('r');
  await focused(page, '#comment');
  await page.keyboard.press('Control+Enter');
  await page.locator('.outcome', { hasText: 'Rejected' }).waitFor();
  await focused(page, 'article h2');
  assertClean(page, /ERR_FAILED/);
  await page.context().close();
});

test('shortcuts filter, show help, switch views and move the focus', async () => {
  const page = await dashboard(browser, gateway);
  await gateway.proposeIssue('Alpha needle');
  await gateway.proposeIssue('Beta hay');
  await row(page, 'Beta hay').waitFor();
  await page.keyboard.press('/');
  await page.keyboard.type('needle');
  await row(page, 'Beta hay').waitFor({ state: 'detached' });
  await page.keyboard.press('ArrowDown');
  await focused(page, '.row');
  await page.keyboard.press('Enter');
  await heading(page).filter({ hasText: 'Alpha needle' }).waitFor();
  await page.keyboard.press('/');
  await page.keyboard.press('Escape');
  await row(page, 'Beta hay').waitFor();

  await page.keyboard.press('Escape');
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press('?');
  const dialog = page.getByRole('dialog', { name: 'Keyboard shortcuts' });
  await dialog.waitFor();
  await page.keyboard.press('a');
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  for (const [keys, title] of [['gh', 'History'], ['ga', 'Audit'], ['gs', 'Sessions'], ['gv', 'Servers'], ['gw', 'Webhooks'], ['gi', 'Inbox']]) {
    await pressTogether(page, keys);
    await page.getByRole('heading', { name: title, level: 1 }).waitFor();
    await focused(page, 'h1', 'the focus moves to the view');
    await matches(() => page.title(), new RegExp(title));
  }
  await page.keyboard.press('o');
  await focused(page, 'article h2', 'o moves the focus to the change');
  await page.keyboard.press('Tab');
  await focused(page, 'article *');
  assertClean(page);
  await page.context().close();
});

test('single characters can be turned off and on again in the help', async () => {
  const id = await gateway.proposeIssue('Not by a letter');
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${id}` });
  const decisions = [];
  page.on('request', (request) => request.url().endsWith('/decision') && decisions.push(request.url()));
  const dialog = page.getByRole('dialog', { name: 'Keyboard shortcuts' });
  const choice = dialog.getByLabel('Use single characters as shortcuts in this browser');
  await armed(page);
  await page.keyboard.press('?');
  await choice.uncheck();
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  await page.locator('[data-act=approve] kbd').waitFor({ state: 'hidden' });
  await page.reload();
  await armed(page);
  await becomes(() => page.locator('[aria-keyshortcuts]:not(textarea)').count(), 0);
  await page.keyboard.press('a');
  await page.keyboard.press('?');
  await choice.waitFor();
  assert.deepEqual(decisions, []);
  await choice.check();
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  await armed(page);
  await page.keyboard.press('a');
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  assertClean(page);
  await page.context().close();
});

test('arrows move in the list, and only one row is a tab stop', async () => {
  for (const n of [1, 2]) await gateway.proposeIssue(`Arrow ${n}`);
  const page = await dashboard(browser, gateway);
  await row(page, 'Arrow 2').waitFor();
  await becomes(() => page.locator('.row[tabindex="0"]').count(), 1);
  await page.locator('.row[tabindex="0"]').focus();
  const before = await heading(page).innerText();
  await page.keyboard.press('ArrowDown');
  await page.waitForFunction((text) => document.querySelector('article h2')?.innerText !== text, before);
  await focused(page, '[aria-current=true]', 'the focus follows');
  await becomes(() => page.locator('.row[tabindex="0"]').count(), 1);
  assertClean(page);
  await page.context().close();
});

test('a held key decides once', async () => {
  const page = await dashboard(browser, gateway);
  const issueId = await gateway.issue('Held key');
  const id = await gateway.propose('delete_issue', { issueId });
  await open(page, 'Held key', id);
  await armed(page);
  await page.keyboard.down('a');
  for (let i = 0; i < 12; i += 1) {
    await pause(80);
    await page.keyboard.down('a');
  }
  await page.keyboard.up('a');
  await page.getByRole('button', { name: 'Approve deletion' }).waitFor();
  assert.equal((await gateway.change(id)).state, 'pending');
  await page.keyboard.press('a');
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  assertClean(page);
  await page.context().close();
});
