// Tests the page of servers: definitions and configuration changes that wait for a reviewer.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertAccessible, assertClean, becomes, dashboard, fitsScreen, launch, matches, screenshot, status } from './lib/browser.mjs';
import { World } from './lib/world.mjs';

let browser;
let gateway;
let world;
const happen = (events) => world.apply(events);
/** Returns a tool of a server from the REST API. */
const tool = async (server, name) => (await gateway.api(`servers/${server}`)).value.tools.find((t) => t.name === `${server}__${name}`);
const tools = (server, ...names) => Promise.all(names.map((name) => tool(server, name)));
const server = (page, name) => page.locator('.server', { has: page.getByRole('heading', { name, exact: true }) });

before(async () => {
  browser = await launch();
  world = await World.start();
  ({ gateway } = world);
});
after(async () => {
  await browser?.close();
  await world?.end();
});

test('declared reads of a new server are accepted together, beside their definitions', async () => {
  await happen({ connect: 'fs' });
  const page = await dashboard(browser, gateway, { route: '/#/servers' });
  await page.locator('nav a[data-view=servers] .count', { hasText: '2' }).waitFor();
  const fs = server(page, 'fs');
  await fs.getByText('2 tools say that they only read').waitFor();
  await matches(() => fs.innerText(), /handshake · 2025-11-25[^]*stdio/);
  await matches(() => fs.innerText(), /Lists a folder‹U\+202E›‹U\+200B› of files/, 'invisible characters are marked');
  await fs.getByText('Full definition').first().click();
  await matches(() => fs.locator('.json').first().innerText(), /"maximum": 12345678901234567890123/);
  await fs.getByRole('button', { name: 'Accept 2 reads' }).click();
  await fs.getByText('2 tools say').waitFor({ state: 'detached' });
  await fs.getByText(/^Previews: recipes for \d tools?, with the shipped set filesystem\.$/).waitFor();
  await fs.getByText('All 3 tools').click();
  await becomes(() => fs.locator('table.tools tbody tr').evaluateAll((rows) => rows.map((r) => [r.cells[1].innerText, r.cells[3].innerText])), [['Runs', '—'], ['Runs', '—'], ['Reviewed', 'by recipe']]);
  const all = await tools('fs', 'read_file', 'list', 'write_file');
  assert.deepEqual(all.map((t) => [t.definitionStatus, t.verdict]), [['accepted', 'allow'], ['accepted', 'allow'], ['seen', 'review']]);
  assert.equal(all[0].acceptedBy, 'alice');
  await page.locator('nav a[data-view=servers] .count').waitFor({ state: 'hidden' });
  assertClean(page);
  await page.context().close();
});

test('an unchecked tool is not accepted', async () => {
  await happen({ connect: 'other' });
  const page = await dashboard(browser, gateway, { route: '/#/servers' });
  const other = server(page, 'other');
  await other.getByLabel('other__list').uncheck();
  await other.getByRole('button', { name: 'Accept 1 read' }).click();
  await other.getByText('1 tool says that it only reads').waitFor();
  assert.deepEqual((await tools('other', 'read_file', 'list', 'write_file')).map((t) => t.definitionStatus), ['accepted', 'seen', 'seen']);
  assertClean(page);
  await page.context().close();
});

test('known reads of a server without annotations are accepted in one step', async () => {
  await happen({ connectMemory: 'memory' });
  const page = await dashboard(browser, gateway, { height: 1600, route: '/#/servers' });
  await page.getByText('What reviewing, accepting and allowing mean').click();
  await page.getByText('You let a tool run without review, whatever it says').waitFor();
  const memory = server(page, 'memory');
  const offer = memory.getByRole('region', { name: 'Known reads of memory' });
  await offer.getByText('This is the memory server: 3 tools are known to only read').waitFor();
  await matches(() => memory.locator('.server-row').innerText(), /3 not accepted/);
  await becomes(() => offer.locator('.offer-name').allInnerTexts(), ['memory__read_graph', 'memory__search_nodes', 'memory__open_nodes']);
  await offer.getByText('Full definition').first().click();
  await matches(() => offer.locator('.json').first().innerText(), /read_graph/);
  // The button does not cover what it accepts.
  await page.setViewportSize({ width: 1280, height: 500 });
  await offer.locator('.offer-head').scrollIntoViewIfNeeded();
  await becomes(() => offer.evaluate((element) => element.querySelector('.offer-foot').getBoundingClientRect().top >= element.querySelector('.offers').getBoundingClientRect().bottom), true);
  await page.setViewportSize({ width: 1280, height: 1600 });
  await screenshot(page, 'known-reads');
  await fitsScreen(page, 'with known reads');
  await offer.getByRole('button', { name: 'Accept the known reads' }).click();
  await offer.waitFor({ state: 'detached' });
  await memory.getByText('All 9 tools').click();
  const row = (name) => memory.locator('table.tools tbody tr', { hasText: name });
  await matches(() => row('memory__read_graph').innerText(), /Runs[^]*it only reads[^]*accepted as a read by alice/);
  await matches(() => row('memory__delete_entities').innerText(), /Reviewed[^]*it may write/);
  const all = await tools('memory', 'read_graph', 'create_entities');
  assert.deepEqual(all.map((t) => [t.verdict, t.acceptedAsRead]), [['allow', true], ['review', false]]);
  // A definition that is not on the list is named, and its calls are reviewed.
  await happen({ redefine: { server: 'memory', tool: 'memory__open_nodes', description: 'Opens nodes, and more' } });
  await memory.getByText('does not cover this tool, because its definition differs from').waitFor();
  assert.equal((await tool('memory', 'open_nodes')).verdict, 'review');
  await screenshot(page, 'known-reads-accepted');
  assertClean(page);
  await page.context().close();
});

test('a changed and a new tool are marked and accepted exactly as shown', async () => {
  await happen({ redefine: { server: 'fs', tool: 'fs__read_file', description: 'Reads a file and tells others of it' }, offer: { server: 'fs', tool: 'fs__delete', description: 'Deletes' } });
  const page = await dashboard(browser, gateway, { route: '/#/servers' });
  const changed = page.getByRole('region', { name: 'Changed: fs__read_file' });
  await changed.waitFor();
  await matches(() => changed.locator('.line.delete').innerText(), /"description": "Reads a file"/);
  await matches(() => changed.locator('.line.insert').innerText(), /tells others/);
  // The definition changes again while it is being read, so the acceptance is refused.
  const seen = await tool('fs', 'read_file');
  await page.route('**/api/servers/fs/accept', async (route) => {
    await happen({ redefine: { server: 'fs', tool: 'fs__read_file', description: 'Something else again' } });
    await route.continue();
  }, { times: 1 });
  await changed.getByRole('button', { name: 'Accept the new definition' }).click();
  await page.getByText('A definition changed while you were reading, so nothing was accepted.').waitFor();
  await changed.locator('.line.insert', { hasText: 'Something else again' }).waitFor();
  const now = await tool('fs', 'read_file');
  assert.notEqual(now.hash, seen.hash);
  assert.equal(now.definitionStatus, 'changed');
  await changed.getByRole('button', { name: 'Accept the new definition' }).click();
  await changed.waitFor({ state: 'detached' });
  await page.getByRole('region', { name: 'New: fs__delete' }).getByRole('button', { name: 'Accept this tool' }).click();
  await page.getByRole('region', { name: 'New: fs__delete' }).waitFor({ state: 'detached' });
  const [read, gone] = await tools('fs', 'read_file', 'delete');
  assert.deepEqual([read.definitionStatus, gone.definitionStatus, gone.verdict], ['accepted', 'accepted', 'review']);
  // The acceptance is revoked.
  await server(page, 'fs').getByText('All 4 tools').click();
  await server(page, 'fs').locator('table.tools tr', { hasText: 'fs__read_file' }).getByRole('button', { name: 'Revoke' }).click();
  await changed.waitFor();
  assertClean(page, status(409));
  await page.context().close();
});

test('a viewer sees servers and configuration but cannot decide', async () => {
  await happen({ waiting: [{ key: 'policy.default', from: 'review_writes', to: 'allow' }] });
  const page = await dashboard(browser, gateway, { key: gateway.key('viewer', 'vic'), route: '/#/servers' });
  await page.getByRole('region', { name: 'Changed: fs__read_file' }).waitFor();
  await page.getByRole('button', { name: 'Review', exact: true }).click();
  await page.getByText('review_writes').first().waitFor();
  await becomes(() => page.getByRole('button', { name: /Accept|Revoke|Consent|Refuse|Let / }).count(), 0);
  await becomes(() => page.locator('main input').count(), 0);
  assertClean(page);
  await page.context().close();
});

test('a looser configuration needs consent, and an invalid file is reported', async () => {
  await happen({ waiting: [{ key: 'policy.rules', from: 'deny db__*', to: null }, { key: 'mcpServers.fs.trust_annotations', from: 'false', to: 'true' }], refused: [{ place: '/etc/countersign.yaml:3:7', key: 'policy.rules', message: 'rule 1 has no `then`', remedy: 'Write one.' }] });
  const page = await dashboard(browser, gateway);
  const bar = page.getByRole('region', { name: 'Configuration' });
  await bar.getByText('It would loosen 2 settings').waitFor();
  await bar.getByText('rule 1 has no `then`').waitFor();
  await bar.getByRole('button', { name: 'Hide' }).click();
  await bar.getByText('rule 1 has no').waitFor({ state: 'detached' });
  await bar.getByRole('button', { name: 'Review', exact: true }).click();
  await bar.getByText('mcpServers.fs.trust_annotations').first().waitFor();
  await bar.locator('tbody tr', { hasText: 'policy.rules' }).locator('.delete', { hasText: 'no-db (deny)' }).waitFor();
  await becomes(() => bar.locator('tbody tr', { hasText: 'policy.rules' }).locator('.none').locator('[aria-hidden]').innerText(), '–', 'a missing rule is no value');
  // The bar shows the lines of the file, not only the name of the setting.
  const content = bar.locator('.reload-content', { hasText: 'policy.rules' });
  await matches(async () => (await content.locator('.line.delete .code').allInnerTexts()).join('\n'), /db__\*[^]*deny|deny[^]*db__\*/);
  await bar.getByRole('button', { name: 'Consent', exact: true }).click();
  await bar.waitFor({ state: 'hidden' });
  assert.equal((await gateway.api('reload')).value.waiting, null);
  assertClean(page);
  await page.context().close();
});

test('the servers page fits all screens and is accessible', async () => {
  await happen({ connect: 'wide', waiting: [{ key: 'policy.default', from: 'review_writes', to: 'allow' }] });
  await happen({ redefine: { server: 'wide', tool: 'wide__write_file', description: 'Writes more' } });
  for (const [width, dark] of [[360, false], [1280, true]]) {
    const page = await dashboard(browser, gateway, { width, height: 800, dark, route: '/#/servers', bypassCSP: true });
    await page.getByRole('region', { name: 'Changed: wide__write_file' }).waitFor();
    await page.getByRole('button', { name: 'Review', exact: true }).click();
    await server(page, 'wide').getByText('All 3 tools').click();
    await fitsScreen(page, `at ${width} pixels`);
    await assertAccessible(page);
    await screenshot(page, `servers-${width}${dark ? '-dark' : ''}`);
    await page.context().close();
  }
});
