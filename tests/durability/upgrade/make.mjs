// Makes the archive of `upgrade.rs` with an older program: data.tar.gz with a data directory in which changes have every
// state that survives a restart, and expected.json, which says what is in it.
//
//   COUNTERSIGN_BIN=/path/to/an/older/countersign node tests/durability/upgrade/make.mjs COMMIT
//
// The program must be a debug build, because only that ends itself at a named point (COUNTERSIGN_CRASH_AT).
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';

import { LISTEN, Reviewer, binary, environment, publishedPort, run, stopChild } from '../../clients/gateway.mjs';

const folder = import.meta.dirname;
const config = path.join(folder, 'countersign.yaml');
const commit = process.argv[2];
if (!commit) throw new Error('name the commit of the program');

const home = await mkdtemp(path.join(os.tmpdir(), 'countersign-upgrade-'));
const data = path.join(home, 'data');
const place = ['--data', data, '--config', config];
const keys = {};
let child;
let url;

async function start(env = {}) {
    child = spawn(binary, ['serve', ...place, '--listen', LISTEN], { env: environment(env), stdio: ['ignore', 'ignore', 'inherit'] });
    url = `http://127.0.0.1:${await publishedPort(data, child.pid)}`;
}

/** Runs a command of the program as the reviewer carol. */
async function command(...words) {
    const { stdout } = await run(binary, [...words, ...place], { env: environment({ COUNTERSIGN_KEY: keys.carol ?? '' }) });
    return stdout.trim();
}

async function callTool(tool, parameters) {
    const headers = { 'content-type': 'application/json' };
    const response = await fetch(`${url}/tools/${tool}`, { method: 'POST', headers, body: JSON.stringify(parameters) });
    return { status: response.status, text: await response.text() };
}

async function propose(tool, parameters) {
    const answer = await callTool(tool, parameters);
    if (answer.status !== 202) throw new Error(`${tool}: ${answer.status} ${answer.text}`);
    return answer.text.match(/chg_\w+/)[0];
}

const reviewer = name => new Reviewer(url, keys[name]);

/** Starts a gateway that ends itself at that point, and approves the change. */
async function crashAt(point, change) {
    await start({ COUNTERSIGN_CRASH_AT: point, COUNTERSIGN_CRASH_AFTER: '1' });
    const ended = once(child, 'exit');
    await reviewer('carol')
        .approve(change)
        .catch(() => undefined);
    const [code] = await ended;
    if (code !== null) throw new Error(`the gateway was to end by a signal, but exited with ${code}`);
}

try {
    await start();
    for (const [name, role, ...more] of [
        ['carol', 'reviewer'],
        ['dave', 'reviewer', '--owner', 'david'],
        ['desk', 'agent'],
        ['former', 'viewer']
    ]) {
        keys[name] = await command('keys', 'create', '--role', role, '--name', name, ...more);
    }
    const listed = JSON.parse(await command('keys', 'list', '--json'));
    const former = (listed.keys ?? listed).find(key => key.name === 'former');
    await command('keys', 'revoke', former.id);
    await command('servers', 'accept', 'notes', 'notes__read_note', 'notes__write_note', '--wait', '--yes');
    // This standing rule lets the tool run without review.
    await command('servers', 'allow', 'notes', 'notes__append_note', '--reason', 'it is only a note', '--yes');

    const projects = await callTool('list_projects', {});
    const projectId = projects.text.match(/"id\\?":\s?\\?"([^"\\]+)/)[1];
    const issue = title => propose('create_issue', { projectId, title, type: 'Story' });
    const changes = {};
    changes.applied = await issue('Applied before the upgrade');
    await reviewer('carol').approve(changes.applied, 'right');
    await reviewer('carol').reached(changes.applied, 'applied');
    changes.rejected = await issue('Rejected before the upgrade');
    await reviewer('carol').reject(changes.rejected, 'wrong project');
    changes.pending = await issue('Proposed before the upgrade');
    changes.unknown = await issue('Claimed before the upgrade');
    changes.approved = await issue('Approved before the upgrade');
    // It has one of two approvals.
    changes.halfApproved = await propose('notes__write_note', { text: 'from the older version' });
    await reviewer('carol').approve(changes.halfApproved, 'fine');
    await stopChild(child);
    await crashAt('after_claim', changes.unknown);
    await start();
    await reviewer('carol').reached(changes.unknown, 'outcome_unknown');
    await stopChild(child);
    await crashAt('after_commit', changes.approved);

    const time = Math.floor(Date.now() / 1000);
    await writeFile(path.join(folder, 'expected.json'), `${JSON.stringify({ commit, time, keys, changes }, null, 4)}\n`);
    // Sockets, locks and the address of the gateway do not outlive it, and SQLite makes its own shared memory.
    const temporary = ['gateway.json', '*.sock', 'lock', '*-shm'].map(name => `--exclude=${name}`);
    const tar = ['-czf', path.join(folder, 'data.tar.gz'), '--owner=0', '--group=0', '--numeric-owner', ...temporary, '-C', home, 'data'];
    await run('tar', tar, { env: { ...process.env, GZIP: '-9' } });
} finally {
    await stopChild(child);
    await rm(home, { recursive: true, force: true });
}
