// Starts Debian's glewlwyd, an identity provider written in C, and configures it over its administration API.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { cp, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';

import { PermanentError, eventually, freePort, stopChild, temporaryData } from './gateway.mjs';
import { createSigningKey } from './identity-provider.mjs';

const PROGRAM = '/usr/bin/glewlwyd';
const SHARED = '/usr/share/glewlwyd';
const TABLES = '/usr/share/dbconfig-common/data/glewlwyd/install/sqlite3';

/** The password of everybody. */
export const PASSWORD = 'a long password';

/** The reason to skip a test, or `false` if the program is installed. */
export const skipped = !existsSync(PROGRAM) && 'glewlwyd is not installed (apt-get install dbconfig-sqlite3 glewlwyd)';

/** Returns the configuration file (libconfig). */
function configuration({ port, url, folder }) {
    const types = { html: 'text/html', js: 'application/javascript', css: 'text/css', json: 'application/json', png: 'image/png' };
    const settings = {
        port,
        bind_address: '127.0.0.1',
        external_url: url,
        login_url: 'login.html',
        api_prefix: 'api',
        static_files_path: path.join(folder, 'pages'),
        cookie_secure: 0,
        log_mode: 'console',
        log_level: 'WARNING',
        user_module_path: '/usr/lib/glewlwyd/user',
        client_module_path: '/usr/lib/glewlwyd/client',
        user_auth_scheme_module_path: '/usr/lib/glewlwyd/scheme',
        plugin_module_path: '/usr/lib/glewlwyd/plugin'
    };
    const mimeTypes = Object.entries(types).map(([extension, type]) => `{ extension = ".${extension}"; mime_type = "${type}" }`);
    return [
        ...Object.entries(settings).map(([name, value]) => `${name} = ${JSON.stringify(value)}`),
        `database = { type = "sqlite3"; path = "${folder}/database" }`,
        `static_files_mime_types = (${mimeTypes.join(', ')})`
    ].join('\n');
}

/** The provider in its own process. `admin` sends requests to its API as the administrator. */
export class Glewlwyd {
    /** Starts it with these clients and people, which have the members that its API knows. `people` maps a name to a person. */
    static async start({ clients, people }) {
        const provider = new Glewlwyd();
        const [folder, port] = [await temporaryData(), await freePort()];
        const url = `http://127.0.0.1:${port}`;
        Object.assign(provider, { folder, port, url, issuer: `${url}/api/oidc`, output: '' });
        try {
            await provider.#launch();
            provider.admin = await provider.#signIn('admin', 'password');
            const plugin = { module: 'oidc', name: 'oidc', display_name: 'OpenID Connect', parameters: await provider.#parameters() };
            await provider.admin('POST', '/mod/plugin/', plugin);
            for (const client of clients) await provider.admin('POST', '/client/', { enabled: true, ...client });
            for (const [username, person] of Object.entries(people)) {
                await provider.admin('POST', '/user/', { username, password: PASSWORD, scope: ['openid'], ...person });
            }
            return provider;
        } catch (error) {
            await provider.stop();
            throw new Error(`${error.message}\n--- output of glewlwyd ---\n${provider.output}`, { cause: error });
        }
    }

    async #launch() {
        const file = path.join(this.folder, 'glewlwyd.conf');
        await writeFile(file, configuration(this));
        // It serves no files outside the folder, where the package's links lead, and finds no configuration of its pages behind one.
        await cp(path.join(SHARED, 'webapp'), path.join(this.folder, 'pages'), { recursive: true, dereference: true, filter: name => !/(config\.json|fonts|\.map)$/.test(name) });
        await cp(path.join(SHARED, 'templates/config.json'), path.join(this.folder, 'pages/config.json'));
        // A person may have several groups.
        const groups = `UPDATE g_user_module_instance SET gumi_parameters = json_set(gumi_parameters, '$."data-format".groups', json('{"multiple":true}'));`;
        const input = `PRAGMA synchronous = OFF;\nBEGIN;\n${readFileSync(TABLES, 'utf8')}\n${groups}\nCOMMIT;\n`;
        execFileSync('sqlite3', ['-bail', path.join(this.folder, 'database')], { input, stdio: ['pipe', 'ignore', 'pipe'] });
        this.child = spawn(PROGRAM, ['--config-file', file], { stdio: ['ignore', 'pipe', 'pipe'] });
        for (const stream of [this.child.stdout, this.child.stderr]) stream.setEncoding('utf8').on('data', text => (this.output = (this.output + text).slice(-16_000)));
        await eventually('glewlwyd answers', async () => {
            if (this.child.exitCode !== null) throw new PermanentError(`glewlwyd ended with ${this.child.exitCode}`);
            return (await fetch(`${this.url}/config/`)).ok;
        });
    }

    /** Signs somebody in to the API. Returns a function that sends requests as them. */
    async #signIn(username, password) {
        const send = async (cookie, method, route, body) => {
            const headers = { 'content-type': 'application/json', cookie };
            const response = await fetch(`${this.url}/api${route}`, { method, headers, body: body && JSON.stringify(body) });
            if (!response.ok) throw new Error(`${method} ${route}: ${response.status} ${await response.text()}`);
            return response;
        };
        const signedIn = await send('', 'POST', '/auth/', { username, password });
        const cookie = signedIn.headers.getSetCookie().map(text => text.split(';')[0]).join('; ');
        return (...request) => send(cookie, ...request);
    }

    /** Returns the parameters of OpenID Connect with a new signing key. */
    async #parameters() {
        const { jwk } = await createSigningKey(crypto.randomUUID());
        return {
            iss: this.issuer,
            'oauth-as-iss-id': true,
            'jwks-private': JSON.stringify({ keys: [jwk] }),
            'jwks-show': true,
            'access-token-duration': 3600,
            'refresh-token-one-use': 'always',
            'allow-non-oidc': true,
            'auth-type-code-enabled': true,
            'auth-type-client-enabled': true,
            'auth-type-device-enabled': true,
            'auth-type-refresh-enabled': true,
            'device-authorization-expiration': 600,
            'device-authorization-interval': 1,
            'pkce-allowed': true,
            'pkce-required': true,
            'name-claim': 'mandatory',
            claims: [{ name: 'groups', 'user-property': 'groups', mandatory: true }],
            // The claims of access tokens.
            'additional-parameters': ['name', 'groups'].map(name => ({ 'user-parameter': name, 'token-parameter': name })),
            'resource-allowed': true,
            'resource-client-property': 'resource',
            'session-management-allowed': true,
            'session-cookie-name': 'GLEWLWYD2_OIDC_SID',
            'session-cookie-expiration': 3600,
            'front-channel-logout-allowed': true
        };
    }

    /** Replaces the signing key. Tokens of the old key are no longer valid. */
    async rotateKeys() {
        await this.admin('PUT', '/mod/plugin/oidc', { parameters: await this.#parameters() });
        await this.admin('PUT', '/mod/plugin/oidc/reset');
    }

    /** Returns an access token for a client that acts for itself. */
    async token(client, secret, scope, resource) {
        const headers = { authorization: `Basic ${btoa(`${client}:${secret}`)}` };
        const body = new URLSearchParams({ grant_type: 'client_credentials', scope, resource });
        const response = await fetch(`${this.issuer}/token`, { method: 'POST', headers, body });
        if (!response.ok) throw new Error(`token: ${response.status} ${await response.text()}`);
        return (await response.json()).access_token;
    }

    async stop() {
        await stopChild(this.child);
        await rm(this.folder, { recursive: true, force: true });
    }
}
