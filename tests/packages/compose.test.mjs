// Tests the Compose files: their form by the schema of Compose, and the commands and configurations in them, started as processes.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';

import { startPostgres } from '../clients/cluster.mjs';
import { eventually, freePort, repository, run, stopChild } from '../clients/gateway.mjs';
import { ContainerProcess, askPython } from './container-process.mjs';
import { approveFirstWrite } from './first-write.mjs';
import { buildPackages, pythonPrograms } from './installed.mjs';

let folder;
let packages;

before(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-compose-'));
    packages = await buildPackages(path.join(folder, 'build'), 'compose');
});

after(() => rm(folder, { recursive: true, force: true }));

/** Reads the compose files, with their variables filled in. */
async function composeServices(file, variables) {
    const read = await askPython([path.join(packages.folder, 'compose', file)]);
    const fill = (_, name, fallback) => variables[name] ?? fallback ?? assert.fail(`${name} is not set`);
    return JSON.parse(JSON.stringify(Object.values(read)[0].services).replace(/\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}/g, fill));
}

/** Creates the container of a service, with other values for some of its variables. */
async function serviceContainer(name, { environment: variables, volumes, command, healthcheck }, changed = {}) {
    const root = path.join(folder, name);
    const env = { ...variables, ...changed, COUNTERSIGN_CONFIG: `${root}/etc/countersign/countersign.yaml`, COUNTERSIGN_DATA: `${root}/data` };
    const container = new ContainerProcess(root, env);
    await mkdir(`${root}/data`, { recursive: true });
    const [source, target] = volumes.find(volume => volume.startsWith('./config')).split(':');
    await container.write(`${target}/countersign.yaml`, await readFile(path.join(packages.folder, 'compose', source, 'countersign.yaml'), 'utf8'));
    assert.deepEqual(healthcheck.test, ['CMD', 'countersign', 'health', '--data', '/data']);
    return { container, args: command };
}

test('compose files are valid and name the version of the image', async () => {
    const version = (await readFile(path.join(repository, 'Cargo.toml'), 'utf8')).match(/^version = "(.*)"/m)[1];
    for (const file of ['compose.yaml', 'compose.cluster.yaml']) {
        await run(path.join(pythonPrograms, 'check-jsonschema'), ['--builtin-schema', 'vendor.compose-spec', path.join(packages.folder, 'compose', file)]);
        const services = await composeServices(file, { DB_PASSWORD: 'secret' });
        for (const [name, service] of Object.entries(services).filter(([key]) => key.startsWith('gateway'))) {
            assert.equal(service.image, `ghcr.io/countersign/countersign:${version}`, name);
            assert.ok(service.read_only && service.cap_drop.includes('ALL'), name);
        }
    }
});

test('compose file with one gateway runs up to the first approved write', async () => {
    const { gateway } = await composeServices('compose.yaml', {});
    const { container, args } = await serviceContainer('compose', gateway);
    await container.run('config', 'check');
    container.start(args, await freePort());
    try {
        await container.health();
        const key = await container.createKey('reviewer', 'alice');
        await approveFirstWrite(container.url, key, await container.createKey('agent', 'ci'));
    } finally {
        assert.equal(await container.stop(), 0);
    }
});

test('compose file with several gateways serves through its balancer', async () => {
    const database = await startPostgres();
    const { db, balancer, ...gateways } = await composeServices('compose.cluster.yaml', { DB_PASSWORD: 'secret' });
    assert.equal(new URL(gateways['gateway-1'].environment.COUNTERSIGN_STORE__URL).password, db.environment.POSTGRES_PASSWORD);
    assert.deepEqual(balancer.depends_on, Object.keys(gateways));
    const port = await freePort();
    let proxy = (await readFile(path.join(packages.folder, 'compose/haproxy.cfg'), 'utf8')).replace('bind :8080', `bind 127.0.0.1:${port}`);
    const nodes = [];
    let haproxy;
    try {
        for (const [name, service] of Object.entries(gateways)) {
            const nodePort = await freePort();
            const address = `127.0.0.1:${nodePort}`;
            assert.equal(service.environment.COUNTERSIGN_STORE__NODE_URL, `http://${name}:8080`);
            proxy = proxy.replaceAll(`${name}:8080`, address);
            const changed = { COUNTERSIGN_STORE__URL: database.address, COUNTERSIGN_STORE__NODE_URL: `http://${address}` };
            const { container, args } = await serviceContainer(name, service, changed);
            container.start(args, nodePort);
            nodes.push(container);
        }
        // Nothing stands for the shipped configuration's addresses any more.
        assert.doesNotMatch(proxy, /10\.0\.0\.|gateway\.example|gateway-\d:/);
        await Promise.all(nodes.map(node => node.health()));
        const file = path.join(folder, 'haproxy.cfg');
        await writeFile(file, proxy);
        haproxy = spawn('haproxy', ['-f', file, '-db'], {
            stdio: ['ignore', 'ignore', 'pipe'],
            env: { ...process.env, PATH: `${process.env.PATH}:/usr/sbin` }
        });
        let log = '';
        haproxy.stderr.on('data', chunk => (log += chunk));
        const key = await nodes[0].createKey('reviewer', 'alice');
        const agentKey = await nodes[0].createKey('agent', 'ci');
        const url = `http://127.0.0.1:${port}`;
        const knows = credential => fetch(`${url}/info`, { headers: { authorization: `Bearer ${credential}` } });
        await eventually('all nodes know the keys', async () => {
            assert.equal(haproxy.exitCode, null, log);
            const answers = await Promise.all([key, agentKey].flatMap(credential => nodes.map(() => knows(credential))));
            return answers.every(response => response.ok);
        });
        await approveFirstWrite(url, key, agentKey);
    } finally {
        await stopChild(haproxy);
        for (const node of nodes) await node.stop();
        await database.stop();
    }
});
