// Servers that people really use, all at once behind one gateway as in the `mcpServers` block of a desktop client, used by
// an SDK client of each era; what they answer is compared with what they answer directly.
import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';

import { startGatewayWith } from './fixture.mjs';
import { environment, temporaryData } from './gateway.mjs';
import { CAPABLE, connectPeer } from './peer.mjs';
import { SERVERS, prepare, steady } from './servers.mjs';

const CAPABILITIES = { ...CAPABLE, elicitation: { form: {}, url: {} } };
const ANSWERS = {
    'elicitation/create': ({ mode }) => (mode === 'url' ? { action: 'accept' } : { action: 'accept', content: { name: 'Ada', check: true, integer: 7 } }),
    'sampling/createMessage': ({ messages }) => ({ role: 'assistant', model: 'm', content: { type: 'text', text: `heard: ${messages[0].content.text}` } }),
    'roots/list': () => ({ roots: [{ uri: 'file:///home/ada/work', name: 'work' }] })
};
const text = ({ _meta, ttlMs, cacheScope, resultType, ...result }) => result;

/** A peer that speaks in the server's own names, whatever the gateway shows them as. */
async function connectTo(name, era, where, { prefix = '', scheme = '' } = {}) {
    const peer = await connectPeer(era, where, { capabilities: CAPABILITIES, answers: ANSWERS });
    const shown = uri => `${scheme}${uri}`;
    // In results a URI may come as the gateway shows it or as the server wrote it.
    const own = value => (scheme ? JSON.parse(JSON.stringify(value).replaceAll(`"uri":"${scheme}`, '"uri":"')) : value);
    const strip = (list, key, start) => list.filter(item => item[key].startsWith(start)).map(item => ({ ...item, [key]: item[key].slice(start.length) }));
    const call = (tool, args, options) => peer.call(prefix + tool, args, options);
    return {
        ...peer,
        call,
        attempt: (tool, args, options) =>
            call(tool, args, options).then(
                result => own(text(result)),
                error => ({ error: error.code, message: error.message.replace(/^(MCP error -?\d+: )+/, '').replaceAll(prefix + tool, tool) })
            ),
        tools: async () => strip(await peer.tools(), 'name', prefix),
        prompts: async () => strip(await peer.prompts(), 'name', prefix),
        resources: async () => strip(await peer.resources(), 'uri', scheme),
        templates: async () => strip(await peer.templates(), 'uriTemplate', scheme),
        read: async uri => own(text(await peer.read(shown(uri)))),
        readShown: async uri => own(text(await peer.read(uri.startsWith(scheme) ? uri : shown(uri)))),
        prompt: async (prompt, args) => own(text(await peer.prompt(prefix + prompt, args))),
        completePrompt: (prompt, argument, value, args) =>
            peer.complete({ ref: { type: 'ref/prompt', name: prefix + prompt }, argument: { name: argument, value }, ...(args ? { context: { arguments: args } } : {}) }),
        watch: uri => peer.watch(shown(uri))
    };
}

/** All that a client does with a server, and what it was asked meanwhile. */
async function useAll(name, folder, connect) {
    await prepare(name, folder);
    const server = SERVERS[name];
    const peer = await connect();
    try {
        const seen = async step => step && step.then(value => ({ value }), thrown => ({ thrown }));
        const definitions = await peer.tools();
        const used = steady(await server.use(peer, folder));
        // Roots may be asked for at any time, and only one era gives ids to what is opened elsewhere.
        const asked = steady(peer.asked.filter(({ method }) => method !== 'roots/list').map(({ elicitationId, ...question }) => question));
        const more = await seen(server.more?.(peer));
        const updates = await seen(server.updates?.(peer));
        const named = new Set(peer.named);
        return { named, definitions: Object.fromEntries(definitions.map(tool => [tool.name, tool])), used, asked, more, updates };
    } finally {
        await peer.close();
    }
}

/** Definitions without what one era does not have. */
const plain = definitions => Object.fromEntries(Object.entries(definitions).map(([tool, { execution, ...definition }]) => [tool, definition]));

async function compare(t, seen, reference) {
    await t.test('every tool is listed, and described as the server describes it', () => {
        assert.deepEqual(plain(seen.definitions), plain(reference.definitions));
    });
    await t.test('every tool behaves as it does directly', () => assert.deepEqual(seen.used, reference.used));
    await t.test('asks the same, and each question says who asks', () => {
        assert.deepEqual(seen.asked, reference.asked);
        assert.deepEqual(reference.named, new Set([...reference.named].map(() => false)));
        assert.deepEqual(seen.named, new Set([...reference.named].map(() => true)));
    });
    for (const [title, key] of [['resources, prompts, completion', 'more'], ['updates of what the session subscribed to', 'updates']]) {
        if (!reference[key]) continue;
        await t.test(title, () => {
            if (seen[key].thrown) throw seen[key].thrown;
            assert.deepEqual(seen[key].value, reference[key].value);
        });
    }
}

const config = mcpServers => ({ policy: { default: 'allow' }, modules: { tracker: { enabled: false } }, mcpServers });
const NAMES = Object.keys(SERVERS);
const ERAS = ['legacy', 'modern'];

test('real servers', async t => {
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
        await t.test(`all at once, as a desktop client has them, used by a ${era} client`, async t => {
            const block = Object.fromEntries(NAMES.map(name => [name, { ...entries[name], required: true }]));
            // What a configuration takes from the environment.
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
                const own = tool => tool in reference.everything.definitions;
                const seen = await useAll('everything', folders.everything, async () => {
                    const peer = await connectTo('everything', era, { http: gateway.mcp });
                    const only = (list, key, names) => list.filter(item => names.includes(item[key]));
                    const prompts = reference.everything.more.value.prompts.map(prompt => prompt.name);
                    return {
                        ...peer,
                        // With names as they are, the gateway's own stand among them.
                        tools: async () => (await peer.tools()).filter(tool => own(tool.name)),
                        prompts: async () => only(await peer.prompts(), 'name', prompts),
                        resources: async () => (await peer.resources()).filter(({ uri }) => uri.startsWith('demo://')),
                        templates: async () => (await peer.templates()).filter(({ uriTemplate }) => uriTemplate.startsWith('demo://'))
                    };
                });
                await compare(t, seen, reference.everything);
            });
        }
    }

    await t.test('the tool that is a task', async t => {
        const args = { name: 'simulate-research-query', arguments: { topic: 'bridges', ambiguous: true } };
        const { env, ...program } = entries.everything;
        const gateway = await startGatewayWith(config({ everything: { ...program, env, prefix: '', required: true } }));
        t.after(() => gateway.stop());
        const run = async where => {
            const peer = await connectPeer('legacy', where, {
                capabilities: CAPABILITIES,
                answers: { ...ANSWERS, 'elicitation/create': () => ({ action: 'accept', content: { interpretation: 'historical' } }) }
            });
            try {
                // The SDK must have seen the tool to know that it is a task.
                await peer.tools();
                const statuses = new Set();
                for await (const message of peer.client.experimental.tasks.callToolStream(args, undefined, { timeout: 30_000 })) {
                    if (message.type === 'taskStatus') statuses.add(message.task.status);
                    if (message.type === 'result') return { statuses: [...statuses], result: text(message.result) };
                    if (message.type === 'error') throw message.error;
                }
            } finally {
                await peer.close();
            }
        };
        const expected = await run({ ...program, env: environment(env) });
        assert.match(expected.result.content[0].text, /historical/);
        await t.test('with a legacy client it is one through the gateway too', async () => assert.deepEqual(await run({ http: gateway.mcp }), expected));
        await t.test('a client of today without the extension gets the result, or hears what it lacks', async () => {
            const peer = await connectPeer('modern', { http: gateway.mcp }, { capabilities: CAPABILITIES, answers: { ...ANSWERS, 'elicitation/create': () => ({ action: 'accept', content: { interpretation: 'historical' } }) } });
            const outcome = await peer.call(args.name, args.arguments, { timeout: 30_000 }).then(text, error => ({ error: error.code }));
            await peer.close();
            if (outcome.error !== undefined) assert.equal(outcome.error, -32021);
            else assert.deepEqual(outcome, expected.result);
        });
    });
});
