// Starts the fixture servers of `tests/fixtures` and gateways in front of them.
import { spawn } from 'node:child_process';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { PermanentError, eventually, nodesOf, startGateway, stopChild } from './gateway.mjs';

const folder = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../fixtures');

/** The kinds of upstream that the gateway must bridge to, and the fixture's arguments for each. */
export const KINDS = {
    both: ['--sdk', 'v2', '--era', 'both'],
    legacy: ['--sdk', 'v1'],
    modern: ['--sdk', 'v2', '--era', 'modern'],
    // The 2.x SDK restricted to the legacy era turns its own multi-round-trip tools into pushed requests.
    shim: ['--sdk', 'v2', '--era', 'legacy']
};

/** The Node that runs fixtures and real servers. */
export const command = process.execPath;
export const fixtureArguments = kind => [path.join(folder, 'server.mjs'), ...KINDS[kind]];
/** Returns the path of a program of a package that `tests/fixtures` installs. */
export const packageFile = file => path.join(folder, 'node_modules', file);

/** Starts a script of the fixtures over HTTP and returns `{ url, child, log(), stop() }` after it listens. */
export async function startScript(file, args = []) {
    const child = spawn(command, [file, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    let errors = '';
    child.stderr.setEncoding('utf8').on('data', text => (errors = (errors + text).slice(-16_000)));
    const url = await new Promise((resolve, reject) => {
        child.once('error', reject).once('exit', code => reject(new Error(`the fixture ended with ${code}:\n${errors}`)));
        createInterface({ input: child.stdout }).once('line', resolve);
    });
    return { url, child, log: () => errors, stop: () => stopChild(child) };
}

export const startFixture = kind => startScript(path.join(folder, 'server.mjs'), KINDS[kind]);
export const startTasksFixture = (...args) => startScript(path.join(folder, 'tasks.mjs'), args);

/** Returns the configuration of a gateway in front of one server, whose names pass through unchanged. */
export const inFrontOf = (server, more = {}) => ({
    policy: { default: 'allow' },
    modules: { tracker: { enabled: false } },
    mcpServers: { fixture: { prefix: '', required: true, ...server } },
    ...more
});

/** Returns the entry of a fixture: over HTTP with its base URL, or as a command whose processes share the file `state`. */
export const overHttp = url => ({ url: `${url}/mcp` });
export const overStdio = (kind, state) => ({ command, args: [...fixtureArguments(kind), '--stdio'], ...(state ? { env: { FIXTURE_STATE: state } } : {}) });

/** Starts a gateway with that configuration and waits until its required servers are connected. */
export async function startGatewayWith(config, options = {}) {
    const gateway = await startGateway({ ...options, config });
    try {
        await eventually('the gateway is ready', async () => {
            if (gateway.child.exitCode !== null) throw new PermanentError(`the gateway ended with ${gateway.child.exitCode}`);
            const answers = await Promise.all(nodesOf(gateway).map(({ url }) => fetch(`${url}/ready`)));
            return answers.every(({ status }) => status === 200 || status === 404);
        });
        return gateway;
    } catch (error) {
        const log = gateway.log();
        await gateway.stop();
        throw new Error(`${error.message}\n--- stderr of the gateway ---\n${log}`, { cause: error });
    }
}
