// Tests reviews under stricter rules (quorum, comments, previews), and editing, undoing, modified targets, standing rules
// and printing.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { armed, assertClean, becomes, button, dashboard, focused, heading, holds, launch, matches, open, reject, row, screenshot, status, waitForNotice } from './lib/browser.mjs';
import { Gateway, pause } from './lib/gateway.mjs';

let browser;
before(async () => {
  browser = await launch();
});
after(async () => {
  await browser?.close();
});

/** Defines a test with its own gateway whose `policy.review` is `review`. */
function testWithRule(name, review, body, { groups, rules } = {}) {
  test(name, async () => {
    const gateway = await Gateway.start({ review, groups, rules });
    try {
      await body(gateway);
    } finally {
      await gateway.end();
    }
  });
}

testWithRule('a quorum counts one vote per person and shows how many are missing', { quorum: 2 }, async (gateway) => {
  const id = await gateway.proposeIssue('Needs two');
  const alice = await dashboard(browser, gateway);
  await open(alice, 'Needs two');
  await alice.locator('.quorum', { hasText: '0 of 2' }).waitFor();
  await alice.locator('.terms', { hasText: '2 people have to approve' }).waitFor();
  await button(alice, 'Approve').click();
  await alice.locator('.quorum', { hasText: '1 of 2 approvals: alice' }).waitFor();
  await alice.getByText('You have approved this. One more approval is needed.').waitFor();
  await alice.locator('.timeline', { hasText: 'alice approved (1 of 2)' }).waitFor();
  await becomes(() => button(alice, 'Approve').count(), 0);
  await row(alice, 'Needs two').locator('.badge', { hasText: '1/2' }).waitFor();
  // A second key of the same person adds no vote.
  const second = await dashboard(browser, gateway, { key: gateway.key('reviewer', 'alice-laptop', 'alice'), route: `/#/inbox/${id}` });
  await second.getByText('You have approved this.').waitFor();
  await becomes(() => button(second, 'Approve').count(), 0);
  const bob = await dashboard(browser, gateway, { key: gateway.key('reviewer', 'bob'), route: `/#/inbox/${id}` });
  await bob.locator('.timeline', { hasText: 'Waiting for one more approval' }).waitFor();
  await armed(bob);
  await bob.keyboard.press('a');
  await bob.locator('.outcome', { hasText: 'Applied' }).waitFor();
  await alice.locator('.outcome', { hasText: 'Applied' }).waitFor();
  const { decisions } = await gateway.reaches(id, 'applied');
  assert.deepEqual(decisions.map((d) => d.reviewer), ['alice', 'bob']);
  for (const page of [alice, second, bob]) {
    assertClean(page);
    await page.context().close();
  }
});

testWithRule('a rule can require a comment and name its reviewers', { requireComment: true, reviewers: ['dba'] }, async (gateway) => {
  const id = await gateway.proposeIssue('Say why');
  const page = await dashboard(browser, gateway);
  await open(page, 'Say why');
  await page.locator('.terms', { hasText: 'Decided by dba' }).waitFor();
  let sent = 0;
  page.on('request', (r) => { sent += r.url().endsWith('/decision') ? 1 : 0; });
  await button(page, 'Approve').click();
  await page.locator('.decision-error', { hasText: 'requires a comment' }).waitFor();
  await focused(page, '#comment');
  assert.equal(sent, 0);
  await page.getByLabel('Comment').fill('Checked');
  await button(page, 'Approve').click();
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  assert.equal((await gateway.reaches(id, 'applied')).decisions[0].comment, 'Checked');
  const other = await gateway.proposeIssue('Not for carol');
  const carol = await dashboard(browser, gateway, { key: gateway.key('reviewer', 'carol'), route: `/#/inbox/${other}` });
  await heading(carol).filter({ hasText: 'Not for carol' }).waitFor();
  // Other reviewers get no controls that the gateway would refuse.
  await carol.locator('.decision-note', { hasText: 'Only members of dba may decide on this change, and you are not a member.' }).waitFor();
  for (const name of ['Approve', 'Reject']) await button(carol, name).waitFor({ state: 'detached' });
  for (const act of ['edit', 'rule']) await carol.locator(`.detail-actions [data-act=${act}]`).waitFor({ state: 'detached' });
  let requests = 0;
  carol.on('request', (r) => { requests += r.method() === 'POST' ? 1 : 0; });
  for (const key of ['a', 'r', 'e']) await carol.keyboard.press(key);
  await pause(300);
  assert.equal(requests, 0);
  assert.equal((await gateway.decide(other, 'approve', 'all the same', gateway.key('reviewer', 'carol'))).status, 403);
  assert.equal((await gateway.change(other)).state, 'pending');
  assertClean(page);
  assertClean(carol);
  await page.context().close();
  await carol.context().close();
}, { groups: { dba: ['alice'] } });

testWithRule('others may decide once nobody has for the time of the rule', { reviewers: ['dba'], escalate: { after: '1h', to: ['oncall'] } }, async (gateway) => {
  const later = await gateway.proposeIssue('Later');
  const carol = await dashboard(browser, gateway, { key: gateway.key('reviewer', 'carol'), route: `/#/inbox/${later}` });
  await carol.locator('.terms', { hasText: /Decided by dba, in \d+ (min|h) also by oncall/ }).waitFor();
  await carol.locator('.decision-note', { hasText: 'Only members of dba may decide on this change, and you are not a member.' }).waitFor();
  await button(carol, 'Approve').waitFor({ state: 'detached' });
  // The open page notices the moment.
  const soon = await gateway.proposeIssue('Soon it escalates');
  await open(carol, 'Soon it escalates');
  await carol.locator('.terms', { hasText: 'Decided by dba, now also by oncall' }).waitFor();
  await carol.locator('.timeline', { hasText: 'Countersign let further people decide' }).waitFor();
  await carol.locator('.detail-actions [data-act=rule]').waitFor({ state: 'detached' });
  await screenshot(carol, 'escalated');
  await armed(carol);
  await button(carol, 'Approve').click();
  await carol.locator('.outcome', { hasText: 'Applied' }).waitFor();
  assert.equal((await gateway.reaches(soon, 'applied')).decisions[0].reviewer, 'carol');
  assertClean(carol);
  await carol.context().close();
}, {
  groups: { dba: ['alice'], oncall: ['carol'] },
  rules: [{ tools: '*create_issue', when: 'arguments.title.startsWith("Soon")', then: 'review', escalate: { after: '5s', to: ['oncall'] } }],
});

testWithRule('edited fields are validated, previewed and shown beside the proposed ones', {}, async (gateway) => {
  const id = await gateway.proposeIssue('Tpyo in the title', { priority: 'Low', description: 'Kept\nas it is' });
  const page = await dashboard(browser, gateway);
  await open(page, 'Tpyo');
  await page.keyboard.press('e');
  const dialog = page.getByRole('dialog', { name: 'Edit the arguments' });
  await dialog.locator('.layouts').waitFor();
  await dialog.locator('.edit-field', { hasText: 'title' }).first().locator('input[type=text]').fill('');
  await dialog.getByRole('button', { name: 'Save and preview' }).click();
  await dialog.locator('.edit-field.wrong .edit-fault').waitFor();
  assert.equal((await gateway.change(id)).version, 1);
  await dialog.locator('.edit-field.wrong input[type=text]').fill('Typo in the title');
  await dialog.getByLabel('Comment', { exact: true }).fill('A typo');
  await dialog.getByRole('button', { name: 'Save and preview' }).click();
  await dialog.waitFor({ state: 'detached' });
  await page.locator('.fields ins', { hasText: 'Typo in the title' }).waitFor();
  await page.locator('.edits', { hasText: 'alice' }).waitFor();
  const proposedDiff = page.locator('.line-diff', { hasText: 'What the agent proposed' });
  await proposedDiff.locator('.line.delete mark', { hasText: 'Tpyo' }).waitFor();
  await proposedDiff.locator('.line.insert mark', { hasText: 'Typo' }).waitFor();
  await row(page, 'Typo').locator('.badge', { hasText: 'Edited' }).waitFor();
  const edited = await gateway.change(id);
  assert.equal(edited.state, 'pending');
  assert.equal(edited.arguments.title, 'Typo in the title');
  assert.equal(edited.arguments.description, 'Kept\nas it is');
  assert.equal(edited.proposedArguments.title, 'Tpyo in the title');
  assert.equal(edited.edits[0].comment, 'A typo');
  await armed(page);
  await page.keyboard.press('a');
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  assert.equal((await gateway.reaches(id, 'applied')).result.structuredContent.issue.title, 'Typo in the title');
  assertClean(page, status(422));
  await page.context().close();
});

testWithRule('the JSON editor escapes invisible characters and rejects invalid JSON', {}, async (gateway) => {
  const project = await gateway.project();
  const id = await gateway.propose('create_issue', `{"projectId":"${project}","title":"Hidden \u202E here","type":"Bug","estimatedHours":1.50e1}`);
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${id}` });
  await heading(page).waitFor();
  await page.getByRole('button', { name: 'Edit', exact: true }).click();
  const dialog = page.getByRole('dialog', { name: 'Edit the arguments' });
  await dialog.getByText('Contains invisible characters: U+202E').waitFor();
  await dialog.getByRole('button', { name: 'JSON' }).click();
  const text = dialog.locator('#edit-json');
  await matches(() => text.inputValue(), /Hidden \\u202e here/);
  await matches(() => text.inputValue(), /1\.50e1/, 'a number keeps its form');
  await text.fill('{"title": ');
  await dialog.getByRole('button', { name: 'Save and preview' }).click();
  await dialog.locator('.edit-errors', { hasText: /JSON/ }).waitFor();
  assert.equal((await gateway.change(id)).version, 1);
  await text.fill(`{"projectId":"${project}","title":"Nothing hidden","type":"Bug","estimatedHours":2.50e1}`);
  await dialog.getByRole('button', { name: 'Save and preview' }).click();
  await heading(page).filter({ hasText: 'Nothing hidden' }).waitFor();
  await page.locator('.detail-body > .block-section .args .json').last().filter({ hasText: '2.50e1' }).waitFor();
  assertClean(page);
  await page.context().close();
});

testWithRule('a rule can forbid editing', { edit: 'forbidden' }, async (gateway) => {
  await gateway.proposeIssue('Take it or leave it');
  const page = await dashboard(browser, gateway);
  await open(page, 'Take it');
  await page.locator('.terms', { hasText: 'Reviewers may not edit it' }).waitFor();
  await becomes(() => page.getByRole('button', { name: 'Edit', exact: true }).count(), 0);
  await page.keyboard.press('e');
  await waitForNotice(page, 'does not allow');
  await becomes(() => page.getByRole('dialog').count(), 0);
  assertClean(page);
  await page.context().close();
});

testWithRule('an approval can be undone until the change runs', { undoFor: 600 }, async (gateway) => {
  const first = await gateway.proposeIssue('Undo me in place');
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${first}` });
  await heading(page).filter({ hasText: 'Undo me' }).waitFor();
  await armed(page);
  await page.keyboard.press('a');
  await page.locator('footer.decision', { hasText: 'Approved. Runs in' }).waitFor();
  await page.locator('.timeline .ahead', { hasText: 'Runs in' }).waitFor();
  await page.locator('.outcome-head', { hasText: 'Runs in' }).waitFor();
  await becomes(() => page.locator('.undo:visible').count(), 0, 'the open change shows it itself');
  await page.keyboard.press('u');
  await button(page, 'Approve').waitFor();
  const { state, decisions } = await gateway.change(first);
  assert.deepEqual([state, decisions.filter((d) => d.verdict === 'approve')], ['pending', []]);
  await page.locator('.timeline', { hasText: 'undid the approval' }).waitFor();
  // From another change, the notice and the same key undo it.
  const second = await gateway.proposeIssue('Undo me later');
  await row(page, 'Undo me later').waitFor();
  await armed(page);
  // The event arrives before the answer.
  const shown = page.locator('footer.decision', { hasText: 'Approved. Runs in' });
  await page.route('**/decision', async (route) => {
    const response = await route.fetch();
    await shown.waitFor();
    await route.fulfill({ response });
  }, { times: 1 });
  await page.keyboard.press('a');
  await shown.waitFor();
  await open(page, 'Undo me later');
  await armed(page);
  const box = page.locator('.undo', { hasText: 'Undo me in place' });
  await box.locator('.undo-left', { hasText: /^(9|10) min$/ }).waitFor();
  await box.getByRole('button', { name: 'Close' }).click();
  await box.waitFor({ state: 'hidden' });
  await focused(page, 'h1');
  await page.goto(`${gateway.url}/#/inbox/${first}`);
  await button(page, 'Undo').waitFor();
  await open(page, 'Undo me later');
  await armed(page);
  await becomes(() => box.isVisible(), false, 'it stays closed');
  await page.keyboard.press('u');
  await waitForNotice(page, 'Undone');
  await page.locator('.undo').waitFor({ state: 'detached' });
  assert.equal((await gateway.change(first)).state, 'pending');
  assert.equal((await gateway.change(second)).state, 'pending');
  assertClean(page);
  await page.context().close();
});

testWithRule('a change with a lost target becomes stale when it is refreshed', {}, async (gateway) => {
  const issueId = await gateway.issue('Gone soon');
  const id = await gateway.propose('update_issue', { issueId, title: 'Gone already' });
  const deletion = await gateway.propose('delete_issue', { issueId });
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${id}` });
  await heading(page).filter({ hasText: 'Gone soon' }).waitFor();
  await gateway.decide(deletion, 'approve');
  await gateway.reaches(deletion, 'applied');
  await armed(page);
  await page.keyboard.press('a');
  await page.getByText('This can no longer run as it was shown').waitFor();
  await becomes(() => button(page, 'Approve').count(), 0);
  await page.keyboard.press('f');
  await page.locator('.outcome', { hasText: 'Stale' }).waitFor();
  assert.equal((await gateway.change(id)).state, 'stale');
  await reject(page);
  await page.locator('.outcome', { hasText: 'Rejected' }).waitFor();
  assertClean(page, status(409));
  await page.context().close();
});

testWithRule('diffs have one or two columns, marked words and folds in steps', {}, async (gateway) => {
  const lines = Array.from({ length: 700 }, (_, i) => `Line number ${i + 1} of many`);
  const issueId = await gateway.issue('Long text', { description: lines.join('\n') });
  const changed = lines.map((l, i) => (i === 350 ? 'Line count 351 of the many' : l));
  const id = await gateway.propose('update_issue', { issueId, description: changed.join('\n') });
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${id}` });
  const diff = page.locator('.line-diff', { hasText: 'Description' });
  await diff.locator('.line.insert mark').nth(1).waitFor();
  await becomes(() => diff.locator('.line.insert mark').allInnerTexts(), ['count', 'the']);
  await becomes(() => diff.locator('.line.delete mark').allInnerTexts(), ['number']);
  await page.keyboard.press('d');
  await diff.locator('.pair').first().waitFor();
  await becomes(() => diff.locator('.pair', { has: page.locator('.side.delete') }).locator('.side.insert').count(), 1, 'removed and added line are side by side');
  const before = await diff.locator('.pair').count();
  const fold = diff.getByRole('button', { name: /^Show 200 of 347 unchanged lines/ }).first();
  await fold.click();
  await becomes(() => diff.locator('.pair').count(), before + 200);
  await diff.getByRole('button', { name: /^Show 147 unchanged lines/ }).first().click();
  await becomes(() => diff.locator('.pair').count(), before + 347);
  await diff.getByRole('button', { name: 'Unified' }).click();
  await diff.locator('.line.insert').waitFor();
  await becomes(() => diff.locator('.pair').count(), 0);
  assertClean(page);
  await page.context().close();
});

testWithRule('a standing rule is created from a change', {}, async (gateway) => {
  const id = await gateway.proposeIssue('Always the same');
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${id}` });
  await page.getByRole('button', { name: 'Create standing rule…' }).click();
  const dialog = page.getByRole('dialog', { name: 'Create standing rule' });
  await dialog.getByText('run without review').waitFor();
  await dialog.getByLabel('Deny').check();
  await dialog.getByText('until the rule is revoked').waitFor();
  await dialog.getByLabel('Any', { exact: true }).check();
  await dialog.getByLabel('For').selectOption({ label: 'a week' });
  await dialog.getByText('For a week, calls to').waitFor();
  await dialog.getByRole('button', { name: 'Create standing rule' }).click();
  await waitForNotice(page, 'Standing rule created');
  const { value } = await gateway.api('rules');
  assert.equal(value.rules.length, 1);
  const [rule] = value.rules;
  assert.equal(rule.verdict, 'deny');
  assert.equal(rule.argumentsHash ?? null, null);
  assert.equal(rule.principal, (await gateway.change(id)).proposer.principal);
  assert.equal(rule.fromChange, id);
  assert.equal((await gateway.change(id)).state, 'pending', 'the change itself is not decided');
  assertClean(page);
  await page.context().close();
});

testWithRule('a printed change is complete and has no controls', {}, async (gateway) => {
  const id = await gateway.proposeIssue('On paper', { description: Array.from({ length: 300 }, (_, i) => `Paper line ${i}`).join('\n') });
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${id}` });
  await page.locator('.timeline').waitFor();
  await page.evaluate(() => { window.print = () => { window.printed = true; }; });
  await becomes(() => page.getByText('Paper line 299', { exact: true }).count(), 0);
  await page.getByRole('button', { name: 'Print' }).click();
  await page.waitForFunction(() => window.printed);
  await becomes(() => page.getByText('Paper line 299', { exact: true }).count(), 1);
  await page.emulateMedia({ media: 'print' });
  await becomes(() => page.locator('footer.decision').isVisible(), false);
  await becomes(() => page.locator('.pane-list').isVisible(), false);
  await matches(() => page.locator('.facts time').first().evaluate((e) => getComputedStyle(e, '::after').content), /\b20\d\d\b/, 'the date is absolute');
  await matches(() => page.locator('.change-id code').evaluate((e) => getComputedStyle(e, '::after').content), new RegExp(id), 'the whole id');
  await becomes(() => heading(page).isVisible(), true);
  await holds(() => page.evaluate(() => document.documentElement.scrollHeight - innerHeight), (more) => more > 0, 'the pages contain everything');
  assertClean(page);
  await page.context().close();
});
