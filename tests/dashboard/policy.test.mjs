// Tests the page of the policy: its rules in order, what each decided, and the standing rules beside them.

import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { assertClean, becomes, dashboard, fitsScreen, launch, matches, pressTogether } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

const RULES = [
  { name: 'no-deletions', tools: 'delete_*', then: 'deny', reason: 'by hand only' },
  { tools: 'create_issue', when: 'has(arguments.type) && arguments.type == "Task"', then: 'allow' },
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

const shot = (page, name) => (process.env.SHOTS ? page.screenshot({ path: join(process.env.SHOTS, `${name}.png`), fullPage: true }) : null);

test('rules stand in order with what each decided', async () => {
  const id = await gateway.proposeIssue('Reviewed');
  await gateway.tool('create_issue', { projectId: await gateway.project(), title: 'Allowed', type: 'Task' });
  await gateway.api(`changes/${id}/rule`, { body: { verdict: 'deny', arguments: 'any', principal: 'same' }, key: gateway.key('reviewer', 'alice') });
  const page = await dashboard(browser, gateway, { route: '/#/inbox' });
  await pressTogether(page, 'gp');
  const rules = page.locator('.policy-rule');
  await becomes(() => rules.locator('h3').allInnerTexts().then((all) => all.map((text) => text.replace(/\s+/g, ' ').trim())), ['Deny no-deletions', 'Allow rule 2', 'policy.default review_writes']);
  await rules.nth(0).getByText('Decided no call in the last 30 days.').waitFor();
  await rules.nth(0).getByText('by hand only').waitFor();
  await rules.nth(1).getByText('1 call allowed').waitFor();
  await matches(() => rules.nth(1).innerText(), /arguments\.type == /);
  await rules.nth(2).getByText('1 call reviewed').waitFor();
  await page.locator('.policy-standing').getByText('are denied without review.').waitFor();
  await shot(page, 'policy');
  await rules.nth(1).getByRole('link', { name: 'create_issue' }).click();
  await page.locator('.row', { hasText: 'Reviewed' }).waitFor();
  assertClean(page);
  await page.context().close();

  const narrow = await dashboard(browser, gateway, { width: 360, dark: true, route: '/#/policy' });
  await narrow.locator('.policy-rule').first().waitFor();
  await fitsScreen(narrow);
  await shot(narrow, 'policy-360');
  await narrow.getByRole('link', { name: /All standing rules/ }).click();
  await narrow.getByRole('heading', { name: 'Standing rules' }).waitFor();
  assertClean(narrow);
  await narrow.context().close();
});
