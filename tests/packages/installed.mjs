// Builds packages for tests, and uses an installed program in an empty home.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, readdir, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';

import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

import { Reviewer, binary, eventually, repository, run } from '../clients/gateway.mjs';

/** The programs of tests/packages/requirements.txt. */
export const pythonPrograms = path.join(repository, 'tests/.cache/venv-packages/bin');

/** Creates an empty folder that the test removes. If it was used as a home, the gateway that runs there ends before. */
export async function temporaryFolder(t) {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-package-'));
    t.after(async () => {
        await endGateway(folder);
        await rm(folder, { recursive: true, force: true, maxRetries: 3 });
    });
    return folder;
}

/**
 * Builds packages of the program under test in a new folder, so that tests can run side by side. `target` is a folder of the
 * test, which removes it. Returns the paths of the files by kind, and the folder of all packages as `folder`.
 */
export async function buildPackages(target, ...kinds) {
    const env = { ...process.env, COUNTERSIGN_FAST_PACKAGES: '1', CARGO_TARGET_DIR: target };
    await run(path.join(repository, 'scripts/package'), ['--program', binary, ...kinds], { env, maxBuffer: 64 << 20 });
    const packages = { folder: path.join(target, 'packages') };
    for (const kind of kinds) packages[kind] = await filesOf(path.join(packages.folder, kind));
    return packages;
}

const filesOf = async folder => (await readdir(folder)).sort().map(name => path.join(folder, name));

/**
 * Builds a kind as if the program were version 0.0.9, beside the packages of `buildPackages`. Returns all files of the kind,
 * sorted by version.
 */
export async function buildOlderVersion({ folder }, kind) {
    const output = path.join(folder, kind);
    await mkdir(output, { recursive: true });
    const program = path.join(folder, 'program/countersign');
    const variables = { program, packages: folder, output, version: '0.0.9', SOURCE_DATE_EPOCH: '1700000000', COUNTERSIGN_FAST_PACKAGES: '1' };
    await run(path.join(repository, 'scripts/packages', kind), [], { env: { ...process.env, ...variables }, maxBuffer: 64 << 20 });
    return filesOf(output);
}

/** Returns an environment with an empty home and nothing of the developer's configuration. */
export function emptyEnvironment(home, extra = {}) {
    return { HOME: home, PATH: process.env.PATH, ...extra };
}

const readGatewayFile = async home =>
    JSON.parse(await readFile(path.join(home, '.local/state/countersign/gateway.json'), 'utf8').catch(() => '{}'));

/** Waits until a gateway with its data in the home listens. Returns its `{ url, pid }`. */
export function runningGateway(home) {
    return eventually(
        'a gateway listens',
        async () => {
            const { url, pid } = await readGatewayFile(home);
            return url && (await fetch(`${url}/health`)).ok && { url: url.replace(/\/$/, ''), pid };
        }
    );
}

export function isRunning(pid) {
    try {
        process.kill(pid, 0);
        return true;
    } catch {
        return false;
    }
}

/** Ends the gateway of a home, which a stdio session has started in the background. */
async function endGateway(home) {
    const { pid } = await readGatewayFile(home);
    if (!pid || !isRunning(pid)) return;
    process.kill(pid, 'SIGTERM');
    await eventually(`gateway ${pid} has ended`, () => !isRunning(pid));
}

/** Starts a process whose standard output and error are kept. `ended` resolves with `{ code, signal }`. */
export function start(command, args, options) {
    const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'pipe'], ...options });
    const output = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr']) child[name].setEncoding('utf8').on('data', text => (output[name] += text));
    const ended = new Promise((resolve, reject) => {
        child.once('close', (code, signal) => resolve({ code, signal })).once('error', reject);
    });
    return { child, output, ended };
}

/** Returns the last line that a command has printed, such as a new key. */
export async function lastLine(command, args, env) {
    const { stdout } = await run(command, args, { env });
    return stdout.trim().split('\n').at(-1);
}

/**
 * Uses an installed program as a desktop agent does: starts it with `stdio` in an empty home, lists tools, proposes a write and
 * waits until a reviewer's approval has applied it. `command` and `args` start the program without a subcommand. Returns
 * `{ url, key, pid, seconds }`, where `seconds` is the time until the answer to the first `tools/list`.
 */
export async function useOverStdio(command, args, env, sessionArguments = ['stdio']) {
    const began = performance.now();
    const versionNegotiation = { mode: 'legacy' };
    const client = new Client({ name: 'package-test', version: '1.0.0' }, { capabilities: {}, versionNegotiation });
    const transport = new StdioClientTransport({ command, args: [...args, ...sessionArguments], env, stderr: 'pipe' });
    let log = '';
    transport.stderr.on('data', chunk => (log += chunk));
    try {
        await client.connect(transport);
        const { tools } = await client.listTools();
        const seconds = (performance.now() - began) / 1000;
        assert.equal(client.getServerVersion().name, 'countersign');
        assert.ok(tools.some(tool => tool.name === 'create_issue'));

        const { structuredContent: list } = await client.callTool({ name: 'list_projects', arguments: {} });
        const issue = { projectId: list.projects[0].id, title: 'Proposed over stdio', type: 'Story' };
        const { structuredContent: proposal } = await client.callTool({ name: 'create_issue', arguments: issue });
        assert.equal(proposal.status, 'pending');

        const { url, pid } = await runningGateway(env.HOME);
        const key = await lastLine(command, [...args, 'keys', 'create', '--role', 'reviewer', '--name', 'alice'], env);
        const reviewer = new Reviewer(url, key);
        await reviewer.approve(proposal.changeId);
        await reviewer.reached(proposal.changeId, 'applied');
        return { url, key, pid, seconds };
    } catch (error) {
        throw new Error(`${error.message}\n--- stderr of the session ---\n${log}`, { cause: error });
    } finally {
        await client.close();
    }
}

/** The request with which a session begins. */
const INITIALIZE = `${JSON.stringify({
    jsonrpc: '2.0',
    id: 1,
    method: 'initialize',
    params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'package-test', version: '1.0.0' } }
})}\n`;

/** Starts a stdio session and waits for its first answer. */
export async function startSession(command, args, env) {
    const session = start(command, [...args, 'stdio'], { env });
    session.child.stdin.write(INITIALIZE);
    await eventually('the session answers', () => session.output.stdout.includes('"serverInfo"'));
    return session;
}
