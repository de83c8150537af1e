// Installs the npm packages from a local registry into empty homes and uses them up to the first approved write.
import assert from 'node:assert/strict';
import { readdir, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';

import { eventually, freePort, repository, run } from '../clients/gateway.mjs';
import { approveFirstWrite } from './first-write.mjs';
import {
    buildPackages,
    emptyEnvironment,
    isRunning,
    lastLine,
    runningGateway,
    start,
    startSession,
    temporaryFolder,
    useOverStdio
} from './installed.mjs';

/** Starts a registry that has no packages and asks no other registry. */
async function startRegistry(t, folder) {
    const port = await freePort();
    const access = { access: '$all', publish: '$all', unpublish: '$all' };
    const config = {
        storage: path.join(folder, 'storage'),
        auth: { htpasswd: { file: path.join(folder, 'htpasswd'), max_users: -1 } },
        packages: { '@countersign/*': access, countersign: access },
        max_body_size: '300mb',
        log: { type: 'stdout', format: 'json', level: 'warn' },
        web: { enable: false }
    };
    // JSON is YAML.
    await writeFile(path.join(folder, 'config.yaml'), JSON.stringify(config));
    const program = path.join(repository, 'tests/packages/node_modules/verdaccio/bin/verdaccio');
    const registry = start(process.execPath, [program, '--config', path.join(folder, 'config.yaml'), '--listen', `127.0.0.1:${port}`], {
        env: { HOME: folder, PATH: process.env.PATH }
    });
    t.after(async () => {
        registry.child.kill('SIGTERM');
        await registry.ended;
    });
    const url = `http://127.0.0.1:${port}/`;
    await eventually('the registry answers', async () => (await fetch(`${url}-/ping`)).ok);
    return url;
}

test('npm packages', async t => {
    const folder = await temporaryFolder(t);
    const [{ npm: packages }, registry] = await Promise.all([buildPackages(await temporaryFolder(t), 'npm'), startRegistry(t, folder)]);
    const launcherPackage = packages.find(file => !file.includes('linux-x64'));
    const platformPackage = packages.find(file => file.includes('linux-x64'));
    const npmrc = path.join(folder, 'npmrc');
    // npm publishes only with a token, which this registry does not check.
    await writeFile(npmrc, `registry=${registry}\n//${new URL(registry).host}/:_authToken=none\n`);
    for (const file of [platformPackage, launcherPackage]) {
        await run('npm', ['publish', '--userconfig', npmrc, file], { env: emptyEnvironment(folder) });
    }

    /** Returns the environment of a user with an empty home whose npm uses the registry. */
    const userEnvironment = async t =>
        emptyEnvironment(await temporaryFolder(t), { npm_config_registry: registry, npm_config_update_notifier: 'false' });
    const npx = ['-y', 'countersign'];

    await t.test('the manifests meet what npm and the MCP registry expect', async () => {
        const { body } = await fetch(`${registry}countersign`).then(async response => ({ body: await response.json() }));
        const manifest = body.versions[body['dist-tags'].latest];
        assert.equal(manifest.mcpName, 'io.github.countersign/countersign');
        assert.deepEqual(manifest.optionalDependencies, { '@countersign/linux-x64': manifest.version });
        assert.equal(manifest.scripts, undefined);
        const platform = await fetch(`${registry}@countersign%2flinux-x64/${manifest.version}`).then(response => response.json());
        assert.deepEqual([platform.os, platform.cpu, platform.libc], [['linux'], ['x64'], ['glibc']]);
        assert.equal(platform.scripts, undefined);
    });

    await t.test('npx starts a stdio session for a desktop agent', async t => {
        const env = await userEnvironment(t);
        const { url, key, pid, seconds } = await useOverStdio('npx', npx, env);
        t.diagnostic(`${seconds.toFixed(1)} s from npx in an empty home to the answer to tools/list`);
        await approveFirstWrite(url, key);
        const ended = await startSession('npx', npx, env);
        ended.child.stdin.end();
        assert.deepEqual(await ended.ended, { code: 0, signal: null });
        // The streams are closed when no process of the session runs any more.
        const killed = await startSession('npx', npx, env);
        killed.child.kill('SIGTERM');
        await killed.ended;
        assert.ok(isRunning(pid), 'the gateway in the background serves other sessions');
    });

    await t.test('npx serves over HTTP until it is killed', async t => {
        const env = await userEnvironment(t);
        const gateway = start('npx', [...npx, '--listen', '127.0.0.1:0'], { env });
        t.after(() => gateway.child.kill('SIGKILL'));
        const { url, pid } = await runningGateway(env.HOME);
        const key = await lastLine('npx', [...npx, 'keys', 'create', '--role', 'reviewer', '--name', 'alice'], env);
        await approveFirstWrite(url, key);
        gateway.child.kill('SIGTERM');
        await gateway.ended;
        await eventually('the gateway has ended', () => !isRunning(pid));
        assert.match(gateway.output.stderr, /the gateway has ended/);
    });

    await t.test('an installed launcher', async t => {
        const env = await userEnvironment(t);
        const prefix = path.join(env.HOME, 'prefix');
        await run('npm', ['install', '--global', '--prefix', prefix, 'countersign'], { env });
        const command = path.join(prefix, 'bin/countersign');
        const program = path.join(prefix, 'lib/node_modules/countersign/node_modules/@countersign/linux-x64/bin/countersign');
        const launcher = path.join(prefix, 'lib/node_modules/countersign/bin/countersign.js');

        await t.test('installs manual pages', async () => {
            assert.ok((await readdir(path.join(prefix, 'share/man/man1'))).includes('countersign.1'));
        });

        await t.test('passes output and exit codes through', async () => {
            for (const args of [['--version'], ['stdio', '--no-such-option'], ['changes', 'list'], ['completions', 'bash']]) {
                const [direct, launched] = [program, command].map(file => start(file, args, { env }));
                assert.deepEqual(await launched.ended, await direct.ended, args.join(' '));
                assert.deepEqual(launched.output, direct.output, args.join(' '));
            }
            assert.equal((await start(command, ['--no-such-option'], { env }).ended).code, 2);
        });

        await t.test('passes signals on', async t => {
            for (const signal of ['SIGTERM', 'SIGINT']) {
                const gateway = start(command, ['--listen', '127.0.0.1:0'], { env });
                t.after(() => gateway.child.kill('SIGKILL'));
                const { pid } = await runningGateway(env.HOME);
                assert.notEqual(pid, gateway.child.pid);
                gateway.child.kill(signal);
                assert.deepEqual(await gateway.ended, { code: 0, signal: null }, signal);
                assert.ok(!isRunning(pid));
            }
        });

        await t.test('ends with the signal that ended the program', async t => {
            for (const signal of ['SIGKILL', 'SIGQUIT']) {
                const gateway = start(command, ['--listen', '127.0.0.1:0'], { env });
                t.after(() => gateway.child.kill('SIGKILL'));
                const { pid } = await runningGateway(env.HOME);
                process.kill(pid, signal);
                assert.deepEqual(await gateway.ended, { code: null, signal }, signal);
            }
        });

        await t.test('names the platforms that have a program', async () => {
            const patch = path.join(env.HOME, 'patch.cjs');
            await writeFile(patch, "Object.defineProperty(process, 'platform', { value: 'win32' });");
            const launched = start(process.execPath, ['--require', patch, launcher, '--version'], { env });
            assert.deepEqual(await launched.ended, { code: 69, signal: null });
            assert.match(launched.output.stderr, /^countersign: there is no program for win32-x64 \(there is one for linux-x64\)\. .*https:/);
            assert.equal(launched.output.stdout, '');
        });

        await t.test('says what to do when the optional dependency is missing', async () => {
            await rm(path.dirname(path.dirname(program)), { recursive: true });
            const launched = start(command, ['--version'], { env });
            assert.deepEqual(await launched.ended, { code: 69, signal: null });
            assert.match(launched.output.stderr, /^countersign: the package @countersign\/linux-x64, .* is not installed\. .*--omit=optional/);
        });
    });
});
