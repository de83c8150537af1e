// Tests that real servers behave the same through the gateway as directly. All of them run behind one gateway as in the
// `mcpServers` block of a desktop client, used by an SDK client of each era.
import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';

import { startGatewayWith } from './fixture.mjs';
import { environment, temporaryData } from './gateway.mjs';
import { ALL_CAPABILITIES, connectPeer } from './peer.mjs';
import { SERVERS, prepare, withoutVolatile } from './servers.mjs';

const CAPABILITIES = { ...ALL_CAPABILITIES, elicitation: { form: {}, url: {} } };
const ANSWERS = {
    'elicitation/create': ({ mode }) => (mode === 'url' ? { action: 'accept' } : { action: 'accept', content: { name: 'Ada', check: true, integer: 7 } }),
    'sampling/createMessage': ({ messages }) => ({ role: 'assistant', model: 'm', content: { type: 'text', text: `heard: ${messages[0].content.text}` } }),
    'roots/list': () => ({ roots: [{ uri: 'file:///home/ada/work', name: 'work' }] })
};
const withoutMeta = ({ _meta, ttlMs, cacheScope, resultType, ...result }) => result;

/** Connects a peer that uses the server's own names, whatever prefix the gateway adds. */
async function connectTo(name, era, target, { prefix = '', scheme = '' } = {}) {
    const peer = await connectPeer(era, target, { capabilities: CAPABILITIES, answers: ANSWERS });
    const shown = uri => `${scheme}${uri}`;
    // In results a URI may have the form of the gateway or that of the server.
    const withOwnUris = value => (scheme ? JSON.parse(JSON.stringify(value).replaceAll(`"uri":"${scheme}`, '"uri":"')) : value);
    const strip = (list, key, start) => list.filter(item => item[key].startsWith(start)).map(item => ({ ...item, [key]: item[key].slice(start.length) }));
    const call = (tool, args, options) => peer.call(prefix + tool, args, options);
    return {
        ...peer,
        call,
        attempt: (tool, args, options) =>
            call(tool, args, options).then(
                result => withOwnUris(withoutMeta(result)),
                error => ({ error: error.code, message: error.message.replace(/^(MCP error -?\d+: )+/, '').replaceAll(prefix + tool, tool) })
            ),
        tools: async () => strip(await peer.tools(), 'name', prefix),
        prompts: async () => strip(await peer.prompts(), 'name', prefix),
        resources: async () => strip(await peer.resources(), 'uri', scheme),
        templates: async () => strip(await peer.templates(), 'uriTemplate', scheme),
        read: async uri => withOwnUris(withoutMeta(await peer.read(shown(uri)))),
        readShown: async uri => withOwnUris(withoutMeta(await peer.read(uri.startsWith(scheme) ? uri : shown(uri)))),
        prompt: async (prompt, args) => withOwnUris(withoutMeta(await peer.prompt(prefix + prompt, args))),
        completePrompt: (prompt, argument, value, args) =>
            peer.complete({ ref: { type: 'ref/prompt', name: prefix + prompt }, argument: { name: argument, value }, ...(args ? { context: { arguments: args } } : {}) }),
        watch: uri => peer.watch(shown(uri))
    };
}

/** Uses everything of a server, and records it together with the questions to the client. */
async function useAll(name, folder, connect) {
    await prepare(name, folder);
    const server = SERVERS[name];
    const peer = await connect();
    try {
        const record = async step => step && step.then(value => ({ value }), thrown => ({ thrown }));
        const definitions = await peer.tools();
        const used = withoutVolatile(await server.use(peer, folder));
        // Roots may be requested at any time, and only one era gives ids to opened pages.
        const asked = withoutVolatile(peer.asked.filter(({ method }) => method !== 'roots/list').map(({ elicitationId, ...question }) => question));
        const more = await record(server.more?.(peer));
        const updates = await record(server.updates?.(peer));
        const named = new Set(peer.named);
        return { named, definitions: Object.fromEntries(definitions.map(tool => [tool.name, tool])), used, asked, more, updates };
    } finally {
        await peer.close();
    }
}

/** Removes the field of definitions that only one era has. */
const withoutExecution = definitions => Object.fromEntries(Object.entries(definitions).map(([tool, { execution, ...definition }]) => [tool, definition]));

async function compare(t, actual, reference) {
    await t.test('every tool is listed with its definition', () => {
        assert.deepEqual(withoutExecution(actual.definitions), withoutExecution(reference.definitions));
    });
    await t.test('every tool behaves as with a direct connection', () => assert.deepEqual(actual.used, reference.used));
    await t.test('the same questions are asked, each naming its server', () => {
        assert.deepEqual(actual.asked, reference.asked);
        assert.deepEqual(reference.named, new Set([...reference.named].map(() => false)));
        assert.deepEqual(actual.named, new Set([...reference.named].map(() => true)));
    });
    for (const [title, key] of [['resources, prompts and completion are the same', 'more'], ['updates of subscribed resources arrive', 'updates']]) {
        if (!reference[key]) continue;
        await t.test(title, () => {
            if (actual[key].thrown) throw actual[key].thrown;
            assert.deepEqual(actual[key].value, reference[key].value);
        });
    }
}

const config = mcpServers => ({ policy: { default: 'allow' }, modules: { tracker: { enabled: false } }, mcpServers });
const NAMES = Object.keys(SERVERS);
const ERAS = ['legacy', 'modern'];

test('real servers behave the same through the gateway as directly', async t => {
    const base = await temporaryData();
    t.after(() => rm(base, { recursive: true, force: true }));
    const folders = Object.fromEntries(NAMES.map(name => [name, path.join(base, name)]));
    const entries = Object.fromEntries(NAMES.map(name => [name, SERVERS[name].entry(folders[name])]));
    const reference = {};
    for (const name of NAMES) {
        const { env, ...program } = entries[name];
        reference[name] = await useAll(name, folders[name], () => connectTo(name, 'legacy', { ...program, env: environment(env) }));
    }

    for (const era of ERAS) {
        await t.test(`all servers behind one gateway, used by a ${era} client`, async t => {
            const block = Object.fromEntries(NAMES.map(name => [name, { ...entries[name], required: true }]));
            // The configuration takes this value from the environment.
            block.everything.env = { EVERYTHING_MARK: '${COUNTERSIGN_TEST_MARK}' };
            const gateway = await startGatewayWith(config(block), { env: { COUNTERSIGN_TEST_MARK: 'seen', COUNTERSIGN_TEST_SECRET: 'must not leak' } });
            t.after(() => gateway.stop());
            for (const name of NAMES) {
                await t.test(name, async t => {
                    const shown = { prefix: `${name}__`, scheme: `${name}+` };
                    await compare(t, await useAll(name, folders[name], () => connectTo(name, era, { http: gateway.mcp }, shown)), reference[name]);
                });
            }
        });

        for (const [transport, location] of [['streamableHttp', '/mcp'], ['sse', '/sse']]) {
            await t.test(`server-everything over ${transport}, used by a ${era} client`, async t => {
                const server = await SERVERS.everything.listen(transport);
                t.after(() => server.stop());
                const gateway = await startGatewayWith(config({ everything: { url: `${server.url}${location}`, prefix: '', required: true } }));
                t.after(() => gateway.stop());
                const isOwn = tool => tool in reference.everything.definitions;
                const actual = await useAll('everything', folders.everything, async () => {
                    const peer = await connectTo('everything', era, { http: gateway.mcp });
                    const only = (list, key, names) => list.filter(item => names.includes(item[key]));
                    const prompts = reference.everything.more.value.prompts.map(prompt => prompt.name);
                    return {
                        ...peer,
                        // Without a prefix, the gateway's own names are in the same lists.
                        tools: async () => (await peer.tools()).filter(tool => isOwn(tool.name)),
                        prompts: async () => only(await peer.prompts(), 'name', prompts),
                        resources: async () => (await peer.resources()).filter(({ uri }) => uri.startsWith('demo://')),
                        templates: async () => (await peer.templates()).filter(({ uriTemplate }) => uriTemplate.startsWith('demo://'))
                    };
                });
                await compare(t, actual, reference.everything);
            });
        }
    }

    await t.test('a tool that runs as a task', async t => {
        const args = { name: 'simulate-research-query', arguments: { topic: 'bridges', ambiguous: true } };
        const { env, ...program } = entries.everything;
        const gateway = await startGatewayWith(config({ everything: { ...program, env, prefix: '', required: true } }));
        t.after(() => gateway.stop());
        const run = async target => {
            const peer = await connectPeer('legacy', target, {
                capabilities: CAPABILITIES,
                answers: { ...ANSWERS, 'elicitation/create': () => ({ action: 'accept', content: { interpretation: 'historical' } }) }
            });
            try {
                // The SDK must have listed the tool to know that it is a task.
                await peer.tools();
                const statuses = new Set();
                for await (const message of peer.client.experimental.tasks.callToolStream(args, undefined, { timeout: 30_000 })) {
                    if (message.type === 'taskStatus') statuses.add(message.task.status);
                    if (message.type === 'result') return { statuses: [...statuses], result: withoutMeta(message.result) };
                    if (message.type === 'error') throw message.error;
                }
            } finally {
                await peer.close();
            }
        };
        const expected = await run({ ...program, env: environment(env) });
        assert.match(expected.result.content[0].text, /historical/);
        await t.test('a legacy client gets a task through the gateway too', async () => assert.deepEqual(await run({ http: gateway.mcp }), expected));
        await t.test('a modern client without the extension gets the result', async () => {
            const peer = await connectPeer('modern', { http: gateway.mcp }, { capabilities: CAPABILITIES, answers: { ...ANSWERS, 'elicitation/create': () => ({ action: 'accept', content: { interpretation: 'historical' } }) } });
            const result = await peer.call(args.name, args.arguments, { timeout: 30_000 }).then(withoutMeta);
            await peer.close();
            assert.deepEqual(result, expected.result);
        });
        await t.test('an approved call runs as a task', async t => {
            const everything = { ...program, env, prefix: '', required: true };
            const gateway = await startGatewayWith({ ...config({ everything }), policy: { default: 'review_all' } });
            t.after(() => gateway.stop());
            const body = JSON.stringify({ topic: 'bridges' });
            const answer = await fetch(`${gateway.url}/tools/${args.name}`, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
            const { changeId } = (await answer.json()).structuredContent;
            await gateway.approve(changeId);
            assert.match(JSON.stringify((await gateway.reached(changeId, 'applied')).result), /bridges/);
        });
    });
});
