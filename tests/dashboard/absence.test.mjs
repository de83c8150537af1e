// Tests absences: the form of the account button, the commands, and deciding as a deputy.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { after, before, test } from 'node:test';
import { binary, environment } from '../clients/gateway.mjs';
import { armed, assertAccessible, assertClean, becomes, button, dashboard, fitsScreen, launch, screenshot } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

let browser;
let gateway;

before(async () => {
  browser = await launch();
  gateway = await Gateway.start({ review: { reviewers: ['dba'] }, groups: { dba: ['alice', 'rest-reviewer'] } });
  for (const [role, name] of [['reviewer', 'alice'], ['reviewer', 'bob'], ['viewer', 'vic'], ['reviewer', 'rest-reviewer']]) gateway.key(role, name);
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

const account = (page) => page.getByRole('button', { name: /^alice/ });
const dialogOf = (page) => page.getByRole('dialog', { name: 'Out of office' });
const people = (name, ...args) => execFileSync(binary, ['people', ...args, '--data', gateway.data], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], env: { ...environment(), COUNTERSIGN_KEY: gateway.key('reviewer', name) } });

test('a deputy who is named in the form decides until the absent person is back', async () => {
  const id = await gateway.proposeIssue('While alice is away');
  const route = `/#/inbox/${id}`;
  const bob = await dashboard(browser, gateway, { key: gateway.key('reviewer', 'bob'), route });
  await bob.getByText('Only members of dba may decide on this change, and you are not a member.').waitFor();
  const alice = await dashboard(browser, gateway);
  await account(alice).click();
  const dialog = dialogOf(alice);
  await dialog.getByText('the groups that list you by name: dba').waitFor();
  await becomes(() => dialog.getByLabel('Deputy').locator('option').allInnerTexts(), ['Choose…', 'bob', 'rest-reviewer']);
  const start = dialog.getByRole('button', { name: 'Start absence' });
  await becomes(() => start.isDisabled(), true, 'a deputy is needed');
  await dialog.getByLabel('Deputy').selectOption('bob');
  await screenshot(alice, 'absence');
  await start.click();
  await dialog.waitFor({ state: 'detached' });
  await account(alice).getByText('Away').waitFor();

  await bob.reload();
  await bob.getByText('You decide as the deputy of alice.').waitFor();
  await becomes(() => bob.locator('.detail-actions [data-act=rule]').count(), 0, 'a deputy creates no rules');
  await screenshot(bob, 'deputy');
  await armed(bob);
  await button(bob, 'Approve').click();
  await bob.locator('.outcome', { hasText: 'Approved by bob for alice' }).waitFor();
  await bob.locator('.timeline', { hasText: /bob approved.* for alice/ }).waitFor();
  assert.equal((await gateway.reaches(id, 'applied')).decisions[0].deputyFor.name, 'alice');

  await alice.reload();
  await account(alice).getByText('Away').waitFor();
  await account(alice).click();
  await dialog.getByText('You are away until').waitFor();
  await screenshot(alice, 'absence-away');
  await dialog.getByRole('button', { name: 'I am back' }).click();
  await dialog.waitFor({ state: 'detached' });
  await becomes(() => account(alice).getByText('Away').count(), 0);
  const later = await gateway.proposeIssue('After alice is back');
  assert.equal((await gateway.decide(later, 'approve', 'Yes', gateway.key('reviewer', 'bob'))).status, 403);
  const { entries } = (await gateway.api('audit?limit=50')).value;
  assert.deepEqual(entries.filter(({ actor }) => actor === 'alice').map(({ event }) => event), ['back', 'away']);
  assertClean(alice);
  assertClean(bob);
  for (const page of [alice, bob]) await page.context().close();
});

test('an absence of somebody whom no group names cannot start', async () => {
  const page = await dashboard(browser, gateway, { key: gateway.key('reviewer', 'bob') });
  await page.getByRole('button', { name: /^bob/ }).click();
  const dialog = dialogOf(page);
  await dialog.getByText('You are not listed by name in any policy group').waitFor();
  await dialog.getByLabel('Deputy').selectOption('alice');
  await becomes(() => dialog.getByRole('button', { name: 'Start absence' }).isDisabled(), true);
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await dialog.waitFor({ state: 'detached' });
  assertClean(page);
  await page.context().close();
});

test('bundles and plans count the vote of a deputy as that of the absent person', async () => {
  const shared = await Gateway.start({ review: { reviewers: ['dba'], quorum: 2 }, groups: { dba: ['alice', 'rest-reviewer'] } });
  const [alice, bob] = ['alice', 'bob'].map((name) => shared.key('reviewer', name));
  const away = (args) => execFileSync(binary, ['people', ...args, '--data', shared.data], { env: { ...environment(), COUNTERSIGN_KEY: alice } });
  away(['away', '--until', '1d', '--deputy', 'bob']);
  const single = [await shared.proposeIssue('First of two'), await shared.proposeIssue('Second of two')];
  const calls = [{ name: 'create_issue', arguments: { projectId: await shared.project(), title: 'A step', type: 'Story' } }];
  const { planId, changes: [step] } = (await shared.tool('propose_plan', { title: 'One step', calls })).structuredContent;
  for (const id of [...single, step.changeId]) assert.equal((await shared.decide(id, 'approve', 'Yes', bob)).status, 200);
  const page = await dashboard(browser, shared, { key: alice, route: `/#/bundles/${single[0]}` });
  await page.getByText('Your deputy has approved this for you.').first().waitFor();
  await becomes(() => page.getByText('Your deputy has approved this for you.').count(), 2);
  await page.goto(`${shared.url}/#/plans/${planId}`);
  await page.locator('.plan-decision').getByText('No step waits for you').waitFor();
  assertClean(page);
  await page.context().close();
  await shared.end();
});

test('the commands set and end an absence', () => {
  assert.match(people('alice', 'away', '--until', '3d', '--deputy', 'BOB'), /^You are away until \S+; until then, bob may decide for dba\.\n$/);
  assert.equal(JSON.parse(people('alice', 'away', '--until', '4d', '--deputy', 'bob', '--json')).absence.deputy, 'bob');
  assert.throws(() => people('alice', 'away', '--until', '61d', '--deputy', 'bob'), /an absence ends within the next 60 days/);
  assert.throws(() => people('alice', 'away', '--until', '3d', '--deputy', 'vic'), /the deputy must be somebody else who/);
  assert.match(people('alice', 'back'), /^You are back\./);
  assert.throws(() => people('alice', 'back'), /you are not away/);
});

for (const [name, options] of [['light', {}], ['dark', { dark: true }], ['360', { width: 360, height: 740 }]]) {
  test(`the form is readable and accessible, ${name}`, async () => {
    const page = await dashboard(browser, gateway, { ...options, bypassCSP: true });
    await account(page).focus();
    await page.keyboard.press('Enter');
    await dialogOf(page).getByLabel('Until').waitFor();
    await assertAccessible(page);
    await fitsScreen(page, 'the page is wider than the screen');
    await screenshot(page, `absence-${name}`);
    await page.keyboard.press('Escape');
    await dialogOf(page).waitFor({ state: 'detached' });
    assertClean(page);
    await page.context().close();
  });
}
