// The program that the conformance suite starts as "the client under test" for scenarios of authorization. It configures a
// gateway with the suite's mock server as its only upstream, and uses it with an SDK client of the era FRONT. When the gateway
// asks for a person's consent, it presses Connect and follows redirects. It does nothing else on behalf of the gateway.
//
//   MCP_CONFORMANCE_SCENARIO=… FRONT=legacy|modern node suite-auth-client.mjs URL
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';

import { connectServer, isConnected } from './consent.mjs';
import { PermanentError, eventually, freePort, startGateway } from './gateway.mjs';
import { connectPeer } from './peer.mjs';

const scenario = process.env.MCP_CONFORMANCE_SCENARIO.replace('auth/', '');
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const url = process.argv.at(-1);
const front = process.env.FRONT ?? 'modern';
const SERVER = 'up';
const TOOL = `${SERVER}__test-tool`;
/** The client's documents are at this host in the suite; a proxy with TLS would stand there before the gateway. */
const PUBLIC_CLIENT = 'https://conformance-test.local';
/** More than the suite tolerates. */
const MAX_CONSENTS = 6;
/** The most ms that the client tries to call the tool. Some servers never let it in, and the suite waits for one minute. */
const CALL_LIMIT_MS = 20_000;

const folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-auth-'));

/** Writes a token of the workload or the person to a file. */
async function tokenFile(token) {
    const file = path.join(folder, 'token');
    await writeFile(file, token, { mode: 0o600 });
    return file;
}

/** Returns the authorization server that the server names, as its operator knows it. */
async function readIssuer() {
    const refusal = await fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{}' });
    const [, address] = refusal.headers.get('www-authenticate').match(/resource_metadata="([^"]+)"/);
    const metadata = await (await fetch(address)).json();
    return metadata.authorization_servers[0];
}

/** What an operator configures for a scenario: nothing, unless the scenario's context names a client. */
const SETTINGS = {
    'basic-cimd': () => ({ client_id: `${PUBLIC_CLIENT}/client-metadata.json` }),
    'pre-registration': ({ client_id, client_secret, issuer }) => ({ client_id, client_secret, issuer }),
    'client-credentials-basic': async ({ client_id, client_secret }) => ({
        grant: 'client_credentials',
        issuer: await readIssuer(),
        client_id,
        client_secret
    }),
    'client-credentials-jwt': async ({ client_id, private_key_pem }) => ({
        grant: 'client_credentials',
        issuer: await readIssuer(),
        client_id,
        private_key: private_key_pem
    }),
    'enterprise-managed-authorization': async ({ client_id, client_secret, idp_id_token }) => ({
        grant: 'enterprise',
        issuer: await readIssuer(),
        client_id,
        client_secret,
        subject_token_file: await tokenFile(idp_id_token)
    }),
    'wif-jwt-bearer': async ({ client_id, valid_jwt }) => ({
        grant: 'workload_identity',
        issuer: await readIssuer(),
        client_id,
        subject_token_file: await tokenFile(valid_jwt)
    }),
    dpop: () => ({ dpop: true }),
    'dpop-nonce': () => ({ dpop: true }),
    '2025-03-26-oauth-metadata-backcompat': () => ({ legacy: true }),
    '2025-03-26-oauth-endpoint-fallback': () => ({ legacy: true })
};

const port = await freePort();
const publicUrl = scenario === 'basic-cimd' ? PUBLIC_CLIENT : `http://127.0.0.1:${port}`;
const gateway = await startGateway({
    listen: `127.0.0.1:${port}`,
    config: {
        public_url: publicUrl,
        auth: { mode: 'local' },
        policy: { default: 'allow' },
        modules: { tracker: { enabled: false } },
        mcpServers: { [SERVER]: { url, oauth: (await SETTINGS[scenario]?.(context)) ?? 'auto' } }
    }
});

/** Gives consent as the person at the link. Throws if the server was not connected. */
async function consent(link) {
    if (link !== `${publicUrl}/#/servers/${SERVER}/connect`) throw new PermanentError(`an unexpected link: ${link}`);
    consents += 1;
    if (consents > MAX_CONSENTS) throw new PermanentError('the gateway asks for consent again and again');
    const page = await connectServer(gateway, SERVER);
    console.log(`consent ${consents}: ${page}`);
    if (!isConnected(page)) throw new PermanentError(`not connected: ${page}`);
}

let consents = 0;
try {
    const peer = await connectPeer(front, { http: gateway.mcp }, { capabilities: {} });
    await eventually('the tool of the server answers', async () => {
        const [tool] = (await peer.tools()).map(({ name }) => name).filter(name => name.startsWith(`${SERVER}__`));
        if (!tool) return false;
        const answer = await peer.call(tool, {}).catch(error => ({ error, isError: true }));
        console.log(tool, JSON.stringify(answer), answer.error?.message ?? '');
        // An agent shows the link to its person, and repeats the call.
        if (answer.structuredContent?.connectUrl) await consent(answer.structuredContent.connectUrl);
        else if (tool === TOOL && answer.isError) throw new PermanentError(`the call fails: ${JSON.stringify(answer)}`);
        // Before the first consent, only the tool that asks for it is listed.
        else return tool === TOOL;
    }, CALL_LIMIT_MS);
    await peer.close();
} catch (error) {
    console.error(error);
    console.error(`--- stderr of the gateway ---\n${gateway.log()}`);
    process.exitCode = 1;
} finally {
    await gateway.stop();
    await rm(folder, { recursive: true, force: true });
}
// The client's streams may still be open.
process.exit();
