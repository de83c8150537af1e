// Tests plans: the inbox shows their changes together, and their page decides on all of them once they were seen.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertAccessible, assertClean, becomes, dashboard, fitsScreen, focused, launch, matches, readAll, row, screenshot } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

const DESCRIPTION = Array.from({ length: 60 }, (_, n) => `Line ${n + 1}`).join('\n');

let browser;
let gateway;
before(async () => {
  browser = await launch();
  gateway = await Gateway.start({});
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

/** Proposes a plan of issues with these titles, and returns its id. */
async function propose(title, titles, at = gateway) {
  const projectId = await at.project();
  const calls = titles.map((name) => ({ name: 'create_issue', arguments: { projectId, title: name, type: 'Bug', description: DESCRIPTION } }));
  return (await at.tool('propose_plan', { title, reason: 'because <b>they</b> belong together', calls })).structuredContent.planId;
}

const plan = async (id, at = gateway) => (await at.api(`plans/${id}`)).value;
const decision = (page, name) => page.locator('.plan-decision').getByRole('button', { name });

test('a plan is opened from the inbox and approved once all was seen', async () => {
  const id = await propose('Three issues', ['First of the plan', 'Second of the plan', 'Third of the plan']);
  const page = await dashboard(browser, gateway, {});
  await page.locator('.group-row', { hasText: 'Plan: Three issues' }).waitFor();
  await row(page, 'Second of the plan').locator('.badge', { hasText: 'Step 2' }).waitFor();
  await page.getByRole('link', { name: 'Open plan' }).click();
  await page.getByRole('heading', { name: 'Plan: Three issues' }).waitFor();
  await page.locator('.plan-reason', { hasText: 'because <b>they</b> belong together' }).waitFor();
  await becomes(() => page.locator('.list-contents li').count(), 3);
  await becomes(() => page.locator('.list-marks > .quiet').first().innerText(), 'tracker / create_issue');
  await page.locator('.list-item', { hasText: 'Line 60' }).first().waitFor();
  await decision(page, 'Approve all').waitFor();
  // Nobody has read the steps yet.
  await becomes(() => decision(page, 'Approve all').isDisabled(), true);
  await screenshot(page, 'plan-unseen');
  // A step that somebody else has approved is not among those to read.
  await gateway.decide((await plan(id)).changes[0].id, 'approve', 'fine', gateway.key('reviewer', 'bob'));
  await matches(() => page.locator('.list-progress').innerText(), /^\d of 2 steps seen to the end\.$/);
  await page.locator('.list-item').nth(1).locator('.list-end').evaluate((end) => end.scrollIntoView({ block: 'center' }));
  await page.locator('.list-contents li').nth(1).locator('[aria-current]').waitFor();
  // A click would scroll to the end of the page first, where the last step is seen and the button goes.
  await decision(page, 'Go to the next one').dispatchEvent('click');
  await becomes(() => page.evaluate(() => document.activeElement.textContent), '3. Create Bug “Third of the plan” in CORE');
  await page.locator('.list-contents li').nth(2).locator('[aria-current]').waitFor();
  await readAll(page);
  await page.locator('.list-progress', { hasText: 'You have seen all of them.' }).waitFor();
  await screenshot(page, 'plan-seen');
  await decision(page, 'Approve all').click();
  await becomes(async () => (await plan(id)).changes.map(({ state }) => state), ['applied', 'applied', 'applied']);
  await becomes(() => page.locator('.list-item .badge.state', { hasText: 'Applied' }).count(), 3);
  await becomes(() => page.locator('.plan-decision').isVisible(), false);
  await becomes(() => page.locator('.list-progress').isVisible(), false, 'nothing has to be read any more');
  assertClean(page);
  await page.context().close();
});

test('a plan is rejected as a whole, and an open step leads to its plan', async () => {
  const id = await propose('Two issues', ['One to reject', 'Another to reject']);
  const page = await dashboard(browser, gateway, {});
  await row(page, 'One to reject').first().click();
  await page.locator('.in-plan', { hasText: 'Step 1 of the plan “Two issues”' }).getByRole('link', { name: 'Open the plan' }).click();
  await page.getByRole('button', { name: 'at the end of the page' }).click();
  await focused(page, '.plan-decision');
  await page.locator('#plan-comment').fill('Not now');
  await decision(page, 'Reject plan').click();
  // The first press asks, and what was typed is kept.
  const dialog = page.getByRole('dialog', { name: 'Reject the plan?' });
  await becomes(() => dialog.locator('#bulk-comment').inputValue(), 'Not now');
  await becomes(() => dialog.locator('.bulk-list li').count(), 2);
  await screenshot(page, 'plan-reject');
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  assert.ok((await plan(id)).changes.every(({ state }) => state === 'pending'), 'nothing is decided yet');
  await decision(page, 'Reject plan').click();
  await dialog.locator('#bulk-comment').fill('Not now, please');
  await dialog.getByRole('button', { name: 'Reject plan' }).click();
  await dialog.getByText('All 2 changes decided.').waitFor();
  await dialog.locator('.sheet-foot').getByRole('button', { name: 'Close' }).click();
  await page.locator('.banner', { hasText: 'The plan has stopped' }).waitFor();
  await becomes(async () => (await plan(id)).changes.every(({ state }) => state === 'rejected' || state === 'withdrawn'), true);
  assert.equal((await plan(id)).changes[0].decisions[0].comment, 'Not now, please');
  assertClean(page);
  await page.context().close();
});

test('a rejection of a plan that was updated meanwhile is refused', async () => {
  const id = await propose('Updated issues', ['One to update', 'One to keep']);
  const page = await dashboard(browser, gateway, { route: `/#/plans/${id}` });
  await decision(page, 'Reject plan').click();
  const { changes: [{ id: changed, version, arguments: args }] } = await plan(id);
  await gateway.api(`changes/${changed}/edit`, { body: { version, arguments: { ...args, title: 'Updated while asked' } } });
  const dialog = page.getByRole('dialog', { name: 'Reject the plan?' });
  await dialog.getByRole('button', { name: 'Reject plan' }).click();
  await dialog.getByText('0 of 2 decided.').waitFor();
  await dialog.locator('.sheet-foot').getByRole('button', { name: 'Close' }).click();
  await page.locator('.list-item', { hasText: 'Updated while asked' }).waitFor();
  assert.ok((await plan(id)).changes.every(({ state }) => state === 'pending'), 'nothing is decided');
  assertClean(page, /status of 409/);
  await page.context().close();
});

test('an approved plan is stopped before it runs', async (t) => {
  // Nothing runs while an approval can be undone.
  const undoing = await Gateway.start({ review: { undoFor: 600 } });
  t.after(() => undoing.end());
  const id = await propose('Issues to stop', ['One to stop', 'Another to stop'], undoing);
  const page = await dashboard(browser, undoing, { route: `/#/plans/${id}` });
  await readAll(page);
  await decision(page, 'Approve all').click();
  await decision(page, 'Stop plan').waitFor();
  await page.locator('.outcome-head', { hasText: 'Runs when all steps of the plan are approved and the earlier ones have run.' }).first().waitFor();
  await page.goto(`${undoing.url}/#/inbox/${(await plan(id, undoing)).changes[0].id}`);
  await page.locator('footer.decision', { hasText: 'have run. The time to undo ends in' }).waitFor();
  await page.goto(`${undoing.url}/#/plans/${id}`);
  await decision(page, 'Stop plan').waitFor();
  await screenshot(page, 'plan-stop');
  await decision(page, 'Stop plan').click();
  const dialog = page.getByRole('dialog', { name: 'Stop the plan?' });
  await dialog.getByRole('button', { name: 'Stop plan' }).click();
  await dialog.getByText('All 2 changes decided.').waitFor();
  await dialog.locator('.sheet-foot').getByRole('button', { name: 'Close' }).click();
  await page.locator('.banner', { hasText: 'The plan has stopped' }).waitFor();
  await becomes(async () => (await plan(id, undoing)).changes.map(({ state }) => state), ['withdrawn', 'withdrawn']);
  await becomes(() => page.locator('.plan-decision').isVisible(), false);
  assertClean(page);
  await page.context().close();
});

test('an unknown plan is named in place of the last one', async () => {
  const id = await propose('Known plan', ['Known step']);
  const page = await dashboard(browser, gateway, { route: `/#/plans/${id}` });
  await page.locator('.list-item', { hasText: 'Known step' }).waitFor();
  await page.evaluate(() => { location.hash = '#/plans/plan_none'; });
  const alert = page.getByRole('alert').filter({ hasText: 'There is no plan plan_none' });
  await alert.getByText('It may have been removed after its retention period.').waitFor();
  await becomes(() => alert.getByRole('button', { name: 'Try again' }).count(), 0);
  await becomes(() => page.locator('.change-list, .plan-decision').filter({ visible: true }).count(), 0);
  await alert.getByRole('link', { name: 'Go to the inbox' }).click();
  await row(page, 'Known step').first().waitFor();
  assertClean(page, /status of 404/);
  await page.context().close();
});

for (const [name, options] of [['light', {}], ['dark', { dark: true }], ['small', { width: 360, height: 740 }]]) {
  test(`the page of a plan is accessible and fits the screen, ${name}`, async () => {
    const id = await propose(`Looks ${name}`, ['A title that is quite long, so that it needs more than one line on a small screen', 'A short title']);
    const page = await dashboard(browser, gateway, { ...options, route: `/#/plans/${id}`, bypassCSP: true });
    await page.locator('.list-item').nth(1).waitFor();
    await fitsScreen(page, 'the plan is wider than the screen');
    await assertAccessible(page);
    await screenshot(page, `plan-${name}`);
    assertClean(page);
    await page.context().close();
  });
}
