// Checks the wheel and runs it with uvx and pipx, from the file and from a local index, up to the first approved write.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFile, readdir } from 'node:fs/promises';
import http from 'node:http';
import path from 'node:path';
import { test } from 'node:test';

import { eventually, run } from '../clients/gateway.mjs';
import { approveFirstWrite } from './first-write.mjs';
import {
    buildPackages,
    emptyEnvironment,
    isRunning,
    lastLine,
    pythonPrograms,
    runningGateway,
    start,
    startSession,
    temporaryFolder,
    useOverStdio
} from './installed.mjs';

const uvx = path.join(pythonPrograms, 'uvx');
const pipx = path.join(pythonPrograms, 'pipx');

/** Serves the wheel as an index of packages, which has no others. Returns the index's address. */
async function startIndex(t, wheel) {
    const content = await readFile(wheel);
    const sha256 = createHash('sha256').update(content).digest('hex');
    const name = path.basename(wheel);
    const server = http.createServer((request, response) => {
        if (request.url === '/countersign-gateway/') {
            response.setHeader('content-type', 'text/html');
            response.end(`<!DOCTYPE html><html><body><a href="${name}#sha256=${sha256}">${name}</a></body></html>`);
        } else if (request.url === `/countersign-gateway/${name}`) {
            response.end(content);
        } else {
            response.writeHead(404).end();
        }
    });
    await new Promise((resolve, reject) => server.once('error', reject).listen(0, '127.0.0.1', resolve));
    t.after(() => {
        server.closeAllConnections();
        server.close();
    });
    return `http://127.0.0.1:${server.address().port}/`;
}

test('wheel', async t => {
    const {
        wheel: [wheel]
    } = await buildPackages(await temporaryFolder(t), 'wheel');
    const index = await startIndex(t, wheel);

    const userEnvironment = async t => {
        const home = await temporaryFolder(t);
        // uv must use the Python of this machine and cannot download another one.
        return emptyEnvironment(home, { UV_PYTHON_DOWNLOADS: 'never', PIPX_DEFAULT_PYTHON: path.join(pythonPrograms, 'python') });
    };

    await t.test('runs with glibc 2.34', async () => {
        const { stdout } = await run(path.join(pythonPrograms, 'auditwheel'), ['show', wheel]);
        const [, minor] = stdout.replaceAll('\n', ' ').match(/consistent with the following platform tag: "manylinux_2_(\d+)_x86_64"/);
        assert.ok(Number(minor) <= 34, stdout);
        assert.match(path.basename(wheel), new RegExp(`-py3-none-manylinux_2_${minor}_x86_64\\.whl$`));
    });

    await t.test('uvx starts a stdio session from the index', async t => {
        const env = { ...(await userEnvironment(t)), UV_DEFAULT_INDEX: index };
        const { url, key, pid, seconds } = await useOverStdio(uvx, ['countersign-gateway'], env);
        t.diagnostic(`${seconds.toFixed(1)} s from uvx in an empty home to the answer to tools/list`);
        await approveFirstWrite(url, key);
        const ended = await startSession(uvx, ['countersign-gateway'], env);
        ended.child.stdin.end();
        assert.deepEqual(await ended.ended, { code: 0, signal: null });
        // The streams are closed when no process of the session runs any more.
        const killed = await startSession(uvx, ['countersign-gateway'], env);
        killed.child.kill('SIGTERM');
        await killed.ended;
        assert.ok(isRunning(pid), 'the gateway in the background serves other sessions');
    });

    await t.test('uvx serves over HTTP from the file until it is killed', async t => {
        const env = { ...(await userEnvironment(t)), UV_NO_INDEX: '1' };
        const command = ['--from', wheel, 'countersign-gateway'];
        const gateway = start(uvx, [...command, '--listen', '127.0.0.1:0'], { env });
        t.after(() => gateway.child.kill('SIGKILL'));
        const { url, pid } = await runningGateway(env.HOME);
        const key = await lastLine(uvx, [...command, 'keys', 'create', '--role', 'reviewer', '--name', 'alice'], env);
        await approveFirstWrite(url, key);
        gateway.child.kill('SIGTERM');
        assert.deepEqual(await gateway.ended, { code: 0, signal: null });
        await eventually('the gateway has ended', () => !isRunning(pid));
    });

    await t.test('pipx runs it', async t => {
        const env = await userEnvironment(t);
        const { seconds } = await useOverStdio(pipx, ['run', '--index-url', index, 'countersign-gateway'], env);
        t.diagnostic(`${seconds.toFixed(1)} s from pipx in an empty home to the answer to tools/list`);
    });

    await t.test('pipx installs both commands, manual pages and completions', async t => {
        const env = await userEnvironment(t);
        await run(pipx, ['install', '--index-url', index, 'countersign-gateway'], { env });
        for (const name of ['countersign', 'countersign-gateway']) {
            const command = path.join(env.HOME, '.local/bin', name);
            assert.match((await run(command, ['--version'], { env })).stdout, /^countersign \d/);
            assert.deepEqual(await start(command, ['--no-such-option'], { env }).ended, { code: 2, signal: null });
        }
        assert.ok((await readdir(path.join(env.HOME, '.local/share/man/man1'))).includes('countersign.1'));
        const files = await readdir(path.join(env.HOME, '.local/share/pipx/venvs/countersign-gateway/share'), { recursive: true });
        const completions = [
            'bash-completion/completions/countersign',
            'zsh/site-functions/_countersign',
            'fish/vendor_completions.d/countersign.fish'
        ];
        for (const file of completions) assert.ok(files.includes(file), file);
    });
});
