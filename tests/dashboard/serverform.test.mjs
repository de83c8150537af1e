// Tests adding, testing, changing and removing servers on the dashboard, which edits the configuration file.

import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { assertAccessible, assertClean, becomes, dashboard, fitsScreen, focused, launch, matches, screenshot, status, waitForNotice } from './lib/browser.mjs';
import { eventually, Gateway } from './lib/gateway.mjs';

const SERVER = fileURLToPath(new URL('./lib/altering-server.mjs', import.meta.url));
const FILE = '# The servers of our team.\nmcpServers:\n  broken: { command: sh, args: ["-c", "echo error: no licence >&2; exit 3"] }   # known\n';

let browser;
let gateway;
let file;
let folder;
let tools;
const server = (page, name) => page.locator('.server', { has: page.getByRole('heading', { name, exact: true }) });
const text = () => readFileSync(file, 'utf8');

before(async () => {
  browser = await launch();
  gateway = await Gateway.start();
  file = join(gateway.data, 'config.yaml');
  writeFileSync(file, FILE);
  process.kill(gateway.child.pid, 'SIGHUP');
  // A server may not get at the data of the gateway.
  folder = mkdtempSync(join(tmpdir(), 'countersign-tools-'));
  tools = join(folder, 'tools');
  writeFileSync(tools, '{"name":"look","description":"Looks","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}\n{"name":"write","description":"Writes","inputSchema":{"type":"object"}}');
});
after(async () => {
  await browser?.close();
  await gateway?.end();
  if (folder) rmSync(folder, { recursive: true });
});

async function checkAppearance(page, name) {
  await fitsScreen(page, name);
  await assertAccessible(page, name);
  await screenshot(page, name);
}

test('a server is tested, added with its diff, changed and removed', async () => {
  const page = await dashboard(browser, gateway, { key: gateway.key('admin', 'root'), route: '/#/servers' });
  await page.getByRole('button', { name: 'Add a server' }).click();
  const form = page.getByRole('dialog', { name: 'Add a server' });
  await form.getByRole('button', { name: 'Show the change' }).click();
  await form.getByText('Give the server a name.').waitFor();
  await focused(page, 'input[aria-invalid=true]');
  await form.getByLabel('Name').fill('broken');
  await form.getByRole('button', { name: 'Show the change' }).click();
  await form.getByText('There is already a server “broken”.').waitFor();
  await focused(page, 'input[aria-invalid=true]');
  await form.getByLabel('Name').fill('notes');
  await page.mouse.dblclick(5, 5);
  await form.getByRole('alert').filter({ hasText: 'is not saved' }).waitFor();
  await becomes(() => form.getByLabel('Name').inputValue(), 'notes', 'a click outside discards nothing at once');
  await form.getByLabel('Kind').selectOption('command');
  await form.getByLabel('Command').fill(process.execPath);
  await form.getByLabel('Arguments').fill(gateway.data);
  await form.getByRole('button', { name: 'Show the change' }).click();
  await form.getByText('Name other folders').waitFor();
  await matches(() => form.locator('.server-yaml').innerText(), /^mcpServers:\n {2}notes:\n {4}command: /);
  await form.getByRole('button', { name: 'Test' }).click();
  await matches(() => form.locator('.trial-report').innerText(), /^The configuration cannot be used\n+.*Name other folders/);
  await form.getByLabel('Arguments').fill(`${SERVER}\n${tools}.missing`);
  await form.getByRole('button', { name: 'Test' }).click();
  await form.getByText('Its last lines on stderr:').waitFor();
  await matches(() => form.locator('.trial-stderr').innerText(), /ENOENT|no such file/);
  await form.getByLabel('Arguments').fill(`${SERVER}\n${tools}`);
  await form.getByRole('button', { name: 'Test' }).click();
  await form.getByText('It works: 2 tools').waitFor();
  await becomes(() => form.locator('.trial-tools code').allInnerTexts(), ['look', 'write']);
  assert.equal(text(), FILE, 'a test writes nothing');

  await form.getByRole('button', { name: 'Show the change' }).click();
  await matches(async () => (await form.locator('.line.insert .code').allInnerTexts()).join('\n'), /^ {2}notes:\n {4}command: /);
  await form.getByRole('button', { name: 'Write the file' }).click();
  await form.waitFor({ state: 'detached' });
  await server(page, 'notes').getByText('1 tool says that it only reads').waitFor();
  assert.ok(text().startsWith(FILE), 'all other lines are as before');

  await server(page, 'notes').getByRole('button', { name: 'Change' }).click();
  const change = page.getByRole('dialog', { name: 'Change notes' });
  await change.getByLabel('Variables').fill('LOG=debug\nNOTES_TOKEN=s3cret-value');
  await change.getByRole('button', { name: 'Show the change' }).click();
  await change.getByText('It will be disabled: set NOTES_TOKEN').waitFor();
  await matches(async () => (await change.locator('.line.insert .code').allInnerTexts()).join('\n'), /NOTES_TOKEN: "\$\{NOTES_TOKEN\}"/);
  await change.getByRole('button', { name: 'Back' }).click();
  await change.getByLabel('Variables').fill('LOG=debug');
  await change.getByRole('button', { name: 'Show the change' }).click();
  await change.getByRole('button', { name: 'Write the file' }).click();
  await change.waitFor({ state: 'detached' });
  await eventually('the variable is in the file', () => text().includes('      LOG: debug\n'));
  assert.ok(!text().includes('s3cret'));

  await server(page, 'notes').getByRole('button', { name: 'Remove' }).click();
  await page.getByRole('button', { name: 'Remove it from the file' }).click();
  await server(page, 'notes').waitFor({ state: 'detached' });
  assert.equal(text(), FILE);
  // The page may ask for the server while it is removed.
  assertClean(page, status(404), status(422));
  await page.context().close();
});

test('a pasted block is added without its secrets', async () => {
  const page = await dashboard(browser, gateway, { key: gateway.key('admin', 'root'), route: '/#/servers' });
  await page.getByRole('button', { name: 'Add a server' }).click();
  const form = page.getByRole('dialog', { name: 'Add a server' });
  await form.getByLabel('Kind').selectOption('paste');
  await form.getByLabel('Text').fill('{"mcpServers": {"crm": {"command": "crm", "env": {"CRM_TOKEN": "s3cret-value"}}, "web": {"url": "https://mcp.example.com/mcp", "disabled": true}}}');
  await form.getByRole('button', { name: 'Show the change' }).click();
  await form.getByText('is now ${CRM_TOKEN}').waitFor();
  await form.getByRole('button', { name: 'Write the file' }).click();
  await form.waitFor({ state: 'detached' });
  await page.getByText('2 disabled servers in the configuration file').waitFor();
  assert.ok(!text().includes('s3cret') && text().includes('disabled: true'), text());
  assertClean(page);
  await page.context().close();
});

test('broken servers come first and mark the navigation', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/servers' });
  const row = page.locator('.server-table .server-row').first();
  await matches(() => row.innerText(), /broken[^]*Built-in|broken[^]*MCP server[^]*status 3[^]*sh -c/);
  await becomes(() => row.locator('td').first().evaluate((cell) => parseFloat(getComputedStyle(cell).paddingTop)), 8, 'rows of several lines keep their distance');
  await page.locator('nav a[data-view=servers] .alarm', { hasText: '1 server does not work' }).waitFor({ state: 'attached' });
  await page.setViewportSize({ width: 768, height: 800 });
  await becomes(() => page.locator('nav a[data-view=servers]').evaluate((link) => link.scrollHeight <= link.clientHeight), true, 'the mark stays in the bar');
  await page.setViewportSize({ width: 390, height: 800 });
  await page.locator('nav .more-views .alarm', { hasText: '1 server does not work' }).waitFor();
  await page.setViewportSize({ width: 1280, height: 800 });
  // The row opens into its details by keyboard, and by its address.
  const toggle = row.getByRole('button', { name: 'broken' });
  const details = server(page, 'broken').locator('.server-detail');
  await details.waitFor({ state: 'hidden' });
  await toggle.press('Enter');
  await becomes(() => toggle.getAttribute('aria-expanded'), 'true');
  await details.getByText('Error on stderr: error: no licence').waitFor();
  await toggle.press('Enter');
  await details.waitFor({ state: 'hidden' });
  await page.goto(`${gateway.url}/#/servers/broken`);
  await details.waitFor();
  // A reviewer edits nothing.
  await becomes(() => page.getByRole('button', { name: 'Add a server' }).count(), 0);
  assertClean(page);
  await page.context().close();
});

test('a test of a new command waits for somebody else behind a proxy', async () => {
  const key = gateway.key('admin', 'root');
  const request = { name: 'other', settings: { command: 'sh', args: ['-c', 'exit 3'] } };
  const response = await fetch(`${gateway.url}/api/server-trials`, { method: 'POST', headers: { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json', 'X-Forwarded-For': '192.0.2.1' }, body: JSON.stringify(request) });
  assert.equal((await response.json()).state, 'waiting');
  const page = await dashboard(browser, gateway, { key: gateway.key('reviewer', 'bob'), route: '/#/servers' });
  const offer = page.getByRole('region', { name: 'Test of other' });
  await matches(() => offer.innerText(), /root wants to test the server other[^]*command: sh[^]*exit 3/);
  await offer.getByRole('button', { name: 'Run the test' }).click();
  await offer.waitFor({ state: 'detached' });
  await eventually('the test has ended', async () => (await gateway.api('server-trials')).value.trials[0].state === 'finished');
  assertClean(page);
  await page.context().close();
});

test('a saved command waits for somebody else behind a proxy', async () => {
  const send = async (path, body) => {
    const response = await fetch(`${gateway.url}/api/${path}`, { method: 'POST', headers: { Authorization: `Bearer ${gateway.key('admin', 'root')}`, 'Content-Type': 'application/json', 'X-Forwarded-For': '192.0.2.1' }, body: JSON.stringify(body) });
    return response.json();
  };
  const { version } = (await gateway.api('server-file')).value;
  const asked = await send('servers', { version, text: '{"late": {"command": "sh", "args": ["-c", "exit 5"]}}' });
  assert.deepEqual([asked.saved, asked.needsConsent], [false, true]);
  const own = await dashboard(browser, gateway, { key: gateway.key('admin', 'root'), route: '/#/servers' });
  const page = await dashboard(browser, gateway, { key: gateway.key('reviewer', 'bob'), route: '/#/servers', bypassCSP: true });
  const offer = (p) => p.getByRole('region', { name: 'Saving of late' });
  await matches(() => offer(own).innerText(), /Somebody else must allow it[^]*Withdraw/);
  await becomes(() => offer(own).getByRole('button', { name: 'Save and start it' }).count(), 0);
  await matches(() => offer(page).innerText(), /root wants to save the server late[^]*command: sh[^]*exit 5/);
  await checkAppearance(page, 'server-consent');
  assert.ok(!text().includes('exit 5'));
  await offer(page).getByRole('button', { name: 'Save and start it' }).click();
  await waitForNotice(page, 'The server is saved.');
  await server(page, 'late').waitFor();
  assert.ok(text().includes('exit 5'));
  for (const p of [own, page]) {
    assertClean(p);
    await p.context().close();
  }
});

test('the form and the table fit all screens and are accessible', async () => {
  for (const [width, dark] of [[360, false], [360, true], [1280, false], [1280, true]]) {
    const page = await dashboard(browser, gateway, { key: gateway.key('admin', 'root'), width, height: 800, dark, route: '/#/servers', bypassCSP: true });
    await page.locator('.server-table').waitFor();
    await server(page, 'broken').getByRole('button', { name: 'broken' }).click();
    await server(page, 'broken').getByText('Error on stderr').waitFor();
    const name = `${width}${dark ? '-dark' : ''}`;
    await checkAppearance(page, `server-table-${name}`);
    await page.getByRole('button', { name: 'Add a server' }).click();
    await page.getByLabel('Kind').waitFor();
    await checkAppearance(page, `server-form-${name}`);
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    await page.context().close();
  }
});
