// People who sign in to the dashboard with an identity provider, by HTTP as a browser does.
import assert from 'node:assert/strict';

import { COMMAND_LINE } from './command-line.mjs';
import { eventually, freePort, startGateway } from './gateway.mjs';
import { IdentityProvider } from './identity-provider.mjs';

const accounts = () => ({
    alice: { name: 'Alice Ärmel', groups: ['platform'] },
    bob: { name: 'Bob', groups: ['security', 'dba'] },
    carol: { name: 'Carol', groups: ['platform'] },
    mallory: { name: 'Mallory', groups: [] }
});

/**
 * Starts a provider, and a gateway whose people sign in with it. With `acceptsTokens`, agents and the command line call with its
 * access tokens. `grants` and `client` are further settings of the provider and of the gateway's client at it.
 */
export async function startWithProvider({ mode = 'local', policy, acceptsTokens = false, grants, client, mcpServers } = {}) {
    const provider = await IdentityProvider.start({ accounts: accounts(), grants });
    const port = await freePort();
    const url = `http://127.0.0.1:${port}`;
    provider.addClient({
        client_id: 'countersign',
        client_secret: 'a secret/with+signs',
        redirect_uris: [`${url}/api/sign-in/callback`],
        post_logout_redirect_uris: [`${url}/`],
        backchannel_logout_uri: `${url}/api/sign-in/back-channel-logout`,
        backchannel_logout_session_required: true,
        ...client
    });
    if (acceptsTokens) provider.addClient(COMMAND_LINE);
    const oidc = {
        issuer: provider.issuer,
        client_id: 'countersign',
        client_secret: '${OIDC_SECRET}',
        ...(acceptsTokens && { cli_client_id: COMMAND_LINE.client_id }),
        roles: { platform: 'reviewer', security: 'admin' },
        refresh: '1s'
    };
    const gateway = await startGateway({
        env: { OIDC_SECRET: 'a secret/with+signs' },
        listen: `127.0.0.1:${port}`,
        config: { public_url: url, auth: { mode, oidc, tokens: acceptsTokens ? [{ issuer: provider.issuer }] : [] }, policy, mcpServers }
    }).catch(async error => {
        await provider.stop();
        throw error;
    });
    const stop = () => Promise.all([gateway.stop(), provider.stop().catch(() => undefined)]);
    return { provider, gateway, stop };
}

/** A browser that is signed in to the dashboard. With several nodes, each of its requests goes to the next one. */
export class Browser {
    static started = 0;

    constructor(gateway) {
        this.urls = gateway.nodes?.map(node => node.url) ?? [gateway.url];
        // Each browser begins at another node.
        this.requests = Browser.started++;
        this.cookies = new Map();
    }

    async fetch(path, options = {}) {
        const cookie = [...this.cookies].map(([name, value]) => `${name}=${value}`).join('; ');
        const secret = this.secret && { 'x-countersign-secret': this.secret };
        const url = this.urls[this.requests++ % this.urls.length];
        const headers = { cookie, ...(options.method && { origin: url }), ...secret, ...options.headers };
        const response = await fetch(new URL(path, url), { redirect: 'manual', ...options, headers });
        for (const text of response.headers.getSetCookie()) {
            const [, name, value] = /^([^=]+)=([^;]*)/.exec(text);
            if (value) this.cookies.set(name, value);
            else this.cookies.delete(name);
        }
        return response;
    }

    async post(path, body) {
        return this.fetch(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body ?? {}) });
    }

    /** Begins a sign-in, or one to decide on a change. Returns the page to which the gateway sends the browser. */
    async begin(change) {
        const response = await this.fetch(`/api/sign-in/provider${change ? `?change=${change}` : ''}`);
        assert.equal(response.status, 302);
        return response.headers.get('location');
    }

    /** Comes back from the provider. Returns the dashboard's address. */
    async comeBack(url) {
        const response = await this.fetch(url.pathname + url.search);
        assert.equal(response.status, 302);
        assert.ok(!this.cookies.has('countersign_sign_in'));
        return response.headers.get('location');
    }

    /** Signs in as a person at the provider. Returns the dashboard's address. */
    async visitProvider(provider, subject, change) {
        return this.comeBack(await provider.signIn(await this.begin(change), subject));
    }

    async signIn(provider, subject, change) {
        const page = await this.visitProvider(provider, subject, change);
        assert.match(page, /^\/#code=csc_/);
        const response = await this.post('/api/sign-in', { code: page.slice('/#code='.length) });
        assert.equal(response.status, 200);
        this.secret = (await response.json()).secret;
        return this;
    }

    /** Returns the account, or the status if there is none. */
    async me() {
        const response = await this.fetch('/api/me');
        return response.ok ? response.json() : response.status;
    }

    /** Waits until every node gives this role, or this status. */
    everywhere(expected) {
        return eventually(`every node answers ${expected}`, async () => {
            for (const _ of this.urls) {
                const me = await this.me();
                if ((me.role ?? me) !== expected) return false;
            }
            return true;
        });
    }

    /** Decides on the current version of a change. Returns the response. */
    async decide(id, decision) {
        const { version, digest } = await (await this.fetch(`/api/changes/${id}`)).json();
        return this.post(`/api/changes/${id}/decision`, { decision, version, digest });
    }

    async approve(id) {
        const response = await this.decide(id, 'approve');
        assert.equal(response.status, 200, await response.clone().text());
        return response.json();
    }

    /** Approves, which must be refused for want of a sign-in. Returns the problem. */
    async failToApprove(id) {
        const response = await this.decide(id, 'approve');
        const problem = await response.json();
        assert.deepEqual([response.status, problem.code], [403, 'SIGN_IN_REQUIRED'], JSON.stringify(problem));
        return problem;
    }
}
