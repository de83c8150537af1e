// Tests that the page of a change suggests standing rules after five approvals, and that a reviewer creates one from the form.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertClean, becomes, dashboard, fitsScreen, launch, screenshot, waitForNotice } from './lib/browser.mjs';
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

async function approve(title) {
  const id = await gateway.proposeIssue(title);
  await gateway.decide(id, 'approve');
  await gateway.reaches(id, 'applied');
}

test('five approvals suggest a standing rule, and the form is filled in', async () => {
  for (let n = 1; n <= 5; n += 1) await approve(`Nightly report ${n}`);
  const other = await gateway.proposeIssue('A feature', { type: 'Story' });
  const id = await gateway.proposeIssue('Nightly report 6');
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${id}` });
  const suggestions = page.locator('.suggestion');
  await suggestions.first().getByText('would run without review').waitFor();
  await becomes(() => suggestions.count(), 2);
  const first = suggestions.first();
  await first.getByText('type', { exact: true }).waitFor();
  await first.getByText('Approved 5 times, never rejected.').waitFor();
  await first.getByText('It would have matched 6 changes').click();
  await first.getByText('It would not have matched 1 other change of this tool').click();
  await becomes(() => first.locator('a').last().getAttribute('href'), `#/history/${other}`);
  await screenshot(page, 'suggestions', { fullPage: true });
  await first.getByRole('button', { name: 'Fill in this rule…' }).click();
  const dialog = page.getByRole('dialog', { name: 'Create standing rule' });
  await dialog.locator('.rule-sentence', { hasText: 'type equal to "Bug"' }).waitFor();
  await screenshot(page, 'suggestions-form', { fullPage: true });
  assert.deepEqual((await gateway.api('rules')).value.rules, [], 'nothing is created before the form is sent');
  await dialog.getByRole('button', { name: 'Create standing rule' }).click();
  await waitForNotice(page, 'Standing rule created');
  await suggestions.first().waitFor({ state: 'detached' });
  const [rule] = (await gateway.api('rules')).value.rules;
  assert.ok(rule.matching.some(({ argument, equals }) => argument === 'type' && equals === 'Bug'), JSON.stringify(rule));
  const answer = await gateway.tool('create_issue', { projectId: await gateway.project(), title: 'Nightly report 7', type: 'Bug' });
  assert.equal(answer.structuredContent.changeId, undefined, 'it runs without review');
  assert.ok(await gateway.proposeIssue('Another feature', { type: 'Story' }), 'other values still wait');
  assertClean(page);
  await page.context().close();

  const narrow = await dashboard(browser, gateway, { width: 360, dark: true, route: '/#/rules' });
  await narrow.locator('.rule', { hasText: 'type equal to "Bug"' }).waitFor();
  await fitsScreen(narrow);
  await screenshot(narrow, 'suggestions-rule-360', { fullPage: true });
  assertClean(narrow);
  await narrow.context().close();
});

test('a rejection ends the suggestions', async () => {
  const strict = await Gateway.start();
  try {
    for (let n = 1; n <= 5; n += 1) {
      const id = await strict.proposeIssue(`Report ${n}`);
      await strict.decide(id, 'approve');
      await strict.reaches(id, 'applied');
    }
    const id = await strict.proposeIssue('Report 6');
    assert.equal((await strict.api(`changes/${id}/suggestions`)).value.suggestions.length, 2);
    await strict.decide(id, 'reject', 'not this one');
    const next = await strict.proposeIssue('Report 7');
    assert.deepEqual((await strict.api(`changes/${next}/suggestions`)).value.suggestions, []);
    const page = await dashboard(browser, strict, { route: `/#/inbox/${next}` });
    await page.locator('.timeline').waitFor();
    await becomes(() => page.locator('.suggestion').count(), 0);
    assertClean(page);
    await page.context().close();
  } finally {
    await strict.end();
  }
});
