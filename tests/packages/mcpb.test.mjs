// Checks the MCPB bundle and server.json, and uses the unpacked bundle up to the first approved write.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { access, readFile, stat } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';

import { repository, run } from '../clients/gateway.mjs';
import { approveFirstWrite } from './first-write.mjs';
import { buildPackages, emptyEnvironment, pythonPrograms, temporaryFolder, useOverStdio } from './installed.mjs';

const readJson = async file => JSON.parse(await readFile(file, 'utf8'));

/** Runs the official tool for bundles. */
const mcpb = (...args) => run(process.execPath, [path.join(repository, 'tests/packages/node_modules/.bin/mcpb'), ...args]);

test('MCPB bundle and server.json', async t => {
    const {
        mcpb: [bundle],
        'server-json': [entry]
    } = await buildPackages(await temporaryFolder(t), 'mcpb', 'server-json');

    await t.test('the unpacked bundle is valid and serves a desktop agent', async t => {
        const folder = path.join(await temporaryFolder(t), 'unpacked');
        await mcpb('unpack', bundle, folder);
        await mcpb('validate', path.join(folder, 'manifest.json'));
        const { server } = await readJson(path.join(folder, 'manifest.json'));
        assert.equal(server.type, 'binary');
        assert.ok((await stat(path.join(folder, server.entry_point))).mode & 0o100);

        // A desktop client replaces the variable and runs the command.
        const replace = text => text.replaceAll('${__dirname}', folder);
        const env = emptyEnvironment(await temporaryFolder(t), server.mcp_config.env);
        const { command, args } = server.mcp_config;
        const { url, key, seconds } = await useOverStdio(replace(command), [], env, args.map(replace));
        t.diagnostic(`${seconds.toFixed(1)} s from the start of the bundle to the answer to tools/list`);
        await approveFirstWrite(url, key);
    });

    await t.test('server.json names the packages as they are', async () => {
        const server = await readJson(entry);
        assert.equal(server.$schema, 'https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json');
        assert.match(server.name, /^[a-zA-Z0-9.-]+\/[a-zA-Z0-9._-]+$/);
        assert.ok(server.description.length <= 100 && server.title.length <= 100);
        assert.deepEqual(Object.keys(server.repository), ['url', 'source']);
        const packages = Object.fromEntries(server.packages.map(entry => [entry.registryType, entry]));
        assert.deepEqual(Object.keys(packages), ['npm', 'pypi', 'oci', 'mcpb']);
        for (const entry of server.packages) assert.deepEqual(entry.transport, { type: 'stdio' });
        for (const type of ['npm', 'pypi', 'mcpb']) assert.equal(packages[type].version, server.version);
        // The version of an image is its tag.
        assert.equal(packages.oci.version, undefined);
        assert.ok(packages.oci.identifier.endsWith(`:${server.version}`));
        assert.equal(packages.mcpb.identifier.split('/').at(-1), path.basename(bundle));
        assert.equal(packages.mcpb.fileSha256, createHash('sha256').update(await readFile(bundle)).digest('hex'));

        // The registry looks for this name in the packages, as the proof that they belong to the entry.
        const npm = await readJson(path.join(repository, 'config/packages/npm/countersign/package.json'));
        assert.deepEqual([npm.name, npm.mcpName], [packages.npm.identifier, server.name]);
        const readme = await readFile(path.join(repository, 'config/packages/wheel/README.md'), 'utf8');
        assert.ok(readme.split('\n').includes(`mcp-name: ${server.name}`));
        const project = await readFile(path.join(repository, 'config/packages/wheel/pyproject.toml'), 'utf8');
        assert.ok(project.includes(`\nname = "${packages.pypi.identifier}"\n`));
    });

    // The schema belongs to the registry and is not part of this repository.
    const schema = path.join(repository, 'tests/.cache/server.schema.json');
    const missing = await access(schema).then(() => false, () => 'tests/.cache/server.schema.json does not exist');
    await t.test('server.json meets the schema 2025-12-11', { skip: missing }, async () => {
        assert.match((await readJson(schema)).$id, /\/2025-12-11\//);
        await run(path.join(pythonPrograms, 'check-jsonschema'), ['--schemafile', schema, entry]);
    });
});
