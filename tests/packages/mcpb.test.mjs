// Checks the MCPB bundle and server.json, and uses the unpacked bundle up to the first approved write.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';

import { repository, run } from '../clients/gateway.mjs';
import { approveFirstWrite } from './first-write.mjs';
import { buildPackages, emptyEnvironment, temporaryFolder, useOverStdio } from './installed.mjs';
import { faultsOfEntry } from './registry-entry.mjs';

/** Changes to an entry, by the path of the value that is wrong then. */
const SPOILED = {
    '$schema, of another version': server => (server.$schema = server.$schema.replace('2025-12-11', '2025-09-29')),
    'name, without a namespace': server => (server.name = 'countersign'),
    'name, that ends with a dot': server => (server.name += '.'),
    'description, missing': server => delete server.description,
    'description, too long': server => (server.description = 'x'.repeat(101)),
    'title, empty': server => (server.title = ''),
    'version, a range': server => (server.version = '^1.2.3'),
    'version, latest': server => (server.version = 'latest'),
    'websiteUrl, without TLS': server => (server.websiteUrl = 'http://github.com/countersign/countersign'),
    'repository.source, missing': server => delete server.repository.source,
    'repository.url, of another host': server => (server.repository.url = 'https://example.com/countersign/countersign'),
    'homepage, unknown': server => (server.homepage = server.websiteUrl),
    'packages, no list': server => (server.packages = {}),
    'packages[0].version, missing': (_, { npm }) => delete npm.version,
    'packages[0].registryBaseUrl, of another registry': (_, { npm }) => (npm.registryBaseUrl = 'https://npm.example.com'),
    'packages[0].identifier, with a space': (_, { npm }) => (npm.identifier += ' stdio'),
    'packages[0].environmentVariables[0].name, missing': (_, { npm }) => delete npm.environmentVariables[0].name,
    'packages[0].environmentVariables[0].isSecret, a text': (_, { npm }) => (npm.environmentVariables[0].isSecret = 'true'),
    'packages[1].version, a wildcard': (_, { pypi }) => (pypi.version = '1.x'),
    'packages[1].fileSha256, forbidden': (_, { pypi, mcpb }) => (pypi.fileSha256 = mcpb.fileSha256),
    'packages[1].transport.type, unknown': (_, { pypi }) => (pypi.transport.type = 'http'),
    'packages[1].transport.url, forbidden for stdio': (_, { pypi }) => (pypi.transport.url = 'https://example.com/mcp'),
    'packages[1].packageArguments[0].value, missing': (_, { pypi }) => delete pypi.packageArguments[0].value,
    'packages[2].version, forbidden': (server, { oci }) => (oci.version = server.version),
    'packages[2].registryBaseUrl, forbidden': (_, { oci }) => (oci.registryBaseUrl = 'https://ghcr.io'),
    'packages[2].identifier, without a tag': (_, { oci }) => (oci.identifier = oci.identifier.split(':')[0]),
    'packages[2].runtimeHint, missing': (_, { oci }) => delete oci.runtimeHint,
    'packages[2].runtimeArguments[0].name, with its value': (_, { oci }) => (oci.runtimeArguments[0].name += ' countersign:/data'),
    'packages[2].runtimeArguments[1].type, unknown': (_, { oci }) => (oci.runtimeArguments[1].type = 'flag'),
    'packages[3].fileSha256, missing': (_, { mcpb }) => delete mcpb.fileSha256,
    'packages[3].fileSha256, in capitals': (_, { mcpb }) => (mcpb.fileSha256 = mcpb.fileSha256.toUpperCase()),
    'packages[3].version, forbidden': (server, { mcpb }) => (mcpb.version = server.version),
    'packages[3].identifier, no released file': (_, { mcpb }) => (mcpb.identifier = 'https://github.com/countersign/countersign'),
    'packages[3].registryType, unknown': (_, { mcpb }) => (mcpb.registryType = 'zip')
};

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
        const packages = Object.fromEntries(server.packages.map(entry => [entry.registryType, entry]));
        assert.deepEqual(Object.keys(packages), ['npm', 'pypi', 'oci', 'mcpb']);
        for (const type of ['npm', 'pypi']) assert.equal(packages[type].version, server.version);
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

    await t.test('server.json meets the rules of the registry', async () => {
        assert.deepEqual(faultsOfEntry(await readJson(entry)), []);
    });

    await t.test('each fault in server.json is found', async () => {
        const server = await readJson(entry);
        for (const [fault, spoil] of Object.entries(SPOILED)) {
            const copy = structuredClone(server);
            const packages = Object.fromEntries(copy.packages.map(entry => [entry.registryType, entry]));
            spoil(copy, packages);
            const faults = faultsOfEntry(copy);
            assert.ok(faults.some(text => text.startsWith(`${fault.split(', ')[0]} is `)), `${fault}: ${faults}`);
        }
    });
});
