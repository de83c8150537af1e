// Tests decisions in Chromium: approving, rejecting, confirmations, conflicts and missing permissions.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { armed, assertClean, becomes, button, dashboard, focused, heading, launch, matches, newPage, open, reject, row, signIn, status } from './lib/browser.mjs';
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

test('an approved change runs, and the page shows its outcome', async () => {
  const page = await dashboard(browser, gateway);
  const id = await gateway.proposeIssue('Approve me', { priority: 'High', description: 'Because.\nReally.' });
  await open(page, 'Approve me');
  await page.locator('.fields tr', { hasText: 'Priority' }).locator('ins', { hasText: 'High' }).waitFor();
  await page.locator('.json', { hasText: '"Approve me"' }).waitFor();
  await page.locator('.detail-body h3', { hasText: 'Arguments' }).filter({ hasText: 'tracker / create_issue' }).waitFor();
  await page.getByLabel('Comment').fill('Looks right');
  await button(page, 'Approve').click();
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  await page.locator('.timeline blockquote', { hasText: 'Looks right' }).waitFor();
  await page.locator('.timeline', { hasText: 'applied the change' }).waitFor();
  const change = await gateway.reaches(id, 'applied');
  assert.equal(change.decisions[0].reviewer, 'alice');
  assert.equal(change.decisions[0].comment, 'Looks right');
  assertClean(page);
  await page.context().close();
});

test('a comment that was not sent is kept while another view is open', async () => {
  const page = await dashboard(browser, gateway);
  const id = await gateway.proposeIssue('Commented later');
  await open(page, 'Commented later');
  await page.getByLabel('Comment').fill('Half a thought');
  await page.goto(`${gateway.url}/#/policy`);
  await page.getByRole('heading', { name: 'Policy', level: 1 }).waitFor();
  await page.goto(`${gateway.url}/#/inbox/${id}`);
  await becomes(() => page.getByLabel('Comment').inputValue(), 'Half a thought');
  await gateway.decide(id, 'reject');
  assertClean(page);
  await page.context().close();
});

test('a change is rejected with a comment', async () => {
  const page = await dashboard(browser, gateway);
  const id = await gateway.proposeIssue('Reject me');
  await open(page, 'Reject me');
  // A double click on the button only asks for the reason.
  await button(page, 'Reject').evaluate((element) => {
    const footer = element.closest('footer');
    element.click();
    footer.querySelector('[data-act=reject]').click();
  });
  await focused(page, '#comment');
  assert.equal((await gateway.change(id)).state, 'pending');
  // While there is no button to approve, its key does not approve either.
  await button(page, 'Cancel').focus();
  await page.locator('[data-act=reject]:enabled').waitFor();
  await page.keyboard.press('a');
  await becomes(() => page.locator('footer.decision').getAttribute('data-mode'), 'reject');
  await button(page, 'Cancel').click();
  await focused(page, '[data-act=reject]');
  await page.getByLabel('Comment').fill('Not like this');
  await reject(page);
  await page.locator('.outcome blockquote', { hasText: 'Not like this' }).waitFor();
  const change = await gateway.change(id);
  assert.equal(change.state, 'rejected');
  assert.equal(change.decisions[0].comment, 'Not like this');
  // The history lists it under its state.
  await page.getByRole('link', { name: 'History' }).click();
  await page.getByRole('button', { name: /^Rejected/ }).click();
  await page.locator('.chip[aria-pressed=true]', { hasText: 'Rejected' }).waitFor();
  await row(page, 'Reject me').waitFor();
  await becomes(() => row(page, 'Approve me').count(), 0);
  assertClean(page);
  await page.context().close();
});

test('presses on the same place never approve after a rejection failed', async () => {
  for (const width of [1440, 390]) {
    const page = await dashboard(browser, gateway, { width, height: 844 });
    const id = await gateway.proposeIssue(`Reject at ${width}`);
    await open(page, `Reject at ${width}`);
    const centre = async () => {
      const { x, y, width, height } = await button(page, 'Reject').boundingBox();
      return [x + width / 2, y + height / 2];
    };
    // A double click counts as one press, which opens the rejection.
    await page.mouse.dblclick(...(await centre()));
    const armed = page.locator('[data-act=reject].armed:enabled');
    await armed.waitFor();
    await focused(page, '#comment');
    await page.getByLabel('Comment').fill('Not this one');
    const place = await centre();
    await page.route('**/api/changes/*/decision', (route) => route.fulfill({ status: 503, json: { title: 'The store is not available' } }), { times: 1 });
    // Unlike a locator, the mouse does not wait for a button that is disabled for a moment.
    await armed.waitFor();
    await page.mouse.click(...place);
    await page.locator('.decision-error').waitFor();
    await becomes(() => page.locator('footer.decision').getAttribute('data-mode'), 'reject');
    await armed.waitFor();
    await page.mouse.click(...place);
    await page.locator('.outcome', { hasText: 'Rejected' }).waitFor();
    assert.equal((await gateway.change(id)).decisions[0].comment, 'Not this one');
    assertClean(page, status(503));
    await page.context().close();
  }
});

test('an update shows its diff side by side and line by line', async () => {
  const lines = Array.from({ length: 40 }, (_, i) => `Line ${i + 1}`);
  const issueId = await gateway.issue('Before the update', { description: lines.join('\n') });
  lines[19] = 'Line twenty';
  const id = await gateway.propose('update_issue', { issueId, title: 'After the update', description: lines.join('\n') });
  const page = await dashboard(browser, gateway);
  await open(page, 'Before the update', id);
  const title = page.locator('.fields tr', { hasText: 'Title' });
  await matches(() => title.locator('del').innerText(), /Before the update/);
  await matches(() => title.locator('ins').innerText(), /After the update/);
  const diff = page.locator('.line-diff', { hasText: 'Description' });
  await becomes(() => diff.locator('.line.delete .code').innerText(), 'Line 20');
  await becomes(() => diff.locator('.line.insert .code').innerText(), 'Line twenty');
  await becomes(() => diff.locator('.line.delete .sign').innerText(), '−');
  await becomes(() => diff.getByText('Line 5', { exact: true }).count(), 0, 'lines far from the change are folded');
  await diff.getByRole('button', { name: /^Show \d+ unchanged lines/ }).first().click();
  await diff.getByText('Line 5', { exact: true }).waitFor();
  assertClean(page);
  await page.context().close();
});

test('a deletion needs two presses, and a double click counts as one', async () => {
  const issueId = await gateway.issue('Soon gone');
  const id = await gateway.propose('delete_issue', { issueId });
  const page = await dashboard(browser, gateway);
  await open(page, 'Soon gone', id);
  await page.locator('.fields del', { hasText: 'Soon gone' }).first().waitFor();
  await armed(page);
  // Both clicks happen in one script, because a busy machine could separate the clicks of a mouse.
  await button(page, 'Approve').evaluate((element) => {
    const footer = element.closest('footer');
    element.click();
    footer.querySelector('[data-act=confirm]').click();
  });
  await page.getByRole('alert').filter({ hasText: 'This deletes' }).waitFor();
  assert.equal((await gateway.change(id)).state, 'pending');
  await button(page, 'Cancel').click();
  await button(page, 'Approve').click();
  await button(page, 'Approve deletion').waitFor();
  await pause(600);
  await button(page, 'Approve deletion').click();
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  assertClean(page);
  await page.context().close();
});

test('a decision on a modified target is refused, and the differences are shown', async () => {
  const issueId = await gateway.issue('Moving target', { priority: 'Low' });
  const first = await gateway.propose('update_issue', { issueId, priority: 'Critical' });
  const second = await gateway.propose('update_issue', { issueId, priority: 'High', title: 'Target that moved' });
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${first}` });
  await page.locator('.fields del', { hasText: 'Low' }).waitFor();
  await gateway.decide(second, 'approve');
  await gateway.reaches(second, 'applied');
  await button(page, 'Approve').click();
  const banner = page.locator('.banner.altered');
  await banner.filter({ hasText: 'not recorded' }).waitFor();
  await banner.locator('tr', { hasText: 'Priority, before' }).locator('.delete', { hasText: 'Low' }).waitFor();
  await banner.locator('tr', { hasText: 'Priority, before' }).locator('.insert', { hasText: 'High' }).waitFor();
  await page.locator('.detail-body > .block-section .fields del', { hasText: 'High' }).first().waitFor();
  await page.getByText('The diff before the target changed').waitFor();
  assert.equal((await gateway.change(first)).state, 'pending');
  await page.locator('section.previous .fields del', { hasText: 'Low' }).waitFor();
  // One key press approves the new content.
  await page.locator('footer.decision', { hasText: 'This is the new diff' }).waitFor();
  await armed(page);
  await page.keyboard.press('a');
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  await gateway.reaches(first, 'applied');
  assertClean(page, status(409));
  await page.context().close();
});

test('the later of two decisions is refused', async () => {
  const page = await dashboard(browser, gateway);
  const id = await gateway.proposeIssue('Two reviewers');
  await open(page, 'Two reviewers');
  // The page learns of the other decision only from the answer to its own.
  await page.route('**/api/changes/*/decision', async (route) => {
    await gateway.decide(id, 'reject', 'First');
    await route.continue();
  });
  await button(page, 'Approve').click();
  await page.locator('.outcome', { hasText: 'Rejected' }).waitFor();
  await page.locator('.banner', { hasText: 'not recorded' }).waitFor();
  assert.equal((await gateway.change(id)).state, 'rejected');
  assertClean(page, status(409));
  await page.context().close();
});

test('a proposer cannot approve the own change', async () => {
  const key = gateway.key('admin', 'root');
  const id = await gateway.proposeIssue('My own idea', {}, { key });
  const page = await dashboard(browser, gateway, { key });
  await open(page, 'My own idea');
  await page.getByText('somebody else has to approve it').waitFor();
  await becomes(() => button(page, 'Approve').count(), 0);
  await page.keyboard.press('a');
  await pause(200);
  assert.equal((await gateway.change(id)).state, 'pending');
  assertClean(page);
  await page.context().close();
});

test('a viewer sees everything but cannot decide', async () => {
  const id = await gateway.proposeIssue('Look, do not touch');
  const page = await dashboard(browser, gateway, { key: gateway.key('viewer', 'vera') });
  await open(page, 'Look, do not touch');
  await page.getByText('signed in as a viewer').waitFor();
  await becomes(() => page.locator('footer.decision button').count(), 0);
  for (const key of ['a', 'r']) await page.keyboard.press(key);
  await pause(200);
  assert.equal((await gateway.change(id)).state, 'pending');
  const refused = await page.evaluate(async (path) => {
    const response = await fetch(path, { method: 'POST', headers: { 'Content-Type': 'application/json', 'X-Countersign-Secret': sessionStorage.getItem('countersign.secret') }, body: JSON.stringify({ decision: 'approve', version: 1 }) });
    return response.status;
  }, `/api/changes/${id}/decision`);
  assert.equal(refused, 403);
  assertClean(page, status(403));
  await page.context().close();
});

test('an unknown outcome is settled with a reason', async () => {
  const id = await gateway.proposeIssue('Nobody knows');
  const page = await newPage(browser, gateway);
  // Only a crash leaves such a change, so the test replaces the gateway's answer.
  const unknown = { ...(await gateway.change(id)), state: 'outcome_unknown', version: 4, fault: { code: 'INTERNAL_ERROR', message: 'Stopped while it ran' } };
  let sent = null;
  await page.route(`**/api/changes/${id}`, (route) => route.fulfill({ json: unknown }));
  await page.route(`**/api/changes/${id}/settle`, (route) => {
    sent = route.request().postDataJSON();
    return route.fulfill({ json: { ...unknown, state: 'applied', version: 5 } });
  });
  await signIn(page, gateway, undefined, `/#/history/${id}`);
  await page.locator('.outcome', { hasText: 'Stopped while it ran' }).waitFor();
  const applied = button(page, 'It was applied');
  await becomes(() => applied.isDisabled(), true, 'a reason is required');
  await page.getByLabel('How do you know?').fill('I found the issue in the tracker');
  await applied.click();
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  assert.deepEqual(sent, { outcome: 'applied', comment: 'I found the issue in the tracker', version: 4 });
  assertClean(page);
  await page.context().close();
});

test('the notice of an unknown outcome disappears once it is settled', async () => {
  const unknown = { ...(await gateway.change(await gateway.proposeIssue('Lost and found'))), state: 'outcome_unknown', version: 4 };
  const page = await newPage(browser, gateway);
  // Only a crash leaves such a change, so the test replaces the feed.
  await page.addInitScript(() => {
    const { fetch } = window;
    const start = (feed) => {
      window.send = (event) => feed.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(event)}\n\n`));
    };
    window.fetch = (url, options) => (url === '/api/events' ? Promise.resolve(new Response(new ReadableStream({ start }))) : fetch(url, options));
  });
  await signIn(page, gateway, undefined, '/#/sessions');
  const send = (type, state) => page.evaluate((event) => window.send(event), { type: `change.${type}`, change: { ...unknown, state } });
  for (const outcome of ['applied', 'failed']) {
    await send('outcome_unknown', 'outcome_unknown');
    await page.locator('.notice', { hasText: 'Outcome unknown' }).waitFor();
    await send('settled', outcome);
    await becomes(() => page.locator('.notice').count(), 0);
  }
  assertClean(page);
  await page.context().close();
});

test('an unknown change is named, with a way to the inbox', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/inbox/chg_000000000000000000000000' });
  await page.getByText('There is no change chg_000000000000000000000000').waitFor();
  await page.getByText('It may have been removed after its retention period.').waitFor();
  await page.getByRole('link', { name: 'Go to the inbox' }).click();
  await page.getByText('There is no change').waitFor({ state: 'detached' });
  assertClean(page, status(404));
  await page.context().close();
});

test('the audit trail contains every step, and its hashes match', async () => {
  const id = await gateway.proposeIssue('Audited');
  await gateway.decide(id, 'approve');
  await gateway.verified(id);
  const page = await dashboard(browser, gateway, { route: '/#/audit' });
  await page.locator('.chain-ok', { hasText: 'links compared' }).waitFor();
  await becomes(() => page.locator('tr.broken').count(), 0);
  await page.goto(`${gateway.url}/#/audit/${id}`);
  await page.locator('tbody tr', { hasText: 'proposed this change' }).waitFor();
  await becomes(async () => (await page.locator('tbody tr .event').allInnerTexts()).map((s) => s.split('→')[0].trim()), ['read the target back: it is as approved', 'applied the change', 'started to run it', 'approved', 'proposed this change']);
  await becomes(() => heading(page).count(), 0);
  assertClean(page);
  await page.context().close();
});
