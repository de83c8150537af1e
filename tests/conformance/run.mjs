// Runs the official conformance suite in groups, and ends with `N passed, N failed`:
//
//   self     against the gateway alone: what it must pass by itself (expectations.mjs), and a dead port as the control
//   http     through the gateway to a fixture over HTTP that speaks both eras, the legacy one only, the modern one only;
//            each run begins as soon as /health answers, on an empty data directory
//   stdio    the same with the fixture as a local command that does not answer by then
//   shim     the same with the 2.x SDK behind an era filter (not part of a normal run)
//   tasks    the scenarios of the tasks extension, through the gateway to a fixture that has tasks
//   own      the same scenarios against the gateway's own tasks: reviewed calls to a fixture without tasks, decided over REST
//   client   the suite's client scenarios, run through the gateway's upstream side by a client of each era
//   cluster  http and own with three gateways on one PostgreSQL behind nginx in place of one
//   direct   the fixtures without a gateway: proves them (not part of a normal run)
//   script   the client scenarios without a gateway: proves their script (not part of a normal run)
//
//   node run.mjs [GROUP...] [--verbose] [--kind both|legacy|modern] [--revision R] [--scenario S] [--front legacy|modern]
import { AsyncLocalStorage } from 'node:async_hooks';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { inFrontOf, overHttp, overStdio, startFixture, startGatewayWith, startTasksFixture } from '../clients/fixture.mjs';
import { eventually, startGateway, startNobody } from '../clients/gateway.mjs';
import { TASKS, UPSTREAM_SIDE, needsFixture, required, untestable, warnOnly } from './expectations.mjs';
import { judge, requirements, runSuite } from './suite.mjs';

const { values: options, positionals } = parseArgs({
    allowPositionals: true,
    options: {
        verbose: { type: 'boolean', default: false },
        kind: { type: 'string' },
        revision: { type: 'string' },
        scenario: { type: 'string' },
        front: { type: 'string' }
    }
});
const REVISIONS = ['2025-11-25', '2026-07-28'].filter(revision => revision === (options.revision ?? revision));
const KINDS = ['both', 'legacy', 'modern'].filter(kind => kind === (options.kind ?? kind));
const only = options.scenario ? ['--scenario', options.scenario] : undefined;

let passed = 0;
let failed = 0;
/** Everything that failed, for the end. */
const broken = [];
/** Groups run beside each other: what one says is kept until it is over, so that it stands together. */
const lines = new AsyncLocalStorage();
function say(...what) {
    const kept = lines.getStore();
    kept ? kept.push(what) : console.log(...what);
}
const row = (verdict, scenario, note) => say(`  ${verdict.padEnd(6)} ${scenario.padEnd(46)} ${note}`);
const brief = message => String(message ?? 'no message').replace(/\s+/g, ' ').slice(0, 600);

/** Counts one scenario and shows it. */
function count(where, scenario, checks, excused = {}) {
    const { passed: good, successes, failures, warnings } = judge(checks, excused);
    good ? passed++ : failed++;
    row(good ? 'ok' : 'FAILED', scenario, checks === undefined ? 'did not run' : `${successes} checks${warnings.length ? `, ${warnings.length} warnings` : ''}`);
    for (const check of failures) say(`         ${check.id}: ${brief(check.errorMessage ?? JSON.stringify(check.details))}`);
    for (const check of warnings) say(`         warning ${check.id}: ${brief(check.errorMessage)}`);
    if (!good) broken.push(`${where}: ${scenario} (${failures.map(check => check.id).join(', ') || 'no check succeeded'})`);
    return good;
}

const serverSide = async (revision, url) => {
    const { results, output } = await runSuite(['server', '--url', url, ...(only ? [...only, '--spec-version', revision] : ['--requirements', revision])]);
    if (options.verbose) say(output);
    return results;
};

/** Runs everything that the revisions require against `start()`'s `{ url, stop() }`, fresh for each revision. */
async function requirementsOf(title, start) {
    let [good, bad] = [0, 0];
    for (const revision of REVISIONS) {
        const where = `${revision}, ${title}`;
        say(`\n${where}:`);
        const wanted = options.scenario ? [options.scenario] : (await requirements(revision)).server;
        let results = new Map();
        try {
            const under = await start();
            try {
                results = await serverSide(revision, under.url);
            } finally {
                const log = under.log?.();
                await under.stop();
                if (options.verbose && log) say(`--- log ---\n${log}`);
            }
        } catch (error) {
            say(`         ${error.message}`);
        }
        for (const scenario of wanted) count(where, scenario, results.get(scenario)) ? good++ : bad++;
        const extra = [...results.keys()].filter(scenario => !wanted.includes(scenario) && !scenario.startsWith('tasks-'));
        for (const scenario of extra) row('-', scenario, `not required: ${judge(results.get(scenario)).passed ? 'passes' : 'fails'}`);
    }
    return [good, bad];
}

/**
 * A gateway in front of a server, as `{ url, stop() }`. `early`: as soon as /health answers, whether the server was reached or
 * not.
 */
async function behindGateway(server, upstream, { nodes, early } = {}) {
    try {
        const gateway = early
            ? await startGateway({ config: inFrontOf({ ...server, required: false }) })
            : await startGatewayWith(inFrontOf(server), { nodes });
        return {
            url: gateway.mcp.href,
            log: () => gateway.log() + (upstream?.log() ?? ''),
            async stop() {
                await gateway.stop();
                await upstream?.stop();
            }
        };
    } catch (error) {
        await upstream?.stop();
        throw error;
    }
}

async function matrix(name, kinds, start) {
    let [good, bad] = [0, 0];
    for (const kind of kinds) {
        const [more, less] = await requirementsOf(`upstream ${kind} over ${name}`, () => start(kind));
        good += more;
        bad += less;
    }
    say(`\nThrough the gateway, upstream over ${name}: ${good} of ${good + bad}`);
}

/** A local command that answers only when the suite has begun to ask. */
const late = server => ({ ...server, env: { FIXTURE_FROM: String(Date.now() + 3500) } });

async function overHttpUpstream(kind, options) {
    const upstream = await startFixture(kind);
    return behindGateway(overHttp(upstream.url), upstream, options);
}

async function self() {
    for (const revision of REVISIONS) {
        const gateway = await startGateway();
        let results;
        try {
            results = await serverSide(revision, gateway.mcp.href);
        } finally {
            await gateway.stop();
        }
        checkLists(revision, results);
        const where = `${revision}, against the gateway`;
        say(`\n${where}:`);
        for (const scenario of required[revision]) {
            count(where, scenario, results.get(scenario), untestable[scenario]);
            for (const [id, what] of Object.entries(untestable[scenario] ?? {})) say(`         not judged: ${id} needs ${what}`);
        }
        const rest = [...results.keys()].filter(scenario => !required[revision].includes(scenario));
        for (const scenario of rest) row('-', scenario, `not judged: needs ${needsFixture[scenario]}`);
    }
    say('\nNegative control, against a port where nobody is (everything must fail but what the suite only warns of):');
    for (const revision of REVISIONS) {
        const nobody = await startNobody();
        const results = await serverSide(revision, `http://127.0.0.1:${nobody.port}/mcp`);
        await nobody.close();
        const standing = [...results.keys()].filter(scenario => judge(results.get(scenario)).passed);
        const wrong = standing.filter(scenario => !warnOnly.includes(scenario));
        const rest = standing.filter(scenario => warnOnly.includes(scenario));
        wrong.length === 0 ? passed++ : failed++;
        row(wrong.length === 0 ? 'ok' : 'FAILED', revision, wrong.length === 0 ? `${results.size - standing.length} of ${results.size} failed` : `passed against nothing: ${wrong}`);
        if (rest.length) say(`         warned of only, and so passed: ${rest.join(', ')}`);
        if (wrong.length) broken.push(`${revision}, negative control: ${wrong}`);
    }
}

/** The lists of `expectations.mjs` must name exactly what ran. */
function checkLists(revision, results) {
    const known = new Set([...required[revision], ...Object.keys(needsFixture)]);
    const forgotten = [...results.keys()].filter(scenario => !known.has(scenario));
    const gone = required[revision].filter(scenario => !results.has(scenario));
    if (!only && (forgotten.length || gone.length)) {
        throw new Error(`expectations.mjs does not fit ${revision}: not named ${forgotten}; named but not run ${gone}`);
    }
}

async function tasks(nodes) {
    const where = `2026-07-28, tasks extension, through ${nodes ? 'three gateways' : 'the gateway'}`;
    say(`\n${where}:`);
    const upstream = await startTasksFixture();
    const under = await behindGateway(overHttp(upstream.url), upstream, { nodes });
    try {
        await tasksAgainst(where, under.url);
    } finally {
        const log = under.log();
        await under.stop();
        if (options.verbose) say(log);
    }
}

/** Calls that take longer than a scenario waits are those that it cancels, or only looks at. */
const isLeftAlone = change => change.arguments.seconds > 30;

/** Approves what comes in until it is stopped. */
function approveAll(gateway) {
    let stopped = false;
    const work = (async () => {
        while (!stopped) {
            const { body } = await gateway.api('GET', '/changes?status=pending&limit=100');
            for (const change of body.changes.filter(change => !isLeftAlone(change))) {
                // The scenario may have withdrawn it just now.
                await gateway.approve(change.id).catch(() => {});
            }
            await new Promise(resolve => setTimeout(resolve, 100));
        }
    })();
    return () => ((stopped = true), work);
}

async function own(nodes) {
    const where = `2026-07-28, tasks extension, own tasks of ${nodes ? 'three gateways' : 'the gateway'}`;
    say(`\n${where}:`);
    const upstream = await startTasksFixture('--plain');
    const rules = [
        { name: 'greetings', tools: ['greet'], then: 'allow' },
        // For clients that take tasks, and no others.
        { name: 'jobs', tools: ['failing_job'], then: 'review', on_review: 'task' }
    ];
    const config = inFrontOf(overHttp(upstream.url), { policy: { default: 'review_all', review: { questions: 'ask' }, rules } });
    const gateway = await startGatewayWith(config, { nodes });
    const stop = approveAll(gateway);
    try {
        await eventually('the tools are there', async () => (await (await fetch(`${gateway.url}/tools`)).json()).tools.length > 5);
        await tasksAgainst(where, gateway.mcp.href);
    } finally {
        await stop();
        const log = gateway.log();
        await gateway.stop();
        await upstream.stop();
        if (options.verbose) say(log);
    }
}

async function tasksAgainst(where, url) {
    for (const scenario of TASKS.filter(name => name === (options.scenario ?? name))) {
        const { results, output } = await runSuite(['server', '--url', url, '--scenario', scenario]);
        if (options.verbose) say(output);
        count(where, scenario, results.get(scenario));
    }
}

const clientScript = path.join(path.dirname(fileURLToPath(import.meta.url)), '../clients/suite-client.mjs');

async function client(env = {}, fits = () => true) {
    for (const front of ['legacy', 'modern'].filter(era => era === (options.front ?? era))) {
        for (const revision of REVISIONS.filter(revision => fits(front, revision))) {
            const where = `client scenarios of ${revision}, a ${front} client in front`;
            say(`\n${where}:`);
            for (const scenario of UPSTREAM_SIDE[revision].filter(name => name === (options.scenario ?? name))) {
                const command = `${process.execPath} ${clientScript}`;
                const { results, output } = await runSuite(
                    ['client', '--command', command, '--scenario', scenario, '--spec-version', revision, '--timeout', '60000', '--verbose'],
                    { env: { FRONT: front, ...env } }
                );
                if (!count(where, scenario, results.get(scenario)) || options.verbose) say(indent(output.slice(-4000)));
            }
        }
    }
}
const indent = text => text.replace(/^/gm, '            | ');

async function direct() {
    for (const kind of ['both', 'legacy', 'modern', 'shim']) {
        const fits = revision => kind === 'both' || (kind === 'modern') === (revision === '2026-07-28');
        for (const revision of REVISIONS.filter(fits)) {
            const upstream = await startFixture(kind);
            try {
                const where = `${revision}, the fixture ${kind} itself`;
                say(`\n${where}:`);
                const results = await serverSide(revision, `${upstream.url}/mcp`);
                for (const scenario of (await requirements(revision)).server) count(where, scenario, results.get(scenario));
            } finally {
                await upstream.stop();
            }
        }
    }
    const upstream = await startTasksFixture();
    try {
        say('\nThe fixture with tasks itself:');
        await tasksAgainst('tasks, the fixture itself', `${upstream.url}/mcp`);
    } finally {
        await upstream.stop();
    }
}

async function cluster() {
    await matrix('HTTP, three gateways behind nginx', KINDS.filter(kind => kind === 'both'), kind => overHttpUpstream(kind, { nodes: 3 }));
    await tasks(3);
    await own(3);
}

const groups = {
    self,
    http: () => matrix('HTTP', KINDS, kind => overHttpUpstream(kind, { early: true })),
    cluster,
    stdio: () => matrix('stdio', KINDS, kind => behindGateway(late(overStdio(kind)), undefined, { early: true })),
    shim: () => matrix('HTTP', ['shim'], kind => overHttpUpstream(kind)),
    tasks: () => tasks(),
    own: () => own(),
    client: () => client(),
    direct,
    script: () => client({ DIRECT: '1' }, (front, revision) => (front === 'modern') === (revision === '2026-07-28'))
};
const chosen = positionals.length ? positionals : ['http', 'cluster', 'stdio', 'self', 'client', 'tasks', 'own'];
const strange = chosen.find(name => !groups[name]);
if (strange) throw new Error(`no such group: ${strange} (there are: ${Object.keys(groups)})`);

/** Each starts what it needs for itself, and mostly waits. */
const AT_ONCE = 2;
const waiting = [...chosen];
async function work() {
    for (let name; (name = waiting.shift()); ) {
        const kept = [];
        await lines.run(kept, groups[name]).catch(error => {
            failed++;
            broken.push(`${name}: ${error.message.split('\n')[0]}`);
            kept.push([error]);
        });
        for (const what of kept) console.log(...what);
    }
}
await Promise.all(Array.from({ length: AT_ONCE }, work));

if (broken.length) say(`\nFailed:\n${broken.map(line => `  ${line}`).join('\n')}`);
say(`\n${passed} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
