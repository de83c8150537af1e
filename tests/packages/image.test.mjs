// Tests the container image: what it says about itself, and the gateway in it, started as a container runtime starts it.
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, readdir, rm, stat } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';

import { repository, run } from '../clients/gateway.mjs';
import { Image, USER, emptyVolume } from './container.mjs';
import { approveFirstWrite, secondsUntilTools } from './first-write.mjs';
import { buildPackages } from './installed.mjs';

const MEGABYTE = 1_000_000;

let folder;
let image;
let dockerImage;

before(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-image-'));
    const packages = await buildPackages(path.join(folder, 'build'), 'image');
    const ending = text => packages.image.find(name => name.endsWith(text));

    const layout = path.join(folder, 'oci');
    await mkdir(layout);
    await run('tar', ['--extract', '--file', ending('.oci.tar'), '--directory', layout]);
    const blob = async digest => JSON.parse(await readFile(path.join(layout, 'blobs', digest.replace(':', '/')), 'utf8'));
    const index = JSON.parse(await readFile(path.join(layout, 'index.json'), 'utf8'));
    const manifest = await blob(index.manifests[0].digest);
    const bundle = path.join(folder, 'bundle');
    image = new Image(path.join(bundle, 'rootfs'), (await blob(manifest.config.digest)).config);
    image.layers = manifest.layers;
    image.tag = index.manifests[0].annotations['org.opencontainers.image.ref.name'];

    const docker = path.join(folder, 'docker');
    await mkdir(docker);
    await run('tar', ['--extract', '--gzip', '--file', ending('.docker.tar.gz'), '--directory', docker]);
    const [description] = JSON.parse(await readFile(path.join(docker, 'manifest.json'), 'utf8'));
    dockerImage = JSON.parse(await readFile(path.join(docker, description.Config), 'utf8')).config;
    dockerImage.tags = description.RepoTags;

    await run('umoci', ['unpack', '--image', `${layout}:${image.tag}`, bundle]);
});

after(() => rm(folder, { recursive: true, force: true }));

test('image describes its program, user, volume and health check', async () => {
    const version = (await readFile(path.join(repository, 'Cargo.toml'), 'utf8')).match(/^version = "(.*)"/m)[1];
    assert.equal(image.tag, version);
    assert.deepEqual(dockerImage.tags, [`ghcr.io/countersign/countersign:${version}`]);
    for (const config of [image, dockerImage]) {
        assert.equal(config.User, `${USER}:${USER}`);
        assert.deepEqual(config.Volumes, { '/data': {} });
        assert.deepEqual(config.ExposedPorts, { '8080/tcp': {} });
        assert.deepEqual([...config.Entrypoint, ...config.Cmd], ['countersign', 'serve']);
        assert.equal(config.Labels['org.opencontainers.image.source'], 'https://github.com/countersign/countersign');
        assert.equal(config.Labels['org.opencontainers.image.version'], version);
        assert.equal(config.Labels['org.opencontainers.image.licenses'], 'Apache-2.0');
        assert.equal(config.Labels['io.modelcontextprotocol.server.name'], 'io.github.countersign/countersign');
    }
    assert.deepEqual(dockerImage.Healthcheck.Test, ['CMD', 'countersign', 'health', '--data', '/data']);
});

test('image adds at most 12 MB to the program and contains no shell', async () => {
    const { root } = image;
    const { stdout } = await run('du', ['--summarize', '--bytes', root]);
    const program = await stat(path.join(root, 'usr/bin/countersign'));
    assert.ok(Number(stdout.split('\t')[0]) - program.size < 12 * MEGABYTE, stdout);
    assert.ok(image.layers.reduce((sum, layer) => sum + layer.size, 0) < 60 * MEGABYTE);
    await assert.rejects(stat(path.join(root, 'bin/sh')));
    const volume = await stat(path.join(root, 'data'));
    assert.deepEqual([volume.uid, volume.gid, volume.mode & 0o777], [USER, USER, 0o700]);
    assert.equal((await stat(root)).uid, 0);
    for (const package_ of ['countersign', 'libc6', 'libgcc-s1', 'ca-certificates', 'tzdata']) {
        await readdir(path.join(root, 'usr/share/doc', package_));
    }
});

test('both targets of the Dockerfile end with the same instructions', async () => {
    const dockerfile = await readFile(path.join(repository, 'config/packages/image/Dockerfile'), 'utf8');
    const [gateway, tools] = ['gateway', 'tools'].map(target => {
        const stage = dockerfile.split(/^(?=FROM )/m).find(text => text.split('\n')[0].endsWith(` AS ${target}`));
        const instructions = stage.replace(/\\\n\s*/g, '').split('\n');
        return instructions.filter(line => /^(LABEL|ENV|USER|WORKDIR|VOLUME|EXPOSE|HEALTHCHECK|ENTRYPOINT|CMD) /.test(line));
    });
    // The base of the target with Node sets PATH.
    const expected = gateway.map(line => line.replace(/PATH=\S* /, '').replace('title="Countersign"', 'title="Countersign with Node and uv"'));
    assert.equal(gateway.length, 9);
    assert.deepEqual(tools, expected);
});

test('container serves up to the first approved write with a read-only root', async t => {
    const data = await emptyVolume(path.join(folder, 'first-write'));
    const began = Date.now();
    const container = await image.start(data, ['serve', '--listen', '127.0.0.1:0']);
    try {
        const url = await container.url();
        await container.exec(...dockerImage.Healthcheck.Test.slice(1));
        const createKey = async (role, name) => (await container.exec('countersign', 'keys', 'create', '--role', role, '--name', name)).stdout.trim();
        const agentKey = await createKey('agent', 'ci');
        const seconds = await secondsUntilTools(url, began, agentKey);
        t.diagnostic(`${seconds} s from the start of the container to the answer to tools/list`);
        await approveFirstWrite(url, await createKey('reviewer', 'alice'), agentKey);
        await container.exec('countersign', 'audit', 'verify');
        assert.equal((await stat(path.join(data, 'countersign.db'))).uid, USER);
    } finally {
        assert.equal(await container.stop(), 0);
    }
    const [program, parameters, options] = image.inContainer(data, dockerImage.Healthcheck.Test.slice(1));
    await assert.rejects(run(program, parameters, options), { code: 1 });
});

test('container refuses an address without keys', async () => {
    const data = await emptyVolume(path.join(folder, 'open'));
    const [program, parameters, options] = image.inContainer(data, ['countersign', 'serve'], { COUNTERSIGN_AUTH__MODE: 'local' });
    await assert.rejects(run(program, parameters, options), { code: 78 });
});
