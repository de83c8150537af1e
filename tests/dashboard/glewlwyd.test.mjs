// Tests people and agents with a second identity provider (Debian's glewlwyd). It issues no ID token with a renewed access token,
// leaves the claim with the groups out where there are none, and refuses without a reason.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';
import { binary, environment, freePort, run, stopChild, temporaryData } from '../clients/gateway.mjs';
import { Glewlwyd, PASSWORD, skipped } from '../clients/glewlwyd.mjs';
import { becomes, launch, live, newPage } from './lib/browser.mjs';
import { eventually, Gateway, pause } from './lib/gateway.mjs';

describe('people of glewlwyd', { skip: skipped }, () => {
  let browser;
  let gateway;
  let provider;
  before(async () => {
    const port = await freePort();
    const url = `http://127.0.0.1:${port}`;
    const resource = [`${url}/mcp`];
    const confidential = { confidential: true, token_endpoint_auth_method: ['client_secret_basic'] };
    provider = await Glewlwyd.start({
      people: { alice: { name: 'Alice Ärmel', groups: ['platform'] }, mallory: { name: 'Mallory' } },
      clients: [
        { client_id: 'countersign', client_secret: 'hush', ...confidential, redirect_uri: [`${url}/api/sign-in/callback`], authorization_type: ['code', 'refresh_token'] },
        { client_id: 'countersign-cli', resource, authorization_type: ['device_authorization', 'refresh_token'] },
        { client_id: 'robot', client_secret: 'hush', ...confidential, resource, scope: ['tools'], authorization_type: ['client_credentials'] },
      ],
    });
    const { issuer } = provider;
    const oidc = { issuer, client_id: 'countersign', client_secret: 'hush', cli_client_id: 'countersign-cli', scopes: ['openid'], roles: { platform: 'reviewer' }, refresh: '1s' };
    const tokens = [{ issuer, roles: { '*': 'agent', platform: 'reviewer' } }];
    gateway = await Gateway.start({ port, config: { public_url: url, auth: { oidc, tokens } } });
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await gateway?.end();
    await provider?.stop();
  });

  const tokenOfAgent = () => provider.token('robot', 'hush', 'tools', `${gateway.url}/mcp`);

  // Fills in the form of the provider and goes on to the client.
  async function fillIn(page, login) {
    await page.locator('#username').fill(login);
    await page.locator('#password').fill(PASSWORD);
    await page.locator('#loginbut').click();
    await page.getByRole('button', { name: 'Continue' }).click();
  }

  // Opens the dashboard and goes to the provider.
  async function visitProvider(page, login) {
    await page.goto(gateway.url);
    await page.locator('.signin-provider button').click();
    await fillIn(page, login);
  }

  // Signs alice in to the dashboard with a new browser.
  async function signIn() {
    const page = await newPage(browser, gateway);
    await visitProvider(page, 'alice');
    await live(page);
    return page;
  }

  test('a person with a group decides on what an agent with a token proposes', async () => {
    const page = await signIn();
    await becomes(async () => (await page.locator('.me-name').innerText()).split(' (')[0], 'Alice Ärmel');
    const id = await gateway.proposeIssue('Proposed with a token', {}, { key: await tokenOfAgent() });
    assert.equal((await gateway.change(id)).proposer.principal, `${provider.issuer}#robot#robot`);
    await page.goto(`${gateway.url}/#/inbox/${id}`);
    await page.locator('[data-act=approve]').click();
    await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
    await provider.admin('PUT', '/user/alice', { groups: [] });
    await page.getByText('Your sign-in has ended').waitFor();
    await provider.admin('PUT', '/user/alice', { groups: ['platform'] });
    await page.context().clearCookies();
    await visitProvider(page, 'mallory');
    await page.getByText('Your groups give you no role here.').waitFor();
    await page.context().close();
  });

  test('a sign-out ends the session at the provider', async () => {
    const page = await signIn();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByText('The client countersign wishes you to close the current session').waitFor();
    await page.getByRole('button', { name: 'Logout' }).click();
    await page.getByText('You are disconnected').waitFor();
    await page.context().close();
  });

  test('a sign-in outlives new keys of the provider, and ends when it is not renewed', async () => {
    const page = await signIn();
    await provider.rotateKeys();
    // The gateway asks for keys at most every ten seconds.
    await eventually('the new key is known', async () => {
      await pause(500);
      return gateway.tool('list_projects', {}, { key: await tokenOfAgent() });
    });
    const other = await signIn();
    await live(page);
    await provider.admin('DELETE', '/oidc/token/?impersonate=alice');
    for (const each of [page, other]) {
      await each.getByText('Your sign-in has ended').waitFor();
      await each.context().close();
    }
  });

  test('a device code signs in on the command line', async () => {
    const home = await temporaryData();
    const env = environment({ XDG_CONFIG_HOME: home });
    const child = spawn(binary, ['login', '--device', '--url', gateway.url], { env, stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text) => { output += text; });
    const ended = new Promise((resolve) => { child.once('close', resolve); });
    try {
      const page = await newPage(browser, gateway);
      await page.goto(await eventually('the code is printed', () => /http:\S+\?code=\S+/.exec(output)?.[0]));
      await fillIn(page, 'alice');
      await page.getByText('Authorization complete').waitFor();
      assert.equal(await ended, 0, output);
      assert.match(output, /Signed in to \S+ as Alice Ärmel .*\(reviewer\)/);
      const { stdout } = await run(binary, ['whoami', '--url', gateway.url, '--json'], { env });
      assert.equal(JSON.parse(stdout).role, 'reviewer');
      await page.context().close();
    } finally {
      await stopChild(child);
      await rm(home, { recursive: true, force: true });
    }
  });
});
