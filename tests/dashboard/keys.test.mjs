// Tests the page of keys: creating, showing once, using and revoking a key.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertAccessible, assertClean, becomes, dashboard, fitsScreen, focused, launch, live, newPage, pressTogether, row, screenshot, signIn, status } from './lib/browser.mjs';
import { eventually, Gateway } from './lib/gateway.mjs';

let browser;
let gateway;

before(async () => {
  browser = await launch();
  gateway = await Gateway.start({ config: { auth: { mode: 'keys' } } });
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

const key = (page, name) => page.locator('.records.keys tbody tr', { has: page.locator('td[data-label=Name]', { hasText: name }) });

test('an admin creates a key, sees what it proposed, and revokes it', async () => {
  const page = await dashboard(browser, gateway, { key: gateway.key('admin', 'root'), route: '/#/keys' });
  await key(page, 'root').waitFor();
  await page.getByRole('button', { name: 'Create key' }).click();
  const dialog = page.getByRole('dialog', { name: 'Create a key' });
  await dialog.getByLabel('Name').fill('r00t');
  await dialog.getByRole('button', { name: 'Create key' }).click();
  await dialog.getByText('looks like "root"').waitFor();
  await dialog.getByLabel('Name').fill('desk');
  await dialog.getByLabel('Owner (optional)').fill('Bob');
  await dialog.getByRole('button', { name: 'Create key' }).click();
  const secret = await page.locator('.secret').innerText();
  assert.match(secret, /^csk_[\w-]{43}$/);
  await key(page, 'desk').filter({ hasText: 'Bob' }).waitFor();
  await screenshot(page, 'keys');
  await page.getByRole('button', { name: 'Done' }).click();
  await becomes(() => page.locator('.secret').count(), 0);
  assert.ok(!page.url().includes(secret) && !gateway.log.includes(secret));
  // The key is an agent's, and the page leads to what it proposed.
  const { structuredContent } = await gateway.tool('list_projects', {}, { key: secret });
  const propose = () => gateway.tool('create_issue', { projectId: structuredContent.projects[0].id, title: 'From the desk', type: 'Bug' }, { key: secret });
  const { structuredContent: { changeId } } = await propose();
  await gateway.decide(changeId, 'reject', 'No');
  await key(page, 'desk').getByRole('link', { name: 'Changes of desk' }).click();
  await row(page, 'From the desk').waitFor();
  await page.getByRole('link', { name: 'Keys' }).click();
  await key(page, 'desk').getByRole('button', { name: 'Revoke… desk' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Revoke the key' }).click();
  await key(page, 'desk').getByText('Revoked').waitFor();
  await eventually('the key is refused', () => propose().then(() => false, (error) => error.message.includes('401')));
  const { value } = await gateway.api('audit?limit=50');
  assert.deepEqual(value.entries.filter((entry) => entry.actor === 'root').map((entry) => entry.event), ['key_revoked', 'key_created']);
  assertClean(page, status(422));
  await page.context().close();
});

test('the focus stays when the list of keys changes', async () => {
  const page = await newPage(browser, gateway);
  await page.clock.install();
  gateway.key('agent', 'kept');
  await signIn(page, gateway, gateway.key('admin', 'root'), '/#/keys');
  const revoke = (name) => key(page, name).getByRole('button', { name: `Revoke… ${name}` });
  // Reads the keys again, of which one is new.
  const read = async (name) => {
    gateway.key('agent', name);
    await page.clock.fastForward(16_000);
    await key(page, name).waitFor();
  };
  await revoke('kept').focus();
  await read('first');
  await becomes(() => revoke('kept').evaluate((button) => button === document.activeElement), true);
  await page.keyboard.press('Enter');
  const dialog = page.getByRole('dialog', { name: 'Revoke the key of kept?' });
  await dialog.waitFor();
  await read('second');
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  await becomes(() => revoke('kept').evaluate((button) => button === document.activeElement), true);
  await page.keyboard.press('Enter');
  await dialog.getByRole('button', { name: 'Revoke the key' }).click();
  await key(page, 'kept').getByText('Revoked').waitFor();
  await focused(page, 'h1');
  assertClean(page);
  await page.context().close();
});

test('a key of a reviewer that an admin creates never votes beside its creator', async () => {
  const root = gateway.key('admin', 'root');
  const page = await dashboard(browser, gateway, { key: root, route: '/#/keys' });
  await page.getByRole('button', { name: 'Create key' }).click();
  const dialog = page.getByRole('dialog', { name: 'Create a key' });
  await dialog.getByText('never votes beside you').waitFor();
  await dialog.getByLabel('Name').fill('rita');
  await dialog.getByRole('radio', { name: /^Reviewer/ }).check();
  await dialog.getByRole('button', { name: 'Create key' }).click();
  const rita = await page.locator('.secret').innerText();
  await key(page, 'rita').filter({ hasText: 'by root' }).waitFor();
  assert.deepEqual((await gateway.api('me', { key: rita })).value.otherNames, ['root']);
  // The key may not approve what its creator proposed, but what others proposed.
  const projectId = (await gateway.tool('list_projects', {}, { key: root })).structuredContent.projects[0].id;
  const propose = (title, by) => gateway.propose('create_issue', { projectId, title, type: 'Bug' }, { key: by });
  const refused = await gateway.decide(await propose('By root', root), 'approve', undefined, rita);
  assert.deepEqual([refused.status, refused.value.code], [403, 'SELF_APPROVAL']);
  const approved = await gateway.decide(await propose('By the bot', gateway.key('agent', 'bot')), 'approve', undefined, rita);
  assert.equal(approved.status, 200);
  assertClean(page);
  await page.context().close();
});

test('a code sign-in manages keys of agents only, and a reviewer none', async () => {
  const page = await newPage(browser, gateway);
  await page.goto(gateway.link());
  await live(page);
  // Not `goto`: the browser drops its navigation if the inbox opens its first change at that moment.
  await pressTogether(page, 'gk');
  await key(page, 'root').waitFor();
  gateway.key('agent', 'bot');
  await page.reload();
  await key(page, 'bot').getByRole('button', { name: /^Revoke/ }).waitFor();
  await becomes(() => key(page, 'root').getByRole('button', { name: /^Revoke/ }).count(), 0);
  const alice = await dashboard(browser, gateway, { route: '/#/keys' });
  await alice.getByText('Keys are managed by admins').waitFor();
  await becomes(() => alice.locator('.empty code').allInnerTexts(), ['countersign open', 'countersign keys']);
  assertClean(page);
  assertClean(alice, status(403));
  for (const p of [page, alice]) await p.context().close();
});

for (const [name, options] of [['light', {}], ['dark', { dark: true }], ['360', { width: 360, height: 740 }]]) {
  test(`keys are readable and accessible, ${name}`, async () => {
    const page = await dashboard(browser, gateway, { ...options, bypassCSP: true, key: gateway.key('admin', 'root'), route: '/#/keys' });
    await key(page, 'root').waitFor();
    await assertAccessible(page);
    await fitsScreen(page, 'the keys are wider than the screen');
    await screenshot(page, `keys-${name}`);
    assertClean(page);
    await page.context().close();
  });
}
