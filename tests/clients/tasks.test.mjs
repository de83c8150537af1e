// Changes as tasks of 2025-11-25, with the TypeScript SDK v1 (`client.experimental.tasks`) over Streamable HTTP, WebSocket and
// stdio: what a client with task support of its own makes of a reviewed call. And what an approved tool asks while it runs.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { WebSocketClientTransport } from '@modelcontextprotocol/sdk/client/websocket.js';
import { CallToolResultSchema, CreateMessageRequestSchema, ElicitRequestSchema, ProgressNotificationSchema, TaskStatusNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

import { inFrontOf, overHttp, startFixture, startGatewayWith } from './fixture.mjs';
import { binary, environment, eventually, startGateway } from './gateway.mjs';

const doors = {
    'Streamable HTTP': gateway => new StreamableHTTPClientTransport(gateway.mcp),
    WebSocket: gateway => new WebSocketClientTransport(new URL(gateway.url.replace('http', 'ws') + '/ws')),
    // Attaches to the gateway that serves the same data.
    stdio: gateway => new StdioClientTransport({ command: binary, args: ['stdio', '--data', gateway.data], env: environment() })
};

/** Calls as a task; `decide(id)` once there is one. Answers everything that the SDK yields. */
async function asTask(client, args, decide, { name = 'create_issue', _meta } = {}) {
    const seen = [];
    const stream = client.experimental.tasks.callToolStream({ name, arguments: args, _meta }, CallToolResultSchema, { task: {} });
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
            const progress = [];
            client.setNotificationHandler(ProgressNotificationSchema, ({ params }) => void progress.push(params));
            assert.deepEqual(client.getServerCapabilities().tasks, { list: {}, cancel: {}, requests: { tools: { call: {} } } });
            const tools = (await client.listTools()).tools;
            assert.equal(tools.find(tool => tool.name === 'create_issue').execution.taskSupport, 'optional');
            const [project] = (await client.callTool({ name: 'list_projects', arguments: {} })).structuredContent.projects;
            const story = title => ({ projectId: project.id, title: `${title} over ${door}`, type: 'Story' });

            const applied = await asTask(client, story('Applied'), id => gateway.approve(id), { _meta: { progressToken: 'mine' } });
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
            const { taskId } = applied[0].task;
            // A step that the next one overtakes before it was told, as on a busy machine, is passed over.
            await eventually('its progress was told of', () => progress.length > 0);
            const values = progress.map(({ progress }) => progress);
            assert.ok(values.every((value, at) => at === 0 || value > values[at - 1]), `it rises: ${values}`);
            for (const { progressToken, _meta } of progress) assert.deepEqual([progressToken, _meta], ['mine', { 'io.modelcontextprotocol/related-task': { taskId } }]);
            await eventually('every end was told of', () => ['cancelled', 'failed', 'completed'].every(end => told.some(({ status }) => status === end)));
        });
    }
});

const MODERN = '2026-07-28';
const EXTENSION = 'io.modelcontextprotocol/tasks';
const key = name => `io.modelcontextprotocol/${name}`;

/** One request of a stateless client; answers its result, or its error. */
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

/** The change of that tool that waits for a person, approved. */
const approved = (gateway, tool) =>
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
    const shown = result => result.content[0].text;

    await t.test('as a task of 2025-11-25', async () => {
        const seen = await asTask(client, { message: 'Who?' }, id => gateway.approve(id), { name: 'test_elicitation' });
        const last = seen.at(-1);
        assert.equal(last.type, 'result', JSON.stringify(last));
        assert.match(shown(last.result), /action=accept.*ada/);
        const { taskId } = seen[0].task;
        assert.deepEqual(asked.map(params => params._meta?.[key('related-task')]), [{ taskId }], 'once');
        const { dialogue } = await gateway.change(taskId);
        assert.deepEqual(dialogue.questions.map(question => [question.method, question.answer.action]), [['elicitation/create', 'accept']]);
        const trail = (await gateway.api('GET', `/audit?change=${taskId}`)).body;
        assert.match(JSON.stringify(trail), /"answered"/);
    });

    await t.test('on a call that is held', async () => {
        const call = client.callTool({ name: 'test_sampling', arguments: { prompt: 'What?' } });
        await approved(gateway, 'test_sampling');
        assert.match(shown(await call), /forty-two/);
    });

    await t.test('where the rule declines, it fails and says why', async () => {
        const seen = await asTask(client, {}, id => gateway.approve(id), { name: 'test_elicitation_sep1034_defaults' });
        // This server looks at what the client declared, which is nothing then.
        assert.match(JSON.stringify(seen.at(-2)), /failed: .*did not declare elicitation/);
        assert.equal(asked.length, 1);
    });

    await t.test('as a task of the extension, for arguments that were missing first', async () => {
        const can = { elicitation: {}, extensions: { [EXTENSION]: {} } };
        const call = { name: 'test_elicitation', arguments: {} };
        const lacking = await stateless(gateway, 'tools/call', call, can);
        assert.equal(lacking.resultType, 'input_required', JSON.stringify(lacking));
        const [[name, form]] = Object.entries(lacking.inputRequests);
        assert.deepEqual(form.params.requestedSchema.required, ['message']);
        const content = { message: 'What is it?' };
        const task = await stateless(gateway, 'tools/call', { ...call, inputResponses: { [name]: { action: 'accept', content } } }, can);
        assert.equal(task.resultType, 'task', JSON.stringify(task));
        const { taskId } = task;
        assert.deepEqual((await gateway.change(taskId)).arguments, content, 'the reviewer sees it');
        await gateway.approve(taskId);
        const get = capabilities => stateless(gateway, 'tasks/get', { taskId }, capabilities);
        const waiting = await eventually('it asks', async () => {
            const task = await get(can);
            return task.status === 'input_required' && task;
        });
        assert.equal((await get({ extensions: { [EXTENSION]: {} } })).status, 'working', 'nobody is asked who cannot answer');
        const [question] = Object.keys(waiting.inputRequests);
        await stateless(gateway, 'tasks/update', { taskId, inputResponses: { [question]: { action: 'decline' } } }, can);
        await gateway.reached(taskId, 'applied');
        assert.match(shown((await get(can)).result), /action=decline/);
        const refused = await stateless(gateway, 'tools/call', { ...call, inputResponses: { [name]: { action: 'decline' } } }, can);
        assert.equal(refused.isError, true, 'still lacking');
    });

    await t.test('as the result of a held call of the stateless era, which is made again', async () => {
        const call = { name: 'test_sampling', arguments: { prompt: 'And now?' } };
        const first = stateless(gateway, 'tools/call', call, { sampling: {} });
        const { id } = await approved(gateway, 'test_sampling');
        const asks = await first;
        assert.equal(asks.resultType, 'input_required', JSON.stringify(asks));
        const [[name, request]] = Object.entries(asks.inputRequests);
        assert.equal(request.method, 'sampling/createMessage');
        const answer = { role: 'assistant', model: 'm', content: { type: 'text', text: 'seven' } };
        const again = { ...call, requestState: asks.requestState, inputResponses: { [name]: answer } };
        assert.match(shown(await stateless(gateway, 'tools/call', again, { sampling: {} })), /seven/);
        assert.equal((await gateway.change(id)).state, 'applied', 'the same change, run once');
    });

    await t.test('calls that are reviewed as tasks only', async () => {
        const call = { name: 'test_simple_text', arguments: {} };
        const refused = await stateless(gateway, 'tools/call', call, {});
        assert.deepEqual([refused.code, refused.data.requiredCapabilities], [-32021, { extensions: { [EXTENSION]: {} } }]);
        const told = await client.callTool(call);
        assert.ok(told.isError && /reviewed as tasks only/.test(shown(told)), JSON.stringify(told));
        const { body } = await gateway.api('GET', '/changes?tool=test_simple_text');
        assert.equal(body.changes.length, 0, 'nothing was proposed');
    });
});
