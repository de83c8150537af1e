// Walks from an empty home to the first approved write of a real server, as a new user who reads only the screen.
//
// `DOWNLOAD=1` lets npx download the server, as on a new machine; otherwise it finds the one in tests/fixtures. `WIDTH=360`
// walks on a small screen.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, realpath, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { test } from 'node:test';
import { binary, eventually, repository } from '../clients/gateway.mjs';
import { connectPeer } from '../clients/peer.mjs';
import { armed, assertClean, becomes, button, fitsScreen, launch, live, newPage, row, waitForOutcome } from './lib/browser.mjs';
import { propose, screenshotChange } from './lib/upstreams.mjs';

const MAX_STEPS = 10;
const WIDTH = Number(process.env.WIDTH ?? 1280);
const SERVER = '@modelcontextprotocol/server-filesystem';
const DATA = '.local/state/countersign';

/** A user with an empty home, in whose terminal `countersign` runs. */
class User {
  screen = '';
  agents = [];

  static async create() {
    const user = Object.assign(new User(), { browser: await launch() });
    user.home = await realpath(await mkdtemp(join(tmpdir(), 'countersign-home-')));
    user.folder = join(user.home, 'notes');
    for (const folder of [user.folder, join(user.home, 'bin')]) await mkdir(folder);
    await symlink(binary, join(user.home, 'bin/countersign'));
    if (!process.env.DOWNLOAD) await symlink(join(repository, 'tests/fixtures/node_modules'), join(user.home, 'node_modules'));
    user.env = { HOME: user.home, PATH: [join(user.home, 'bin'), process.env.PATH].join(delimiter) };
    return user;
  }

  /** Runs the command in a terminal until it prints a link. The port is free, because tests share a machine. */
  async start() {
    this.terminal = spawn('script', ['--quiet', '--flush', '--command', 'countersign', '/dev/null'], { cwd: this.home, env: { ...this.env, COUNTERSIGN_LISTEN: '127.0.0.1:0' }, stdio: ['pipe', 'pipe', 'inherit'] });
    this.terminal.stdout.on('data', (text) => { this.screen += text; });
    this.link = await eventually('the terminal shows a link', () => {
      assert.equal(this.terminal.exitCode, null, this.screen);
      return /http:\S+#code=[\w-]+(?=\s)/.exec(this.screen)?.[0];
    });
    this.url = new URL(this.link).origin;
  }

  /** Presses the button that copies the shown configuration, and returns what another program then pastes. */
  async copyConfiguration() {
    // The mark disappears by itself.
    await this.page.evaluate(() => {
      window.isCopied = false;
      new MutationObserver(() => { window.isCopied ||= document.querySelector('.copy.done') !== null; }).observe(document, { attributes: true, subtree: true });
    });
    await this.page.getByRole('button', { name: /^Copy the configuration/ }).click();
    await this.page.waitForFunction(() => window.isCopied);
    const editor = await this.page.context().newPage();
    await editor.setContent('<textarea></textarea>');
    await editor.locator('textarea').press('Control+V');
    const text = await editor.locator('textarea').inputValue();
    await editor.close();
    return JSON.parse(text).mcpServers.countersign;
  }

  /** Connects an agent as the configuration says. */
  async connectAgent({ command, args, env, url }) {
    const target = url ? { http: new URL(url) } : { command, args, env: { ...this.env, ...env }, cwd: this.home };
    const agent = await connectPeer('legacy', target, { name: 'new', capabilities: {} });
    this.agents.push(agent);
    return agent;
  }

  async end() {
    for (const agent of this.agents) await agent.close().catch(() => {});
    await this.browser.close();
    const gateway = JSON.parse(await readFile(join(this.home, DATA, 'gateway.json'), 'utf8').catch(() => '{}'));
    if (gateway.pid && this.terminal?.exitCode === null) {
      const ended = new Promise((resolve) => { this.terminal.once('exit', resolve); });
      process.kill(gateway.pid);
      await ended;
    }
    await rm(this.home, { recursive: true, force: true, maxRetries: 5 });
  }
}

const form = (user) => user.page.getByRole('dialog', { name: 'Add a server' });
const press = (place, name) => place.getByRole('button', { name, exact: true }).click();
const file = (user, name) => readFile(join(user.folder, name), 'utf8');

async function approve(user, name, content) {
  await row(user.page, name).click();
  await armed(user.page);
  await button(user.page, 'Approve').click();
  await waitForOutcome(user.page, 'Applied');
  assert.equal(await file(user, name), content);
}

/** Everything that a new user does. */
const STEPS = {
  'start countersign in a terminal': (user) => user.start(),
  'open the link': async (user) => {
    user.page = await newPage(user.browser, user, { firstSteps: true, patience: 90_000, width: WIDTH });
    await user.page.context().grantPermissions(['clipboard-write', 'clipboard-read'], { origin: user.url });
    await user.page.goto(user.link);
    await live(user.page);
    await user.page.getByText('0 of 3 done').waitFor();
  },
  'copy the configuration into the client': async (user) => {
    user.agent = await user.connectAgent(await user.copyConfiguration());
    await user.page.getByText('1 of 3 done').waitFor();
  },
  'press Add a server': async (user) => {
    await user.page.getByRole('link', { name: 'Add a server' }).click();
    await form(user).waitFor();
  },
  'fill in the form and test the server': async (user) => {
    await form(user).getByLabel('Name').fill('files');
    await form(user).getByLabel('Package').fill(SERVER);
    await form(user).getByLabel('Arguments').fill(user.folder);
    const works = form(user).getByText('It works: 14 tools');
    // On a busy machine, a server may need longer than a test may take, which then says so.
    for (let tries = 0; tries < 3 && !(await works.isVisible()); tries += 1) {
      await press(form(user), 'Test');
      await form(user).locator('button:enabled', { hasText: 'Test' }).waitFor();
    }
    await works.waitFor();
  },
  'show the change': async (user) => {
    await press(form(user), 'Show the change');
    await becomes(() => form(user).locator('.line.insert .code').last().evaluate((line) => line.checkVisibility() && line.getBoundingClientRect().bottom < innerHeight), true, 'the lines are in view');
  },
  'write the file': async (user) => {
    await press(form(user), 'Write the file');
    await user.page.getByRole('button', { name: 'Accept the known reads' }).waitFor();
  },
  'accept the known reads': async (user) => {
    await press(user.page, 'Accept the known reads');
    await user.page.getByRole('button', { name: 'Accept the known reads' }).waitFor({ state: 'detached' });
    await user.page.getByText('10 tools now run without review.').first().waitFor();
  },
  'ask the agent to write a file': async (user) => {
    const { content } = await user.agent.call('files__list_directory', { path: user.folder });
    assert.equal(content[0].text, '', 'a read runs at once');
    await propose(user.agent, 'files__write_file', { path: join(user.folder, 'hello.md'), content: '# Hello\n' });
    await assert.rejects(file(user, 'hello.md'), { code: 'ENOENT' });
  },
  'approve it': async (user) => {
    await user.page.getByRole('link', { name: 'Back to the first steps' }).click();
    await approve(user, 'hello.md', '# Hello\n');
  },
};

test('a new user approves the first write of a real server', async (t) => {
  assert.ok(Object.keys(STEPS).length <= MAX_STEPS);
  const user = await User.create();
  try {
    const began = performance.now();
    let n = 0;
    for (const [name, take] of Object.entries(STEPS)) {
      await take(user);
      t.diagnostic(`${n += 1}. ${name}: ${((performance.now() - began) / 1000).toFixed(1)} s`);
      if (!user.page) continue;
      await screenshotChange(user.page, `first-write-${WIDTH}-${n}`);
      await fitsScreen(user.page, name);
    }
    // The empty inbox still shows how agents connect.
    await user.page.goto(`${user.url}/#/inbox`);
    await press(user.page, 'Connect an agent');
    await user.page.getByRole('tab', { name: 'HTTP' }).click();
    const other = await user.connectAgent(await user.copyConfiguration());
    await press(user.page, 'Close');
    await propose(other, 'files__write_file', { path: join(user.folder, 'http.md'), content: 'over HTTP\n' });
    await approve(user, 'http.md', 'over HTTP\n');
    assertClean(user.page);
  } finally {
    await user.end();
  }
});
