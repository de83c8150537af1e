// Runs the official conformance suite against the gateway itself, once for each revision of `expectations.mjs`, then
// against a dead port as the negative control. Ends with `N passed, N failed`.
import { spawn } from 'node:child_process';
import { mkdtemp, readFile, readdir, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

import { freePort, startGateway } from '../clients/gateway.mjs';
import { needsFixture, required, untestable } from './expectations.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const suite = path.join(here, 'node_modules/@modelcontextprotocol/conformance/dist/index.js');
const verbose = process.argv.includes('--verbose');

/** Runs the whole requirement set; answers scenario → checks. */
async function runSuite(revision, url) {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-conformance-'));
    try {
        let output = '';
        const child = spawn(process.execPath, [suite, 'server', '--url', url, '--requirements', revision, '-o', folder], {
            stdio: ['ignore', 'pipe', 'pipe']
        });
        for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', text => (output += text));
        // The suite's own exit code counts the scenarios that need fixtures as failures; the checks are judged below.
        await new Promise((resolve, reject) => child.once('error', reject).once('exit', resolve));
        if (verbose) process.stdout.write(output);
        const results = new Map();
        for (const name of await readdir(folder)) {
            const scenario = /^server-(.*?)-\d{4}-\d\d-\d\dT/.exec(name)?.[1];
            if (!scenario) throw new Error(`a result folder with a strange name: ${name}`);
            try {
                results.set(scenario, JSON.parse(await readFile(path.join(folder, name, 'checks.json'), 'utf8')));
            } catch (error) {
                if (error.code !== 'ENOENT') throw error;
                results.set(scenario, []);
            }
        }
        if (results.size === 0) throw new Error(`the suite ran nothing:\n${output}`);
        return results;
    } finally {
        await rm(folder, { recursive: true, force: true });
    }
}

/** What the checks of one scenario come to. */
function judge(scenario, checks) {
    const excused = untestable[scenario] ?? {};
    const counted = checks.filter(check => !(check.id in excused));
    const failures = counted.filter(check => check.status === 'FAILURE');
    const successes = counted.filter(check => check.status === 'SUCCESS').length;
    const warnings = counted.filter(check => check.status === 'WARNING');
    return { passed: successes > 0 && failures.length === 0, successes, failures, warnings };
}

/** The lists of `expectations.mjs` must name exactly what ran. */
function checkLists(revision, results) {
    const known = new Set([...required[revision], ...Object.keys(needsFixture)]);
    const forgotten = [...results.keys()].filter(scenario => !known.has(scenario));
    const gone = required[revision].filter(scenario => !results.has(scenario));
    if (forgotten.length || gone.length) {
        throw new Error(`expectations.mjs does not fit ${revision}: not named ${forgotten}; named but not run ${gone}`);
    }
}

const row = (verdict, scenario, note) => console.log(`  ${verdict.padEnd(6)} ${scenario.padEnd(46)} ${note}`);
let passed = 0;
let failed = 0;

for (const revision of Object.keys(required)) {
    const gateway = await startGateway();
    let results;
    try {
        results = await runSuite(revision, gateway.mcp.href);
    } finally {
        await gateway.stop();
    }
    checkLists(revision, results);
    console.log(`\n${revision}, against the gateway:`);
    for (const scenario of required[revision]) {
        const { passed: good, successes, failures, warnings } = judge(scenario, results.get(scenario));
        good ? passed++ : failed++;
        row(good ? 'ok' : 'FAILED', scenario, `${successes} checks${warnings.length ? `, ${warnings.length} warnings` : ''}`);
        for (const check of failures) console.log(`         ${check.id}: ${check.errorMessage}`);
        for (const check of warnings) console.log(`         warning ${check.id}: ${check.errorMessage}`);
        for (const [id, what] of Object.entries(untestable[scenario] ?? {})) console.log(`         not judged: ${id} needs ${what}`);
    }
    const rest = [...results.keys()].filter(scenario => !required[revision].includes(scenario));
    for (const scenario of rest) row('-', scenario, `not judged: needs ${needsFixture[scenario]}`);
}

console.log('\nNegative control, against a dead port (everything judged above must fail):');
for (const revision of Object.keys(required)) {
    const results = await runSuite(revision, `http://127.0.0.1:${await freePort()}/mcp`);
    const wrong = required[revision].filter(scenario => judge(scenario, results.get(scenario) ?? []).passed);
    wrong.length === 0 ? passed++ : failed++;
    row(wrong.length === 0 ? 'ok' : 'FAILED', revision, wrong.length === 0 ? 'all of them failed' : `passed against nothing: ${wrong}`);
}

console.log(`\n${passed} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
