// Tests bundles: the inbox shows related changes as one entry, and their page decides on those that were seen.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertAccessible, assertClean, becomes, dashboard, fitsScreen, focused, holds, launch, matches, newPage, readAll, row, screenshot, signIn } from './lib/browser.mjs';
import { eventually, Gateway } from './lib/gateway.mjs';

const DESCRIPTION = Array.from({ length: 60 }, (_, n) => `Line ${n + 1}`).join('\n');
const SERVER = new URL('lib/content-server.mjs', import.meta.url).pathname;
// More than a diff holds.
const TOO_LONG = Array.from({ length: 60_000 }, (_, n) => `Line ${n + 1} of a text`).join('\n');

let browser;
let gateway;
before(async () => {
  browser = await launch();
  gateway = await Gateway.start({ flood: true, servers: { box: { command: process.execPath, args: [SERVER], trust_annotations: true } } });
  await eventually('the server is connected', async () => (await gateway.api('servers/box')).value.tools?.length === 3);
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

/** Proposes an issue for each title as one agent, and returns the ids of the changes. */
async function propose(agent, titles, more = {}) {
  const ids = [];
  for (const title of titles) ids.push(await gateway.proposeIssue(title, { description: DESCRIPTION, ...more }, { key: gateway.key('agent', agent) }));
  return ids;
}

const decision = (page) => page.locator('.plan-decision');
const approveAll = (page) => decision(page).locator('[data-act=approve-all]');
const item = (page, title) => page.locator('.list-item', { hasText: title });
const states = async (ids) => (await Promise.all(ids.map((id) => gateway.change(id)))).map(({ state }) => state);

test('a bundle of twelve is opened from the inbox and approved once all was seen', async () => {
  const titles = Array.from({ length: 11 }, (_, n) => `Bundled ${n + 1}`);
  const ids = await propose('twelve-bot', titles);
  const large = await gateway.propose('box__send', { text: TOO_LONG }, { key: gateway.key('agent', 'twelve-bot') });
  const page = await dashboard(browser, gateway, {});
  const group = page.locator('.group-row', { hasText: 'twelve-bot' });
  await becomes(() => group.locator('.group-count').innerText(), '12');
  await screenshot(page, 'bundle-inbox');
  await page.getByRole('link', { name: 'Review together' }).click();
  await page.getByRole('heading', { name: '12 changes by twelve-bot' }).waitFor();
  await becomes(() => page.locator('.list-contents li').count(), 12);
  await becomes(() => approveAll(page).isDisabled(), true, 'nobody has read the changes yet');
  await item(page, 'box / send').locator('.list-note', { hasText: 'incomplete' }).waitFor();
  await screenshot(page, 'bundle-unseen');

  // One is taken out, one is rejected by somebody else, and one is edited while it is being read.
  await item(page, 'Bundled 3').last().getByLabel('Include in').uncheck();
  await gateway.decide(ids[4], 'reject', 'not this one', gateway.key('reviewer', 'bob'));
  await item(page, 'Bundled 5').locator('.badge.state', { hasText: 'Rejected' }).waitFor();
  await readAll(page);
  await page.locator('.list-progress', { hasText: 'You have seen all of them.' }).waitFor();
  await becomes(() => approveAll(page).innerText().then((text) => text.trim().split('\n')[0]), 'Approve all 9');
  const edited = await gateway.change(ids[6]);
  await gateway.api(`changes/${ids[6]}/edit`, { body: { version: edited.version, arguments: { ...edited.arguments, title: 'Edited meanwhile' } } });
  // Its part closes, so that it must be opened to be read.
  await item(page, 'Edited meanwhile').locator('summary', { hasText: 'Changed since you read it' }).waitFor();
  await becomes(() => approveAll(page).isDisabled(), true, 'the new content was not seen');
  await decision(page).getByRole('button', { name: 'Go to the next one' }).click();
  await becomes(() => approveAll(page).isDisabled(), true, 'the closed part was not seen');
  await item(page, 'Edited meanwhile').locator('summary').click();
  await readAll(page);
  await becomes(() => approveAll(page).isEnabled(), true);
  await approveAll(page).scrollIntoViewIfNeeded();
  await screenshot(page, 'bundle-seen');
  await approveAll(page).click();
  await page.locator('dialog').getByRole('button', { name: 'Approve 9 changes' }).click();
  await page.locator('.bulk-summary', { hasText: 'All 9 changes decided.' }).waitFor();
  await page.locator('dialog .sheet-foot').getByRole('button', { name: 'Close' }).click();
  const others = ids.filter((_, n) => n !== 2 && n !== 4);
  await becomes(() => states(others), others.map(() => 'applied'));
  assert.deepEqual(await states([ids[2], ids[4], large]), ['pending', 'rejected', 'pending'], 'what was left out still waits');
  await becomes(() => page.locator('.list-item .badge.state').allTextContents().then((all) => all.filter((state) => state === 'Applied').length), 9);
  await matches(() => page.locator('.page-head').innerText(), /2 waiting/);
  await screenshot(page, 'bundle-decided');
  assertClean(page);
  await page.context().close();
});

test('a bundle is worked through with the keyboard, and grows while it is open', async () => {
  const ids = await propose('keyboard-bot', ['By keyboard one', 'By keyboard two']);
  const page = await dashboard(browser, gateway, { route: `/#/bundles/${ids[1]}` });
  await page.getByRole('heading', { name: '2 changes by keyboard-bot' }).waitFor();
  const [third] = await propose('keyboard-bot', ['By keyboard three']);
  await page.getByRole('heading', { name: '3 changes by keyboard-bot' }).waitFor();
  await page.keyboard.press('j');
  await focused(page, '.list-item h2');
  await page.keyboard.press('j');
  await becomes(() => page.evaluate(() => document.activeElement.textContent), '2. Create Bug “By keyboard two” in CORE');
  const fold = item(page, 'By keyboard two').locator('.list-fold');
  await page.keyboard.press(' ');
  await becomes(() => fold.evaluate((element) => element.open), false);
  await page.keyboard.press(' ');
  await becomes(() => fold.evaluate((element) => element.open), true);
  await page.keyboard.press('r');
  await page.locator('#bulk-comment').fill('Not this');
  await page.locator('dialog').getByRole('button', { name: 'Reject 1 change' }).click();
  await page.locator('dialog .sheet-foot').getByRole('button', { name: 'Close' }).click();
  await becomes(() => states([ids[1]]), ['rejected']);
  await readAll(page);
  await becomes(() => approveAll(page).isEnabled(), true);
  await page.keyboard.press('Shift+A');
  await page.locator('dialog').getByRole('button', { name: 'Approve 2 changes' }).click();
  await becomes(() => states([ids[0], third]), ['applied', 'applied']);
  await page.locator('dialog .sheet-foot').getByRole('button', { name: 'Close' }).click();
  await page.locator('.banner', { hasText: 'Everything on this page is decided.' }).waitFor();
  assertClean(page, /status of 404/);
  await page.context().close();
});

test('a viewer sees a bundle and cannot decide', async () => {
  const ids = await propose('viewed-bot', ['Only looked at', 'Also only looked at']);
  const page = await dashboard(browser, gateway, { key: gateway.key('viewer', 'vera'), route: `/#/bundles/${ids[0]}` });
  await decision(page).getByText('You are signed in as a viewer').waitFor();
  await becomes(() => page.locator('.list-tools button').count(), 0);
  assertClean(page);
  await page.context().close();
});

for (const [name, options] of [['light', {}], ['dark', { dark: true }], ['small', { width: 360, height: 740 }]]) {
  test(`the page of a bundle is accessible and fits the screen (${name})`, async () => {
    const ids = await propose(`look-bot-${name}`, ['Rename the build job', 'Split the release checklist', 'Close what was fixed in 2.4']);
    const page = await dashboard(browser, gateway, { route: `/#/bundles/${ids[0]}`, bypassCSP: true, ...options });
    await page.getByRole('heading', { name: `3 changes by look-bot-${name}` }).waitFor();
    await fitsScreen(page, name);
    await assertAccessible(page);
    await screenshot(page, `bundle-${name}`);
    await readAll(page);
    await approveAll(page).scrollIntoViewIfNeeded();
    await screenshot(page, `bundle-${name}-end`);
    await page.context().close();
  });
}

for (const [width, height] of [[1440, 900], [390, 800]]) {
  test(`the link to the decision of a bundle leads to it at ${width} pixels`, async () => {
    const ids = await propose(`end-bot-${width}`, Array.from({ length: 8 }, (_, n) => `Above the end ${n + 1}`));
    const page = await dashboard(browser, gateway, { width, height, route: `/#/bundles/${ids[0]}` });
    await item(page, 'Above the end 8').waitFor();
    await page.getByRole('button', { name: 'at the end of the page' }).click();
    await focused(page, '.plan-decision');
    // The changes near the end get their height in the frames after the first scrolling.
    await page.evaluate(async () => {
      const list = document.querySelector('.list-sections');
      for (let same = 0, last = -1; same < 10; last = list.offsetHeight) {
        await new Promise(requestAnimationFrame);
        same = list.offsetHeight === last ? same + 1 : 0;
      }
    });
    const { top, bottom, screen } = await decision(page).evaluate((section) => ({ ...section.getBoundingClientRect().toJSON(), screen: innerHeight }));
    assert.ok(top >= 0 && bottom <= screen, `the decision is at ${top} to ${bottom} on a screen of ${screen}`);
    // Then the page is the reader's again.
    await page.mouse.move(width / 2, height / 2);
    await page.mouse.wheel(0, -3000);
    await becomes(() => decision(page).evaluate((section) => section.getBoundingClientRect().top > innerHeight), true);
    assertClean(page);
    await page.context().close();
  });
}

/** Closes the group of an agent's issues before the page learns that they are a bundle. */
async function closeBeforeBundle(page, agent) {
  const { promise: closed, resolve: release } = Promise.withResolvers();
  await page.route('**/api/bundles', async (route) => {
    await closed;
    await route.continue();
  });
  await signIn(page, gateway);
  const head = page.locator('.group-row', { hasText: agent });
  await head.click();
  await row(page, 'Folded 1').waitFor({ state: 'detached' });
  release();
  await page.locator('.row-place', { has: head }).getByRole('link', { name: 'Review together' }).waitFor();
  return head;
}

test('a closed group stays closed when it becomes a bundle', async () => {
  const ids = await propose('folding-bot', ['Folded 1', 'Folded 2', 'Folded 3']);
  const page = await newPage(browser, gateway);
  const head = await closeBeforeBundle(page, 'folding-bot');
  await holds(() => head.getAttribute('aria-expanded'), (expanded) => expanded === 'false');
  await head.click();
  await row(page, 'Folded 1').waitFor();
  for (const id of ids) await gateway.decide(id, 'reject');
  assertClean(page);
  await page.context().close();
});

test('a bundle is open if it has changes that nobody closed', async () => {
  const issueId = await gateway.issue('Commented');
  await propose('mixing-bot', ['Folded 1', 'Folded 2', 'Folded 3']);
  await gateway.propose('add_comment', { issueId, content: 'Never closed' }, { key: gateway.key('agent', 'mixing-bot') });
  const page = await newPage(browser, gateway);
  const head = await closeBeforeBundle(page, 'mixing-bot');
  await row(page, 'Folded 1').waitFor();
  await holds(() => head.getAttribute('aria-expanded'), (expanded) => expanded === 'true');
  assertClean(page);
  await page.context().close();
});

test('a refused approval shows the new arguments, and is not offered to be undone', async () => {
  const undoing = await Gateway.start({ review: { undoFor: 600 } });
  try {
    const ids = [];
    for (const title of ['Changed by bob', 'Approved by bob', 'Approved by me']) ids.push(await undoing.proposeIssue(title, { description: 'Old' }, { key: undoing.key('agent', 'raced-bot') }));
    const page = await dashboard(browser, undoing, { route: `/#/bundles/${ids[0]}` });
    await readAll(page);
    await approveAll(page).click();
    const dialog = page.locator('dialog');
    await dialog.getByRole('button', { name: 'Approve 3 changes' }).waitFor();
    const bob = undoing.key('reviewer', 'bob');
    const { version, arguments: old } = await undoing.change(ids[0]);
    await undoing.api(`changes/${ids[0]}/edit`, { key: bob, body: { version, arguments: { ...old, description: 'New' } } });
    await undoing.decide(ids[1], 'approve', null, bob);
    await dialog.getByRole('button', { name: 'Approve 3 changes' }).click();
    await dialog.locator('.bulk-summary', { hasText: '1 of 3' }).waitFor();
    await dialog.locator('.sheet-foot').getByRole('button', { name: 'Close' }).click();
    await page.locator('.undo', { hasText: 'Approved by me' }).waitFor();
    await becomes(() => page.locator('.undo', { hasText: 'Approved by bob' }).count(), 0);
    const changed = item(page, 'Changed by bob');
    await changed.locator('summary', { hasText: 'Changed since you read it' }).click();
    await matches(() => changed.innerText(), /"description": "New"/);
    assertClean(page);
    await page.context().close();
  } finally {
    await undoing.end();
  }
});
