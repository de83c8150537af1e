// Builds the image with Node and uv from the Dockerfile, and starts servers with npx and uvx in it. The test has local images in
// place of those that the Dockerfile builds upon, but installs Debian's packages from the network. The stage that compiles gets
// the program under test.
import assert from 'node:assert/strict';
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { Reviewer, binary, eventually, repository } from '../clients/gateway.mjs';
import { Image, USER, emptyVolume } from './container.mjs';
import { callTool } from './first-write.mjs';
import { pythonPrograms } from './installed.mjs';
import { command, npmFolder } from './system.mjs';

const CONFIGURATION = `listen: 127.0.0.1:0
auth: { mode: keys }
mcpServers:
  files:
    # npx finds the installed package in this folder and downloads nothing.
    cwd: /srv/servers
    command: npx
    args: [-y, "@modelcontextprotocol/server-filesystem", /tmp]
`;

/** A Python package that uv builds itself, without the network. */
const PYPROJECT = `[project]
name = "hello"
version = "1.0.0"
scripts = { hello = "hello:main" }

[build-system]
requires = ["uv_build"]
build-backend = "uv_build"
`;

const isSlow = !process.env.COUNTERSIGN_SLOW_PACKAGES && 'takes a minute and needs the network; COUNTERSIGN_SLOW_PACKAGES=1 runs it';

describe('image with Node and uv', { skip: isSlow }, () => {
    let folder, image;

    const buildah = async (...parameters) => {
        const storage = ['--root', path.join(folder, 'storage'), '--runroot', path.join(folder, 'run'), '--storage-driver', 'overlay'];
        const options = { env: { ...process.env, BUILDAH_ISOLATION: 'chroot' } };
        return (await command('buildah', [...storage, ...parameters], options)).stdout.trim();
    };

    /** Creates an image of Debian in place of one from a registry. `addFiles` gets the folder of its files. */
    async function createImage(name, addFiles) {
        const container = await buildah('from', 'scratch');
        const root = await buildah('mount', container);
        await command('cp', ['-a', `${(await command('tests/packages/debian-system', [])).stdout.trim()}/.`, root]);
        await addFiles(root);
        await buildah('commit', '--quiet', '--rm', container, name);
    }

    /** Adds what the image of Node has: node, npm and npx in /usr/local. */
    async function addNode(root) {
        const local = path.join(root, 'usr/local');
        await cp(process.execPath, path.join(local, 'bin/node'));
        await cp(await npmFolder(), path.join(local, 'lib/node_modules/npm'), { recursive: true });
        for (const tool of ['npm', 'npx']) await symlink(`../lib/node_modules/npm/bin/${tool}-cli.js`, path.join(local, 'bin', tool));
    }

    /** Adds a program in place of cargo. */
    async function addCargo(root) {
        await command('strip', ['-o', path.join(root, 'opt/countersign'), binary]);
        await writeFile(path.join(root, 'usr/local/bin/cargo'), '#!/bin/sh\ninstall -D -t target/dist /opt/countersign\n', { mode: 0o755 });
    }

    before(async () => {
        folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-tools-'));
        const dockerfile = path.join(repository, 'config/packages/image/Dockerfile');
        const text = await readFile(dockerfile, 'utf8');
        const baseOf = stage => text.match(new RegExp(`^FROM (\\S+) AS ${stage}$`, 'm'))[1];
        await createImage(baseOf('build'), addCargo);
        await createImage(baseOf('tools'), addNode);
        for (const tool of ['uv', 'uvx']) await cp(path.join(pythonPrograms, tool), path.join(folder, 'uv', tool));
        const options = ['--quiet', '--pull-never', '--format', 'docker', '--ignorefile', `${dockerfile}.dockerignore`, '--build-context', `uv=${folder}/uv`];
        await buildah('bud', ...options, '--file', dockerfile, '--target', 'tools', '--tag', 'tools', repository);
        const { config } = JSON.parse(await buildah('inspect', '--type', 'image', 'tools')).OCIv1;
        image = new Image(await buildah('mount', await buildah('from', '--pull-never', 'tools')), config);
    });
    after(async () => {
        await buildah('umount', '--all');
        await rm(folder, { recursive: true, force: true });
    });

    test('npx and uvx start servers with a read-only root', async t => {
        const data = await emptyVolume(path.join(folder, 'data'));
        await writeFile(path.join(data, 'countersign.yaml'), CONFIGURATION);
        const servers = path.join(image.root, 'srv/servers/node_modules');
        await mkdir(servers, { recursive: true });
        await command('cp', ['-r', `${repository}/tests/fixtures/node_modules/.`, servers]);
        await mkdir(path.join(data, 'hello/src/hello'), { recursive: true });
        await writeFile(path.join(data, 'hello/pyproject.toml'), PYPROJECT);
        await writeFile(path.join(data, 'hello/src/hello/__init__.py'), 'def main(): print("hello")\n');
        await command('chown', ['-R', `${USER}:${USER}`, data]);

        const container = await image.start(data, ['serve', '--config', '/data/countersign.yaml']);
        t.after(() => container.stop());
        const url = await container.url();
        const createKey = async (role, name) => (await container.exec('countersign', 'keys', 'create', '--role', role, '--name', name)).stdout.trim();
        const reviewer = new Reviewer(url, await createKey('reviewer', 'alice'));
        const agentKey = await createKey('agent', 'ci');
        const id = await eventually('the server takes the write', async () => {
            const { body } = await callTool(url, 'files__write_file', { path: '/tmp/hello', content: 'hello' }, agentKey);
            return JSON.stringify(body).match(/chg_\w+/)?.[0];
        });
        await reviewer.approve(id);
        await reviewer.reached(id, 'applied');
        assert.equal((await container.exec('cat', '/tmp/hello')).stdout, 'hello');

        assert.equal((await container.exec('uvx', '--offline', '--from', '/data/hello', 'hello')).stdout, 'hello\n');
        for (const tool of ['countersign', 'node', 'npm', 'uv', 'python3', 'git']) {
            t.diagnostic(`${tool} ${(await container.exec(tool, '--version')).stdout.trim()}`);
        }
        assert.equal(await container.stop(), 0);
    });
});
