// Tests changes as tasks of 2025-11-25 with the TypeScript SDK v1 (`client.experimental.tasks`) over Streamable HTTP,
// WebSocket and stdio, and the questions of an approved tool to the client.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { WebSocketClientTransport } from '@modelcontextprotocol/sdk/client/websocket.js';
import { CallToolResultSchema, CreateMessageRequestSchema, ElicitRequestSchema, ProgressNotificationSchema, TaskStatusNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

import { inFrontOf, overHttp, startFixture, startGatewayWith } from './fixture.mjs';
import { binary, environment, eventually, startGateway } from './gateway.mjs';

const transports = {
    'Streamable HTTP': gateway => new StreamableHTTPClientTransport(gateway.mcp),
    WebSocket: gateway => new WebSocketClientTransport(new URL(gateway.url.replace('http', 'ws') + '/ws')),
    // The process attaches to the gateway that serves the same data.
    stdio: gateway => new StdioClientTransport({ command: binary, args: ['stdio', '--data', gateway.data], env: environment() })
};

/** Calls a tool as a task, runs `decide(id)` when it is created, and returns all messages of the SDK. */
async function asTask(client, args, decide, { name = 'create_issue', _meta } = {}) {
    const seen = [];
    const stream = client.experimental.tasks.callToolStream({ name, arguments: args, _meta }, CallToolResultSchema, { task: {} });
    for await (const message of stream) {
        seen.push(message);
        if (message.type === 'taskCreated') await decide(message.task.taskId);
    }
    return seen;
}

test('the TypeScript SDK handles changes as tasks', { timeout: 120_000 }, async t => {
    const gateway = await startGateway();
    t.after(() => gateway.stop());
    for (const [name, transport] of Object.entries(transports)) {
        await t.test(name, async t => {
            const client = new Client({ name: 'ts-tasks', version: '1.0.0' }, { capabilities: {} });
            await client.connect(transport(gateway));
            t.after(() => client.close());
            const statuses = [];
            client.setNotificationHandler(TaskStatusNotificationSchema, ({ params }) => void statuses.push(params));
            const progress = [];
            client.setNotificationHandler(ProgressNotificationSchema, ({ params }) => void progress.push(params));
            assert.deepEqual(client.getServerCapabilities().tasks, { list: {}, cancel: {}, requests: { tools: { call: {} } } });
            const tools = (await client.listTools()).tools;
            assert.equal(tools.find(tool => tool.name === 'create_issue').execution.taskSupport, 'optional');
            const [project] = (await client.callTool({ name: 'list_projects', arguments: {} })).structuredContent.projects;
            const story = title => ({ projectId: project.id, title: `${title} over ${name}`, type: 'Story' });

            const applied = await asTask(client, story('Applied'), id => gateway.approve(id), { _meta: { progressToken: 'mine' } });
            const last = applied.at(-1);
            assert.equal(last.type, 'result', JSON.stringify(last));
            assert.equal(last.result.structuredContent.issue.title, `Applied over ${name}`);

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
            const { taskId } = applied[0].task;
            // On a busy machine a step may be skipped if the next one replaces it first.
            await eventually('its progress was told of', () => progress.length > 0);
            const values = progress.map(({ progress }) => progress);
            assert.ok(values.every((value, at) => at === 0 || value > values[at - 1]), `it rises: ${values}`);
            for (const { progressToken, _meta } of progress) assert.deepEqual([progressToken, _meta], ['mine', { 'io.modelcontextprotocol/related-task': { taskId } }]);
            await eventually('every end was told of', () => ['cancelled', 'failed', 'completed'].every(end => statuses.some(({ status }) => status === end)));
        });
    }
});

const MODERN = '2026-07-28';
const EXTENSION = 'io.modelcontextprotocol/tasks';
const key = name => `io.modelcontextprotocol/${name}`;

/** Sends one request of a stateless client and returns its result or error. */
async function stateless(gateway, method, params, capabilities) {
    const envelope = { [key('protocolVersion')]: MODERN, [key('clientCapabilities')]: capabilities };
    const headers = { 'content-type': 'application/json', accept: 'application/json, text/event-stream', 'mcp-protocol-version': MODERN, 'mcp-method': method };
    const body = { jsonrpc: '2.0', id: 1, method, params: { ...params, _meta: envelope } };
    const response = await fetch(gateway.mcp, { method: 'POST', headers: { ...headers, 'mcp-name': params.name ?? params.taskId }, body: JSON.stringify(body) });
    const text = await response.text();
    const message = text.startsWith('{') ? text : text.split('\n').filter(line => line.startsWith('data:')).at(-1).slice(5);
    const { result, error } = JSON.parse(message);
    return result ?? error;
}

/** Waits for a proposed call of the tool and approves it. */
const approvePending = (gateway, tool) =>
    eventually(`a call of ${tool} is proposed`, async () => {
        const { body } = await gateway.api('GET', `/changes?status=pending&tool=${tool}`);
        return body.changes.length > 0 && gateway.approve(body.changes[0].id);
    });

test('an approved tool asks the client that proposed it', { timeout: 120_000 }, async t => {
    const fixture = await startFixture('legacy');
    t.after(() => fixture.stop());
    const rules = [
        { name: 'held', tools: ['test_sampling'], then: 'review', on_review: 'hold', hold_for: '2m' },
        { name: 'declined', tools: ['test_elicitation_sep1034_defaults'], then: 'review', questions: 'decline' },
        { name: 'tasks', tools: ['test_simple_text'], then: 'review', on_review: 'task' }
    ];
    const gateway = await startGatewayWith(inFrontOf(overHttp(fixture.url), { policy: { default: 'review_all', review: { questions: 'ask' }, rules } }));
    t.after(() => gateway.stop());
    const client = new Client({ name: 'ts-asked', version: '1.0.0' }, { capabilities: { elicitation: {}, sampling: {} } });
    const asked = [];
    client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
        asked.push(params);
        return { action: 'accept', content: params.requestedSchema.properties.message ? { message: 'Who?' } : { username: 'ada', email: 'ada@example.com', response: 'ada' } };
    });
    client.setRequestHandler(CreateMessageRequestSchema, () => ({ role: 'assistant', model: 'm', content: { type: 'text', text: 'forty-two' } }));
    await client.connect(new StreamableHTTPClientTransport(gateway.mcp));
    t.after(() => client.close());
    const textOf = result => result.content[0].text;

    await t.test('a task of 2025-11-25 asks once', async () => {
        const seen = await asTask(client, { message: 'Who?' }, id => gateway.approve(id), { name: 'test_elicitation' });
        const last = seen.at(-1);
        assert.equal(last.type, 'result', JSON.stringify(last));
        assert.match(textOf(last.result), /action=accept.*ada/);
        const { taskId } = seen[0].task;
        assert.deepEqual(asked.map(params => params._meta?.[key('related-task')]), [{ taskId }], 'once');
        const { dialogue } = await gateway.change(taskId);
        assert.deepEqual(dialogue.questions.map(question => [question.method, question.answer.action]), [['elicitation/create', 'accept']]);
        const trail = (await gateway.api('GET', `/audit?change=${taskId}`)).body;
        assert.match(JSON.stringify(trail), /"answered"/);
    });

    await t.test('a held call asks its client', async () => {
        const call = client.callTool({ name: 'test_sampling', arguments: { prompt: 'What?' } });
        await approvePending(gateway, 'test_sampling');
        assert.match(textOf(await call), /forty-two/);
    });

    await t.test('if the rule declines questions, the call fails with the reason', async () => {
        const seen = await asTask(client, {}, id => gateway.approve(id), { name: 'test_elicitation_sep1034_defaults' });
        // The server sees no declared capability.
        assert.match(JSON.stringify(seen.at(-2)), /failed: .*did not declare elicitation/);
        assert.equal(asked.length, 1);
    });

    await t.test('a task of the extension asks for missing arguments', async () => {
        const supported = { elicitation: {}, extensions: { [EXTENSION]: {} } };
        const call = { name: 'test_elicitation', arguments: {} };
        const incomplete = await stateless(gateway, 'tools/call', call, supported);
        assert.equal(incomplete.resultType, 'input_required', JSON.stringify(incomplete));
        const [[name, form]] = Object.entries(incomplete.inputRequests);
        assert.deepEqual(form.params.requestedSchema.required, ['message']);
        const content = { message: 'What is it?' };
        const task = await stateless(gateway, 'tools/call', { ...call, inputResponses: { [name]: { action: 'accept', content } } }, supported);
        assert.equal(task.resultType, 'task', JSON.stringify(task));
        const { taskId } = task;
        assert.deepEqual((await gateway.change(taskId)).arguments, content, 'the reviewer sees it');
        await gateway.approve(taskId);
        const get = capabilities => stateless(gateway, 'tasks/get', { taskId }, capabilities);
        const waiting = await eventually('it asks', async () => {
            const task = await get(supported);
            return task.status === 'input_required' && task;
        });
        assert.equal((await get({ extensions: { [EXTENSION]: {} } })).status, 'working', 'a client without the capability is not asked');
        const [question] = Object.keys(waiting.inputRequests);
        await stateless(gateway, 'tasks/update', { taskId, inputResponses: { [question]: { action: 'decline' } } }, supported);
        await gateway.reached(taskId, 'applied');
        assert.match(textOf((await get(supported)).result), /action=decline/);
        const refused = await stateless(gateway, 'tools/call', { ...call, inputResponses: { [name]: { action: 'decline' } } }, supported);
        assert.equal(refused.isError, true, 'the argument is still missing');
    });

    await t.test('a held stateless call returns the question and continues with the answer', async () => {
        const call = { name: 'test_sampling', arguments: { prompt: 'And now?' } };
        const first = stateless(gateway, 'tools/call', call, { sampling: {} });
        const { id } = await approvePending(gateway, 'test_sampling');
        const pendingResult = await first;
        assert.equal(pendingResult.resultType, 'input_required', JSON.stringify(pendingResult));
        const [[name, request]] = Object.entries(pendingResult.inputRequests);
        assert.equal(request.method, 'sampling/createMessage');
        const answer = { role: 'assistant', model: 'm', content: { type: 'text', text: 'seven' } };
        const again = { ...call, requestState: pendingResult.requestState, inputResponses: { [name]: answer } };
        assert.match(textOf(await stateless(gateway, 'tools/call', again, { sampling: {} })), /seven/);
        assert.equal((await gateway.change(id)).state, 'applied', 'the same change, run once');
    });

    await t.test('a call that is reviewed only as a task is refused to other clients', async () => {
        const call = { name: 'test_simple_text', arguments: {} };
        const refused = await stateless(gateway, 'tools/call', call, {});
        assert.deepEqual([refused.code, refused.data.requiredCapabilities], [-32021, { extensions: { [EXTENSION]: {} } }]);
        const result = await client.callTool(call);
        assert.ok(result.isError && /reviewed as tasks only/.test(textOf(result)), JSON.stringify(result));
        const { body } = await gateway.api('GET', '/changes?tool=test_simple_text');
        assert.equal(body.changes.length, 0, 'nothing was proposed');
    });
});
