// Tests the page of the policy: its rules in order, what each decided, and the standing rules beside them.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { assertClean, becomes, dashboard, fitsScreen, focused, launch, matches, pressTogether, screenshot, status, waitForNotice } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

const RULES = [
  { name: 'no-deletions', tools: ['delete_*', 'erase_*'], then: 'deny', reason: 'by hand only' },
  { tools: 'create_issue', when: 'has(arguments.type) && arguments.type in ["Story"]', then: 'allow' },
];

let browser;
let gateway;
before(async () => {
  browser = await launch();
  gateway = await Gateway.start({ rules: RULES });
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

test('rules stand in order with what each decided', async () => {
  await gateway.decide(await gateway.proposeIssue('Reviewed'), 'reject', 'not now');
  const id = await gateway.proposeIssue('Never');
  await gateway.tool('create_issue', { projectId: await gateway.project(), title: 'Allowed', type: 'Story' });
  await gateway.api(`changes/${id}/rule`, { body: { verdict: 'deny', arguments: 'exact', principal: 'same' }, key: gateway.key('reviewer', 'alice') });
  const page = await dashboard(browser, gateway, { route: '/#/inbox' });
  await pressTogether(page, 'gp');
  const rules = page.locator('.policy-rule');
  await becomes(() => rules.locator('h3').allInnerTexts().then((all) => all.map((text) => text.replace(/\s+/g, ' ').trim())), ['Deny no-deletions', 'Allow unnamed', 'policy.default review_writes']);
  await rules.nth(0).getByText('Decided no call in the last 30 days.').waitFor();
  await rules.nth(0).getByText('by hand only', { exact: true }).waitFor();
  await becomes(() => rules.nth(0).locator('.policy-values li').allInnerTexts(), ['delete_*', 'erase_*']);
  await becomes(() => rules.nth(0).locator('.policy-tools a').count(), 0, 'tools without changes are not listed');
  await becomes(() => rules.nth(2).locator('.policy-tools a').allInnerTexts(), ['create_issue']);
  await rules.nth(1).getByText('1 call allowed').waitFor();
  await matches(() => rules.nth(1).innerText(), /has\(arguments\.type\) && arguments\.type in \["Story"\]/);
  await rules.nth(2).getByText('2 calls reviewed').waitFor();
  await page.locator('.policy-standing').getByText('are denied without review.').waitFor();
  await becomes(() => page.locator('.policy-settings dd').evaluateAll((all) => new Set(all.map((value) => value.getBoundingClientRect().left)).size), 1, 'all values begin at one place');
  await screenshot(page, 'policy', { fullPage: true });
  await rules.nth(1).getByRole('link', { name: 'create_issue' }).click();
  await page.locator('.row', { hasText: 'Reviewed' }).waitFor();
  assertClean(page);
  await page.context().close();

  const narrow = await dashboard(browser, gateway, { width: 360, dark: true, route: '/#/policy' });
  await narrow.locator('.policy-rule').first().waitFor();
  await fitsScreen(narrow);
  await screenshot(narrow, 'policy-360', { fullPage: true });
  await narrow.getByRole('link', { name: /All standing rules/ }).click();
  await narrow.getByRole('heading', { name: 'Standing rules' }).waitFor();
  assertClean(narrow);
  await narrow.context().close();
});

const FILE = `# of the team
policy:
  rules:
    # Never by an agent.
    - { name: no-deletions, tools: "delete_*", then: deny, reason: by hand only }
    - tools: create_issue   # stories are harmless
      when: 'has(arguments.type) && arguments.type == "Story"'
      then: allow
`;

test('rules are tried on recorded calls and written into the file', async () => {
  const file = join(gateway.data, 'config.yaml');
  writeFileSync(file, FILE);
  const root = gateway.key('admin', 'root');
  const page = await dashboard(browser, gateway, { key: root, route: '/#/policy' });
  await becomes(async () => (await gateway.api('policy/file')).value.rules.length, 2);
  await page.getByRole('button', { name: 'Edit rules…' }).click();
  const dialog = page.getByRole('dialog', { name: 'Edit the rules of the policy' });
  await dialog.getByRole('button', { name: 'Add a rule' }).click();
  await dialog.locator('.policy-list').waitFor({ state: 'hidden' });
  await dialog.getByLabel('Name').fill('no-bugs');
  await dialog.getByLabel('Tools').fill('create_issue');
  await dialog.getByLabel('Condition').fill('has(arguments.type) && arguments.type == "Bug"');
  await dialog.getByLabel('Then').selectOption('deny');
  await dialog.getByRole('button', { name: 'Apply' }).click();
  const rows = dialog.locator('.policy-list > li');
  await becomes(() => rows.count(), 3);
  await rows.nth(2).getByRole('button', { name: /^Up/ }).click();
  await rows.nth(1).locator('p', { hasText: 'no-bugs' }).waitFor();
  await screenshot(page, 'policy-form', { fullPage: true });
  await dialog.getByRole('button', { name: 'Try it' }).click();
  await dialog.getByText('1 of 2 recorded calls would get another verdict').waitFor();
  await dialog.locator('.dry-run a', { hasText: 'Reviewed' }).waitFor();
  // A second Enter writes nothing, because the result has the focus.
  await focused(page, '.policy-report');
  await dialog.locator('.policy-list').waitFor({ state: 'hidden' });
  await screenshot(page, 'policy-dry-run', { fullPage: true });
  assert.equal(readFileSync(file, 'utf8'), FILE, 'nothing is written before');
  // An answer about other rules offers nothing to write.
  await dialog.getByRole('button', { name: 'Back' }).click();
  const { promise: moved, resolve: release } = Promise.withResolvers();
  await page.route('**/api/policy/rules', async (route) => {
    const response = await route.fetch();
    await moved;
    await route.fulfill({ response });
  }, { times: 1 });
  const answered = page.waitForResponse('**/api/policy/rules');
  await dialog.getByRole('button', { name: 'Try it' }).click();
  await rows.nth(1).getByRole('button', { name: /^Up/ }).click();
  release();
  await (await answered).finished();
  await dialog.getByRole('button', { name: 'Add a rule' }).waitFor();
  await becomes(() => dialog.getByRole('button', { name: 'Write the file' }).count(), 0);
  await rows.nth(0).getByRole('button', { name: /^Down/ }).click();
  await dialog.getByRole('button', { name: 'Try it' }).click();
  await dialog.locator('.dry-run a', { hasText: 'Reviewed' }).waitFor();
  await dialog.getByRole('button', { name: 'Write the file' }).click();
  await waitForNotice(page, 'The rules are saved.');
  const added = (text) => text.split('\n').find((line) => line.startsWith('    - { name: no-bugs, tools: create_issue, '));
  await becomes(() => readFileSync(file, 'utf8').replace(`${added(readFileSync(file, 'utf8'))}\n`, ''), FILE, 'everything else stays');
  await page.locator('.policy-rule', { hasText: 'no-bugs' }).waitFor();

  // Escape and a click outside do not discard edits at once.
  await page.getByRole('button', { name: 'Edit rules…' }).click();
  await rows.nth(0).getByRole('button', { name: /^Remove/ }).click();
  for (let n = 0; n < 3; n += 1) await page.keyboard.down('Escape');
  await page.keyboard.up('Escape');
  await dialog.getByRole('alert').filter({ hasText: 'is not saved' }).waitFor();
  await becomes(() => rows.count(), 2);
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });

  // A disabled denial loosens the policy, so it waits for consent.
  await page.getByRole('button', { name: 'Edit rules…' }).click();
  await rows.nth(1).getByRole('button', { name: /^Disable/ }).click();
  await dialog.getByRole('button', { name: 'Try it' }).click();
  await dialog.getByText('will wait for a reviewer’s consent').waitFor();
  await dialog.getByRole('button', { name: 'Write the file' }).click();
  await becomes(() => /no-bugs.*disabled: true/.test(readFileSync(file, 'utf8')), true);
  await becomes(async () => Boolean((await gateway.api('reload')).value.waiting), true);
  assertClean(page);
  await page.context().close();

  const narrow = await dashboard(browser, gateway, { key: root, width: 360, route: '/#/policy' });
  await narrow.getByRole('button', { name: 'Edit rules…' }).click();
  await narrow.locator('.policy-list > li').first().waitFor();
  await fitsScreen(narrow);
  await screenshot(narrow, 'policy-form-360', { fullPage: true });
  // The problem is in sight, above the lines to write.
  const form = narrow.getByRole('dialog');
  await form.getByRole('button', { name: /^Edit/ }).first().click();
  await form.getByLabel('Condition').fill('has(');
  await form.getByRole('button', { name: 'Apply' }).click();
  await form.getByRole('button', { name: 'Try it' }).click();
  await becomes(() => form.locator('.edit-errors .icon').evaluate((icon) => {
    const { x, y } = icon.getBoundingClientRect();
    return icon.parentElement.contains(document.elementFromPoint(x + 1, y + 1));
  }), true);
  assertClean(narrow, status(422));
  await narrow.context().close();
});
