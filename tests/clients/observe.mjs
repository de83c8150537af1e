// Records what a client sees of the fixture server, so that a direct connection and one through the gateway can be compared.
// The record is the same for every era of the server; what may differ is left out.
import assert from 'node:assert/strict';

import { connectPeer } from './peer.mjs';
import { eventually } from './gateway.mjs';

const WATCHED = 'test://watched-resource';

/** Removes the server info and the cache hints, which differ because the gateway answers in its own name. */
function withoutServerInfo(value) {
    const { _meta, ttlMs, cacheScope, resultType, ...rest } = value;
    const { 'io.modelcontextprotocol/serverInfo': _, ...meta } = _meta ?? {};
    return Object.keys(meta).length ? { ...rest, _meta: meta } : rest;
}

/** Returns the parts of an error that clients can compare; SDKs prefix the message. */
const failure = error => ({ error: error.code, data: error.data, message: error.message.replace(/^MCP error -?\d+: /, '') });
const attempt = promise => promise.then(withoutServerInfo, failure);
const sorted = list => [...list].sort((a, b) => JSON.stringify(a).localeCompare(JSON.stringify(b)));
const byName = list => Object.fromEntries(list.map(item => [item.name, item]));

/** The tools that are called once, with their arguments. */
const CALLS = [
    ['test_simple_text', {}],
    ['test_simple_text', undefined],
    ['test_image_content', {}],
    ['test_audio_content', {}],
    ['test_embedded_resource', {}],
    ['test_multiple_content_types', {}],
    ['test_error_handling', {}],
    ['json_schema_2020_12_tool', { name: 'Ada', contactMethod: 'phone', phone: '1' }],
    ['test_header_parameter', { region: 'zürich ', priority: 42, dry: false, note: 'not a header' }],
    ['test_header_parameter', { region: 'eu', dry: null }],
    ['echo', { nested: { list: [1, 2.5, 'ü', null, true], empty: {} }, text: 'line\nbreak' }],
    ['structured', { city: 'Oslo' }],
    ['linked', {}],
    ['refuse', { code: 1234 }],
    ['refuse', { code: -32602 }],
    ['refuse', { code: -32603 }],
    // These tools ask the client.
    ['test_elicitation', { message: 'Who are you?' }],
    ['test_elicitation_sep1034_defaults', {}],
    ['test_elicitation_sep1330_enums', {}],
    ['test_sampling', { prompt: 'Say hello' }],
    ['test_input_required_result_elicitation', {}],
    ['test_input_required_result_sampling', {}],
    ['test_input_required_result_list_roots', {}],
    ['test_input_required_result_request_state', {}],
    ['test_input_required_result_multiple_inputs', {}],
    ['test_input_required_result_multi_round', {}],
    ['test_input_required_result_tampered_state', {}],
    ['test_input_required_result_capabilities', {}],
    ['test_streaming_elicitation', {}],
    ['test_missing_capability', {}]
];

/** The steps as `[name, step]`, which run in this order over one connection. Each returns what it saw. */
export const STEPS = [
    ['lists', async peer => {
        const [tools, prompts, resources, templates] = [await peer.tools(), await peer.prompts(), await peer.resources(), await peer.templates()];
        assert.deepEqual((await peer.tools()).map(tool => tool.name), tools.map(tool => tool.name), 'the order stays');
        return { tools: byName(tools), prompts: byName(prompts), resources: byName(resources), templates: byName(templates) };
    }],
    ...CALLS.map(([name, args], index) => [`call ${index} of ${name}`, async peer => {
        const before = peer.asked.length;
        const result = await attempt(peer.call(name, args));
        return { result, asked: sorted(peer.asked.slice(before)) };
    }]),
    ['progress', async peer => {
        const progress = [];
        const result = await attempt(peer.call('test_tool_with_progress', {}, { onprogress: update => progress.push(update) }));
        return { result, progress };
    }],
    ['logging', async peer => {
        const logsOf = async options => {
            const before = peer.logs.length;
            await peer.call('test_tool_with_logging', {}, options);
            return peer.logs.slice(before).map(({ level, data }) => ({ level, data }));
        };
        return { info: await logsOf({ level: 'info' }), error: await logsOf({ level: 'error' }) };
    }],
    ['prompts', async peer => {
        const before = peer.asked.length;
        const results = [];
        for (const [name, args] of [
            ['test_simple_prompt', undefined],
            ['test_prompt_with_arguments', { arg1: 'a', arg2: 'ü b' }],
            ['test_prompt_with_embedded_resource', { resourceUri: 'test://static-text' }],
            ['test_prompt_with_image', undefined],
            ['test_input_required_result_prompt', undefined],
            ['test_prompt_with_arguments', { arg1: 'only one' }]
        ]) {
            results.push(await attempt(peer.prompt(name, args)));
        }
        return { results, asked: peer.asked.slice(before) };
    }],
    ['resources', async peer => {
        const before = peer.asked.length;
        const results = [];
        for (const uri of ['test://static-text', 'test://static-binary', 'test://template/a%20b/data', 'test://guarded', 'test://nowhere']) {
            const { message, ...answer } = await attempt(peer.read(uri));
            // A missing resource has the code -32002 before 2026-07-28, but the SDK 2.x uses the new one for both eras.
            if (!peer.modern && answer.error === -32002) answer.error = -32602;
            results.push(answer);
        }
        return { results, asked: peer.asked.slice(before) };
    }],
    ['completion', async peer => [
        await attempt(peer.complete({ ref: { type: 'ref/prompt', name: 'test_prompt_with_arguments' }, argument: { name: 'arg1', value: 'pa' } })),
        await attempt(peer.complete({
            ref: { type: 'ref/prompt', name: 'test_prompt_with_arguments' },
            argument: { name: 'arg2', value: 'r' },
            context: { arguments: { arg1: 'pa' } }
        })),
        await attempt(peer.complete({ ref: { type: 'ref/resource', uri: 'test://template/{id}/data' }, argument: { name: 'id', value: 'q' } }))
    ]],
    ['subscriptions', async peer => {
        const stop = await peer.watch(WATCHED);
        const { content } = await peer.call('touch', {});
        await eventually('an update of the resource', () => peer.updated.includes(WATCHED));
        const [read] = (await peer.read(WATCHED)).contents;
        assert.ok(read.text.endsWith(content[0].text), `${read.text} against ${content[0].text}`);
        const has = async name => (await peer.tools()).some(tool => tool.name === name);
        const seen = [await has('test_extra_tool')];
        for (const round of [1, 2]) {
            await peer.call('test_trigger_tool_change', {});
            await eventually(`change ${round} of the tools`, () => peer.changed.filter(kind => kind === 'tools').length >= round);
            seen.push(await has('test_extra_tool'));
        }
        // Waits for both changes, because a change that is undone before it is read is not noticed by the next client.
        for (const round of [1, 2]) {
            await peer.call('test_trigger_prompt_change', {});
            await eventually(`change ${round} of the prompts`, () => peer.changed.filter(kind => kind === 'prompts').length >= round);
        }
        await stop();
        assert.deepEqual(seen, [false, true, false]);
        return { updated: [...new Set(peer.updated)] };
    }],
    ['cancellation', async peer => {
        const cancelled = async () => JSON.parse((await peer.call('state', {})).content[0].text).cancelled;
        const before = await cancelled();
        const abort = new AbortController();
        const progress = [];
        const call = peer.call('slow', {}, { signal: abort.signal, onprogress: ({ progress: step }) => progress.push(step) });
        call.catch(() => undefined);
        await eventually('progress while the call runs', () => progress.length >= 2);
        abort.abort('enough');
        await assert.rejects(call);
        await eventually('the server hears of the cancellation', async () => (await cancelled()) === before + 1);
        assert.deepEqual(progress, [...progress].sort((a, b) => a - b), 'progress rises');
        return 'cancelled';
    }],
    // The gateway reports unknown names with its own message.
    ['unknown names', async peer => [
        (await attempt(peer.call('no_such_tool', {}))).error,
        (await attempt(peer.prompt('no_such_prompt'))).error,
        (await attempt(peer.complete({ ref: { type: 'ref/prompt', name: 'no_such_prompt' }, argument: { name: 'a', value: '' } }))).error
    ]],
    // The SDKs differ in who resumes a stream that has ended. Progress that the server sent before a cancellation may still arrive,
    // for a call that the SDK no longer knows.
    ['nothing was unreadable', async peer => peer.errors.map(error => error.message).filter(message => !/SSE stream|reconnection attempts|unknown token: .*"message":"step \d+"/.test(message))]
];

/** Steps with fewer capabilities or declined questions, as `[name, step]`. Each connects with `connect(options)`. */
export const LIMITED_STEPS = [
    ['declining', async connect => {
        const peer = await connect({ answers: { 'elicitation/create': () => ({ action: 'decline' }) }, capabilities: { elicitation: { form: {} } } });
        const result = await attempt(peer.call('test_elicitation', { message: 'May I?' }));
        await peer.close();
        return result;
    }],
    ['two at once', async connect => {
        const answerWith = name => ({
            capabilities: { elicitation: { form: {} } },
            answers: { 'elicitation/create': () => ({ action: 'accept', content: { response: name } }) }
        });
        const peers = [await connect(answerWith('Ann')), await connect(answerWith('Bob'))];
        const results = await Promise.all(peers.map(async peer => [
            await attempt(peer.call('test_elicitation', { message: 'Who?' })),
            await attempt(peer.call('test_elicitation', { message: 'Who again?' }))
        ]));
        for (const peer of peers) await peer.close();
        return results;
    }],
    ['only sampling', async connect => {
        const peer = await connect({ capabilities: { sampling: {} } });
        const result = await attempt(peer.call('test_input_required_result_capabilities', {}));
        await peer.close();
        return { result, asked: peer.asked.map(({ method }) => method) };
    }],
    ['no capability at all', async connect => {
        const peer = await connect({ capabilities: {} });
        const { capabilities } = JSON.parse((await peer.call('whoami', {})).content[0].text);
        const declared = ['elicitation', 'sampling', 'roots'].filter(name => capabilities[name]);
        const answers = [];
        // One era reports a protocol error, the other an error of the tool.
        for (const [name, args] of [['test_elicitation', { message: 'Anybody?' }], ['test_sampling', { prompt: 'Anybody?' }], ['test_input_required_result_list_roots', {}]]) {
            const answer = await attempt(peer.call(name, args));
            answers.push({ name, refused: answer.isError === true || answer.error === -32021 });
        }
        await peer.close();
        return { declared, answers };
    }]
];

/** Runs all steps. Returns a map from each step to its value or error. */
export async function observe(connect) {
    const seen = new Map();
    const note = async (name, step) => seen.set(name, await step.then(value => ({ value: structuredClone(value) }), error => ({ thrown: error })));
    const peer = await connect();
    for (const [name, step] of STEPS) await note(name, step(peer));
    await peer.close();
    for (const [name, step] of LIMITED_STEPS) await note(name, step(connect));
    return seen;
}

export const observer = (era, target) => observe(options => connectPeer(era, target(), options));
