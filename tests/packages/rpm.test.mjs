// Builds the rpm, installs it with its scripts into a system that is then booted, and into an empty folder without them.
import assert from 'node:assert/strict';
import { lstat, mkdtemp, rm, stat } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { buildOlderVersion, buildPackages } from './installed.mjs';
import { System, command, reasonToSkip } from './system.mjs';

const URL_OF_SERVICE = 'http://127.0.0.1:8080';

describe('rpm', () => {
    let target, file, olderFile;

    /** Runs rpm on the database in a folder. No package of the distribution is registered there, so dependencies are not checked. */
    const rpm = async (root, ...parameters) =>
        (await command('rpm', ['--root', root, '--dbpath', '/var/lib/rpm', '--nodeps', ...parameters])).stdout;

    before(async () => {
        await command('bash', ['-c', '. scripts/lib.sh && need rpm rpm']);
        target = await mkdtemp(path.join(os.tmpdir(), 'countersign-rpm-'));
        const packages = await buildPackages(target, 'rpm');
        [olderFile, file] = await buildOlderVersion(packages, 'rpm');
    });
    after(() => rm(target, { recursive: true, force: true }));

    test('requires no newer glibc than 2.34', async () => {
        const { stdout } = await command('rpm', ['-qp', '--requires', file]);
        assert.match(stdout, /^libc\.so\.6\(GLIBC_2\.34\)\(64bit\)$/m);
    });

    test('installs into an empty folder', { skip: process.getuid() !== 0 && 'only root can install packages' }, async () => {
        const root = path.join(target, 'root');
        await rpm(root, '-i', '--noscripts', '--nocaps', file);
        const version = (await command(path.join(root, 'usr/bin/countersign'), ['--version'])).stdout;
        assert.match(version, /^countersign \d/);
        const files = (await command('rpm', ['-qpl', file])).stdout.trim().split('\n');
        for (const name of files) await stat(path.join(root, name));
    });

    describe('in a system', { skip: reasonToSkip() }, () => {
        let system, key;

        before(async () => (system = await System.create()));
        after(() => system?.remove());

        const owners = async () => (await command('chroot', [system.root, 'stat', '-c', '%a %U %G', '/var/lib/countersign', '/etc/countersign/countersign.yaml'])).stdout;

        test('its scripts create the user and enable the service', async t => {
            const began = Date.now();
            await rpm(system.root, '-i', olderFile);
            t.diagnostic(`installed in ${((Date.now() - began) / 1000).toFixed(1)} s`);
            assert.equal(await rpm(system.root, '-V', 'countersign'), '');
            assert.equal(await owners(), '700 countersign countersign\n640 root countersign\n');
            // The link leads to a path within the system.
            await lstat(path.join(system.root, 'etc/systemd/system/multi-user.target.wants/countersign.service'));
        });

        test('applies the first approved write after a boot', async t => {
            const began = Date.now();
            await system.boot();
            const seconds = await system.script(`console.log(await secondsUntilTools('${URL_OF_SERVICE}', ${began}));`);
            t.diagnostic(`${seconds.trim()} s from the boot to the answer to tools/list`);
            key = (await system.run('countersign-admin keys create --role reviewer --name alice')).trim();
            await system.script(`await approveFirstWrite('${URL_OF_SERVICE}', '${key}');`);
            await system.shutDown();
        });

        test('an upgrade keeps data and configuration', async () => {
            await command('chroot', [system.root, 'sh', '-c', 'echo "strict_versions: true" >>/etc/countersign/countersign.yaml']);
            await rpm(system.root, '-U', file);
            assert.match((await command('chroot', [system.root, 'cat', '/etc/countersign/countersign.yaml'])).stdout, /^strict_versions: true$/m);
            assert.equal(await owners(), '700 countersign countersign\n640 root countersign\n');
            await system.boot();
            await system.script(`
                await eventually('healthy', async () => (await fetch('${URL_OF_SERVICE}/health')).ok);
                const { status, body } = await new Reviewer('${URL_OF_SERVICE}', '${key}').api('GET', '/changes');
                if (status !== 200 || body.changes.filter(change => change.state === 'applied').length !== 1) throw new Error(JSON.stringify(body));`);
            await system.shutDown();
        });

        test('a removal keeps the data and the changed configuration', async () => {
            await rpm(system.root, '-e', 'countersign');
            await stat(path.join(system.root, 'var/lib/countersign'));
            await stat(path.join(system.root, 'etc/countersign/countersign.yaml.rpmsave'));
            await assert.rejects(stat(path.join(system.root, 'usr/bin/countersign')));
        });
    });
});
