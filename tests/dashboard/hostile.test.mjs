// Tests that everything an agent writes is shown as text, in every field and view.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertClean, button, dashboard, holds, launch, matches, open, reject, row } from './lib/browser.mjs';
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

// Each part sets `window.pwned` if text is treated as markup, an address or a script.
const attack = (n) => `<img src=x onerror="window.pwned='${n}'"><svg onload="window.pwned='${n}'"></svg><script>window.pwned='${n}'</script>"'><b>${n}</b>`;
const ELEMENTS = '#app img, #app script, #app b, #app iframe, #app svg[onload], #app [onerror], #app [onload], #app a[href^="javascript"], #app style, #app form[action], #app [style*="url"]';

async function assertUnharmed(page) {
  // Reads at once, because the attack must never succeed, not even briefly.
  const [pwned, elementCount] = await page.evaluate((selector) => [window.pwned, document.querySelectorAll(selector).length], ELEMENTS);
  assert.deepEqual([pwned, elementCount], [undefined, 0], 'a script ran, or an element was made');
}

test('no field of an issue becomes markup', async () => {
  const page = await dashboard(browser, gateway);
  const id = await gateway.proposeIssue(attack('title').slice(0, 190), { description: `${attack('description')}\n[x](javascript:window.pwned=1)\n\`\`\`\n${attack('code')}`, type: 'Bug' });
  await open(page, 'window.pwned');
  await assertUnharmed(page);
  for (const text of ['<img src=x onerror=', '[x](javascript:window.pwned=1)']) await page.locator('article', { hasText: text }).waitFor();
  await button(page, 'Approve').click();
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  await assertUnharmed(page);

  const { result } = await gateway.change(id);
  const issueId = result.structuredContent.issue.id;
  await gateway.propose('add_comment', { issueId, content: attack('comment') });
  await gateway.propose('update_issue', { issueId, title: `${attack('new').slice(0, 150)} new title`, description: attack('changed') });
  await gateway.propose('delete_issue', { issueId });
  await gateway.propose('create_project', { name: `<img src=x onerror="window.pwned=2">`, key: 'EVIL' });
  for (const text of ['Comment', 'Update', 'Delete', 'project']) {
    await row(page, new RegExp(text, 'i')).first().click();
    await page.locator('article h2').waitFor();
    await page.locator('.timeline').waitFor();
    await assertUnharmed(page);
  }
  await page.locator('article .quiet').first().waitFor();
  for (const view of ['history', 'audit', 'sessions', 'servers']) {
    await page.goto(`${gateway.url}/#/${view}`);
    await page.locator('h1').first().waitFor();
    await pause(250);
    await assertUnharmed(page);
  }
  assertClean(page);
  await page.context().close();
});

test('names of clients and comments of reviewers do not become markup', async () => {
  const page = await dashboard(browser, gateway);
  const call = await gateway.mcp({ name: attack('client'), version: attack('version'), title: attack('clientTitle') });
  await call('create_issue', { projectId: await gateway.project(), title: 'From a bad client', type: 'Bug' });
  await open(page, 'From a bad client');
  await page.locator('.facts', { hasText: '<img src=x' }).waitFor();
  await assertUnharmed(page);
  await page.goto(`${gateway.url}/#/sessions`);
  await page.locator('.records', { hasText: '<img src=x' }).waitFor();
  await assertUnharmed(page);
  await page.goto(`${gateway.url}/#/inbox`);
  await open(page, 'From a bad client');
  await page.getByLabel('Comment').fill(attack('reviewer'));
  await reject(page);
  await page.locator('.outcome blockquote', { hasText: '<img src=x' }).waitFor();
  await page.locator('.timeline blockquote', { hasText: '<img src=x' }).waitFor();
  await assertUnharmed(page);
  assertClean(page);
  await page.context().close();
});

test('invisible characters are shown as marks', async () => {
  const page = await dashboard(browser, gateway);
  await gateway.proposeIssue('Grant \u202Eecila\u202C admin\u200B', { description: 'bell\u0007 tag\u{E0041} iso\u2066late\u2069\nnext' });
  await open(page, 'Grant');
  // The gateway escapes summaries; the page marks other texts.
  await matches(() => page.locator('article h2').innerText(), /Grant \\u\{202e\}ecila\\u\{202c\} admin\\u\{200b\}/);
  await page.locator('article', { hasText: 'Grant ‹U+202E›ecila‹U+202C› admin‹U+200B›' }).waitFor();
  for (const mark of ['‹U+0007›', '‹U+E0041›', '‹U+2066›', '‹U+2069›']) await page.locator('.line-diff', { hasText: mark }).waitFor();
  const all = await page.evaluate(() => document.body.innerText + document.title);
  assert.doesNotMatch(all, /[\u202A-\u202E\u2066-\u2069\u200B\u0007]/, 'the page contains none of them');
  await matches(() => row(page, 'Grant').innerText(), /\\u\{202e\}/);
  assertClean(page);
  await page.context().close();
});

test('arguments are shown exactly as they will run', async () => {
  const page = await dashboard(browser, gateway);
  const project = await gateway.project();
  await gateway.propose('create_issue', `{"title":"Exact \\u0041rguments","type":"Bug","estimatedHours":1.50e1,   "projectId":"${project}"}`);
  await open(page, 'Exact');
  for (const text of ['"Exact \\u0041rguments"', '1.50e1']) await holds(() => page.locator('.args .json').innerText(), (json) => json.includes(text));
  assertClean(page);
  await page.context().close();
});

test('very long texts are truncated until more is requested', async () => {
  const page = await dashboard(browser, gateway);
  const description = Array.from({ length: 1200 }, (_, i) => `Line ${i} xx`).join('\n');
  await gateway.proposeIssue('A long story', { description: `${description}\n${'y'.repeat(6000)}` });
  await open(page, 'A long story');
  await page.locator('.lines .more').waitFor();
  await holds(() => page.locator('.line').count(), (n) => n > 0 && n < 400);
  await page.locator('.lines > .more').click();
  await holds(() => page.locator('.line').count(), (n) => n > 400);
  await holds(() => page.locator('.args .json').innerText(), (json) => json.length > 0 && json.length < 5000);
  assertClean(page);
  await page.context().close();
});
