// Tests previews of SQL statements with real servers: DBHub on PostgreSQL and SQLite, mcp-server-sqlite, and Supabase's server in front
// of a fake of its API that runs the statements in the same PostgreSQL.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { PROJECT, createSqlite, dbhubOnPostgres, dbhubOnSqlite, postgres, sqliteServer, startSupabaseServer } from './databases.mjs';
import { startGatewayWith } from './fixture.mjs';
import { binary, environment, eventually, run } from './gateway.mjs';
import { connectPeer } from './peer.mjs';
import { tryCalls, trySilentWrites } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';

const MARKS = { equal: ' ', note: '#', insert: '+', delete: '-', skip: '@' };

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
        /** Approves the change, and returns it as it was read back. Asserts that it is as approved, unless another result is expected. */
        async apply(change, expected = 'matches') {
            await gateway.approve(change.id);
            await gateway.reached(change.id, 'applied');
            const applied = await eventually(`change ${change.id} is read back`, async () => {
                const now = await gateway.change(change.id);
                return now.verification?.verified !== 'not_read' && now;
            });
            assert.equal(applied.verification?.verified, expected, JSON.stringify(applied.verification));
            return applied;
        }
    };
}

/** Returns the rows before and after. */
const rows = ({ diff }, label) => {
    const { before, after } = diff.fields.find(field => field.label === label);
    return [before, after].map(text => JSON.parse(text ?? 'null'));
};
const field = (change, label) => change.diff.fields.find(field => field.label === label);
const lines = (change, label) => field(change, label)?.lines?.map(({ op, text }) => `${MARKS[op]}${text}`) ?? [];

test('statements of DBHub on PostgreSQL are classified and previewed', async t => {
    const database = await postgres.create('dbhub');
    const { gateway, peer, propose, read, apply, consent } = await startBehind(t, ['dbhub'], dbhubOnPostgres(database));
    const execute = sql => propose('execute_sql', { sql });
    const value = sql => postgres.sql(database, sql);
    const tried = new TriedServer({ title: 'DBHub', how: 'The real server @bytebase/dbhub 1.4.0 on PostgreSQL, and, with fewer statements, on SQLite.' });
    const tryStatement = async (name, change) => tried.add(`execute_sql, ${name}`, await apply(change));

    await t.test('only reads run without review', async () => {
        assert.match(consent.stdout, /execute_sql now runs without review if the SQL only reads/);
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
        assert.equal(field(change, 'accounts').format, 'rows');
        assert.deepEqual(rows(change, 'accounts'), [
            [{ id: 1, owner: 'ann', balance: '50.00' }, { id: 3, owner: "it's", balance: '0.00' }],
            [{ id: 1, owner: 'ann', balance: '51.00' }, { id: 3, owner: "it's", balance: '1.00' }]
        ]);
        await tryStatement('UPDATE', change);
        assert.equal(await value('SELECT string_agg(balance::text, \' \' ORDER BY id) FROM accounts'), '51.00 150.00 1.00');
    });

    await t.test('a step is noted if an earlier step of its plan changes the same rows', async () => {
        const calls = ['balance = 0 WHERE id = 1', "owner = 'eve' WHERE id = 1", 'balance = 0 WHERE id = 3'].map(set => {
            return { name: 'execute_sql', arguments: { sql: `UPDATE accounts SET ${set}` } };
        });
        const { planId } = (await peer.call('propose_plan', { title: 'Three updates', calls })).structuredContent;
        const { changes } = (await gateway.api('GET', `/plans/${planId}`)).body;
        assert.deepEqual(changes.map(change => lines(change, 'Earlier step').length), [0, 1, 0]);
    });

    await t.test('values that the database stores in another form are as approved', async () => {
        await value("CREATE TABLE events (id uuid PRIMARY KEY, at timestamp, price numeric(10, 2), open boolean, tags text[]); INSERT INTO events VALUES ('6ba7b810-9dad-11d1-80b4-00c04fd430c8')");
        await apply(await execute("UPDATE events SET at = '2026-01-02', price = 1, open = 'yes', tags = '{a}'"));
        // What cannot be known beforehand is not compared.
        await apply(await execute('UPDATE events SET at = now(), price = price + random()::int'));
        await value('CREATE TABLE heap (a int); INSERT INTO heap VALUES (1)');
        const { verification } = await apply(await execute('UPDATE heap SET a = 2'), 'unreadable');
        assert.match(verification.reason, /heap has no primary key/);
        await apply(await execute('DELETE FROM heap WHERE a = 2'));
    });

    await t.test('what a trigger changes, and a write without effect, are noticed', async () => {
        await value(`CREATE TABLE prices (id int PRIMARY KEY, price int); INSERT INTO prices VALUES (1, 5), (2, 5);
            CREATE FUNCTION cap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.price := 9; RETURN NEW; END $$;
            CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
            CREATE TRIGGER cap BEFORE UPDATE ON prices FOR EACH ROW WHEN (NEW.price > 9) EXECUTE FUNCTION cap();
            CREATE TRIGGER nothing BEFORE INSERT OR DELETE ON prices FOR EACH ROW EXECUTE FUNCTION nothing();`);
        const capped = await apply(await execute('UPDATE prices SET price = 20 WHERE id = 1'), 'differs');
        assert.deepEqual(rows(capped.verification, 'prices'), [[{ id: 1, price: 20 }], [{ id: 1, price: 9 }]]);
        const kept = await apply(await execute('DELETE FROM prices WHERE id = 2'), 'differs');
        assert.deepEqual(rows(kept.verification, 'prices'), [null, [{ id: 2, price: 5 }]]);
        const lost = await apply(await execute('INSERT INTO prices (id, price) VALUES (3, 1)'), 'differs');
        assert.deepEqual([lost.verification.diff.fields[0].before, lost.verification.diff.fields[0].after], ['1 row with these values', '0 rows with these values']);
    });

    await t.test('rows that change meanwhile make the change stale', async () => {
        const change = await execute('DELETE FROM accounts WHERE balance < 10');
        assert.equal(change.operation, 'DELETE');
        assert.deepEqual(rows(change, 'accounts'), [[{ id: 3, owner: "it's", balance: '1.00' }], null]);
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
        assert.equal(rows(change, 'accounts')[0].length, 50);
        await tryStatement('DELETE', change);
        assert.equal(await value('SELECT count(*) FROM accounts'), '3');
    });

    await t.test('an insertion and a definition are shown', async () => {
        const change = await execute("INSERT INTO accounts (id, owner) VALUES (7, 'eve'), (8, DEFAULT)");
        assert.equal(change.operation, 'CREATE');
        assert.deepEqual(rows(change, 'accounts'), [null, [{ id: '7', owner: "'eve'" }, { id: '8', owner: 'DEFAULT' }]]);
        assert.deepEqual(lines(change, 'Rows'), ['#2 rows; none is there yet']);
        await tryStatement('INSERT', change);
        const again = await execute("INSERT INTO accounts (id, owner) VALUES (9, 'eve')");
        await value("INSERT INTO accounts VALUES (9, 'eve')");
        const refused = await gateway.api('POST', `/changes/${again.id}/decision`, { decision: 'approve', version: again.version, digest: again.digest });
        assert.equal(refused.body.code, 'CHANGE_STALE');
        assert.deepEqual(lines(refused.body.change, 'Rows'), ['#1 row; there already: 1 row with such values']);
        await gateway.reject(again.id, 'no');
        await value('DELETE FROM accounts WHERE id = 9');
        const altered = await execute('ALTER TABLE accounts ADD COLUMN note text');
        const definition = lines(altered, 'Definition of accounts now').join('\n');
        assert.match(definition, /column id integer NOT NULL/);
        assert.match(definition, /column balance numeric\(10,2\)/);
        assert.match(definition, /PRIMARY KEY \(id\)/);
        await tryStatement('ALTER TABLE', altered);
        await tryStatement('CREATE TABLE', await execute('CREATE TABLE notes (id int PRIMARY KEY)'));
        const dropped = await execute('DROP VIEW rich');
        assert.match(lines(dropped, 'Definition of rich now').join('\n'), /balance > \(?100/);
        await tryStatement('DROP VIEW', dropped);
    });

    await t.test('several statements are shown one by one', async () => {
        const change = await execute("UPDATE accounts SET owner = 'zoe' WHERE id = 7; DELETE FROM accounts WHERE id = 8; SELECT 1");
        assert.deepEqual(lines(change, '1. Rows'), ['#1 row']);
        assert.equal(rows(change, '2. accounts')[0][0].id, 8);
        assert.deepEqual(lines(change, '3. Effect'), ['#only reads']);
        assert.equal(change.operation, 'CALL');
        const { verification } = await apply(change, 'unreadable');
        assert.match(verification.reason, /several statements change the same table/);
        await tryStatement('several', await execute("UPDATE accounts SET balance = 3 WHERE id = 7; INSERT INTO notes (id) VALUES (1)"));
        assert.equal(await value('SELECT string_agg(owner, \',\' ORDER BY id) FROM accounts'), "ann,bob,it's,zoe");
    });

    await t.test('a statement without a preview says why, and writes nothing', async () => {
        for (const [sql, reason] of [
            ['UPDATE missing SET a = 1', /relation .*missing.* does not exist/],
            ['SELEC 1', /cannot be parsed/],
            ["DELETE FROM accounts WHERE id = nextval('numbers')", /not known to only read/],
            ["DELETE FROM accounts WHERE EXISTS (SELECT 1 FROM pg_stat_activity WHERE query ILIKE 'DELETE%')", /may find other rows.*pg_stat_activity/],
            ['DELETE FROM accounts WHERE id = (SELECT id FROM accounts ORDER BY random() LIMIT 1)', /may find other rows.*random/],
            ['WITH accounts AS (SELECT 1 AS id) DELETE FROM accounts', /the CTE of this name/],
            ["DO $$ BEGIN DELETE FROM accounts; END $$", /cannot be parsed/],
            ["SELECT pg_sleep(0)", /no preview/]
        ]) {
            const change = await execute(sql);
            assert.match(change.preview.failed, reason, sql);
            await gateway.reject(change.id, 'no');
        }
        assert.equal(await value('SELECT count(*), (SELECT is_called FROM numbers) FROM accounts'), '4|f');
    });
    await t.test('the page about the servers tried says so', () => tried.check());
});

test('statements of DBHub on SQLite are previewed and read back', async t => {
    const { file, sql } = await createSqlite(t);
    const { gateway, propose, read, apply } = await startBehind(t, ['dbhub'], dbhubOnSqlite(file));
    assert.match(await read('execute_sql', { sql: 'SELECT owner FROM accounts' }), /ann/);
    const update = await propose('execute_sql', { sql: 'UPDATE accounts SET balance = balance / 3 WHERE id = 1' });
    assert.match(String(rows(update, 'accounts')[1][0].balance), /^16\.6/);
    await apply(update);
    await apply(await propose('execute_sql', { sql: "INSERT INTO accounts (id, owner) VALUES (4, 'dan')" }));
    await apply(await propose('execute_sql', { sql: 'WITH poor AS (SELECT id FROM accounts WHERE balance = 0) DELETE FROM accounts WHERE id IN (SELECT id FROM poor)' }));
    assert.equal(await sql('SELECT count(*) FROM accounts'), '[(3,)]');
    await sql('CREATE TABLE replacing (id INTEGER PRIMARY KEY ON CONFLICT REPLACE, owner TEXT)');
    for (const statement of ["INSERT INTO replacing VALUES (1, 'eve')", 'UPDATE replacing SET id = 2 WHERE id = 1']) {
        const change = await propose('execute_sql', { sql: statement });
        assert.match(change.preview.failed, /ON CONFLICT REPLACE/, statement);
        await gateway.reject(change.id, 'no');
    }
});

test('SQL is reviewed, and queried only by accepted tools, before consent', async t => {
    const database = await postgres.create('consent');
    const { gateway, propose, read, tools, accept } = await startBehind(t, ['dbhub'], dbhubOnPostgres(database), { consents: false });
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
    const { file, sql: value } = await createSqlite(t);
    const { propose, read, apply } = await startBehind(t, ['sqlite'], sqliteServer(file));
    const tried = new TriedServer({ title: 'SQLite', how: 'The real server mcp-server-sqlite 2025.4.25. Its tools have no annotations.' });
    const tryStatement = async (name, change) => tried.add(name, await apply(change));
    assert.match(await read('read_query', { query: 'SELECT owner FROM accounts' }), /ann/);
    assert.match(await read('list_tables', {}), /accounts/);

    const update = await propose('write_query', { query: "UPDATE accounts SET owner = upper(owner) || 's \"x\"' WHERE id > 2" });
    assert.deepEqual(rows(update, 'accounts'), [[{ id: 3, owner: "it's", balance: 0 }], [{ id: 3, owner: 'IT\'Ss "x"', balance: 0 }]]);
    await tryStatement('write_query, UPDATE', update);
    assert.equal(await value('SELECT owner FROM accounts WHERE id = 3'), "[('IT\\'Ss \"x\"',)]");
    await tryStatement('write_query, INSERT', await propose('write_query', { query: "INSERT INTO accounts (id, owner) VALUES (4, 'dan')" }));
    await tryStatement('write_query, DELETE', await propose('write_query', { query: 'DELETE FROM accounts WHERE id = 4' }));

    const created = await propose('create_table', { query: 'CREATE TABLE t (a INTEGER)' });
    assert.deepEqual(lines(created, 'Definition of t now'), ['#(does not exist)']);
    await tryStatement('create_table', created);
    assert.equal(await value("SELECT count(*) FROM sqlite_master WHERE name = 't'"), '[(1,)]');
    const dropped = await propose('write_query', { query: 'DROP TABLE t' });
    assert.deepEqual(lines(dropped, 'Definition of t now'), [' table t CREATE TABLE t (a INTEGER)']);
    await tryStatement('write_query, DROP', dropped);

    // The server refuses queries that begin with WITH, so the derived ones do not.
    const deleted = await propose('write_query', { query: 'WITH x AS (SELECT 1 AS id) DELETE FROM accounts WHERE id IN (SELECT id FROM x)' });
    assert.deepEqual(rows(deleted, 'accounts')[0], [{ id: 1, owner: 'ann', balance: 50 }]);
    await tryStatement('write_query, WITH', deleted);
    assert.equal(await value('SELECT count(*) FROM accounts'), '[(2,)]');
    await t.test('the page about the servers tried says so', () => tried.check());
});

test('Supabase asks before destructive work, which the approval answers', async t => {
    const database = await postgres.create('supabase');
    const { fake, entry } = await startSupabaseServer(t, database);
    const behind = await startBehind(t, ['supabase'], entry);
    const { propose, read, apply } = behind;
    const project = { project_id: PROJECT };
    const tried = new TriedServer({ title: 'Supabase', how: "The real server @supabase/mcp-server-supabase 0.13.0 over HTTP, where it asks before destructive work, on a fake of its API that runs the statements in PostgreSQL." });
    const tryStatement = async (name, change) => tried.add(name, await apply(change));
    const question = change => lines(change, 'Question of the server').join();
    const value = sql => postgres.sql(database, sql);
    assert.match(await read('execute_sql', { ...project, query: 'SELECT owner FROM accounts' }), /ann/);

    const update = await propose('execute_sql', { ...project, query: "UPDATE accounts SET balance = 1 WHERE owner = 'bob'" });
    assert.deepEqual(rows(update, 'accounts'), [[{ id: 2, owner: 'bob', balance: 150 }], [{ id: 2, owner: 'bob', balance: 1 }]]);
    await tryStatement('execute_sql, UPDATE', update);
    assert.equal(await value('SELECT balance FROM accounts WHERE id = 2'), '1.00');
    const deleted = await propose('execute_sql', { ...project, query: 'DELETE FROM accounts WHERE id = 3' });
    assert.match(question(deleted), /matches \/\^This SQL includes destructive operations\/, the answer is: accept \{\}/);
    await tryStatement('execute_sql, DELETE', deleted);
    assert.equal(await value('SELECT count(*) FROM accounts'), '2');
    const migration = await propose('apply_migration', { ...project, name: 'drop_rich', query: 'DROP VIEW rich' });
    assert.equal(migration.summary, 'Apply the migration drop_rich');
    assert.match(lines(migration, 'Definition of rich now').join('\n'), /balance/);
    assert.match(question(migration), /the answer is: accept/);
    await tryStatement('apply_migration', migration);
    assert.deepEqual([await value("SELECT to_regclass('rich') IS NULL"), fake.state.migrations.map(({ name }) => name)], ['t', ['drop_rich']]);

    const suite = { ...behind, fakes: [fake], writes: () => fake.writes, behave: mode => (fake.mode = mode) };
    const storage = { fileSizeLimit: 2000, features: { imageTransformation: { enabled: true }, s3Protocol: { enabled: false } } };
    const files = [{ name: 'index.ts', content: "Deno.serve(() => new Response('Hi'))\n" }, { name: 'deno.json', content: '{}' }];
    await tryCalls(t, suite, [
        ['deploy_edge_function', { ...project, name: 'hello', entrypoint_path: 'index.ts', verify_jwt: true, files }, { 'index.ts': ["-Deno.serve(() => new Response('Hello'))", "+Deno.serve(() => new Response('Hi'))"], 'deno.json': ['+{}'], Function: ['   "version": 1'] }, s => [s.functions.hello.files['index.ts'], files[0].content]],
        ['deploy_edge_function, new', { ...project, name: 'fresh', entrypoint_path: 'index.ts', verify_jwt: false, files: [files[0]] }, { Function: [' (nothing is there)'] }, s => [s.functions.fresh.version, 1]],
        ['create_branch', { ...project, name: 'try' }, { 'Branch: name': ['+try'], Branches: [' main'] }, s => [s.branches.map(({ name }) => name), ['main', 'try']]],
        ['create_project', { name: 'more', region: 'eu-west-1', organization_id: 'org' }, { 'Project: name': ['+more'], Cost: [' $10 monthly'] }, s => [s.projects.new.name, 'more']],
        ['pause_project', project, { 'Project: paused': ['-false', '+true'] }, s => [s.projects[PROJECT].status, 'PAUSING']],
        ['restore_project', project, { 'Project: paused': ['-true', '+false'] }, s => [s.projects[PROJECT].status, 'COMING_UP']],
        ['update_storage_config', { ...project, config: storage }, { 'Storage: fileSizeLimit': ['-1000', '+2000'] }, s => [s.storage, storage]]
    ], tried);
    await t.test('branches are shown if the address of the server names the project', branches => tryBranches(branches, tried));
    await t.test('the page about the servers tried says so', () => tried.check());
    await t.test('a branch of an unknown project has no preview', async () => {
        const { preview } = await propose('delete_branch', { branch_id: 'b1' });
        assert.match(preview.failed ?? 'it did not fail', /list_branches.*project_id/s);
    });
    const silent = { ...suite, apply: change => behind.apply(change, 'differs') };
    await trySilentWrites(t, silent, [['update_storage_config', { ...project, config: { ...storage, fileSizeLimit: 3000 } }], ['create_branch', { ...project, name: 'lost' }]]);
});

/** Tries the tools for a branch, which take its id alone. */
async function tryBranches(t, tried) {
    const { fake, entry } = await startSupabaseServer(t, undefined, { isForProject: true });
    const [main] = fake.state.branches;
    const branch = (id, name) => ({ ...main, id, name, project_ref: `${name}reference`, is_default: false, persistent: false });
    fake.state.branches.push(branch('b2', 'try'), branch('b3', 'old'));
    fake.state.migrations.push({ version: '20260101', name: 'create_accounts' });
    // The known reads are those of a server for all projects.
    const behind = await startBehind(t, ['supabase'], entry, { consents: false });
    const apply = async change => {
        await behind.gateway.approve(change.id);
        return behind.gateway.reached(change.id, 'applied');
    };
    const shown = { Branch: ['   "name": "try",'], 'Migrations of the project': ['   "20260101 create_accounts"'] };
    const last = operation => s => [s.branches[1].last?.operation, operation];
    const suite = { ...behind, fakes: [fake], writes: () => fake.writes };
    await tryCalls(t, { ...suite, apply }, [
        ['merge_branch', { branch_id: 'b2' }, shown, last('merge'), { isReadBack: false }],
        ['rebase_branch', { branch_id: 'b2' }, shown, last('push'), { isReadBack: false }],
        ['reset_branch', { branch_id: 'tryreference', migration_version: '20260101' }, { ...shown, migration_version: ['+20260101'] }, s => [s.branches[1].last.migration_version, '20260101'], { isReadBack: false }]
    ], tried);
    await tryCalls(t, suite, [
        ['delete_branch', { branch_id: 'b3' }, { 'Branch: name': ['-old'], 'Branch: main': ['-false'] }, s => [s.branches.map(({ name }) => name), ['main', 'try']]]
    ], tried);
    const { preview } = await behind.propose('delete_branch', { branch_id: 'b9' });
    assert.equal(preview.failed, undefined);
}
