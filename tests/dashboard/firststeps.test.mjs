// Tests the first steps of a new gateway: each is ticked while the page stays open.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, before, test } from 'node:test';
import { environment } from '../clients/gateway.mjs';
import { armed, assertAccessible, assertClean, becomes, button, dashboard, fitsScreen, focused, holds, launch, live, matches, newPage, screenshot, waitForNotice, waitForOutcome } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

const CONTENT_SERVER = new URL('lib/content-server.mjs', import.meta.url).pathname;

let browser;
let gateway;
const agents = [];

before(async () => {
  browser = await launch();
  gateway = await Gateway.start();
});
after(async () => {
  for (const agent of agents) agent.kill();
  await browser?.close();
  await gateway?.end();
});

const step = (page, name) => page.locator(`.step[data-step=${name}]`);
const isDone = (page, name) => step(page, name).getAttribute('data-done');
const snippet = (page) => page.locator('.snippet pre').innerText();

/** Starts the agent of a shown `mcpServers` block, as a desktop client does. */
function startAgent(block) {
  const { command, args, env } = JSON.parse(block).mcpServers.countersign;
  const agent = spawn(command, args, { stdio: ['pipe', 'pipe', 'ignore'], env: { ...environment(), ...env } });
  agents.push(agent);
  agent.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'first', version: '1' } } })}\n`);
  return agent;
}

for (const [name, options] of [['light', {}], ['dark', { dark: true }], ['360', { width: 360, height: 740 }]]) {
  test(`the first steps are readable and accessible, ${name}`, async () => {
    const page = await dashboard(browser, gateway, { ...options, bypassCSP: true, firstSteps: true });
    await page.getByRole('heading', { name: 'First steps' }).waitFor();
    await page.getByText('0 of 3 done').waitFor();
    for (const summary of ['Add a server', 'Decide on a test change']) await page.locator('summary', { hasText: summary }).click();
    await page.getByRole('button', { name: 'Propose a test change' }).waitFor();
    await assertAccessible(page);
    await fitsScreen(page, 'the steps are wider than the screen');
    await screenshot(page, `first-steps-${name}`);
    assertClean(page);
    await page.context().close();
  });
}

test('each step is ticked while the page stays open', async () => {
  const page = await dashboard(browser, gateway, { firstSteps: true });
  await page.getByText('0 of 3 done').waitFor();
  // The arrow keys move among the clients.
  await page.getByRole('tab', { name: 'Claude Desktop' }).focus();
  await page.keyboard.press('ArrowRight');
  await focused(page, '[role=tab][aria-selected=true]');
  await matches(() => snippet(page), /^claude mcp add --scope user countersign -- \/\S+ stdio --config \S+ --data \S+$/);
  await page.keyboard.press('End');
  await holds(() => snippet(page), (text) => JSON.parse(text).mcpServers.countersign.url === `${gateway.url}/mcp`);
  await page.keyboard.press('Home');
  await matches(() => snippet(page), /"command"/);
  startAgent(await snippet(page));
  await becomes(() => isDone(page, 'agent'), 'true');
  await page.getByText('1 of 3 done').waitFor();
  await page.locator('summary', { hasText: 'Decide on a test change' }).click();
  await page.getByRole('button', { name: 'Propose a test change' }).click();
  await page.locator('article h2', { hasText: 'Say hello to Countersign' }).waitFor();
  await page.locator('.proposer', { hasText: 'countersign-test-agent' }).first().waitFor();
  await screenshot(page, 'first-steps-change');
  await armed(page);
  await button(page, 'Approve').click();
  await waitForOutcome(page, 'Applied');
  await page.getByRole('link', { name: /^Inbox/ }).click();
  await page.getByText('2 of 3 done').waitFor();
  await becomes(() => isDone(page, 'change'), 'true');
  await screenshot(page, 'first-steps-ticked');
  gateway.reconfigure({ mcpServers: { content: { command: process.execPath, args: [CONTENT_SERVER] } } });
  await waitForNotice(page, 'All first steps are done.');
  await page.getByText("You're all caught up").waitFor();
  await page.reload();
  await live(page);
  await page.getByText("You're all caught up").waitFor();
  assertClean(page);
  await page.context().close();
});

test('simultaneous requests for a test change make one', async () => {
  const other = await Gateway.start();
  try {
    const propose = async () => (await other.api('test-change', { body: {} })).value.id;
    const ids = new Set(await Promise.all([1, 2, 3, 4].map(propose)));
    assert.equal(ids.size, 1);
    const [id] = ids;
    assert.equal(await propose(), id, 'it still waits');
    await other.decide(id, 'reject', 'No');
    assert.notEqual(await propose(), id);
  } finally {
    await other.end();
  }
});

test('the steps can be hidden, and a viewer sees none', async () => {
  const other = await Gateway.start();
  try {
    const page = await dashboard(browser, other, { firstSteps: true });
    await page.getByRole('button', { name: 'Hide' }).click();
    await page.getByText("You're all caught up").waitFor();
    await page.reload();
    await live(page);
    await page.getByText("You're all caught up").waitFor();
    // The way to connect an agent stays.
    await page.getByRole('button', { name: 'Connect an agent' }).click();
    await page.getByRole('dialog', { name: 'Connect an agent' }).getByText('mcpServers').waitFor();
    const vera = await dashboard(browser, other, { key: other.key('viewer', 'vera'), firstSteps: true });
    await vera.getByText("You're all caught up").waitFor();
    for (const p of [page, vera]) {
      assertClean(p);
      await p.context().close();
    }
  } finally {
    await other.end();
  }
});

test('a key for the agent is created on the page and shown once', async () => {
  const keyed = await Gateway.start({ config: { auth: { mode: 'keys' }, modules: { tracker: { enabled: false } } } });
  try {
    const page = await newPage(browser, keyed, { firstSteps: true });
    await page.goto(keyed.link());
    await live(page);
    await page.getByText('0 of 3 done').waitFor();
    await matches(() => snippet(page), /"COUNTERSIGN_AGENT_KEY": "csk_…"/);
    await page.getByLabel('Name of the agent').fill('local agent');
    await page.getByRole('button', { name: 'Create key' }).click();
    await page.getByText('a name may contain only ASCII letters').waitFor();
    await page.getByLabel('Name of the agent').fill('desk');
    await page.getByRole('button', { name: 'Create key' }).click();
    await page.getByText('It is shown only now').waitFor();
    const text = await snippet(page);
    const key = JSON.parse(text).mcpServers.countersign.env.COUNTERSIGN_AGENT_KEY;
    assert.match(key, /^csk_[\w-]{43}$/);
    await screenshot(page, 'first-steps-key');
    assert.ok(!page.url().includes(key));
    assert.ok(!(await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]))).includes(key), 'it is stored nowhere');
    assert.ok(!keyed.log.includes(key), 'it is not logged');
    startAgent(text);
    await becomes(() => isDone(page, 'agent'), 'true');
    const { value } = await keyed.api('audit?limit=50');
    const created = value.entries.filter((entry) => entry.event === 'key_created').map((entry) => entry.actor);
    assert.ok(created.some((actor) => actor !== 'terminal'), `the trail names the person: ${created}`);
    await page.locator('summary', { hasText: 'Decide on a test change' }).click();
    await page.getByText('The built-in tracker is off').waitFor();
    // A reviewer's key does not allow to create others.
    const alice = await dashboard(browser, keyed, { firstSteps: true });
    await alice.locator('summary', { hasText: 'Connect an agent' }).click();
    await alice.getByText('Ask an admin for an agent’s key').waitFor();
    assertClean(page, /status of 422/);
    assertClean(alice);
    for (const p of [page, alice]) await p.context().close();
  } finally {
    await keyed.end();
  }
});
