// Tests the lists of known reads (config/reads): their hashes are those of the real servers, and accepting them lets reads run.
// Those of the vendors in `vendors.mjs` are compared by the tests of their recipes, which start the servers.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';

import { GitHubStandIn, PACKAGE } from '../fixtures/github/server.mjs';
import { createSqlite, dbhubOnPostgres, dbhubOnSqlite, postgres, sqliteServer, startSupabaseServer } from './databases.mjs';
import { command, startGatewayWith } from './fixture.mjs';
import { binary, environment, eventually, repository, run, temporaryData } from './gateway.mjs';
import { connectPeer } from './peer.mjs';
import { checkReads, LISTS, RENEWS } from './read-lists.mjs';
import { SERVERS, prepare } from './servers.mjs';

/** Stand-ins with the definitions of servers that the tests cannot install, and the packages that the definitions come from. */
const STAND_INS = { github: { start: GitHubStandIn.start, package: PACKAGE } };
/** The servers that have a list and that the tests install or stand in for. */
const NAMES = readdirSync(LISTS).map(file => path.parse(file).name).filter(name => name in SERVERS || name in STAND_INS);
/** The servers for databases: their list and package, how they are started, and tools whose annotations are wrong. */
const DATABASES = [
    ['dbhub', '@bytebase/dbhub 1.4.0 (PostgreSQL)', async () => dbhubOnPostgres(await postgres.create('reads'))],
    ['dbhub', '@bytebase/dbhub 1.4.0 (SQLite)', async t => dbhubOnSqlite((await createSqlite(t)).file)],
    ['sqlite', 'mcp-server-sqlite 2025.4.25', async t => sqliteServer((await createSqlite(t)).file), ['read_query', 'list_tables', 'describe_table']],
    ['supabase', '@supabase/mcp-server-supabase 0.13.0', async t => (await startSupabaseServer(t, 'none')).entry, ['confirm_cost']]
];
/** The definitions of server-memory 2025.4.25, which has no annotations, one on each line. */
const WITHOUT_ANNOTATIONS = path.join(repository, 'tests/fixtures/memory-2025.4.25.jsonl');
const STAND_IN = path.join(repository, 'tests/dashboard/lib/altering-server.mjs');

const readText = file => readFile(file, 'utf8');

/** Returns the packages that the tests install or stand in for, as the lists name them: `mcp-server-git 2026.10.19`. */
async function installedPackages() {
    const { dependencies } = JSON.parse(await readText(path.join(repository, 'tests/fixtures/package.json')));
    const npm = Object.entries(dependencies).map(([name, version]) => `${name} ${version}`);
    const requirements = await readText(path.join(repository, 'tests/clients/python/requirements-servers.txt'));
    const standIns = Object.values(STAND_INS).map(standIn => standIn.package);
    return [...npm, ...standIns, ...requirements.split('\n').filter(line => line.includes('==')).map(line => line.replace('==', ' '))];
}

/** Starts a gateway in front of the server, whose tools keep their names. */
async function startBehind(t, name, entry) {
    const gateway = await startGatewayWith({ modules: { tracker: { enabled: false } }, mcpServers: { [name]: { prefix: '', required: true, ...entry } } });
    t.after(() => gateway.stop());
    const tools = async () => (await gateway.api('GET', `/servers/${name}`)).body.tools;
    await eventually('the tools are listed', async () => (await tools())?.length > 0);
    const servers = (...args) =>
        run(binary, ['servers', ...args, '--url', gateway.url], { env: environment({ COUNTERSIGN_KEY: gateway.key }) }).then(
            ({ stdout, stderr }) => ({ code: 0, stdout, stderr }),
            ({ code, stdout, stderr }) => ({ code, stdout, stderr })
        );
    return { gateway, tools, servers };
}

async function startReal(t, name) {
    if (name in STAND_INS) {
        const standIn = await STAND_INS[name].start();
        t.after(() => standIn.stop());
        return startBehind(t, name, { url: standIn.url, previews: name });
    }
    const folder = path.join(await temporaryData(), name);
    t.after(() => rm(path.dirname(folder), { recursive: true, force: true }));
    await prepare(name, folder);
    return { folder, ...(await startBehind(t, name, SERVERS[name].entry(folder))) };
}

for (const name of NAMES) {
    test(`the known reads of ${name} are those of the server`, async t => {
        const { tools } = await startReal(t, name);
        await checkReads(name, await installedPackages(), await tools());
    });
}

test('the known reads of servers for databases are those of the real servers', async t => {
    await postgres.start();
    t.after(() => postgres.stop());
    for (const [set, name, start, wrongReads] of DATABASES) {
        await t.test(name, async t => {
            const { tools } = await startBehind(t, set, { ...(await start(t)), previews: set });
            await checkReads(set, [name], await tools(), wrongReads);
        });
    }
});

test('known reads of a real server run after one consent', { skip: RENEWS }, async t => {
    const { folder, gateway, tools, servers } = await startReal(t, 'filesystem');
    const peer = await connectPeer('modern', { http: gateway.mcp });
    t.after(() => peer.close());
    const file = path.join(folder, 'a.txt');
    const isPending = async (tool, args) => (await peer.call(tool, args)).structuredContent?.status === 'pending';
    assert.ok(await isPending('read_text_file', { path: file }));
    const edit = { path: file, edits: [{ oldText: 'two', newText: '2' }] };
    const before = await peer.call('edit_file', edit);
    assert.equal((await gateway.change(before.structuredContent.changeId)).preview.kind, 'arguments');

    const shown = await servers('show', 'filesystem');
    assert.match(shown.stderr, /This is the filesystem server: `countersign servers accept filesystem --known-reads` lets 10 known reads run without review\./);
    const refused = await servers('accept', 'filesystem', '--known-reads');
    assert.equal(refused.code, 2);
    assert.match(refused.stderr, /--known-reads needs --yes/);
    const accepted = await servers('accept', 'filesystem', '--known-reads', '--yes');
    assert.equal(accepted.code, 0, accepted.stderr);
    assert.match(accepted.stdout, /Accepted 11 definitions\.\n.* and 5 more now run without review\.\nedit_file is reviewed as before; the preview of a call is now the server's own dry run\./);
    assert.ok(!(await isPending('read_text_file', { path: file })));
    assert.ok(await isPending('write_file', { path: file, content: 'x' }));
    // The dry run of the shipped recipe is in force.
    const after = await peer.call('edit_file', edit);
    assert.equal((await gateway.change(after.structuredContent.changeId)).preview.kind, 'dry_run');
    const again = await servers('accept', 'filesystem', '--known-reads', '--yes');
    assert.deepEqual([again.code, again.stderr], [0, 'All known reads of this server are accepted already.\n']);
    assert.deepEqual((await tools()).filter(tool => tool.acceptedAsRead).length, 10);
    const { entries } = (await gateway.api('GET', '/audit')).body;
    const events = entries.filter(({ event }) => event.startsWith('definitions_')).map(({ event, actor }) => [event, actor]);
    assert.deepEqual(events, [['definitions_accepted_as_reads', 'alice'], ['definitions_seen', 'gateway']]);
});

test('a server without annotations runs its known reads after consent', { skip: RENEWS }, async t => {
    const folder = await temporaryData();
    t.after(() => rm(folder, { recursive: true, force: true }));
    const file = path.join(folder, 'tools');
    const [first, ...rest] = (await readText(WITHOUT_ANNOTATIONS)).trim().split('\n');
    // One of the definitions is not that of the package.
    const altered = rest.map(line => (line.includes('"search_nodes"') ? line.replace('"description":"', '"description":"Really, ') : line));
    await writeFile(file, [first, ...altered].join('\n'));
    const standIn = { command, args: [STAND_IN, file] };
    const { gateway, tools, servers } = await startBehind(t, 'memory', { ...standIn, previews: 'memory' });
    const verdicts = async () => Object.fromEntries((await tools()).map(tool => [tool.name, tool.verdict]));
    assert.ok(Object.values(await verdicts()).every(verdict => verdict === 'review'));
    assert.ok((await tools()).every(tool => !tool.definition.includes('readOnlyHint')));

    const { code, stdout, stderr } = await servers('accept', 'memory', '--known-reads', '--yes');
    assert.equal(code, 0, stderr);
    assert.match(stderr, /^search_nodes is not covered, because its definition differs from the known ones \(.*server-memory 2025\.4\.25/);
    assert.match(stdout, /read_graph, open_nodes now run without review\./);
    const { read_graph, open_nodes, search_nodes, delete_entities } = await verdicts();
    assert.deepEqual([read_graph, open_nodes, search_nodes, delete_entities], ['allow', 'allow', 'review', 'review']);
    const peer = await connectPeer('modern', { http: gateway.mcp });
    t.after(() => peer.close());
    assert.equal((await peer.call('read_graph', {})).content[0].text, 'done');

    // What the server calls itself is not enough.
    const own = await startBehind(t, 'other', standIn);
    const unknown = await own.servers('accept', 'other', '--known-reads', '--yes');
    assert.equal(unknown.code, 3);
    assert.match(unknown.stderr, /there is no list of known reads for this server/);
});
