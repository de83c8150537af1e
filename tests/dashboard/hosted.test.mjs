// Tests connecting an account at a server that requires OAuth, with a real authorization server (oidc-provider).

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, before, test } from 'node:test';
import { binary, environment, run, stopChild } from '../clients/gateway.mjs';
import { HostedServer, SCOPES } from '../clients/hosted-server.mjs';
import { IdentityProvider } from '../clients/identity-provider.mjs';
import { assertClean, dashboard, launch, status } from './lib/browser.mjs';
import { eventually, Gateway } from './lib/gateway.mjs';

let browser;
let gateway;
let provider;
let server;
before(async () => {
  provider = await IdentityProvider.start({ accounts: { ann: {} }, scopes: SCOPES });
  server = await HostedServer.start({ issuer: provider.issuer });
  gateway = await Gateway.start({ servers: { notes: { url: server.url, trust_annotations: true } } });
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await gateway?.end();
  await server?.stop();
  await provider?.stop();
});

const keyOfAnn = () => gateway.key('reviewer', 'ann');
/** Opens a page of the dashboard as ann. */
const openPage = (route) => dashboard(browser, gateway, { key: keyOfAnn(), route });
const notes = (page) => page.locator('.server', { has: page.getByRole('heading', { name: 'notes', exact: true }) });
const leave = (page) => page.getByRole('button', { name: 'Connect', exact: true }).click();
// The provider’s pages ask for an icon that is not there and a font of another host.
const assertOwnPagesClean = (page) => assertClean(page, new RegExp(`request to ${provider.issuer}/`), /request to https:\/\/fonts\./, /ERR_NAME_NOT_RESOLVED/, status(404));

// Signs ann in at the authorization server and consents there.
async function consent(page) {
  await page.locator('input[name=login]').fill('ann');
  await page.locator('input[name=password]').fill('any');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await page.getByRole('button', { name: 'Continue' }).click();
  await page.getByText('It worked.').waitFor();
}

test('a person who declines at the server is told that nothing is connected', async () => {
  const page = await openPage('/#/servers');
  await notes(page).getByRole('button', { name: 'Connect…' }).click();
  await leave(page);
  await page.locator('a[href$="/abort"]').click();
  await page.getByText('The server’s sign-in page did not grant access, so nothing was connected.').waitFor();
  assertOwnPagesClean(page);
  await page.context().close();
});

test('a person connects an account, which their agents use, and disconnects it', async () => {
  const page = await openPage('/#/servers');
  await notes(page).getByText('Agents that act for you can use it once you have connected it.').waitFor();
  await notes(page).getByRole('button', { name: 'Connect…' }).click();
  await leave(page);
  await consent(page);
  const { structuredContent } = await gateway.tool('notes__whoami', { as: 'ann' }, { key: gateway.key('agent', 'ann-agent', 'ann') });
  assert.equal(structuredContent.person, 'ann');
  await notes(page).getByRole('button', { name: 'Disconnect…' }).click();
  const dialog = page.getByRole('dialog', { name: 'Disconnect this server?' });
  await dialog.getByRole('button', { name: 'Disconnect' }).click();
  await dialog.waitFor({ state: 'detached' });
  await notes(page).getByRole('button', { name: 'Connect…' }).waitFor();
  assertOwnPagesClean(page);
  await page.context().close();
});

test('the command line prints the link, waits for the connection, and disconnects', async () => {
  const env = environment({ COUNTERSIGN_KEY: keyOfAnn(), COUNTERSIGN_URL: gateway.url });
  const child = spawn(binary, ['servers', 'connect', 'notes', '--print'], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text) => { output += text; });
  const ended = new Promise((resolve) => { child.once('close', resolve); });
  try {
    const link = await eventually('the link is printed', () => /^http\S+$/m.exec(output)?.[0]);
    assert.equal(link, `${gateway.url}/#/servers/notes/connect`);
    const page = await openPage(link.slice(gateway.url.length));
    await leave(page);
    await consent(page);
    assert.equal(await ended, 0, output);
    assert.match(output, /Sign in there as ann\..*\n.*notes is connected\./s);
    await page.context().close();
  } finally {
    await stopChild(child);
  }
  assert.equal((await run(binary, ['servers', 'disconnect', 'notes'], { env })).stdout, 'notes is disconnected.\n');
  const exported = await fetch(`${gateway.url}/api/audit/export`, { headers: { authorization: `Bearer ${keyOfAnn()}` } });
  const events = [...(await exported.text()).matchAll(/account_(?:dis)?connected/g)].map(([event]) => event);
  assert.deepEqual(events, ['account_connected', 'account_disconnected', 'account_connected', 'account_disconnected']);
});
