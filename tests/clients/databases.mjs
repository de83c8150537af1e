// A PostgreSQL for tests, and the MCP servers for databases that tests/sql installs.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { createInterface } from 'node:readline';

import { PROJECT, startSupabase } from '../fixtures/fakes/supabase.mjs';
import { command } from './fixture.mjs';
import { freePort, repository, run, stopChild, temporaryData } from './gateway.mjs';

const packages = path.join(repository, 'tests/sql/node_modules');
/** The Python of the environment in which `scripts/test` installs the SQLite server. */
const python = path.join(repository, 'tests/.cache/venv-sqlite/bin/python');
const SETUP = `
    CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance numeric(10, 2));
    INSERT INTO accounts VALUES (1, 'ann', 50), (2, 'bob', 150), (3, 'it''s', 0);
    CREATE VIEW rich AS SELECT * FROM accounts WHERE balance > 100;`;

/** A PostgreSQL that listens on a TCP port, with a database for each test. */
export const postgres = {
    async start() {
        this.port = await freePort();
        const args = ['-c', 'fsync=off', '-c', 'listen_addresses=127.0.0.1'];
        this.child = spawn(path.join(repository, 'scripts/postgres'), args, { stdio: ['pipe', 'pipe', 'inherit'], env: { ...process.env, PGPORT: `${this.port}` } });
        await new Promise((resolve, reject) => {
            this.child.once('exit', code => reject(new Error(`scripts/postgres ended with ${code}`)));
            createInterface({ input: this.child.stdout }).once('line', resolve);
        });
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
    },
    /** Runs a text, and returns the rows of a query. */
    async rows(database, text) {
        const isQuery = /^\s*(SELECT|WITH|VALUES)\b/i.test(text);
        const found = await this.sql(database, isQuery ? `SELECT coalesce(json_agg(r), '[]') FROM (${text}) AS r` : text);
        return isQuery ? JSON.parse(found) : [];
    }
};

/** Creates a SQLite database, and returns `{ file, sql(statement) }`. */
export async function createSqlite(t) {
    const folder = await temporaryData();
    t.after(() => rm(folder, { recursive: true, force: true }));
    const file = path.join(folder, 'test.db');
    const script = 'import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]) if len(sys.argv) < 4 else print(c.execute(sys.argv[3]).fetchall()); c.commit()';
    await run(python, ['-c', script, file, SETUP.replace('numeric(10, 2)', 'real')]);
    return { file, sql: async statement => (await run(python, ['-c', script, file, '', statement])).stdout.trim() };
}

const dbhub = dsn => ({ command, args: [path.join(packages, '@bytebase/dbhub/dist/index.js'), '--transport', 'stdio', '--dsn', dsn] });
export const dbhubOnPostgres = database => dbhub(postgres.url(database));
export const dbhubOnSqlite = file => dbhub(`sqlite://${file}`);
export const sqliteServer = file => ({ command: path.join(path.dirname(python), 'mcp-server-sqlite'), args: ['--db-path', file] });

/**
 * Starts Supabase's server on a fake of its API, as it is hosted: over HTTP, and asking before destructive work. With `isForProject`, its
 * address names the project, which is then no argument of the tools.
 */
export async function startSupabaseServer(t, database, { isForProject = false } = {}) {
    const fake = await startSupabase(text => postgres.rows(database, text));
    t.after(() => fake.stop());
    const args = [path.join(packages, '@supabase/mcp-server-supabase/dist/cli.js'), '--http', '--port', '0', '--api-url', fake.url, '--content-api-url', `${fake.url}/docs`, '--secret-url-template', 'http://127.0.0.1/{ref}/{name}'];
    const child = spawn(command, args, { stdio: ['ignore', 'ignore', 'pipe'] });
    t.after(() => stopChild(child));
    const [line] = await once(createInterface({ input: child.stderr }), 'line');
    const [url] = /http:\S+/.exec(line);
    const features = 'account,database,debugging,development,functions,branching,storage';
    const project = isForProject ? `&project_ref=${PROJECT}` : '';
    return { fake, entry: { url: `${url}?features=${features}${project}`, headers: { authorization: `Bearer sbp_${'0'.repeat(40)}` }, previews: 'supabase' } };
}

export { PROJECT };
