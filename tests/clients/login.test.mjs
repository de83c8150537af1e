// Tests people who sign in on the command line (`countersign login`) with a real identity provider (oidc-provider).
import assert from 'node:assert/strict';
import { stat } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';

import { COMMAND_LINE, Person } from './command-line.mjs';
import { binary, environment, freePort, run, startGateway } from './gateway.mjs';
import { IdentityProvider } from './identity-provider.mjs';

const accounts = () => ({
    alice: { name: 'Alice Ärmel', groups: ['platform', 'dba'] },
    mallory: { name: 'Mallory', groups: [] }
});
const roles = { platform: 'reviewer' };

/** Starts a provider, and a gateway on whose command line people sign in with it. `tokens` is the entry of `auth.tokens`. */
async function startBoth(tokens) {
    const provider = await IdentityProvider.start({ accounts: accounts() });
    const port = await freePort();
    const url = `http://127.0.0.1:${port}`;
    provider.addClient(COMMAND_LINE);
    const oidc = { issuer: provider.issuer, client_id: 'countersign', client_secret: 'hush', cli_client_id: COMMAND_LINE.client_id, roles };
    const gateway = await startGateway({
        listen: `127.0.0.1:${port}`,
        config: {
            public_url: url,
            auth: { mode: 'local', oidc, tokens: [{ issuer: provider.issuer, ...tokens }] },
            policy: { groups: { dba: [{ claim_group: 'dba' }] } }
        }
    });
    const stop = () => Promise.all([gateway.stop(), provider.stop().catch(() => undefined)]);
    return { provider, gateway, stop };
}

/** Lets an agent propose an issue. Returns the id of the change. */
async function propose(gateway, title) {
    const tool = async (name, args) => (await fetch(`${gateway.url}/tools/${name}`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(args) })).json();
    const { projects } = (await tool('list_projects', {})).structuredContent;
    return (await tool('create_issue', { projectId: projects[0].id, title, type: 'Story' })).structuredContent.changeId;
}

describe('people with a browser on this machine', () => {
    let it;
    before(async () => (it = await startBoth({ roles })));
    after(() => it.stop());

    test('sign-in is stored, decides on a change and ends', async t => {
        const { gateway, provider } = it;
        const alice = await Person.start(t, gateway);
        await assert.rejects(alice.run('changes', 'list'), error => error.code === 5 && /countersign login/.test(error.stderr));
        const login = await alice.logIn(t, provider, 'alice');
        assert.equal(login.code, 0, login.stderr);
        assert.match(login.stdout, /Signed in to \S+ as Alice Ärmel .*\(reviewer\)/);
        assert.deepEqual([login.page.status, /signed in/.test(login.page.text)], [200, true]);
        assert.equal((await stat(alice.file)).mode & 0o777, 0o600);
        const entry = await alice.entry();
        assert.deepEqual([entry.issuer, entry.clientId, entry.resource], [provider.issuer, 'countersign-cli', `${gateway.url}/mcp`]);
        assert.ok(!(login.stdout + login.stderr).includes(entry.accessToken));

        const me = await alice.runJson('whoami');
        assert.deepEqual([me.name, me.role, me.groups], [`${provider.issuer}#alice#countersign-cli`, 'reviewer', ['dba']]);
        assert.deepEqual(me.credential, { source: alice.file, issuer: provider.issuer, expiresAt: me.credential.expiresAt, isRenewed: true });
        const shown = (await alice.run('whoami')).stdout;
        assert.match(shown, /Alice Ärmel[^]*reviewer[^]*dba[^]*credentials\.json[^]*no longer renews it/);
        const config = await run(binary, ['config', 'show'], { env: { ...alice.env, COUNTERSIGN_URL: gateway.url } });
        assert.match(config.stderr, /what the gateway has in force/);
        const id = await propose(gateway, 'Approved with a stored sign-in');
        await alice.run('changes', 'approve', id);
        const change = await gateway.reached(id, 'applied');
        assert.equal(change.decisions[0].reviewer, `${provider.issuer}#alice#countersign-cli`);

        assert.equal((await alice.runJson('logout')).revoked, true);
        assert.equal(await alice.entry(), undefined);
        const form = { grant_type: 'refresh_token', refresh_token: entry.refreshToken, client_id: 'countersign-cli' };
        const renewed = await fetch(`${provider.issuer}/token`, { method: 'POST', body: new URLSearchParams(form) });
        assert.equal((await renewed.json()).error, 'invalid_grant', 'the refresh token is revoked');
        assert.match((await alice.run('logout')).stdout, /Nobody was signed in/);
        await assert.rejects(alice.run('whoami'), error => error.code === 5);
    });

    test('key needs no home folder', async () => {
        const { gateway } = it;
        const created = await run(binary, ['keys', 'create', '--role', 'reviewer', '--name', 'anne', '--data', gateway.data], { env: environment() });
        const env = { PATH: process.env.PATH, COUNTERSIGN_KEY: created.stdout.trim() };
        const { stdout } = await run(binary, ['whoami', '--url', gateway.url], { env });
        assert.match(stdout, /anne[^]*reviewer[^]*a key, from COUNTERSIGN_KEY/);
    });

    test('key takes precedence', async t => {
        const { gateway, provider } = it;
        const alice = await Person.start(t, gateway);
        await alice.logIn(t, provider, 'alice');
        const env = { ...alice.env, COUNTERSIGN_KEY: gateway.key };
        const { stdout } = await run(binary, ['whoami', '--url', gateway.url], { env });
        assert.match(stdout, /^alice\n[^]*COUNTERSIGN_KEY[^]*when the key is revoked/);
    });

    test('commands at once renew a token once', async t => {
        const { gateway, provider } = it;
        const alice = await Person.start(t, gateway);
        await alice.logIn(t, provider, 'alice');
        const old = await alice.entry();
        const renewals = () => provider.asked.filter(asked => asked === '/token').length;
        const before = renewals();
        await alice.run('whoami');
        assert.equal(renewals(), before, 'it is still good');
        await alice.changeEntry({ expiresAt: new Date().toISOString() });
        await Promise.all([1, 2, 3, 4].map(() => alice.run('whoami')));
        assert.equal(renewals(), before + 1);
        const now = await alice.entry();
        assert.ok(now.refreshToken !== old.refreshToken && now.accessToken !== old.accessToken);
        assert.ok(Date.parse(now.expiresAt) > Date.now() + 60_000);
        assert.equal((await stat(alice.file)).mode & 0o777, 0o600);
    });

    test('absent provider and an ended sign-in are told apart', async t => {
        const { gateway, provider } = it;
        const alice = await Person.start(t, gateway);
        await alice.logIn(t, provider, 'alice');
        await alice.changeEntry({ expiresAt: new Date().toISOString() });
        await provider.stop();
        await assert.rejects(alice.run('whoami'), error => error.code === 69);
        await alice.changeEntry({ expiresAt: new Date(Date.now() + 20_000).toISOString() });
        assert.match((await alice.run('whoami')).stdout, /reviewer/, 'the token is good for some seconds');
        await provider.restart();
        await alice.changeEntry({ expiresAt: new Date().toISOString(), refreshToken: 'unknown' });
        await assert.rejects(alice.run('whoami'), error => error.code === 5 && /run `countersign login`/.test(error.stderr));
    });

    test('answer with a wrong state or issuer signs nobody in', async t => {
        const { gateway, provider } = it;
        const alice = await Person.start(t, gateway);
        const login = alice.startLogin(t);
        const back = await provider.signIn(await login.url(), 'alice');
        const forged = new URL(back);
        forged.searchParams.set('state', 'another');
        assert.equal((await fetch(forged)).status, 400);
        assert.equal((await fetch(new URL('/other', back))).status, 404);
        // The right answer still counts.
        assert.equal((await fetch(back)).status, 200);
        assert.equal((await login.ended).code, 0);

        const again = alice.startLogin(t);
        const mixed = await provider.signIn(await again.url(), 'alice');
        mixed.searchParams.set('iss', 'https://evil.example');
        assert.equal((await fetch(mixed)).status, 400);
        const { code, stderr } = await again.ended;
        assert.deepEqual([code, /issuer/.test(stderr)], [1, true], stderr);
    });

    test('denied consent and a person without a role end it', async t => {
        const { gateway, provider } = it;
        const alice = await Person.start(t, gateway);
        const login = alice.startLogin(t);
        await fetch(await provider.signIn(await login.url(), 'alice', { deny: true }));
        const denied = await login.ended;
        assert.deepEqual([denied.code, /was denied/.test(denied.stderr)], [5, true], denied.stderr);
        const refused = await alice.logIn(t, provider, 'mallory');
        assert.deepEqual([refused.code, /does not accept this sign-in/.test(refused.stderr)], [5, true], refused.stderr);
        await assert.rejects(stat(alice.file), { code: 'ENOENT' });
    });
});

test('device code signs in without a browser', async t => {
    // Scopes decide here.
    const { gateway, provider, stop } = await startBoth({});
    t.after(stop);
    const alice = await Person.start(t, gateway);
    const login = alice.startLogin(t, '--device');
    assert.match(await login.find(/enter the code \S+/), /code \w+-\w+/);
    const page = await login.find(/http:\S+\?user_code=\S+/);
    assert.equal(await provider.signIn(page, 'alice'), undefined);
    const ended = await login.ended;
    assert.equal(ended.code, 0, ended.stderr);
    assert.match(ended.stdout, /Alice Ärmel .*\(reviewer\)/);
    const id = await propose(gateway, 'Approved after a device code');
    await alice.run('changes', 'approve', id);
    await gateway.reached(id, 'applied');
});

test('gateway without a provider says what to do instead', async t => {
    const gateway = await startGateway({ config: { auth: { mode: 'local' } } });
    t.after(() => gateway.stop());
    const alice = await Person.start(t, gateway);
    await assert.rejects(alice.run('login'), error => error.code === 5 && /countersign open/.test(error.stderr));
});
