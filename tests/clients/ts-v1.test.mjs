// Tests the TypeScript SDK v1 (`@modelcontextprotocol/sdk`) over stdio, Streamable HTTP, HTTP + SSE and WebSocket.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { WebSocketClientTransport } from '@modelcontextprotocol/sdk/client/websocket.js';
import { CallToolResultSchema, LoggingMessageNotificationSchema, ResourceUpdatedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

import { Gateway, LISTEN, binary, environment, eventually, followSending, publishedPort, startGateway, startRelay, temporaryData } from './gateway.mjs';
import { firstProject, propose, runJourney, waitUntilFinal } from './journey.mjs';

const NAME = 'ts-sdk-v1';

/** Wraps the SDK's client in the interface of the journey. */
async function connect(transport, label) {
    const client = new Client({ name: NAME, version: '1.0.0' }, { capabilities: {} });
    const errors = [];
    client.onerror = error => errors.push(error);
    const waitUntilSent = followSending(transport);
    await client.connect(transport);
    const watchers = new Set();
    client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => {
        for (const watcher of watchers) watcher(params.uri);
    });
    return {
        client,
        transport,
        waitUntilSent,
        label,
        errors,
        name: NAME,
        modern: false,
        server: () => client.getServerVersion(),
        capabilities: () => client.getServerCapabilities(),
        ping: () => client.ping(),
        call: (name, args, options) => client.callTool({ name, arguments: args }, CallToolResultSchema, options),
        listTools: async () => (await client.listTools()).tools,
        listResources: async () => (await client.listResources()).resources,
        listTemplates: async () => (await client.listResourceTemplates()).resourceTemplates,
        readResource: uri => client.readResource({ uri }),
        async watch(uris, seen) {
            watchers.add(seen);
            for (const uri of uris) await client.subscribeResource({ uri });
            return async () => {
                watchers.delete(seen);
                for (const uri of uris) await client.unsubscribeResource({ uri });
            };
        },
        close: () => client.close()
    };
}

test('TypeScript SDK v1', async t => {
    const gateway = await startGateway();
    t.after(() => gateway.stop());

    for (const [label, transport] of [
        ['Streamable HTTP', () => new StreamableHTTPClientTransport(gateway.mcp)],
        ['the SSE pair', () => new SSEClientTransport(new URL('/sse', gateway.url))],
        ['WebSocket', () => new WebSocketClientTransport(new URL(gateway.url.replace('http', 'ws') + '/ws'))],
        [
            'stdio, attached',
            () => new StdioClientTransport({ command: binary, args: ['stdio', '--data', gateway.data], env: environment(), stderr: 'ignore' })
        ]
    ]) {
        await t.test(label, async t => {
            const client = await connect(transport(), label);
            t.after(() => client.close());
            await runJourney(t, client, gateway);
            await t.test('log levels are validated', async () => {
                assert.ok(client.capabilities().logging, 'the capability');
                client.client.setNotificationHandler(LoggingMessageNotificationSchema, () => undefined);
                for (const level of ['debug', 'info', 'error']) await client.client.setLoggingLevel(level);
                await assert.rejects(client.client.request({ method: 'logging/setLevel', params: { level: 'loud' } }, CallToolResultSchema), error => error.code === -32602);
            });
            await t.test('the SDK could read every message', () => assert.deepEqual(client.errors, []));
        });
    }

    await t.test('stdio, standalone', async t => {
        const data = await temporaryData();
        const transport = new StdioClientTransport({
            command: binary,
            args: ['stdio', '--standalone', '--listen', LISTEN, '--data', data],
            env: environment(),
            stderr: 'ignore'
        });
        const client = await connect(transport, 'stdio, standalone');
        t.after(() => client.close());
        const port = await publishedPort(data, transport.pid);
        const reviewer = new Gateway({ port, data, log: () => '' });
        await reviewer.waitHealthy();
        reviewer.key = await reviewer.createKey('reviewer', 'alice');
        await runJourney(t, client, reviewer);
        await t.test('the process ends when the client closes', async () => {
            const { pid } = transport;
            await client.close();
            await eventually('the process is gone', () => {
                try {
                    process.kill(pid, 0);
                    return false;
                } catch {
                    return true;
                }
            });
        });
    });

    await t.test('an ended HTTP session returns 404, and a new one works', async () => {
        const first = await connect(new StreamableHTTPClientTransport(gateway.mcp), 'first');
        const { sessionId } = first.transport;
        assert.match(sessionId, /^[\x21-\x7e]{16,}$/);
        await first.transport.terminateSession();
        const stale = new StreamableHTTPClientTransport(gateway.mcp, { sessionId });
        stale.setProtocolVersion('2025-11-25');
        await stale.start();
        await assert.rejects(stale.send({ jsonrpc: '2.0', id: 1, method: 'tools/list', params: {} }), error => error.code === 404);
        await stale.close();
        await first.close();
        const again = await connect(new StreamableHTTPClientTransport(gateway.mcp), 'again');
        assert.notEqual(again.transport.sessionId, sessionId);
        await firstProject(again);
        await again.close();
    });

    await t.test('a cut HTTP connection resumes without loss', async t => {
        const relay = await startRelay(gateway.port);
        t.after(() => relay.close());
        // The Host header has the port of the relay and is accepted only as a loopback name.
        const client = await connect(new StreamableHTTPClientTransport(new URL(`http://127.0.0.1:${relay.port}/mcp`)), 'relay');
        t.after(() => client.close());
        const project = await firstProject(client);
        const { changeId } = await propose(client, project.id, 'Approved while the line was cut');
        let tokens = 0;
        const progress = [];
        const waiting = client.call('wait_for_change', { changeId }, { onprogress: p => progress.push(p), onresumptiontoken: () => tokens++, timeout: 60_000 });
        waiting.catch(() => undefined);
        await eventually('the stream is open', () => tokens > 0 && progress.length > 0);
        relay.cut();
        await gateway.approve(changeId);
        const result = await waiting;
        assert.ok(['approved', 'executing', 'applied'].includes(result.structuredContent.status), JSON.stringify(result));
        assert.equal((await waitUntilFinal(client, changeId)).status, 'applied');
    });

    await t.test('changes of an agent with a key are hidden from other agents', async t => {
        const key = await gateway.createKey('agent', 'bot-7');
        const headers = { authorization: `Bearer ${key}` };
        const bot = await connect(new StreamableHTTPClientTransport(gateway.mcp, { requestInit: { headers } }), 'with a key');
        const other = await connect(new StreamableHTTPClientTransport(gateway.mcp), 'without a key');
        t.after(() => Promise.all([bot.close(), other.close()]));
        const project = await firstProject(bot);
        const { changeId } = await propose(bot, project.id, 'Proposed with a key');
        assert.equal((await gateway.change(changeId)).proposer.principal, 'bot-7');
        const hidden = await other.call('get_change', { changeId });
        assert.equal(hidden.isError, true);
        assert.match(hidden.content[0].text, /CHANGE_NOT_FOUND/);
        const denied = await fetch(`${gateway.url}/api/changes`, { headers });
        assert.equal(denied.status, 403);
        await bot.call('withdraw_change', { changeId });
    });
});
