// Tests the TypeScript SDK v2 (`@modelcontextprotocol/client`): 2026-07-28 over HTTP, stdio and WebSocket, and legacy mode.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Client, LOG_LEVEL_META_KEY, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

import { Gateway, LISTEN, binary, environment, eventually, followSending, publishedPort, startGateway, startRelay, temporaryData } from './gateway.mjs';
import { firstProject, propose, runJourney, waitUntilFinal } from './journey.mjs';
import { WebSocketTransport } from './websocket.mjs';

const NAME = 'ts-sdk-v2';
const MODERN = '2026-07-28';

async function connect(transport, label, mode) {
    const client = new Client({ name: NAME, version: '2.0.0' }, { capabilities: {}, versionNegotiation: { mode } });
    const errors = [];
    client.onerror = error => errors.push(error);
    const waitUntilSent = followSending(transport);
    await client.connect(transport);
    const modern = client.getProtocolEra() === 'modern';
    const watchers = new Set();
    client.setNotificationHandler('notifications/resources/updated', ({ params }) => {
        for (const watcher of watchers) watcher(params.uri);
    });
    const fresh = { cacheMode: 'refresh' };
    return {
        client,
        transport,
        waitUntilSent,
        label,
        modern,
        errors,
        name: NAME,
        server: () => client.getServerVersion(),
        capabilities: () => client.getServerCapabilities(),
        ping: () => client.ping(),
        call: (name, args, options) => client.callTool({ name, arguments: args }, options),
        listTools: async () => (await client.listTools(undefined, fresh)).tools,
        listResources: async () => (await client.listResources(undefined, fresh)).resources,
        listTemplates: async () => (await client.listResourceTemplates(undefined, fresh)).resourceTemplates,
        readResource: uri => client.readResource({ uri }, fresh),
        async watch(uris, seen) {
            watchers.add(seen);
            if (modern) {
                const subscription = await client.listen({ resourceSubscriptions: uris });
                assert.deepEqual(subscription.honoredFilter.resourceSubscriptions, uris);
                return async () => {
                    watchers.delete(seen);
                    await subscription.close();
                    assert.equal(await subscription.closed, 'local');
                };
            }
            for (const uri of uris) await client.subscribeResource({ uri });
            return async () => {
                watchers.delete(seen);
                for (const uri of uris) await client.unsubscribeResource({ uri });
            };
        },
        close: () => client.close()
    };
}

test('TypeScript SDK v2', async t => {
    const gateway = await startGateway();
    t.after(() => gateway.stop());
    const stdio = () => new StdioClientTransport({ command: binary, args: ['stdio', '--data', gateway.data], env: environment(), stderr: 'ignore' });
    const http = () => new StreamableHTTPClientTransport(gateway.mcp);
    const ws = () => new WebSocketTransport(gateway.url.replace('http', 'ws') + '/ws');

    for (const [label, transport, mode] of [
        ['2026-07-28 over HTTP', http, { pin: MODERN }],
        ['2026-07-28 over stdio', stdio, 'auto'],
        ['2026-07-28 over WebSocket', ws, { pin: MODERN }],
        ['legacy over HTTP', http, 'legacy'],
        ['legacy over stdio', stdio, 'legacy']
    ]) {
        await t.test(label, async t => {
            const client = await connect(transport(), label, mode);
            t.after(() => client.close());
            await t.test('the expected era is negotiated', () => {
                assert.equal(client.modern, mode !== 'legacy');
                assert.equal(client.client.getNegotiatedProtocolVersion(), mode === 'legacy' ? '2025-11-25' : MODERN);
            });
            await runJourney(t, client, gateway);
            await t.test('the SDK could read every message', () => assert.deepEqual(client.errors, []));
        });
    }

    await t.test('automatic negotiation over HTTP selects the modern era', async () => {
        const client = await connect(http(), 'auto', 'auto');
        assert.equal(client.client.getProtocolEra(), 'modern');
        const { supportedVersions, capabilities } = client.client.getDiscoverResult();
        assert.ok(supportedVersions.includes(MODERN));
        assert.ok(capabilities.tools);
        assert.equal(client.transport.sessionId, undefined, 'the modern era has no session id');
        await client.close();
    });

    await t.test('a log level on a request is accepted', async () => {
        const client = await connect(http(), 'log level', { pin: MODERN });
        const result = await client.client.callTool({ name: 'list_projects', arguments: {}, _meta: { [LOG_LEVEL_META_KEY]: 'debug' } });
        assert.notEqual(result.isError, true);
        await client.close();
    });

    await t.test('a listen stream ends gracefully when the gateway ends', async t => {
        const separate = await startGateway();
        t.after(() => separate.stop());
        const client = await connect(new StreamableHTTPClientTransport(separate.mcp), 'shutdown', { pin: MODERN });
        const subscription = await client.client.listen({ resourcesListChanged: true });
        separate.terminate();
        assert.equal(await subscription.closed, 'graceful');
        await client.close();
    });

    await t.test('a new project announces the changed list of resources', async t => {
        const client = await connect(http(), 'list changed', { pin: MODERN });
        t.after(() => client.close());
        if (!client.capabilities().resources.listChanged) assert.fail('resources.listChanged is not advertised');
        let changed = 0;
        client.client.setNotificationHandler('notifications/resources/list_changed', () => void changed++);
        const subscription = await client.client.listen({ resourcesListChanged: true });
        const result = await client.call('create_project', { name: 'Listened to', key: 'LIST' });
        await gateway.approve(result.structuredContent.changeId);
        await eventually('resources/list_changed', () => changed > 0);
        await subscription.close();
    });

    await t.test('a standalone stdio gateway serves a modern client', async t => {
        const data = await temporaryData();
        const transport = new StdioClientTransport({
            command: binary,
            args: ['stdio', '--standalone', '--listen', LISTEN, '--data', data],
            env: environment(),
            stderr: 'ignore'
        });
        const client = await connect(transport, 'stdio, standalone', { pin: MODERN });
        t.after(() => client.close());
        const port = await publishedPort(data, transport.pid);
        const reviewer = new Gateway({ port, data, log: () => '' });
        await reviewer.waitHealthy();
        reviewer.key = await reviewer.createKey('reviewer', 'alice');
        const project = await firstProject(client);
        const { changeId } = await propose(client, project.id, 'Standalone');
        await reviewer.approve(changeId);
        assert.equal((await waitUntilFinal(client, changeId)).status, 'applied');
    });

    await t.test('a cut connection of a legacy client resumes without loss', async t => {
        const relay = await startRelay(gateway.port);
        t.after(() => relay.close());
        const client = await connect(new StreamableHTTPClientTransport(new URL(`http://127.0.0.1:${relay.port}/mcp`)), 'relay', 'legacy');
        t.after(() => client.close());
        const project = await firstProject(client);
        const { changeId } = await propose(client, project.id, 'Approved while the line was cut, v2');
        let tokens = 0;
        const waiting = client.call('wait_for_change', { changeId }, { onprogress: () => undefined, onresumptiontoken: () => tokens++, timeout: 60_000 });
        waiting.catch(() => undefined);
        await eventually('the stream is open', () => tokens > 0);
        relay.cut();
        await gateway.approve(changeId);
        await waiting;
        assert.equal((await waitUntilFinal(client, changeId)).status, 'applied');
    });
});
