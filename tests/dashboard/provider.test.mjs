// Tests signing in and out with a real identity provider (oidc-provider).

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { freePort } from '../clients/gateway.mjs';
import { IdentityProvider } from '../clients/identity-provider.mjs';
import { assertClean, becomes, focused, holds, launch, live, newPage, status } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

const OFFER = 'Sign in with the identity provider';

let browser;
let gateway;
let provider;
before(async () => {
  provider = await IdentityProvider.start({ accounts: { alice: { name: 'Alice Ärmel', groups: ['platform'] }, mallory: { name: 'Mallory', groups: [] } } });
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  provider.addClient({ client_id: 'countersign', token_endpoint_auth_method: 'none', redirect_uris: [`${url}/api/sign-in/callback`], post_logout_redirect_uris: [`${url}/`] });
  const oidc = { issuer: provider.issuer, client_id: 'countersign', roles: { platform: 'reviewer' }, refresh: '1s' };
  gateway = await Gateway.start({ port, config: { public_url: url, auth: { oidc } } });
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await gateway?.end();
  await provider?.stop().catch(() => undefined);
});

// The provider’s pages ask for an icon that is not there and a font of another host.
const assertOwnPagesClean = (page) => assertClean(page, new RegExp(`request to ${provider.issuer}/`), /request to https:\/\/fonts\./, /ERR_NAME_NOT_RESOLVED/, status(404), status(401));

// Signs in at the provider and consents there.
async function visitProvider(page, login) {
  await page.getByRole('button', { name: OFFER }).click();
  await page.locator('input[name=login]').fill(login);
  await page.locator('input[name=password]').fill('any');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await page.getByRole('button', { name: 'Continue' }).click();
}

test('a person signs in and out with the provider', async () => {
  const page = await newPage(browser, gateway);
  await page.goto(`${gateway.url}/#/history`);
  await focused(page, '.signin-provider button');
  await visitProvider(page, 'alice');
  await live(page);
  await becomes(async () => (await page.locator('.me-name').innerText()).split(' (')[0], 'Alice Ärmel');
  await becomes(() => page.evaluate(() => location.href), `${gateway.url}/#/history`);
  const cookies = (await page.context().cookies(gateway.url)).map((c) => c.name);
  assert.ok(cookies.includes('countersign_session') && !cookies.includes('countersign_sign_in'));
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('button', { name: /sign me out/ }).click();
  await page.getByRole('button', { name: OFFER }).waitFor();
  await holds(() => page.url(), (url) => url.startsWith(`${gateway.url}/`));
  assertOwnPagesClean(page);
  await page.context().close();
});

test('a lost group ends the sign-in, and without a group there is no entry', async () => {
  const page = await newPage(browser, gateway);
  await page.goto(gateway.url);
  await visitProvider(page, 'alice');
  await live(page);
  provider.accounts.alice = { ...provider.accounts.alice, groups: [] };
  await page.getByText('Your sign-in has ended').waitFor();
  await page.context().clearCookies();
  await page.reload();
  await visitProvider(page, 'mallory');
  await page.getByText('Your groups give you no entry here.').waitFor();
  await holds(() => page.url(), (url) => !url.includes('problem'));
  assertOwnPagesClean(page);
  await page.context().close();
});
