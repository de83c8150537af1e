// Tests previews of SQL statements with real servers: DBHub on PostgreSQL, mcp-server-sqlite, and Supabase's server in front of a
// stand-in for its API that runs the statements in the same PostgreSQL.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';

import { command, startGatewayWith } from './fixture.mjs';
import { binary, environment, eventually, repository, run, temporaryData } from './gateway.mjs';
import { connectPeer } from './peer.mjs';

const packages = path.join(repository, 'tests/sql/node_modules');
/** The Python of the environment in which `scripts/test` installs the SQLite server. */
const python = path.join(repository, 'tests/.cache/venv-sqlite/bin/python');
const MARKS = { equal: ' ', note: '#', insert: '+', delete: '-', skip: '@' };
const SETUP = `
    CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance numeric(10, 2));
    INSERT INTO accounts VALUES (1, 'ann', 50), (2, 'bob', 150), (3, 'it''s', 0);
    CREATE VIEW rich AS SELECT * FROM accounts WHERE balance > 100;`;

/** A PostgreSQL that listens on a TCP port, with a database for each test. */
const postgres = {
    async start() {
        const probe = net.createServer().listen(0, '127.0.0.1');
        await once(probe, 'listening');
        this.port = probe.address().port;
        probe.close();
        await once(probe, 'close');
        const args = ['-c', 'fsync=off', '-c', 'listen_addresses=127.0.0.1'];
        this.child = spawn(path.join(repository, 'scripts/postgres'), args, { stdio: ['pipe', 'pipe', 'inherit'], env: { ...process.env, PGPORT: `${this.port}` } });
        await once(createInterface({ input: this.child.stdout }), 'line');
    },
    async stop() {
        this.child.stdin.end();
        await once(this.child, 'exit');
    },
    url(database) {
        return `postgres://countersign:x@127.0.0.1:${this.port}/${database}?sslmode=disable`;
    },
    async sql(database, statement) {
        const { stdout } = await run('psql', ['--no-psqlrc', '--quiet', '--tuples-only', '--no-align', '--dbname', this.url(database), '--command', statement]);
        return stdout.trimEnd();
    },
    async create(database) {
        await this.sql('postgres', `CREATE DATABASE ${database}`);
        await this.sql(database, SETUP);
        return database;
    }
};

before(() => postgres.start());
after(() => postgres.stop());

/** Starts a gateway in front of a server, whose tools keep their names, and consents to its known reads. */
async function startBehind(t, [name], entry, { consents = true } = {}) {
    const gateway = await startGatewayWith({ modules: { tracker: { enabled: false } }, mcpServers: { [name]: { prefix: '', required: true, ...entry } } });
    t.after(() => gateway.stop());
    const tools = async () => (await gateway.api('GET', `/servers/${name}`)).body.tools;
    await eventually('the tools are listed', async () => (await tools())?.length > 0);
    const accept = () =>
        run(binary, ['servers', 'accept', name, '--known-reads', '--yes', '--url', gateway.url], { env: environment({ COUNTERSIGN_KEY: gateway.key }) });
    const consent = consents ? await accept() : undefined;
    const peer = await connectPeer('modern', { http: gateway.mcp });
    t.after(() => peer.close());
    const isPending = answer => answer.structuredContent?.status === 'pending';
    return {
        gateway,
        peer,
        tools,
        accept,
        consent,
        async propose(tool, args) {
            const answer = await peer.call(tool, args);
            assert.ok(isPending(answer), JSON.stringify(answer));
            return gateway.change(answer.structuredContent.changeId);
        },
        async read(tool, args) {
            const answer = await peer.call(tool, args);
            assert.ok(!isPending(answer), JSON.stringify(answer));
            return answer.content[0].text;
        },
        async apply(change) {
            await gateway.approve(change.id);
            return gateway.reached(change.id, 'applied');
        }
    };
}

const field = (change, label) => change.diff.fields.find(field => field.label === label);
const lines = (change, label) => field(change, label)?.lines?.map(({ op, text }) => `${MARKS[op]}${text}`) ?? [];
const dbhub = database => ({ command, args: [path.join(packages, '@bytebase/dbhub/dist/index.js'), '--transport', 'stdio', '--dsn', postgres.url(database)] });

test('statements of DBHub on PostgreSQL are classified and previewed', async t => {
    const database = await postgres.create('dbhub');
    const { gateway, peer, propose, read, apply, consent } = await startBehind(t, ['dbhub'], dbhub(database));
    const execute = sql => propose('execute_sql', { sql });
    const value = sql => postgres.sql(database, sql);

    await t.test('only reads run without review', async () => {
        assert.match(consent.stdout, /execute_sql runs now without review if the SQL only reads/);
        assert.match(await read('execute_sql', { sql: 'SELECT owner FROM accounts WHERE id = 1' }), /ann/);
        await value('CREATE SEQUENCE numbers');
        for (const sql of [
            "SELECT nextval('numbers')",
            "SELECT x.nextval FROM unnest(ARRAY['numbers'::regclass]) AS x",
            'SELECT 1; DELETE FROM accounts',
            'WITH gone AS (DELETE FROM accounts RETURNING *) SELECT * FROM gone',
            'EXPLAIN ANALYZE DELETE FROM accounts',
            'SELECT * FROM accounts FOR UPDATE'
        ]) {
            await execute(sql);
        }
        assert.equal(await value('SELECT count(*), (SELECT is_called FROM numbers) FROM accounts'), '3|f');
        // A server could take either of the two.
        await assert.rejects(read('execute_sql', { sql: 'SELECT 1', SQL: 'DELETE FROM accounts' }));
        assert.equal(await value('SELECT count(*) FROM accounts'), '3');
    });

    await t.test('an update shows its rows before and after', async () => {
        const change = await execute("UPDATE accounts SET balance = balance + 1 WHERE owner <> 'bob'");
        assert.deepEqual([change.operation, change.target.label, change.preview.kind], ['UPDATE', 'accounts', 'before_after']);
        assert.deepEqual(lines(change, 'Rows'), ['#2 rows']);
        assert.deepEqual(lines(change, 'accounts'), [
            '-id=1, owner=ann, balance=50.00', '-id=3, owner=it\'s, balance=0.00', '+id=1, owner=ann, balance=51.00', '+id=3, owner=it\'s, balance=1.00'
        ]);
        await apply(change);
        assert.equal(await value('SELECT string_agg(balance::text, \' \' ORDER BY id) FROM accounts'), '51.00 150.00 1.00');
    });

    await t.test('rows that change meanwhile make the change stale', async () => {
        const change = await execute('DELETE FROM accounts WHERE balance < 10');
        assert.deepEqual([change.operation, field(change, 'accounts').before, field(change, 'accounts').after], ['DELETE', "id=3, owner=it's, balance=1.00\n", null]);
        await value('UPDATE accounts SET balance = 5 WHERE id = 1');
        const { id, version, digest } = change;
        const refused = await gateway.api('POST', `/changes/${id}/decision`, { decision: 'approve', version, digest });
        assert.equal(refused.body.code, 'CHANGE_STALE');
        assert.deepEqual(lines(refused.body.change, 'Rows'), ['#2 rows']);
        assert.equal(await value('SELECT count(*) FROM accounts'), '3');
        await gateway.reject(id, 'no');
    });

    await t.test('rows beyond the limit are counted', async () => {
        await value('INSERT INTO accounts SELECT n, \'x\', 0 FROM generate_series(100, 299) n');
        const change = await execute('DELETE FROM accounts WHERE id >= 100');
        assert.deepEqual(lines(change, 'Rows'), ['#200 rows; the first 50 are shown, the others are not compared']);
        assert.equal(lines(change, 'accounts').length, 50);
        await apply(change);
        assert.equal(await value('SELECT count(*) FROM accounts'), '3');
    });

    await t.test('an insertion and a definition are shown', async () => {
        const change = await execute("INSERT INTO accounts (id, owner) VALUES (7, 'eve'), (8, DEFAULT)");
        assert.deepEqual([change.operation, field(change, 'accounts').after], ['CREATE', "id=7, owner='eve'\nid=8, owner=DEFAULT\n"]);
        await apply(change);
        const altered = await execute('ALTER TABLE accounts ADD COLUMN note text');
        const definition = lines(altered, 'Definition of accounts now').join('\n');
        assert.match(definition, /column id integer NOT NULL/);
        assert.match(definition, /column balance numeric\(10,2\)/);
        assert.match(definition, /PRIMARY KEY \(id\)/);
        await apply(altered);
        const dropped = await execute('DROP VIEW rich');
        assert.match(lines(dropped, 'Definition of rich now').join('\n'), /balance > \(?100/);
    });

    await t.test('several statements are shown one by one', async () => {
        const change = await execute("UPDATE accounts SET owner = 'zoe' WHERE id = 7; DELETE FROM accounts WHERE id = 8; SELECT 1");
        assert.deepEqual(lines(change, '1. Rows'), ['#1 row']);
        assert.match(field(change, '2. accounts').before, /^id=8/);
        assert.deepEqual(lines(change, '3. Effect'), ['#only reads']);
        assert.equal(change.operation, 'CALL');
        await apply(change);
        assert.equal(await value('SELECT string_agg(owner, \',\' ORDER BY id) FROM accounts'), "ann,bob,it's,zoe");
    });

    await t.test('a statement without a preview says why, and writes nothing', async () => {
        for (const [sql, reason] of [
            ['UPDATE missing SET a = 1', /relation .*missing.* does not exist/],
            ['SELEC 1', /cannot be parsed/],
            ["DELETE FROM accounts WHERE id = nextval('numbers')", /not known to only read/],
            ["DO $$ BEGIN DELETE FROM accounts; END $$", /cannot be parsed/],
            ["SELECT pg_sleep(0)", /no preview/]
        ]) {
            const change = await execute(sql);
            assert.match(change.preview.failed, reason, sql);
            await gateway.reject(change.id, 'no');
        }
        assert.equal(await value('SELECT count(*), (SELECT is_called FROM numbers) FROM accounts'), '4|f');
    });
});

test('SQL is reviewed, and queried only by accepted tools, before consent', async t => {
    const database = await postgres.create('consent');
    const { gateway, propose, read, tools, accept } = await startBehind(t, ['dbhub'], dbhub(database), { consents: false });
    const change = await propose('execute_sql', { sql: 'SELECT 1' });
    assert.equal(change.operation, 'CALL');
    const update = await propose('execute_sql', { sql: 'UPDATE accounts SET balance = 0' });
    assert.match(update.preview.failed, /nobody has accepted its definition/);
    const known = async () => (await tools()).map(({ name, known, acceptedSqlReads, verdict }) => [name, known, acceptedSqlReads, verdict]);
    assert.deepEqual(await known(), [['execute_sql', 'sql_read', false, 'review'], ['search_objects', 'read', false, 'review']]);
    await accept();
    assert.deepEqual(await known(), [['execute_sql', 'sql_read', true, 'review'], ['search_objects', 'read', false, 'allow']]);
    assert.match(await read('execute_sql', { sql: 'SELECT 1 AS one' }), /"one": 1/);
    const { entries } = (await gateway.api('GET', '/audit')).body;
    assert.ok(entries.some(({ event }) => event === 'definitions_accepted_as_reads'));
    const revoked = await run(binary, ['servers', 'revoke', 'dbhub', '--tool', 'execute_sql', '--url', gateway.url], { env: environment({ COUNTERSIGN_KEY: gateway.key }) });
    assert.match(revoked.stdout, /Revoked/);
    await propose('execute_sql', { sql: 'SELECT 1' });
});

test('statements of mcp-server-sqlite are previewed by its own queries', async t => {
    const folder = await temporaryData();
    t.after(() => rm(folder, { recursive: true, force: true }));
    const file = path.join(folder, 'test.db');
    const script = 'import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]) if len(sys.argv) < 4 else print(c.execute(sys.argv[3]).fetchall())';
    await run(python, ['-c', script, file, SETUP.replace('numeric(10, 2)', 'real')]);
    const value = async sql => (await run(python, ['-c', script, file, '', sql])).stdout.trim();
    const { propose, read, apply } = await startBehind(t, ['sqlite'], { command: path.join(path.dirname(python), 'mcp-server-sqlite'), args: ['--db-path', file] });
    assert.match(await read('read_query', { query: 'SELECT owner FROM accounts' }), /ann/);
    assert.match(await read('list_tables', {}), /accounts/);

    const update = await propose('write_query', { query: "UPDATE accounts SET owner = upper(owner) || 's \"x\"' WHERE id > 2" });
    assert.deepEqual(lines(update, 'accounts'), ["-id=3, owner=it's, balance=0.0", '+id=3, owner="IT\'Ss \\"x\\"", balance=0.0']);
    await apply(update);
    assert.equal(await value('SELECT owner FROM accounts WHERE id = 3'), "[('IT\\'Ss \"x\"',)]");

    const created = await propose('create_table', { query: 'CREATE TABLE t (a INTEGER)' });
    assert.deepEqual(lines(created, 'Definition of t now'), ['#(does not exist)']);
    await apply(created);
    assert.equal(await value("SELECT count(*) FROM sqlite_master WHERE name = 't'"), '[(1,)]');
    const dropped = await propose('write_query', { query: 'DROP TABLE t' });
    assert.deepEqual(lines(dropped, 'Definition of t now'), [' table t CREATE TABLE t (a INTEGER)']);
    // The server refuses the query, because it begins with WITH.
    const refused = await propose('write_query', { query: 'WITH x AS (SELECT 1) DELETE FROM accounts' });
    assert.match(refused.preview.failed, /has no rows: Error: Only SELECT queries are allowed/);
});

test('statements of Supabase are previewed through its own server', async t => {
    const database = await postgres.create('supabase');
    const requests = [];
    const api = http.createServer(async (request, response) => {
        let body = '';
        for await (const chunk of request) body += chunk;
        const { query } = JSON.parse(body || '{}');
        requests.push([request.method, request.url, query]);
        const isQuery = /^\s*(SELECT|WITH|VALUES)\b/i.test(query);
        const text = isQuery ? `SELECT coalesce(json_agg(r), '[]') FROM (${query}) AS r` : query;
        const answer = await postgres.sql(database, text).then(rows => [201, isQuery ? rows : '[]'], error => [400, JSON.stringify({ message: error.stderr })]);
        response.writeHead(answer[0], { 'content-type': 'application/json' }).end(answer[1]);
    }).listen(0, '127.0.0.1');
    await once(api, 'listening');
    t.after(() => api.close());
    const args = ['--access-token', `sbp_${'0'.repeat(40)}`, '--features=database', '--api-url', `http://127.0.0.1:${api.address().port}`];
    const { propose, read, apply } = await startBehind(t, ['supabase'], { command, args: [path.join(packages, '@supabase/mcp-server-supabase/dist/cli.js'), ...args] });
    const project = { project_id: 'p' };
    assert.match(await read('execute_sql', { ...project, query: 'SELECT owner FROM accounts' }), /ann/);
    const change = await propose('execute_sql', { ...project, query: "UPDATE accounts SET balance = 1 WHERE owner = 'bob'" });
    assert.deepEqual([field(change, 'accounts').before, field(change, 'accounts').after], ['id=2, owner=bob, balance=150\n', 'id=2, owner=bob, balance=1\n']);
    assert.ok(requests.every(([method, url, query]) => method === 'POST' && url.startsWith('/v1/projects/p/') && query.startsWith('SELECT')), JSON.stringify(requests));
    await apply(change);
    assert.equal(await postgres.sql(database, 'SELECT balance FROM accounts WHERE id = 2'), '1.00');
    const migration = await propose('apply_migration', { ...project, name: 'drop_rich', query: 'DROP VIEW rich' });
    assert.equal(migration.summary, 'Apply the migration drop_rich');
    assert.match(lines(migration, 'Definition of rich now').join('\n'), /balance/);
});
