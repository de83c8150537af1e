// Runs groups of the official conformance suite and prints `N passed, N failed` at the end:
//
//   self     the gateway alone: the scenarios that it must pass (expectations.mjs), and a closed port as negative control
//   http     through the gateway to a fixture over HTTP that speaks both eras, only the legacy one or only the modern one;
//            each run starts as soon as /health answers, on an empty data directory
//   stdio    the same with the fixture as a local command that does not answer by then
//   shim     the same with the 2.x SDK restricted to the legacy era (not part of a normal run)
//   tasks    the scenarios of the tasks extension, through the gateway to a fixture that has tasks
//   own      the same scenarios with the gateway's own tasks: reviewed calls to a fixture without tasks, decided over REST
//   client   the client scenarios, with the gateway's upstream side as the client, used by a client of each era
//   auth     the client scenarios of authorization: the gateway is the OAuth client, and a script gives consent for a person
//   cluster  http, tasks and own with three gateways on one PostgreSQL behind nginx
//   direct   the fixtures without a gateway, which tests the fixtures (not part of a normal run)
//   script   the client scenarios without a gateway, which tests their script (not part of a normal run)
//
//   node run.mjs [GROUP...] [--verbose] [--kind both|legacy|modern] [--revision R] [--scenario S] [--front legacy|modern]
import { AsyncLocalStorage } from 'node:async_hooks';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { inFrontOf, overHttp, overStdio, startFixture, startGatewayWith, startTasksFixture } from '../clients/fixture.mjs';
import { eventually, startGateway, startClosedPort } from '../clients/gateway.mjs';
import { connectPeer } from '../clients/peer.mjs';
import { MORE_AUTHORIZATION, TASKS, UPSTREAM_SIDE, needsFixture, required, untestable, warnOnly } from './expectations.mjs';
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
const scenarioArguments = options.scenario ? ['--scenario', options.scenario] : undefined;

let passed = 0;
let failed = 0;
/** The failures, printed again at the end. */
const failedScenarios = [];
/** The output of each group, which is kept until the group ends, because groups run in parallel. */
const lines = new AsyncLocalStorage();
function say(...what) {
    const output = lines.getStore();
    output ? output.push(what) : console.log(...what);
}
const row = (verdict, scenario, note) => say(`  ${verdict.padEnd(6)} ${scenario.padEnd(46)} ${note}`);
const shorten = message => String(message ?? 'no message').replace(/\s+/g, ' ').slice(0, 600);

/** Counts one scenario and prints its result. It has failed if the suite itself does not accept it. */
function count(where, scenario, checks, excluded = {}, isAccepted = true) {
    const { passed: hasPassed, successes, failures, warnings } = judge(checks, excluded);
    const isPassed = hasPassed && isAccepted;
    isPassed ? passed++ : failed++;
    row(isPassed ? 'ok' : 'FAILED', scenario, checks === undefined ? 'did not run' : `${successes} checks${warnings.length ? `, ${warnings.length} warnings` : ''}`);
    for (const check of failures) say(`         ${check.id}: ${shorten(check.errorMessage ?? JSON.stringify(check.details))}`);
    for (const check of warnings) say(`         warning ${check.id}: ${shorten(check.errorMessage)}`);
    if (!isPassed) failedScenarios.push(`${where}: ${scenario} (${failures.map(check => check.id).join(', ') || (hasPassed ? 'not accepted by the suite' : 'no check succeeded')})`);
    return isPassed;
}

const serverSide = async (revision, url) => {
    const { results, output } = await runSuite(['server', '--url', url, ...(scenarioArguments ? [...scenarioArguments, '--spec-version', revision] : ['--requirements', revision])]);
    if (options.verbose) say(output);
    return results;
};

/** Runs all required scenarios against the `{ url, stop() }` of `start(revision)`, once per revision. */
async function requirementsOf(title, start) {
    let [passCount, failCount] = [0, 0];
    for (const revision of REVISIONS) {
        const where = `${revision}, ${title}`;
        say(`\n${where}:`);
        const wanted = options.scenario ? [options.scenario] : (await requirements(revision)).server;
        let results = new Map();
        try {
            const subject = await start(revision);
            try {
                results = await serverSide(revision, subject.url);
            } finally {
                const log = subject.log?.();
                await subject.stop();
                if (options.verbose && log) say(`--- log ---\n${log}`);
            }
        } catch (error) {
            say(`         ${error.message}`);
        }
        for (const scenario of wanted) count(where, scenario, results.get(scenario)) ? passCount++ : failCount++;
        const extra = [...results.keys()].filter(scenario => !wanted.includes(scenario) && !scenario.startsWith('tasks-'));
        for (const scenario of extra) row('-', scenario, `not required: ${judge(results.get(scenario)).passed ? 'passes' : 'fails'}`);
    }
    return [passCount, failCount];
}

/**
 * Starts a gateway in front of a server, as `{ url, stop() }`. `early` waits only for /health and not for the connection to
 * the server.
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
    let [passCount, failCount] = [0, 0];
    for (const kind of kinds) {
        const [more, less] = await requirementsOf(`upstream ${kind} over ${name}`, revision => start(kind, revision));
        passCount += more;
        failCount += less;
    }
    say(`\nThrough the gateway, upstream over ${name}: ${passCount} of ${passCount + failCount}`);
}

/** Delays a local command until the suite has started. */
const delayed = server => ({ ...server, env: { FIXTURE_FROM: String(Date.now() + 3500) } });

/**
 * The suite gives one call of a client that supports elicitation 600 ms, in which the gateway would have to start a process of a
 * legacy server. A call with the same capabilities starts it before; it waits for the delayed command itself.
 */
async function startProcessForElicitation(url) {
    const peer = await connectPeer('modern', { http: new URL(url) }, { capabilities: { elicitation: { form: {} } } });
    await peer.call('test_simple_text', {});
    await peer.close();
}

async function stdioUpstream(kind, revision) {
    const gateway = await behindGateway(delayed(overStdio(kind)), undefined, { early: true });
    try {
        if (kind === 'legacy' && revision === '2026-07-28') await startProcessForElicitation(gateway.url);
        return gateway;
    } catch (error) {
        await gateway.stop();
        throw error;
    }
}

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
        assertListsComplete(revision, results);
        const where = `${revision}, against the gateway`;
        say(`\n${where}:`);
        for (const scenario of required[revision]) {
            count(where, scenario, results.get(scenario), untestable[scenario]);
            for (const [id, what] of Object.entries(untestable[scenario] ?? {})) say(`         not judged: ${id} needs ${what}`);
        }
        const others = [...results.keys()].filter(scenario => !required[revision].includes(scenario));
        for (const scenario of others) row('-', scenario, `not judged: needs ${needsFixture[scenario]}`);
    }
    say('\nNegative control, against a closed port (everything must fail except scenarios that only warn):');
    for (const revision of REVISIONS) {
        const closedPort = await startClosedPort();
        const results = await serverSide(revision, `http://127.0.0.1:${closedPort.port}/mcp`);
        await closedPort.close();
        const passing = [...results.keys()].filter(scenario => judge(results.get(scenario)).passed);
        const unexpected = passing.filter(scenario => !warnOnly.includes(scenario));
        const others = passing.filter(scenario => warnOnly.includes(scenario));
        unexpected.length === 0 ? passed++ : failed++;
        row(unexpected.length === 0 ? 'ok' : 'FAILED', revision, unexpected.length === 0 ? `${results.size - passing.length} of ${results.size} failed` : `passed against a closed port: ${unexpected}`);
        if (others.length) say(`         passed, because they only warn: ${others.join(', ')}`);
        if (unexpected.length) failedScenarios.push(`${revision}, negative control: ${unexpected}`);
    }
}

/** Checks that the lists of `expectations.mjs` name exactly the scenarios that ran. */
function assertListsComplete(revision, results) {
    const known = new Set([...required[revision], ...Object.keys(needsFixture)]);
    const unlisted = [...results.keys()].filter(scenario => !known.has(scenario));
    const missing = required[revision].filter(scenario => !results.has(scenario));
    if (!scenarioArguments && (unlisted.length || missing.length)) {
        throw new Error(`expectations.mjs does not match ${revision}: not listed ${unlisted}; listed but not run ${missing}`);
    }
}

async function tasks(nodes) {
    const where = `2026-07-28, tasks extension, through ${nodes ? 'three gateways' : 'the gateway'}`;
    say(`\n${where}:`);
    const upstream = await startTasksFixture();
    const subject = await behindGateway(overHttp(upstream.url), upstream, { nodes });
    try {
        await tasksAgainst(where, subject.url);
    } finally {
        const log = subject.log();
        await subject.stop();
        if (options.verbose) say(log);
    }
}

/** Returns true for long calls, which scenarios cancel or only read. */
const isLong = change => change.arguments.seconds > 30;

/** Approves every proposed change until the returned function is called. */
function approveAll(gateway) {
    let stopped = false;
    const work = (async () => {
        while (!stopped) {
            const { body } = await gateway.api('GET', '/changes?status=pending&limit=100');
            for (const change of body.changes.filter(change => !isLong(change))) {
                // The scenario may have withdrawn it meanwhile.
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
        // Only for clients that support tasks.
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

const clientsFolder = path.join(path.dirname(fileURLToPath(import.meta.url)), '../clients');
const clientScript = path.join(clientsFolder, 'suite-client.mjs');
const authorizedClientScript = path.join(clientsFolder, 'suite-auth-client.mjs');

async function client(env = {}, isIncluded = () => true) {
    for (const front of ['legacy', 'modern'].filter(era => era === (options.front ?? era))) {
        for (const revision of REVISIONS.filter(revision => isIncluded(front, revision))) {
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

/** The number of scenarios of authorization that run in parallel. */
const AUTHORIZED_AT_ONCE = 3;

async function auth() {
    const lists = { ...MORE_AUTHORIZATION };
    for (const revision of ['2025-11-25', '2026-07-28']) {
        lists[revision] = (await requirements(revision)).client.filter(scenario => scenario.startsWith('auth/'));
    }
    for (const [revision, scenarios] of Object.entries(lists).filter(([revision]) => revision === (options.revision ?? revision))) {
        const front = options.front ?? (revision.startsWith('2025') ? 'legacy' : 'modern');
        const where = `authorization of ${revision}, a ${front} client in front`;
        say(`\n${where}:`);
        const version = revision === 'extensions' ? [] : ['--spec-version', revision];
        const queue = scenarios.filter(name => name === (options.scenario ?? name));
        const runNext = async () => {
            for (let scenario; (scenario = queue.shift()); ) {
                const command = `${process.execPath} ${authorizedClientScript}`;
                const { results, output, code } = await runSuite(
                    ['client', '--command', command, '--scenario', scenario, ...version, '--timeout', '60000', '--verbose'],
                    { env: { FRONT: front } }
                );
                const isPassed = count(where, scenario, results.get(scenario), {}, code === 0);
                if (!isPassed || options.verbose) say(indent(output.slice(-6000)));
            }
        };
        await Promise.all(Array.from({ length: AUTHORIZED_AT_ONCE }, runNext));
    }
}

const indent = text => text.replace(/^/gm, '            | ');

async function direct() {
    for (const kind of ['both', 'legacy', 'modern', 'shim']) {
        const isIncluded = revision => kind === 'both' || (kind === 'modern') === (revision === '2026-07-28');
        for (const revision of REVISIONS.filter(isIncluded)) {
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
    stdio: () => matrix('stdio', KINDS, stdioUpstream),
    shim: () => matrix('HTTP', ['shim'], kind => overHttpUpstream(kind)),
    tasks: () => tasks(),
    own: () => own(),
    client: () => client(),
    auth,
    direct,
    script: () => client({ DIRECT: '1' }, (front, revision) => (front === 'modern') === (revision === '2026-07-28'))
};
const selected = positionals.length ? positionals : ['http', 'cluster', 'stdio', 'self', 'client', 'auth', 'tasks', 'own'];
const unknown = selected.find(name => !groups[name]);
if (unknown) throw new Error(`unknown group: ${unknown} (groups are: ${Object.keys(groups)})`);

/** The number of groups that run in parallel; each starts its own servers. */
const AT_ONCE = 2;
const queue = [...selected];
async function work() {
    for (let name; (name = queue.shift()); ) {
        const output = [];
        await lines.run(output, groups[name]).catch(error => {
            failed++;
            failedScenarios.push(`${name}: ${error.message.split('\n')[0]}`);
            output.push([error]);
        });
        for (const what of output) console.log(...what);
    }
}
await Promise.all(Array.from({ length: AT_ONCE }, work));

if (failedScenarios.length) say(`\nFailed:\n${failedScenarios.map(line => `  ${line}`).join('\n')}`);
say(`\n${passed} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
