// Tests the page of standing rules: their state, creator and origin, and revoking them.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertClean, becomes, dashboard, holds, launch, matches, pressTogether, status, waitForNotice } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

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

async function rule(title, { by = 'rest-reviewer', ...more } = {}) {
  const id = await gateway.proposeIssue(title);
  const { status: code, value } = await gateway.api(`changes/${id}/rule`, { key: gateway.key('reviewer', by), body: { verdict: 'allow', arguments: 'exact', principal: 'same', for: 3600, ...more } });
  assert.equal(code, 200, JSON.stringify(value));
  return value;
}
const card = (page, text) => page.locator('.rule', { hasText: text });

test('an empty list of rules explains how to create one', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/rules' });
  await page.getByText('No standing rules').waitFor();
  await page.getByText('Create standing rule…').first().waitFor();
  assertClean(page);
  await page.context().close();
});

test('a new rule appears with its scope, expiry and origin', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/inbox' });
  await pressTogether(page, 'gr');
  await page.getByText('No standing rules').waitFor();
  const created = await rule('Allowed for an hour', { comment: 'It is the nightly job' });
  const allow = card(page, 'It is the nightly job');
  await allow.waitFor();
  const text = () => allow.innerText();
  await matches(text, /Allows\s+create_issue/);
  await matches(text, /Calls by local-agent with exactly these arguments run without review\./);
  await matches(text, /in (\d+ min|1 h)/);
  await matches(text, /never/);
  await matches(text, /rest-reviewer/);
  await allow.getByText('Arguments', { exact: true }).click();
  await matches(() => allow.locator('.json').innerText(), /"title": "Allowed for an hour"/);
  const never = await rule('Never again', { verdict: 'deny', arguments: 'any', principal: 'any', for: undefined });
  const deny = card(page, 'by any agent with any arguments are denied');
  await deny.getByText('revoked', { exact: true }).waitFor();
  await becomes(() => allow.locator('details').evaluate((e) => e.open), true, 'an open fold stays open');
  await gateway.api(`rules/${never.id}/revoke`, { body: {} });
  await deny.waitFor({ state: 'detached' });
  await allow.getByRole('link', { name: 'the change' }).click();
  await page.locator('article h2', { hasText: 'Allowed for an hour' }).waitFor();
  await holds(() => page.url(), (url) => url.endsWith(`#/history/${created.fromChange}`));
  assertClean(page);
  await page.context().close();
});

test('a reviewer revokes a rule with a comment, and an error is explained', async () => {
  const created = await rule('To be taken back', { arguments: 'exact', comment: 'Take me back' });
  const page = await dashboard(browser, gateway, { route: `/#/rules/${created.id}` });
  await page.locator('.rule.chosen', { hasText: 'Take me back' }).waitFor();
  await card(page, 'Take me back').getByRole('button', { name: 'Revoke' }).click();
  const dialog = page.getByRole('dialog', { name: 'Revoke this rule?' });
  await dialog.getByText('by local-agent with exactly these arguments').waitFor();
  await dialog.getByLabel('Comment').fill('The job is gone');
  // Another reviewer revokes it first.
  const { status: code } = await gateway.api(`rules/${created.id}/revoke`, { body: {} });
  assert.equal(code, 200);
  await dialog.getByRole('button', { name: 'Revoke the rule' }).click();
  await dialog.getByText('has already ended').waitFor();
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  await page.getByRole('button', { name: /Ended/ }).click();
  await card(page, 'Take me back').getByText('by rest-reviewer').first().waitFor();
  await page.getByRole('button', { name: /In force/ }).click();
  const again = await rule('To be taken back too', { comment: 'Me too' });
  await card(page, 'Me too').getByRole('button', { name: 'Revoke' }).click();
  await dialog.getByRole('button', { name: 'Revoke the rule' }).click();
  await waitForNotice(page, 'Rule revoked');
  await card(page, 'Me too').waitFor({ state: 'detached' });
  const now = (await gateway.api('rules')).value.rules.find((r) => r.id === again.id);
  assert.equal(now.revokedBy, 'alice');
  assertClean(page, status(409));
  await page.context().close();
});
