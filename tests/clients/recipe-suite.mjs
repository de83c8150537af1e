// What the suites of shipped recipes have in common: they try each recipe with the real server of a vendor on a fake with state.
import assert from 'node:assert/strict';
import { after } from 'node:test';

import { startGatewayWith } from './fixture.mjs';
import { eventually } from './gateway.mjs';
import { connectPeer } from './peer.mjs';
import { checkReads } from './read-lists.mjs';
import { VENDORS } from './vendors.mjs';

const MARKS = { equal: ' ', note: ' ', insert: '+', delete: '-', skip: '@' };

/** Returns what a field shows: marked lines, or the value before and after. */
function shownLines({ lines, before, after }) {
    if (lines) return lines.map(({ op, text }) => `${MARKS[op]}${text}`);
    return [before, after].flatMap((value, n) => ((value ?? null) === null ? [] : `${'-+'[n]}${value}`));
}

/** Asserts that the change shows these lines by the labels of its fields. */
export function assertShows(change, shows) {
    for (const [label, lines] of Object.entries(shows)) {
        const fields = change.diff.fields.filter(field => field.label === label);
        assert.ok(fields.length > 0, `${label} is not among ${change.diff.fields.map(field => field.label)}: ${JSON.stringify(change.preview)}`);
        const shown = fields.flatMap(shownLines);
        for (const line of lines) assert.ok(shown.includes(line), `${label} does not show ${JSON.stringify(line)}: ${JSON.stringify(shown)}`);
    }
}

/**
 * Starts a gateway in front of the vendor's server, whose tools keep their names, and of fakes, the first of which is `fake`.
 * `propose` and `apply` make a change and run it, and `call` calls a tool as an agent. `reviewed` are tools that say that they only
 * read. `settings` are further settings of the gateway, and `entrySettings` of the server. `listen` is the gateway's address.
 * The known reads of the server are compared with its definitions.
 */
export async function startBehind(t, vendor, { reviewed = [], settings = {}, entrySettings = {}, listen } = {}) {
    const { set, package: name, wrongReads, start } = VENDORS[vendor];
    const { fakes, entry, stop } = await start();
    t.after(stop);
    // Without questions, the slow server is not started once more to see whether it lists other tools then.
    const server = { ...entry, prefix: '', required: true, trust_annotations: true, elicitation: 'deny', sampling: 'deny', previews: set, ...entrySettings };
    const policy = { rules: reviewed.map(tools => ({ tools, then: 'review' })) };
    const gateway = await startGatewayWith({ modules: { tracker: { enabled: false } }, policy, mcpServers: { [set]: server }, ...settings }, { listen });
    t.after(() => gateway.stop());
    // An agent that answers questions would have a process of its own, which starts slowly, and whose browser no approved change sees.
    const peer = await connectPeer('modern', { http: gateway.mcp }, { capabilities: {} });
    t.after(() => peer.close());
    await eventually('the tools are listed', async () => ((await gateway.api('GET', `/servers/${set}`)).body.tools?.length ?? 0) > 0);
    const definitions = (await gateway.api('GET', `/servers/${set}`)).body.tools;
    if (name) await checkReads(set, [name], definitions, wrongReads);
    const propose = async (tool, args) => {
        const answer = await peer.call(tool, args);
        assert.equal(answer.structuredContent?.status, 'pending', JSON.stringify(answer));
        return gateway.change(answer.structuredContent.changeId);
    };
    /** Approves the change and returns it as it was read back. */
    const apply = async change => {
        await gateway.approve(change.id);
        await gateway.reached(change.id, 'applied');
        return eventually(`change ${change.id} is read back`, async () => {
            const now = await gateway.change(change.id);
            return now.verification?.verified !== 'not_read' && now;
        });
    };
    const writes = () => fakes.flatMap(fake => fake.writes);
    const behave = mode => fakes.forEach(fake => (fake.mode = mode));
    const call = (tool, args) => peer.call(tool, args);
    return { fake: fakes[0], fakes, gateway, peer, definitions, call, propose, apply, writes, behave };
}

/**
 * Returns a function that starts the vendor's server at its first call, and returns what `startBehind` does. The tests of a file
 * share the server; each call returns the fakes to their first state.
 */
export function shareServer(vendor) {
    const stops = [];
    const t = { after: stop => stops.push(stop) };
    let behind;
    after(async () => {
        for (const stop of stops) await stop();
    });
    return async () => {
        behind ??= startBehind(t, vendor);
        for (const fake of (await behind).fakes) fake.reset();
        return behind;
    };
}

const given = (args, fakes) => (typeof args === 'function' ? args(...fakes.map(({ state }) => state)) : args);

/**
 * Makes each call: `[tool, "tool, variant" or "tool/operation", arguments, what the review shows by label, effect, options]`.
 * Arguments can be a function of the states of the fakes. The effect is a function of them that returns what is there and what
 * should be, or promises it. With the option `isReadBack: false`, no tool reads the state after the call; `wrong` says which
 * annotation of the definition is wrong.
 */
export async function tryCalls(t, { fakes, propose, apply, writes }, calls, tried) {
    for (const [name, args, shows, effect, { isReadBack = true, wrong } = {}] of calls) {
        const [tool] = name.split(/[,/]/);
        await t.test(name, async () => {
            const change = await propose(tool, await given(args, fakes));
            assert.equal(change.preview.failed, undefined);
            assertShows(change, shows);
            const before = writes().length;
            const applied = await apply(change);
            assert.ok(writes().length > before, 'nothing was written');
            const [actual, expected] = await effect(...fakes.map(({ state }) => state));
            assert.deepEqual(actual, expected);
            assert.equal(applied.verification?.verified, isReadBack ? 'matches' : undefined, JSON.stringify(applied.verification));
            tried.add(name, applied, { wrong });
        });
    }
}

/** Proposes each call: `[tool, arguments, what the review shows by label]`, among them arguments that its recipe does not name. */
export async function tryUnnamedArguments(t, { fakes, propose }, cases) {
    for (const [tool, args, shows] of cases) {
        await t.test(`${tool} shows ${Object.keys(shows).join(' and ')}`, async () => {
            const change = await propose(tool, await given(args, fakes));
            assert.equal(change.preview.failed, undefined);
            assert.equal(change.preview.kind, 'before_after');
            assertShows(change, shows);
        });
    }
}

/** Makes each change stale: `[tool, arguments, what somebody else does to the states, what the new review shows]`. */
export async function tryConcurrentChanges(t, { fakes, gateway, propose, writes }, cases) {
    const before = writes().length;
    for (const [tool, args, meanwhile, shows] of cases) {
        await t.test(`${tool} becomes stale`, async () => {
            const { id, version, digest } = await propose(tool, await given(args, fakes));
            await meanwhile(...fakes.map(({ state }) => state));
            const refused = await gateway.api('POST', `/changes/${id}/decision`, { decision: 'approve', version, digest });
            assert.equal(refused.status, 409, JSON.stringify(refused.body));
            assert.equal(refused.body.code, 'CHANGE_STALE');
            assertShows(refused.body.change, shows);
        });
    }
    assert.equal(writes().length, before);
}

/** Proposes each call while the fakes misbehave: `[tool, arguments, mode, pattern of the reason why there is no preview]`. */
export async function tryStrangeAnswers(t, { fakes, propose, writes, behave }, cases) {
    const before = writes().length;
    for (const [tool, args, mode, expected] of cases) {
        await t.test(`${tool} has no preview: ${mode}`, async () => {
            behave(mode);
            const change = await propose(tool, await given(args, fakes)).finally(() => behave('normal'));
            assert.match(change.preview.failed ?? 'it did not fail', expected);
            assert.equal(change.preview.kind, 'arguments');
        });
    }
    assert.equal(writes().length, before);
}

/** Applies each call, `[tool, arguments]`, which the fakes accept without doing anything. */
export async function trySilentWrites(t, { fakes, propose, apply, behave }, cases) {
    for (const [tool, args] of cases) {
        await t.test(`${tool} does nothing, which is noticed`, async () => {
            const change = await propose(tool, await given(args, fakes));
            behave('silent');
            const { verification } = await apply(change).finally(() => behave('normal'));
            assert.equal(verification?.verified, 'differs', JSON.stringify(verification));
        });
    }
}
