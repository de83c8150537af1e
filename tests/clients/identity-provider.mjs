// Starts an identity provider (oidc-provider) for a test, and signs people in at it as a browser would.
import http from 'node:http';
import https from 'node:https';

import { SignJWT, decodeJwt, decodeProtectedHeader, exportJWK, generateKeyPair } from 'jose';
import { Provider } from 'oidc-provider';

import { freePort } from './gateway.mjs';

/** The scopes of the gateway. */
export const SCOPES = ['tools:read', 'tools:propose', 'changes:decide', 'admin'];

/** Creates a signing key with its private JWK. */
export async function createSigningKey(kid) {
    const { privateKey } = await generateKeyPair('RS256', { extractable: true });
    return { kid, privateKey, jwk: { ...(await exportJWK(privateKey)), kid, alg: 'RS256', use: 'sig' } };
}

/** Keeps the provider's records in memory, so that they outlive its keys. `records` maps the kind and the id to the record. */
class Records {
    constructor(kind, records) {
        Object.assign(this, { kind, records });
    }

    async upsert(id, payload) {
        this.records.set(`${this.kind} ${id}`, payload);
    }

    async find(id) {
        return this.records.get(`${this.kind} ${id}`);
    }

    async findByUid(uid) {
        return [...this.records].find(([key, { uid: other }]) => key.startsWith(`${this.kind} `) && other === uid)?.[1];
    }

    async findByUserCode(code) {
        return [...this.records].find(([key, { userCode }]) => key.startsWith(`${this.kind} `) && userCode === code)?.[1];
    }

    async consume(id) {
        (await this.find(id)).consumed = Math.floor(Date.now() / 1000);
    }

    async destroy(id) {
        this.records.delete(`${this.kind} ${id}`);
    }

    async revokeByGrantId(grantId) {
        for (const [key, record] of this.records) if (record.grantId === grantId) this.records.delete(key);
    }
}

/**
 * An identity provider with its own HTTP server. `accounts` maps the subject of each person to their claims, `format` is that of
 * access tokens (`jwt` or `opaque`), and `ttl` their lifetime in seconds. With `rotates`, each refresh token is used once.
 * With `tls` (a key and a certificate for `localhost`), it speaks HTTPS. `onTokenAnswer` is called in place of the next answer of
 * the token endpoint, with a function that sends it. `grants` maps the names of further grants to their `parameters` and to
 * `answer`, which gets the provider and the request's parameters and client. `login` is what the next people to sign in have done: `acr` is the kind of
 * their authentication, and `ts` its second. The times in ID tokens are those of a clock that is `skew` seconds fast.
 */
export class IdentityProvider {
    static async start(options) {
        const provider = new IdentityProvider();
        Object.assign(provider, { accounts: {}, login: {}, format: 'jwt', ttl: 3600, scopes: SCOPES, clients: [], asked: [], records: new Map(), ...options });
        const handle = (request, response) => {
            const path = new URL(request.url, provider.issuer).pathname;
            provider.asked.push(path);
            if (path === '/token' && provider.onTokenAnswer) {
                const [end, hold] = [response.end.bind(response), provider.onTokenAnswer];
                provider.onTokenAnswer = undefined;
                response.end = (...answer) => (hold(() => end(...answer)), response);
            } else if (path === '/token' && provider.skew) {
                const end = response.end.bind(response);
                response.end = body => {
                    provider.#withSkew(body).then(skewed => {
                        response.setHeader('content-length', Buffer.byteLength(skewed));
                        end(skewed);
                    });
                    return response;
                };
            }
            provider.handler(request, response);
        };
        provider.server = provider.tls ? https.createServer(provider.tls, handle) : http.createServer(handle);
        // After `stop`, nobody else is given this port.
        const port = await freePort();
        await new Promise((resolve, reject) => provider.server.once('error', reject).listen(port, '127.0.0.1', resolve));
        provider.port = port;
        provider.issuer = `${provider.tls ? 'https://localhost' : 'http://127.0.0.1'}:${provider.port}`;
        await provider.rotateKeys();
        return provider;
    }

    /** Returns an answer of the token endpoint with the times of a clock that is fast. */
    async #withSkew(body) {
        const { id_token: idToken, ...answer } = JSON.parse(body);
        if (!idToken) return body;
        const claims = decodeJwt(idToken);
        for (const name of ['iat', 'exp', 'auth_time']) if (claims[name]) claims[name] += this.skew;
        const signed = await new SignJWT(claims).setProtectedHeader(decodeProtectedHeader(idToken)).sign(this.key.privateKey);
        return JSON.stringify({ ...answer, id_token: signed });
    }

    /** Replaces the signing key. Tokens of the old key are no longer valid. */
    async rotateKeys() {
        this.key = await createSigningKey(`key-${(this.keyCount = (this.keyCount ?? 0) + 1)}`);
        this.handler = this.#build().callback();
    }

    /** Closes the port, as if the provider were away. */
    async stop() {
        this.server.closeAllConnections();
        await new Promise(resolve => this.server.close(resolve));
    }

    /** Listens again after `stop`. */
    async restart() {
        await new Promise((resolve, reject) => this.server.once('error', reject).listen(this.port, '127.0.0.1', resolve));
    }

    /** Registers a client beside those of the start. */
    addClient(client) {
        this.clients.push(client);
        this.handler = this.#build().callback();
    }

    /** Signs an access token with the claims of a person. `claims` overrides them; `undefined` leaves one out. */
    token(subject, claims = {}, { key = this.key, header = {} } = {}) {
        const now = Math.floor(Date.now() / 1000);
        const all = { iss: this.issuer, sub: subject, client_id: 'robot', scope: 'tools:read tools:propose', iat: now, exp: now + this.ttl, jti: crypto.randomUUID() };
        return new SignJWT({ ...all, ...this.accounts[subject], ...claims }).setProtectedHeader({ alg: 'RS256', typ: 'at+jwt', kid: key.kid, ...header }).sign(key.privateKey);
    }

    /** Signs a logout token, with which the provider tells a client that a person has signed out. */
    logoutToken(subject, client, claims = {}) {
        const events = { 'http://schemas.openid.net/event/backchannel-logout': {} };
        const absent = { name: undefined, groups: undefined, scope: undefined, client_id: undefined };
        return this.token(subject, { aud: client, events, ...absent, ...claims }, { header: { typ: 'logout+jwt' } });
    }

    #build() {
        const provider = new Provider(this.issuer, {
            adapter: kind => new Records(kind, this.records),
            jwks: { keys: [this.key.jwk] },
            clients: this.clients,
            clientDefaults: { grant_types: ['authorization_code', 'refresh_token'] },
            scopes: ['openid', 'offline_access', ...this.scopes],
            claims: { openid: ['sub', 'sid'], profile: ['name', 'oid'], email: ['email'], groups: ['groups'] },
            ...(this.rotates && { rotateRefreshToken: true }),
            issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
            acrValues: ['urn:example:mfa', 'urn:example:pwd'],
            cookies: { keys: ['test'] },
            // The dispatcher would refuse to tell a client on this machine of a logout.
            fetch: (url, { dispatcher: _, ...options }) => globalThis.fetch(url, options),
            pkce: { required: () => true },
            findAccount: (_, sub) => ({ accountId: sub, claims: () => ({ sub, ...this.accounts[sub] }) }),
            extraTokenClaims: (_, token) => this.accounts[token.accountId],
            features: {
                backchannelLogout: { enabled: true },
                clientCredentials: { enabled: true },
                deviceFlow: { enabled: true },
                introspection: { enabled: true, allowedPolicy: () => true },
                registration: { enabled: true },
                revocation: { enabled: true },
                resourceIndicators: {
                    enabled: true,
                    defaultResource: () => undefined,
                    useGrantedResource: () => true,
                    getResourceServerInfo: (_, resource) => ({
                        scope: this.scopes.join(' '),
                        audience: resource,
                        accessTokenFormat: this.format,
                        accessTokenTTL: this.ttl
                    })
                }
            }
        });
        for (const [name, { parameters, answer }] of Object.entries(this.grants ?? {})) {
            provider.registerGrantType(name, async context => (context.body = await answer(this, context.oidc.params, context.oidc.client)), parameters);
        }
        // It warns of the development forms, which stand in for a person's browser here.
        provider.proxy = true;
        const finish = provider.interactionFinished.bind(provider);
        provider.interactionFinished = (request, response, result, options) =>
            finish(request, response, result.login ? { ...result, login: { ...result.login, ...this.login } } : result, options);
        return provider;
    }

    /**
     * Follows the URL of an authorization or of a device code as a person who signs in and consents, or who cancels with `deny`.
     * Returns the URL that the client is sent back to, or `undefined` at the last page of a device code.
     */
    async signIn(url, subject, { deny = false } = {}) {
        const cookies = new Map();
        let next = { url: new URL(url), method: 'GET' };
        for (let step = 0; step < 20; step += 1) {
            const response = await fetch(next.url, {
                method: next.method,
                redirect: 'manual',
                headers: { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') },
                body: next.body
            });
            for (const cookie of response.headers.getSetCookie()) {
                const [, name, value] = /^([^=]+)=([^;]*)/.exec(cookie);
                cookies.set(name, value);
            }
            const location = response.headers.get('location');
            if (location) {
                next = { url: new URL(location, next.url), method: 'GET' };
                if (next.url.origin !== this.issuer) return next.url;
                continue;
            }
            const page = await response.text();
            const form = /<form[^>]*action="([^"]+)"/.exec(page);
            const cancel = deny && /href="([^"]+\/abort)"/.exec(page);
            if (cancel) {
                next = { url: new URL(cancel[1], next.url), method: 'GET' };
                continue;
            }
            if (page.includes('Sign-in Success')) return undefined;
            if (!form) throw new Error(`the provider says: ${response.status} ${page.slice(0, 500)}`);
            const hidden = [...page.matchAll(/type="hidden" name="([^"]+)" value="([^"]*)"/g)].map(([, name, value]) => [name, value]);
            const body = new URLSearchParams({ ...Object.fromEntries(hidden), login: subject, password: 'any' });
            next = { url: new URL(form[1], next.url), method: 'POST', body };
        }
        throw new Error('the provider redirects in circles');
    }
}
