// Tests signing in and out with a real identity provider (oidc-provider).

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { freePort } from '../clients/gateway.mjs';
import { IdentityProvider } from '../clients/identity-provider.mjs';
import { armed, assertClean, becomes, focused, holds, launch, live, newPage, open, readAll, status, waitForNotice, waitForOutcome } from './lib/browser.mjs';
import { Gateway, eventually, pause } from './lib/gateway.mjs';

const OFFER = 'Sign in with the identity provider';

let browser;
let gateway;
let provider;
before(async () => {
  provider = await IdentityProvider.start({ accounts: { alice: { name: 'Alice Ärmel', groups: ['platform'] }, mallory: { name: 'Mallory', groups: [] } } });
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  provider.addClient({ client_id: 'countersign', token_endpoint_auth_method: 'none', redirect_uris: [`${url}/api/sign-in/callback`], post_logout_redirect_uris: [`${url}/`], backchannel_logout_uri: `${url}/api/sign-in/back-channel-logout`, backchannel_logout_session_required: true });
  const oidc = { issuer: provider.issuer, client_id: 'countersign', roles: { platform: 'reviewer' }, refresh: '1s' };
  const rules = [{ tools: 'create_project', then: 'review', own_agents: 'allow' }, { tools: 'create_*', then: 'review', sign_in: { max_age: '5m' } }];
  gateway = await Gateway.start({ port, rules, config: { public_url: url, auth: { oidc, tokens: [{ issuer: provider.issuer }] } } });
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

test('a person signs in, and out here and at the provider', async () => {
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
  await visitProvider(page, 'alice');
  await live(page);
  const other = await page.context().newPage();
  await other.goto(`${provider.issuer}/session/end`);
  await other.getByRole('button', { name: /sign me out/ }).click();
  await page.getByText('Your sign-in has ended').waitFor();
  await holds(() => gateway.log, (log) => /the identity provider ended sign-ins ended=1/.test(log), 'by back-channel logout');
  assertOwnPagesClean(page);
  await page.context().close();
});

test('a decision that needs a recent sign-in leads to the provider and back', async () => {
  const id = await gateway.proposeIssue('Sign in first');
  provider.login = { ts: Math.floor(Date.now() / 1000) - 3600 };
  const page = await newPage(browser, gateway);
  await page.goto(`${gateway.url}/#/inbox/${id}`);
  await visitProvider(page, 'alice');
  await page.locator('.terms', { hasText: 'Approved within 5 min of a sign-in with the identity provider' }).waitFor();
  const approve = page.locator('[data-act=approve]');
  const again = page.getByRole('button', { name: 'Sign in again' });
  const signInAgain = async () => {
    await approve.click();
    await page.locator('.decision-error', { hasText: 'requires a sign-in with the identity provider at most 300 s ago' }).waitFor();
    await again.click();
    await page.locator('input[name=login]').fill('alice');
    await page.locator('input[name=password]').fill('any');
    await page.getByRole('button', { name: 'Sign-in' }).click();
  };
  await signInAgain();
  await waitForNotice(page, 'The identity provider did not ask you to sign in again');
  await becomes(() => page.evaluate(() => location.href), `${gateway.url}/#/inbox/${id}`);
  provider.login = {};
  await signInAgain();
  await live(page);
  await becomes(() => page.evaluate(() => location.href), `${gateway.url}/#/inbox/${id}`);
  await approve.click();
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  assertClean(page, new RegExp(`request to ${provider.issuer}/`), /request to https:\/\/fonts\./, /ERR_NAME_NOT_RESOLVED/, status(404), status(401), status(403));
  await page.context().close();
});

test('a bulk approval that needs a recent sign-in leads to the provider', async () => {
  const titles = ['Sign in for both', 'Sign in for two'];
  for (const title of titles) await gateway.proposeIssue(title);
  provider.login = { ts: Math.floor(Date.now() / 1000) - 3600 };
  const page = await newPage(browser, gateway);
  await page.goto(gateway.url);
  await visitProvider(page, 'alice');
  await live(page);
  const approveBoth = async () => {
    for (const title of titles) {
      await open(page, title);
      await page.keyboard.press('x');
    }
    await page.locator('.bulk', { hasText: '2 selected' }).waitFor();
    await page.keyboard.press('a');
    const dialog = page.getByRole('dialog', { name: 'Approve 2 changes?' });
    await dialog.getByRole('button', { name: 'Approve 2 changes' }).click();
    return dialog;
  };
  const dialog = await approveBoth();
  await dialog.getByText('0 of 2 decided').waitFor();
  provider.login = {};
  await dialog.getByRole('button', { name: 'Sign in again' }).click();
  await page.locator('input[name=login]').fill('alice');
  await page.locator('input[name=password]').fill('any');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await live(page);
  await (await approveBoth()).getByText('All 2 changes decided').waitFor();
  assertOwnPagesClean(page);
  await page.context().close();
});

test('a plan whose second step needs a recent sign-in leads to the provider', async () => {
  const projectId = await gateway.project();
  const calls = [{ name: 'create_project', arguments: { key: 'SIGN', name: 'Without a recent sign-in' } }, { name: 'create_issue', arguments: { projectId, title: 'Sign in for the plan', type: 'Bug' } }];
  const { planId } = (await gateway.tool('propose_plan', { title: 'Sign in once', calls })).structuredContent;
  provider.login = { ts: Math.floor(Date.now() / 1000) - 3600 };
  const page = await newPage(browser, gateway);
  await page.goto(`${gateway.url}/#/plans/${planId}`);
  await visitProvider(page, 'alice');
  const button = (name) => page.locator('.plan-decision').getByRole('button', { name });
  const approveAll = async () => {
    await readAll(page);
    await button('Approve all').click();
  };
  await approveAll();
  provider.login = {};
  await button('Sign in again').click();
  await page.locator('input[name=login]').fill('alice');
  await page.locator('input[name=password]').fill('any');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await live(page);
  await approveAll();
  await becomes(async () => (await gateway.api(`plans/${planId}`)).value.changes.map(({ state }) => state), ['applied', 'applied']);
  assertClean(page, new RegExp(`request to ${provider.issuer}/`), /request to https:\/\/fonts\./, /ERR_NAME_NOT_RESOLVED/, status(404), status(401), status(403));
  await page.context().close();
});

test('a person approves what their own agent proposed', async () => {
  const page = await newPage(browser, gateway);
  await page.goto(gateway.url);
  await visitProvider(page, 'alice');
  await live(page);
  const agent = await provider.token('alice', { aud: gateway.url });
  const id = await gateway.propose('create_project', { key: 'OWN', name: 'By an agent of Alice' }, { key: agent });
  const key = gateway.cli('keys', 'create', '--role', 'agent', '--name', 'alice-agent', '--subject', provider.issuer, 'alice');
  await gateway.propose('create_project', { key: 'KEYED', name: 'By a key of Alice' }, { key });
  const approve = page.locator('[data-act=approve]');
  await open(page, 'By a key of Alice');
  await page.locator('.terms', { hasText: 'Whoever signed in may approve what their own agent proposed' }).waitFor();
  await page.getByText('so somebody else has to approve it').waitFor();
  await becomes(() => approve.count(), 0);
  await open(page, 'By an agent of Alice');
  await armed(page);
  await approve.click();
  await waitForOutcome(page, 'Applied');
  const [{ reviewer }] = (await gateway.change(id)).decisions;
  assert.equal(reviewer, `${provider.issuer}#alice`);
  assertOwnPagesClean(page);
  await page.context().close();
});

test('a sign-in outlives the absence and the keys of the provider, and a new one says what is wrong', async () => {
  const page = await newPage(browser, gateway);
  await page.goto(gateway.url);
  await visitProvider(page, 'alice');
  await live(page);
  const other = await newPage(browser, gateway);
  await other.goto(gateway.url);
  const asking = other.waitForRequest((request) => request.url().startsWith(`${provider.issuer}/auth?`));
  await other.getByRole('button', { name: OFFER }).click();
  const { searchParams } = new URL((await asking).url());
  await other.locator('input[name=login]').waitFor();
  await provider.stop();
  const answer = new URLSearchParams({ code: 'c', state: searchParams.get('state'), iss: provider.issuer });
  await other.goto(`${gateway.url}/api/sign-in/callback?${answer}`);
  await other.getByText('The identity provider does not answer. Try again in a moment.').waitFor();
  // With `refresh: 1s`, these are three refreshes, more than in a minute by default.
  await pause(3000);
  await live(page);
  await provider.rotateKeys();
  await provider.restart();
  // The gateway asks for keys at most every ten seconds.
  await eventually('the new key is known', async () => {
    await pause(500);
    return gateway.tool('list_projects', {}, { key: await provider.token('alice', { aud: gateway.url }) });
  });
  await visitProvider(other, 'alice');
  await live(other);
  await live(page);
  provider.accounts.alice = { ...provider.accounts.alice, groups: [] };
  for (const each of [page, other]) {
    await each.getByText('Your sign-in has ended').waitFor();
    await each.context().close();
  }
  provider.accounts.alice = { ...provider.accounts.alice, groups: ['platform'] };
});

test('the clock of the provider may be wrong by less than a minute', async () => {
  const signInWith = async (skew) => {
    provider.skew = skew;
    const page = await newPage(browser, gateway);
    await page.goto(gateway.url);
    await visitProvider(page, 'alice');
    return page;
  };
  const early = await signInWith(90);
  await early.getByText('The identity provider’s answer cannot be used.').waitFor();
  await early.context().close();
  const right = await signInWith(50);
  await live(right);
  await right.context().close();
  provider.skew = 0;
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
  await page.getByText('Your groups give you no role here.').waitFor();
  await holds(() => page.url(), (url) => !url.includes('problem'));
  assertOwnPagesClean(page);
  await page.context().close();
});
