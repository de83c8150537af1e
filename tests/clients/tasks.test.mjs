// Changes as tasks of 2025-11-25, with the TypeScript SDK v1 (`client.experimental.tasks`) over Streamable HTTP, WebSocket and
// stdio: what a client with task support of its own makes of a reviewed call.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { WebSocketClientTransport } from '@modelcontextprotocol/sdk/client/websocket.js';
import { CallToolResultSchema, TaskStatusNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

import { binary, environment, eventually, startGateway } from './gateway.mjs';

const doors = {
    'Streamable HTTP': gateway => new StreamableHTTPClientTransport(gateway.mcp),
    WebSocket: gateway => new WebSocketClientTransport(new URL(gateway.url.replace('http', 'ws') + '/ws')),
    // Attaches to the gateway that serves the same data.
    stdio: gateway => new StdioClientTransport({ command: binary, args: ['stdio', '--data', gateway.data], env: environment() })
};

/** Calls as a task; `decide(id)` once there is one. Answers everything that the SDK yields. */
async function asTask(client, args, decide) {
    const seen = [];
    const stream = client.experimental.tasks.callToolStream({ name: 'create_issue', arguments: args }, CallToolResultSchema, { task: {} });
    for await (const message of stream) {
        seen.push(message);
        if (message.type === 'taskCreated') await decide(message.task.taskId);
    }
    return seen;
}

test('the TypeScript SDK takes changes as tasks', { timeout: 120_000 }, async t => {
    const gateway = await startGateway();
    t.after(() => gateway.stop());
    for (const [door, transport] of Object.entries(doors)) {
        await t.test(door, async t => {
            const client = new Client({ name: 'ts-tasks', version: '1.0.0' }, { capabilities: {} });
            await client.connect(transport(gateway));
            t.after(() => client.close());
            const told = [];
            client.setNotificationHandler(TaskStatusNotificationSchema, ({ params }) => void told.push(params));
            assert.deepEqual(client.getServerCapabilities().tasks, { list: {}, cancel: {}, requests: { tools: { call: {} } } });
            const tools = (await client.listTools()).tools;
            assert.equal(tools.find(tool => tool.name === 'create_issue').execution.taskSupport, 'optional');
            const [project] = (await client.callTool({ name: 'list_projects', arguments: {} })).structuredContent.projects;
            const story = title => ({ projectId: project.id, title: `${title} over ${door}`, type: 'Story' });

            const applied = await asTask(client, story('Applied'), id => gateway.approve(id));
            const last = applied.at(-1);
            assert.equal(last.type, 'result', JSON.stringify(last));
            assert.equal(last.result.structuredContent.issue.title, `Applied over ${door}`);

            const rejected = await asTask(client, story('Rejected'), id => gateway.reject(id, 'use the other project'));
            assert.equal(rejected.at(-1).type, 'error');
            const { task } = rejected.at(-2);
            assert.equal(task.status, 'failed');
            for (const part of ['alice', 'use the other project', 'Do not propose the same change again unchanged']) {
                assert.ok(task.statusMessage.includes(part), task.statusMessage);
            }
            const result = await client.experimental.tasks.getTaskResult(task.taskId, CallToolResultSchema);
            assert.equal(result.isError, true);
            assert.match(result.content[0].text, /use the other project/);

            const cancelled = await asTask(client, story('Cancelled'), id => client.experimental.tasks.cancelTask(id));
            assert.equal(cancelled.at(-2).task.status, 'cancelled');
            assert.equal((await gateway.change(cancelled[0].task.taskId)).state, 'withdrawn');

            const listed = (await client.experimental.tasks.listTasks()).tasks.slice(0, 3).map(task => task.status);
            assert.deepEqual(listed, ['cancelled', 'failed', 'completed'], 'newest first');
            await eventually('every end was told of', () => ['cancelled', 'failed', 'completed'].every(end => told.some(({ status }) => status === end)));
        });
    }
});
