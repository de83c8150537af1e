// Tests agents and reviewers who present access tokens of a real identity provider (oidc-provider) in place of keys.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile, rm } from 'node:fs/promises';
import http from 'node:http';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { generateKeyPair } from 'jose';

import { Reviewer, eventually, freePort, run, binary, environment, startGateway, temporaryData } from './gateway.mjs';
import { IdentityProvider } from './identity-provider.mjs';

const REDIRECT = 'http://127.0.0.1:1/callback';
const RESOURCE = 'https://gateway.example/mcp';
const ACCOUNTS = {
    alice: { name: 'Alice Ärmel', groups: ['platform'] },
    bob: { name: 'Bob', groups: ['security', 'database-admins'] },
    carol: { name: 'Carol', groups: [] }
};

/** Starts a provider and a gateway that accepts its tokens. */
async function startBoth({ issuer = {}, provider: options = {}, ...config } = {}) {
    const provider = await IdentityProvider.start({ accounts: ACCOUNTS, ...options });
    const gateway = await startGateway({
        config: {
            public_url: 'https://gateway.example',
            auth: { mode: 'keys', tokens: [{ issuer: provider.issuer, ...issuer }] },
            ...config
        }
    });
    const stop = () => Promise.all([gateway.stop(), provider.stop().catch(() => undefined)]);
    const token = (subject, claims, options) => provider.token(subject, { aud: RESOURCE, ...claims }, options);
    return { provider, gateway, stop, token };
}

/** Sends one message to `/mcp`, in the stateless era unless `legacy` is set. */
async function post(gateway, token, method, params = {}, { path = '/mcp', legacy = false } = {}) {
    const version = legacy ? '2025-11-25' : '2026-07-28';
    const meta = { 'io.modelcontextprotocol/protocolVersion': version, 'io.modelcontextprotocol/clientCapabilities': {} };
    const headers = { 'content-type': 'application/json', accept: 'application/json, text/event-stream', 'mcp-protocol-version': version };
    if (!legacy) Object.assign(headers, { 'mcp-method': method }, params.name && { 'mcp-name': params.name });
    if (token !== undefined) headers.authorization = `Bearer ${token}`;
    const body = { jsonrpc: '2.0', id: 1, method, params: legacy ? params : { ...params, _meta: meta } };
    const response = await fetch(gateway.url + path, { method: 'POST', headers, body: JSON.stringify(body) });
    const text = await response.text();
    return { status: response.status, challenge: response.headers.get('www-authenticate'), text, body: text.startsWith('{') ? JSON.parse(text) : undefined };
}

/** Returns the end of a token that is accepted for a few seconds more, because an end counts only after 60 s. */
const soon = () => Math.floor(Date.now() / 1000) - 45;

const listTools = (gateway, token) => post(gateway, token, 'tools/list');
const call = (gateway, token, name, args) => post(gateway, token, 'tools/call', { name, arguments: args });

/** Proposes an issue. Returns the result of the call. */
async function propose(gateway, token, title) {
    const projects = await call(gateway, token, 'list_projects', {});
    const projectId = projects.body.result.structuredContent.projects[0].id;
    return call(gateway, token, 'create_issue', { projectId, title, type: 'Story' });
}

const initialize = protocolVersion => ({ jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion, capabilities: {}, clientInfo: { name: 't', version: '1' } } });
const createIssue = id => ({ jsonrpc: '2.0', id, method: 'tools/call', params: { name: 'create_issue', arguments: { projectId: '00000000-0000-4000-8000-000000000000', title: 'Not allowed', type: 'Story' } } });

/** Opens a WebSocket whose session id can be read, which the built-in client hides. Returns the id and the socket. */
async function connectRaw(url, token) {
    const key = Buffer.alloc(16).toString('base64');
    const headers = { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': 13, 'sec-websocket-key': key, authorization: `Bearer ${token}` };
    const [response, socket] = await once(http.get(url, { headers }), 'upgrade');
    return [response.headers['mcp-session-id'], socket];
}

/** Encodes a message of 126 to 65,535 bytes as a text frame. */
function textFrame(message) {
    const text = Buffer.from(JSON.stringify(message));
    // The mask of zeros leaves the text as it is.
    return Buffer.concat([Buffer.from([0x81, 0xfe, text.length >> 8, text.length & 255, 0, 0, 0, 0]), text]);
}

const changeId = answer => answer.body.result.structuredContent.changeId;

describe('JSON Web Tokens of one issuer', () => {
    let it;
    before(async () => (it = await startBoth()));
    after(() => it.stop());

    test('agent proposes and a reviewer decides, each with a token', async () => {
        const { gateway, provider, token } = it;
        const proposed = await propose(gateway, await token('alice'), 'With a token');
        const id = changeId(proposed);
        const change = await gateway.change(id);
        assert.equal(change.proposer.principal, `${provider.issuer}#alice#robot`);
        assert.equal(change.proposer.owner, `${provider.issuer}#alice`);
        assert.match(change.proposer.claims.displayName, /^Alice Ärmel/);
        // Alice does not approve what her agent proposed, with whatever token or key.
        const own = new Reviewer(gateway.url, await token('alice', { client_id: 'browser', scope: 'changes:decide' }));
        const digests = await own.change(id);
        const refused = await own.api('POST', `/changes/${id}/decision`, { decision: 'approve', version: digests.version, digest: digests.digest });
        assert.equal(refused.status, 403, JSON.stringify(refused.body));
        const { stdout } = await run(
            binary,
            ['keys', 'create', '--role', 'reviewer', '--name', 'laptop', '--subject', provider.issuer, 'alice', '--data', gateway.data],
            { env: environment() }
        );
        const withKey = new Reviewer(gateway.url, stdout.trim());
        await assert.rejects(withKey.approve(id), /403/);
        const other = new Reviewer(gateway.url, await token('bob', { scope: 'changes:decide' }));
        const approved = await other.approve(id);
        assert.equal(approved.decisions[0].reviewer, `${provider.issuer}#bob#robot`);
        assert.match(approved.decisions[0].displayName, /^Bob/);
        await gateway.reached(id, 'applied');
    });

    test('access token connects no account at a server', async () => {
        const { gateway, token } = it;
        const holder = new Reviewer(gateway.url, await token('bob', { scope: 'admin' }));
        const refused = await holder.api('POST', '/servers/any/connect', {});
        assert.equal(refused.status, 403, JSON.stringify(refused.body));
        assert.match(refused.body.detail, /sign in to the dashboard/);
    });

    test('request without a token says where to get one', async () => {
        const { gateway, provider } = it;
        for (const [path, document] of [['/mcp', 'mcp'], ['/ws', 'ws'], ['/sse', 'sse']]) {
            const response = await fetch(gateway.url + path, { method: path === '/mcp' ? 'POST' : 'GET' });
            assert.equal(response.status, 401, path);
            const challenge = response.headers.get('www-authenticate');
            const location = `https://gateway.example/.well-known/oauth-protected-resource/${document}`;
            assert.equal(challenge, `Bearer resource_metadata="${location}", scope="tools:read tools:propose"`);
            const metadata = await fetch(`${gateway.url}/.well-known/oauth-protected-resource/${document}`, { headers: { origin: 'https://elsewhere.example' } });
            assert.equal(metadata.headers.get('access-control-allow-origin'), '*');
            assert.deepEqual(await metadata.json(), {
                resource: `https://gateway.example/${document}`,
                authorization_servers: [provider.issuer],
                scopes_supported: ['tools:read', 'tools:propose'],
                bearer_methods_supported: ['header'],
                resource_name: 'Countersign'
            });
        }
        const root = await (await fetch(`${gateway.url}/.well-known/oauth-protected-resource`)).json();
        assert.equal(root.resource, 'https://gateway.example/mcp');
    });

    const now = Math.floor(Date.now() / 1000);
    const refused = {
        'for another audience': token => token('alice', { aud: 'https://other.example/mcp' }),
        'of another issuer': token => token('alice', { iss: 'https://id.example' }),
        'that has expired': token => token('alice', { exp: now - 61 }),
        'that is not yet valid': token => token('alice', { nbf: now + 3600 }),
        'without an expiry': token => token('alice', { exp: undefined }),
        'without a subject': token => token('alice', { sub: undefined }),
        'of an unknown key': token => token('alice', {}, { header: { kid: 'other' } }),
        'of a foreign key': async token => token('alice', {}, { key: { ...(await generateKeyPair('RS256')), kid: it.provider.key.kid } }),
        'that is an ID token': token => token('alice', { aud: 'robot', nonce: 'x', client_id: undefined }, { header: { typ: 'JWT' } }),
        'that is truncated': async token => (await token('alice')).slice(0, -4),
        'that is huge': () => 'x'.repeat(20_000),
        'that is random': () => 'abc.def.ghi'
    };
    for (const [fault, createToken] of Object.entries(refused)) {
        test(`token ${fault} is refused with its challenge`, async () => {
            const { gateway, token } = it;
            assert.equal((await listTools(gateway, await token('alice'))).status, 200, 'the token without the fault');
            const wrong = await createToken(token);
            const answer = await listTools(gateway, wrong);
            assert.equal(answer.status, 401, answer.text);
            assert.match(answer.challenge, /error="invalid_token"/);
            assert.match(answer.challenge, /resource_metadata="/);
            assert.ok(!answer.text.includes(wrong));
        });
    }

    test('token within the clock skew is accepted', async () => {
        const { gateway, token } = it;
        assert.equal((await listTools(gateway, await token('alice', { exp: Math.floor(Date.now() / 1000) - 30 }))).status, 200);
    });

    test('token in a URL is refused', async () => {
        const { gateway, token } = it;
        const inUrl = await post(gateway, undefined, 'tools/list', {}, { path: `/mcp?access_token=${await token('alice')}` });
        assert.equal(inUrl.status, 400);
    });

    test('scopes limit what a token may do', async () => {
        const { gateway, token } = it;
        const reader = await token('alice', { scope: 'tools:read' });
        assert.equal((await listTools(gateway, reader)).status, 200);
        const refused = await propose(gateway, reader, 'Not allowed');
        assert.equal(refused.status, 403, refused.text);
        assert.match(refused.challenge, /error="insufficient_scope", scope="tools:read tools:propose"/);
        assert.equal(refused.body.error.data.code, 'FORBIDDEN');
        const nothing = await listTools(gateway, await token('alice', { scope: 'openid' }));
        assert.equal(nothing.status, 403);
        assert.match(nothing.challenge, /error="insufficient_scope", scope="tools:read/);
        const agent = new Reviewer(gateway.url, await token('alice'));
        const listed = await agent.api('GET', '/changes');
        assert.equal(listed.status, 403);
        const reviewer = await listTools(gateway, await token('alice', { scope: 'changes:decide' }));
        assert.equal(reviewer.status, 403, 'a reviewer’s token calls no tools');
    });

    test('session refuses the token of another principal', async () => {
        const { gateway, token } = it;
        const headers = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' };
        const send = (bearer, message, session) =>
            fetch(gateway.mcp, { method: 'POST', headers: { ...headers, authorization: `Bearer ${bearer}`, ...(session && { 'mcp-session-id': session }) }, body: JSON.stringify(message) });
        const opened = await send(await token('alice'), initialize('2025-11-25'));
        const session = opened.headers.get('mcp-session-id');
        await opened.text();
        await send(await token('alice'), { jsonrpc: '2.0', method: 'notifications/initialized' }, session);
        const ping = { jsonrpc: '2.0', id: 2, method: 'ping' };
        const renewed = await send(await token('alice'), ping, session);
        assert.equal(renewed.status, 200, 'a newer token of the same principal');
        for (const [subject, claims] of [['bob', {}], ['alice', { client_id: 'other' }]]) {
            assert.equal((await send(await token(subject, claims), ping, session)).status, 404, subject);
        }
    });

    test('message to an SSE session has the scopes of its own token', async () => {
        const { gateway, token } = it;
        const writer = await token('alice');
        // Its earlier end must not matter.
        const reader = await token('alice', { scope: 'tools:read', exp: Math.floor(Date.now() / 1000) + 60 });
        const opened = await fetch(`${gateway.url}/sse`, { headers: { accept: 'text/event-stream', authorization: `Bearer ${writer}` } });
        const events = opened.body.pipeThrough(new TextDecoderStream())[Symbol.asyncIterator]();
        let received = '';
        const next = async pattern => {
            while (!pattern.test(received)) {
                const { done, value } = await events.next();
                assert.ok(!done, received);
                received += value;
            }
            return pattern.exec(received)[1];
        };
        const path = await next(/data: (\/messages.*)\n/);
        const send = async (bearer, message) => {
            const headers = { 'content-type': 'application/json', authorization: `Bearer ${bearer}` };
            const answer = await fetch(gateway.url + path, { method: 'POST', headers, body: JSON.stringify(message) });
            assert.equal(answer.status, 202, await answer.text());
        };
        await send(writer, initialize('2024-11-05'));
        const code = async (bearer, id) => {
            await send(bearer, createIssue(id));
            return JSON.parse(await next(new RegExp(`data: (.*"id":${id}\\b.*)\n`))).error?.data.code;
        };
        assert.equal(await code(reader, 2), 'FORBIDDEN');
        assert.notEqual(await code(writer, 3), 'FORBIDDEN');
        assert.equal(await code(await token('alice', { scope: 'tools:read' }), 4), 'FORBIDDEN');
        await events.return();
    });

    test('revoked person loses the connections of their tokens', async () => {
        const { gateway, provider, token } = it;
        const headers = { authorization: `Bearer ${await token('dora')}` };
        const socket = new WebSocket(`${gateway.url.replace('http', 'ws')}/ws`, { protocols: ['mcp'], headers });
        const closed = once(socket, 'close');
        await once(socket, 'open');
        const pair = await fetch(`${gateway.url}/sse`, { headers: { ...headers, accept: 'text/event-stream' } });
        assert.equal(pair.status, 200);
        await run(binary, ['people', 'revoke', `${provider.issuer}#dora`, '--data', gateway.data], { env: environment(gateway.env) });
        const [{ code }] = await closed;
        assert.equal(code, 1008);
        // It ends by itself.
        for await (const _ of pair.body);
    });

    // They wait for the end of a token at the same time.
    describe('tokens that end', { concurrency: 2 }, () => {
        test('resumed WebSocket has the scopes and end of its own token', async () => {
            const { gateway, token } = it;
            const url = `${gateway.url}/ws`;
            const [session, first] = await connectRaw(url, await token('alice'));
            first.write(textFrame(initialize('2025-11-25')));
            await once(first, 'data');
            first.destroy();
            const resume = async claims => {
                const headers = { authorization: `Bearer ${await token('alice', claims)}` };
                const socket = new WebSocket(`${url}?session=${session}&received=1`.replace('http', 'ws'), { protocols: ['mcp'], headers });
                await once(socket, 'open');
                return socket;
            };
            const socket = await resume({ scope: 'tools:read', exp: soon() });
            const closed = once(socket, 'close');
            socket.send(JSON.stringify(createIssue(2)));
            const [{ data }] = await once(socket, 'message');
            assert.equal(JSON.parse(data).error?.data.code, 'FORBIDDEN', data);
            await closed;
        });

        test('connections end when their token expires', async () => {
            const { gateway, token } = it;
            const id = changeId(await propose(gateway, await token('alice'), 'Waited for'));
            const waiting = call(gateway, await token('alice', { exp: soon() }), 'wait_for_change', { changeId: id });
            const socket = new WebSocket(`${gateway.url.replace('http', 'ws')}/ws`, { protocols: ['mcp'], headers: { authorization: `Bearer ${await token('alice', { exp: soon() })}` } });
            const closed = new Promise(resolve => (socket.onclose = resolve));
            await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }));
            const feed = await fetch(`${gateway.url}/api/events`, { headers: { authorization: `Bearer ${await token('bob', { scope: 'changes:decide', exp: soon() })}` } });
            assert.equal(feed.status, 200);
            // All end by themselves.
            for await (const _ of feed.body);
            await closed;
            assert.match((await waiting).text, /"code":"UNAUTHORIZED"/);
        });
    });

    test('signing keys rotate while the gateway runs', async () => {
        const { gateway, provider, token } = it;
        const old = await token('alice');
        assert.equal((await listTools(gateway, old)).status, 200);
        await provider.rotateKeys();
        await eventually('the new key is known', async () => (await listTools(gateway, await token('alice'))).status === 200);
        const withOld = await listTools(gateway, old);
        assert.equal(withOld.status, 401, 'the old key is gone');
        // While the provider is away, its keys count.
        await provider.stop();
        assert.equal((await listTools(gateway, await token('carol'))).status, 200);
        await provider.restart();
    });
});

test('groups of the provider decide roles and reviewers', async t => {
    const both = await startBoth({
        issuer: { roles: { platform: 'agent', security: 'reviewer' } },
        policy: {
            groups: { dba: [{ claim_group: 'database-admins' }] },
            rules: [
                { tools: 'create_project', when: "'platform' in principal.claims.groups", then: 'deny' },
                { tools: 'create_issue', then: 'review', reviewers: ['dba'] }
            ]
        }
    });
    t.after(() => both.stop());
    const { gateway, token } = both;
    // Scopes do not count where roles are configured.
    const proposed = await propose(gateway, await token('alice', { scope: '' }), 'Reviewed by a group');
    const denied = await call(gateway, await token('alice'), 'create_project', { name: 'X', key: 'XX' });
    assert.match(denied.text, /POLICY_DENIED/);
    const nobody = await listTools(gateway, await token('carol'));
    assert.equal(nobody.status, 403, nobody.text);
    const id = changeId(proposed);
    await assert.rejects(gateway.approve(id), /403/, 'alice with a key is not in the group');
    const dba = new Reviewer(gateway.url, await token('bob'));
    assert.equal((await dba.approve(id)).decisions[0].verdict, 'approve');
    await gateway.reached(id, 'applied');
});

test('opaque tokens are looked up at the provider', async t => {
    const clients = [
        { client_id: 'robot', client_secret: 'robot-secret', grant_types: ['client_credentials'], redirect_uris: [], response_types: [] },
        { client_id: 'gateway', client_secret: 'gateway-secret', grant_types: ['client_credentials'], redirect_uris: [], response_types: [] }
    ];
    const both = await startBoth({
        provider: { format: 'opaque', clients },
        issuer: { introspection: { client_id: 'gateway', client_secret: 'gateway-secret' } }
    });
    t.after(() => both.stop());
    const { gateway, provider } = both;
    const asClient = { authorization: `Basic ${btoa('robot:robot-secret')}` };
    const grant = async resource => {
        const body = new URLSearchParams({ grant_type: 'client_credentials', scope: 'tools:read tools:propose', resource });
        const answer = await fetch(`${provider.issuer}/token`, { method: 'POST', headers: asClient, body });
        return (await answer.json()).access_token;
    };
    const token = await grant(RESOURCE);
    const id = changeId(await propose(gateway, token, 'By a robot'));
    assert.match((await gateway.change(id)).proposer.principal, /#robot/);
    const asked = () => provider.asked.filter(path => path === '/token/introspection').length;
    const before = asked();
    for (let n = 0; n < 20; n += 1) await listTools(gateway, token);
    assert.ok(asked() <= before + 2, 'answers are remembered');
    assert.equal((await listTools(gateway, await grant('https://other.example/mcp'))).status, 401);
    assert.equal((await listTools(gateway, 'unknown-token')).status, 401);
    await fetch(`${provider.issuer}/token/revocation`, { method: 'POST', headers: asClient, body: new URLSearchParams({ token }) });
    await eventually('the revocation counts', async () => (await listTools(gateway, token)).status === 401);
});

test('issuer with a private certificate needs its authority', async t => {
    const folder = await temporaryData();
    t.after(() => rm(folder, { recursive: true, force: true }));
    const [key, ca] = [path.join(folder, 'key.pem'), path.join(folder, 'ca.pem')];
    const kind = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'];
    const names = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost', '-addext', 'basicConstraints=CA:FALSE'];
    await run('openssl', ['req', '-x509', ...kind, ...names, '-keyout', key, '-out', ca]);
    const provider = { tls: { key: await readFile(key), cert: await readFile(ca) } };
    for (const [issuer, status] of [[{}, 502], [{ tls: { ca } }, 200]]) {
        const both = await startBoth({ provider, issuer });
        const answer = await listTools(both.gateway, await both.token('alice')).finally(() => both.stop());
        assert.equal(answer.status, status, answer.text);
    }
});

test('SDK client finds the provider and signs in', async t => {
    const port = await freePort();
    const provider = await IdentityProvider.start({ accounts: ACCOUNTS });
    const url = `http://127.0.0.1:${port}`;
    const gateway = await startGateway({
        listen: `127.0.0.1:${port}`,
        config: { public_url: url, auth: { mode: 'keys', tokens: [{ issuer: provider.issuer }] } }
    });
    t.after(() => Promise.all([gateway.stop(), provider.stop()]));
    const kept = {};
    const authProvider = {
        redirectUrl: REDIRECT,
        clientMetadata: { client_name: 'sdk', redirect_uris: [REDIRECT], token_endpoint_auth_method: 'none', application_type: 'native' },
        clientInformation: () => kept.client,
        saveClientInformation: client => (kept.client = client),
        tokens: () => kept.tokens,
        saveTokens: tokens => (kept.tokens = tokens),
        codeVerifier: () => kept.verifier,
        saveCodeVerifier: verifier => (kept.verifier = verifier),
        redirectToAuthorization: async location => (kept.code = (await provider.signIn(location, 'alice')).searchParams.get('code'))
    };
    const connect = async () => {
        const client = new Client({ name: 'sdk', version: '1' }, { capabilities: {} });
        const transport = new StreamableHTTPClientTransport(gateway.mcp, { authProvider });
        await client.connect(transport).catch(async error => {
            await transport.finishAuth(kept.code).catch(cause => assert.fail(`${error}; ${cause}`));
            throw error;
        });
        return client;
    };
    await assert.rejects(connect(), /Unauthorized/);
    const client = await connect();
    t.after(() => client.close());
    const projects = await client.callTool({ name: 'list_projects', arguments: {} });
    const created = await client.callTool({ name: 'create_issue', arguments: { projectId: projects.structuredContent.projects[0].id, title: 'By the SDK', type: 'Story' } });
    const change = await gateway.change(created.structuredContent.changeId);
    assert.equal(change.proposer.principal, `${provider.issuer}#alice#${kept.client.client_id}`);
});

test('several nodes verify the same tokens', async t => {
    const provider = await IdentityProvider.start({ accounts: ACCOUNTS });
    const gateway = await startGateway({
        nodes: 2,
        config: { public_url: 'https://gateway.example', auth: { mode: 'keys', tokens: [{ issuer: provider.issuer }] } }
    });
    t.after(() => Promise.all([gateway.stop(), provider.stop()]));
    const token = (subject, claims) => provider.token(subject, { aud: RESOURCE, ...claims });
    const id = changeId(await propose(gateway, await token('alice'), 'At any node'));
    for (let n = 0; n < 6; n += 1) {
        const answer = await call(gateway, await token('alice'), 'get_change', { changeId: id });
        assert.equal(answer.status, 200, answer.text);
        const other = await call(gateway, await token('bob'), 'get_change', { changeId: id });
        assert.match(other.text, /CHANGE_NOT_FOUND/);
    }
    const reviewer = new Reviewer(gateway.url, await token('bob', { scope: 'changes:decide' }));
    await reviewer.approve(id);
    await gateway.reached(id, 'applied');
});
