// Tests people who sign in to the dashboard with a real identity provider (oidc-provider), by HTTP as a browser does.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { NODES, binary, environment, eventually, run } from './gateway.mjs';
import { Browser, startWithProvider } from './signed-in.mjs';

/** Calls a tool as an agent. Returns the structured content of the result. */
async function call(gateway, name, args) {
    const response = await fetch(`${gateway.url}/tools/${name}`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(args) });
    return (await response.json()).structuredContent;
}

/** Lets an agent propose an issue. Returns the id of the change. */
async function propose(gateway, title) {
    const { projects } = await call(gateway, 'list_projects', {});
    return (await call(gateway, 'create_issue', { projectId: projects[0].id, title, type: 'Story' })).changeId;
}

/** Lets an agent propose to delete the issue with this title. Returns the id of the change. */
async function remove(gateway, title) {
    const { issues } = await call(gateway, 'list_issues', { text: title });
    return (await call(gateway, 'delete_issue', { issueId: issues.find(issue => issue.title === title).id })).changeId;
}

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
const cli = (gateway, ...args) => run(binary, [...args, '--data', gateway.data], { env: environment(gateway.env) });

describe('people of one provider', () => {
    let it;
    before(async () => {
        const review = { quorum: 2 };
        const rules = [{ tools: 'delete_*', then: 'review', reviewers: ['dba', 'admin'] }];
        it = await startWithProvider({ policy: { review, groups: { dba: [{ claim_group: 'dba' }] }, rules } });
    });
    after(() => it.stop());

    test('groups give the role, and a person has one vote', async () => {
        const { gateway, provider } = it;
        const waysToSignIn = await (await fetch(`${gateway.url}/api/sign-in`)).json();
        assert.deepEqual(waysToSignIn, { provider: true, signInUrl: `${gateway.url}/api/sign-in/provider` });
        const alice = await new Browser(gateway).signIn(provider, 'alice');
        const me = await alice.me();
        const shown = `Alice Ärmel (alice at 127.0.0.1:${provider.port})`;
        assert.deepEqual([me.name, me.displayName, me.role], [`${provider.issuer}#alice`, shown, 'reviewer']);
        const bob = await new Browser(gateway).signIn(provider, 'bob');
        assert.deepEqual([(await bob.me()).role, (await bob.me()).groups], ['admin', ['dba']]);
        const id = await propose(gateway, 'With two people');
        await alice.approve(id);
        const again = await new Browser(gateway).signIn(provider, 'alice');
        const { version, digest } = await gateway.change(id);
        const twice = await again.post(`/api/changes/${id}/decision`, { decision: 'approve', version, digest });
        assert.equal(twice.status, 409, await twice.text());
        await bob.approve(id);
        await gateway.reached(id, 'applied');
        assert.ok(!gateway.log().includes('csc_'), 'no code is logged');
    });

    test('whoever has no entry is told so', async () => {
        const { gateway, provider } = it;
        const browser = new Browser(gateway);
        assert.equal(await browser.visitProvider(provider, 'mallory'), '/#sign-in-problem=no-entry');
        assert.equal(await browser.me(), 401);
    });

    test('answer belongs to the browser that asked, and counts once', async () => {
        const { gateway, provider } = it;
        const browser = new Browser(gateway);
        const back = await provider.signIn(await browser.begin(), 'alice');
        assert.equal(await new Browser(gateway).comeBack(back), '/#sign-in-problem=interrupted');
        const cookie = browser.cookies.get('countersign_sign_in');
        const pages = [await browser.comeBack(back)];
        browser.cookies.set('countersign_sign_in', cookie);
        assert.equal(await browser.comeBack(back), '/#sign-in-problem=provider-unusable', 'a code is exchanged once');
        pages.push(await browser.visitProvider(provider, 'alice'));
        const redeem = async (page, by) => (await by.post('/api/sign-in', { code: page.slice('/#code='.length) })).status;
        for (const page of pages) {
            assert.equal(await redeem(page, new Browser(gateway)), 401, 'a link signs in no other browser');
            assert.equal(await redeem(page, browser), 200, 'two tabs sign in at the same time');
            assert.equal(await redeem(page, browser), 401);
        }
        const state = new URL(await browser.begin()).searchParams.get('state');
        const denied = new URL(`${gateway.url}/api/sign-in/callback?error=access_denied&error_description=x&state=${state}&iss=${encodeURIComponent(provider.issuer)}`);
        assert.equal(await browser.comeBack(denied), '/#sign-in-problem=denied');
    });

    test('lost group ends the sign-in and voids the vote', async () => {
        const { gateway, provider } = it;
        const carol = await new Browser(gateway).signIn(provider, 'carol');
        const id = await propose(gateway, 'With a vote that is lost');
        assert.equal((await carol.approve(id)).decisions.length, 1);
        provider.accounts.carol = { ...provider.accounts.carol, groups: [] };
        await carol.everywhere(401);
        await eventually('the vote is void', async () => (await gateway.change(id)).decisions.length === 0);
        assert.equal(await new Browser(gateway).visitProvider(provider, 'carol'), '/#sign-in-problem=no-entry');
        provider.accounts.carol = { ...provider.accounts.carol, groups: ['security'] };
        const back = await new Browser(gateway).signIn(provider, 'carol');
        assert.equal((await back.me()).role, 'admin');
        provider.accounts.carol = { ...provider.accounts.carol, groups: ['platform'] };
        await back.everywhere('reviewer');
    });

    test('sign-ins outlive new keys of the provider and its absence', async () => {
        const { gateway, provider } = it;
        const alice = await new Browser(gateway).signIn(provider, 'alice');
        await provider.rotateKeys();
        // The gateway asks for keys at most every ten seconds. The provider in memory forgets old tokens if there are many.
        const later = await eventually('somebody signs in with the new keys', async () => {
            await pause(1000);
            return new Browser(gateway).signIn(provider, 'alice');
        });
        await provider.stop();
        // The keys are known, and the browser finds out that nobody answers.
        assert.match(await new Browser(gateway).begin(), /\/auth\?/);
        const back = new URL(`${gateway.url}/api/sign-in/callback`);
        const browser = new Browser(gateway);
        const asked = new URL(await browser.begin());
        back.search = new URLSearchParams({ code: 'c', state: asked.searchParams.get('state'), iss: provider.issuer });
        assert.equal(await browser.comeBack(back), '/#sign-in-problem=provider-away');
        await pause(3000);
        assert.deepEqual([(await alice.me()).role, (await later.me()).role], ['reviewer', 'reviewer']);
        await provider.restart();
        provider.accounts.alice = { ...provider.accounts.alice, groups: ['security'] };
        await eventually('the provider is asked again', async () => (await alice.me()).role === 'admin');
        provider.accounts.alice = { ...provider.accounts.alice, groups: ['platform'] };
    });

    test('the provider ends sign-ins, and a sign-out ends its session', async () => {
        const { gateway, provider } = it;
        const alice = await new Browser(gateway).signIn(provider, 'alice');
        const bob = await new Browser(gateway).signIn(provider, 'bob');
        const logout = claims => provider.logoutToken('alice', 'countersign', claims);
        const send = async token => (await fetch(`${gateway.url}/api/sign-in/back-channel-logout`, { method: 'POST', body: new URLSearchParams({ logout_token: token }) })).status;
        assert.equal(await send(await logout({ aud: 'other' })), 400);
        assert.equal((await alice.me()).role, 'reviewer');
        const token = await logout({});
        assert.equal(await send(token), 200);
        await alice.everywhere(401);
        assert.equal((await bob.me()).role, 'admin');
        assert.equal(await send(token), 400, 'a logout token counts once');

        await bob.everywhere('admin');
        // Another program that has the secrets of the browser.
        const copy = Object.assign(new Browser(gateway), { cookies: new Map(bob.cookies), secret: bob.secret });
        const signedOut = await bob.post('/api/sign-out');
        const { providerUrl } = await signedOut.json();
        const url = new URL(providerUrl);
        assert.equal(url.origin, provider.issuer);
        assert.equal(url.searchParams.get('post_logout_redirect_uri'), `${gateway.url}/`);
        assert.equal(await bob.me(), 401);
        await copy.everywhere(401);
        assert.equal((await fetch(url, { redirect: 'manual' })).status, 200, 'the provider asks whether to sign out');
    });

    test('revoked person loses sign-ins, keys and votes', async () => {
        const { gateway, provider } = it;
        const name = `${provider.issuer}#alice`;
        const alice = await new Browser(gateway).signIn(provider, 'alice');
        const key = (await cli(gateway, 'keys', 'create', '--role', 'viewer', '--name', 'alice-laptop', '--subject', provider.issuer, 'alice')).stdout.trim();
        const asKey = () => fetch(`${gateway.url}/api/me`, { headers: { authorization: `Bearer ${key}` } });
        assert.equal((await asKey()).status, 200);
        const id = await propose(gateway, 'With a vote of somebody who is revoked');
        await alice.approve(id);
        const { people } = JSON.parse((await cli(gateway, 'people', 'list', '--json')).stdout);
        assert.equal(people.find(person => person.name === name).displayName, `Alice Ärmel (alice at 127.0.0.1:${provider.port})`);
        assert.match((await cli(gateway, 'people', 'list')).stdout, /Alice Ärmel \(alice at [^)]+\) +reviewer +platform/);
        assert.match((await cli(gateway, 'people', 'revoke', name)).stdout, /keys revoked: 1/);
        await alice.everywhere(401);
        await eventually('the key ends', async () => (await asKey()).status === 401);
        await eventually('the vote is void', async () => (await gateway.change(id)).decisions.length === 0);
        assert.equal(await new Browser(gateway).visitProvider(provider, 'alice'), '/#sign-in-problem=revoked');
        await assert.rejects(cli(gateway, 'people', 'revoke', 'alice'), /ISSUER#SUBJECT/);
    });
});

// A sign-in has the same attributes at every node.
describe('a rule that requires a sign-in', { skip: NODES > 1 && 'tested with one node' }, () => {
    let it;
    before(async () => {
        const rules = [
            { tools: 'delete_*', then: 'review', sign_in: { max_age: '5m', acr: ['urn:example:mfa'] } },
            { tools: 'create_*', then: 'review', sign_in: { max_age: '5m' } }
        ];
        it = await startWithProvider({ policy: { rules }, acceptsTokens: true });
    });
    after(() => it.stop());

    test('old sign-in is refused, and a new one decides', async () => {
        const { gateway, provider } = it;
        provider.login = { ts: Math.floor(Date.now() / 1000) - 3600 };
        const alice = await new Browser(gateway).signIn(provider, 'alice');
        const id = await propose(gateway, 'With a recent sign-in');
        const problem = await alice.failToApprove(id);
        assert.deepEqual(problem.details, { maxAge: 300 });
        assert.match(problem.detail, /at most 300 s ago; sign in again/);
        const asked = new URL(await alice.begin(id)).searchParams;
        assert.deepEqual([asked.get('prompt'), asked.get('max_age'), asked.get('acr_values')], ['login', '300', null]);
        // The sign-in was as long ago as before, as if the provider had not asked.
        assert.equal(await alice.visitProvider(provider, 'alice', id), '/#sign-in-problem=not-recent');
        await alice.failToApprove(id);

        provider.login = {};
        const other = await new Browser(gateway).signIn(provider, 'alice', id);
        // The provider renews both sign-ins every second, which makes neither of them newer.
        await pause(3000);
        await alice.failToApprove(id);
        await other.approve(id);
        await gateway.reached(id, 'applied');
        const next = await propose(gateway, 'Without a recent sign-in');
        assert.equal((await alice.decide(next, 'reject')).status, 200);
        const unknown = new URL(await alice.begin('chg_unknown')).searchParams;
        assert.deepEqual([unknown.get('prompt'), unknown.get('max_age')], [null, null]);
    });

    test('weak sign-in, key and token are refused', async () => {
        const { gateway, provider } = it;
        const id = await propose(gateway, 'To be deleted');
        provider.login = { acr: 'urn:example:pwd' };
        const bob = await new Browser(gateway).signIn(provider, 'bob', id);
        await bob.approve(id);
        await gateway.reached(id, 'applied');
        const removal = await remove(gateway, 'To be deleted');
        assert.deepEqual((await bob.failToApprove(removal)).details, { maxAge: 300, acr: ['urn:example:mfa'] });
        assert.equal(new URL(await bob.begin(removal)).searchParams.get('acr_values'), 'urn:example:mfa');
        assert.equal(await bob.visitProvider(provider, 'bob', removal), '/#sign-in-problem=not-strong');
        const key = (await cli(gateway, 'keys', 'create', '--role', 'admin', '--name', 'root')).stdout.trim();
        const { version } = await gateway.change(removal);
        const decide = credential => fetch(`${gateway.url}/api/changes/${removal}/decision`, {
            method: 'POST',
            headers: { 'content-type': 'application/json', authorization: `Bearer ${credential}` },
            body: JSON.stringify({ decision: 'approve', version })
        });
        const refused = await (await decide(key)).json();
        assert.equal(refused.code, 'SIGN_IN_REQUIRED');
        assert.match(refused.detail, /because a key or a local sign-in does not suffice/);
        const token = claims => provider.token('bob', { aud: gateway.url, scope: 'changes:decide', acr: 'urn:example:mfa', ...claims });
        const tooOld = await decide(await token());
        assert.equal((await tooOld.json()).code, 'SIGN_IN_REQUIRED');
        assert.match(tooOld.headers.get('www-authenticate'), /^Bearer error="insufficient_user_authentication", max_age="300", acr_values="urn:example:mfa", resource_metadata=/);
        const accepted = await decide(await token({ auth_time: Math.floor(Date.now() / 1000) }));
        assert.equal(accepted.status, 200, await accepted.text());
        await gateway.reached(removal, 'applied');

        const again = await propose(gateway, 'To be deleted too');
        await bob.approve(again);
        await gateway.reached(again, 'applied');
        const last = await remove(gateway, 'To be deleted too');
        await bob.failToApprove(last);
        provider.login = { acr: 'urn:example:mfa' };
        await bob.signIn(provider, 'bob', last);
        await bob.approve(last);
        await gateway.reached(last, 'applied');
    });
});
