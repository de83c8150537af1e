// Tests servers that people use without a consent, because their identity provider vouches for them (enterprise-managed
// authorization): the provider of their sign-in and the authorization server of the MCP server are two oidc-providers.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { createRemoteJWKSet, jwtVerify } from 'jose';
import { errors } from 'oidc-provider';

import { HostedServer, SCOPES } from './hosted-server.mjs';
import { IdentityProvider } from './identity-provider.mjs';
import { Browser, startWithProvider } from './signed-in.mjs';

const TOKEN_EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
const JWT_BEARER = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
const ASSERTION = 'urn:ietf:params:oauth:token-type:id-jag';
const ASSERTION_HEADER = { typ: 'oauth-id-jag+jwt' };
/** The gateway as a client of the MCP server's authorization server, which the identity provider knows. */
const CLIENT = { client_id: 'countersign-at-notes', client_secret: 'another secret', grant_types: [JWT_BEARER], redirect_uris: [], response_types: [] };

/** Returns the claims of a token of that issuer. Throws the protocol's error for any other. */
async function verify(token, issuer, audience, more = {}) {
    const keys = createRemoteJWKSet(new URL(`${issuer}/jwks`));
    const verified = await jwtVerify(token, keys, { issuer, audience, ...more }).catch(error => {
        throw new errors.InvalidGrant(error.message);
    });
    return verified.payload;
}

/** The grant by which an identity provider exchanges an ID token for an assertion to another authorization server. */
const exchanging = {
    parameters: ['requested_token_type', 'subject_token', 'subject_token_type', 'audience', 'resource', 'scope'],
    async answer(provider, { requested_token_type: type, subject_token: idToken, audience, resource, scope }, client) {
        assert.equal(type, ASSERTION);
        const { sub } = await verify(idToken, provider.issuer, client.clientId);
        const claims = { aud: audience, resource, scope, client_id: CLIENT.client_id };
        return { access_token: await provider.token(sub, claims, { header: ASSERTION_HEADER }), issued_token_type: ASSERTION, token_type: 'N_A', expires_in: 300 };
    }
};

/** The grant by which an authorization server accepts assertions of that identity provider. */
const accepting = identityProvider => ({
    parameters: ['assertion', 'resource', 'scope'],
    async answer(provider, { assertion }, client) {
        const { sub, resource, scope, client_id: party } = await verify(assertion, identityProvider(), provider.issuer, ASSERTION_HEADER);
        if (party !== client.clientId) throw new errors.InvalidGrant('the assertion is for another client');
        const claims = { aud: resource, scope, client_id: party };
        return { access_token: await provider.token(sub, claims), token_type: 'Bearer', expires_in: provider.ttl, scope };
    }
});

test('the sign-in of a person vouches for their agent at a server', async t => {
    let stand;
    const notes = await IdentityProvider.start({ scopes: SCOPES, clients: [CLIENT], grants: { [JWT_BEARER]: accepting(() => stand.provider.issuer) } });
    t.after(() => notes.stop());
    const server = await HostedServer.start({ issuer: notes.issuer });
    t.after(() => server.stop());
    const oauth = { grant: 'enterprise', issuer: notes.issuer, client_id: CLIENT.client_id, client_secret: CLIENT.client_secret };
    stand = await startWithProvider({
        mode: 'keys',
        acceptsTokens: true,
        grants: { [TOKEN_EXCHANGE]: exchanging },
        client: { grant_types: ['authorization_code', 'refresh_token', TOKEN_EXCHANGE] },
        mcpServers: { notes: { url: server.url, oauth, trust_annotations: true } }
    });
    t.after(() => stand.stop());
    const { gateway, provider } = stand;

    /** Calls a tool of the server as an agent of the person. Returns the answer. */
    async function call(person, tool, args) {
        const headers = { 'content-type': 'application/json', authorization: `Bearer ${await provider.token(person, { aud: gateway.url })}` };
        const response = await fetch(`${gateway.url}/tools/notes__${tool}`, { method: 'POST', headers, body: JSON.stringify(args) });
        return response.json();
    }
    const whoami = person => call(person, 'whoami', { as: person });
    async function assertWorks(person) {
        const result = await whoami(person);
        assert.equal(result.structuredContent?.person, person, JSON.stringify(result));
    }

    assert.match((await call('alice', 'connect', {})).detail, /its person is not signed in/);
    await new Browser(gateway).signIn(provider, 'alice');
    await assertWorks('alice');
    assert.match(JSON.stringify(await call('alice', 'connect', {})), /is connected/);
    assert.match((await whoami('bob')).detail, /its person is not signed in/);
    await new Browser(gateway).signIn(provider, 'bob');
    await assertWorks('bob');
    await assertWorks('alice');
    assert.deepEqual([server.mixUps, server.refused], [[], []]);
    assert.deepEqual(new Set(server.callsOf('whoami').map(({ person }) => person)), new Set(['alice', 'bob']));
});
