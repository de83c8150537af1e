// The steps that every client must be able to do, whatever its SDK and transport, from the first list to an approved, a
// rejected and a withdrawn change. `ts-v1` and `ts-v2` adapt the SDKs.
import assert from 'node:assert/strict';

import Ajv2020 from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';

import { eventually } from './gateway.mjs';

export const WRITES = [
    'create_project',
    'create_issue',
    'update_issue',
    'update_status',
    'assign_issue',
    'add_comment',
    'delete_issue'
];
export const READS = ['list_projects', 'list_issues', 'get_issue', 'search_issues'];
export const OWN = ['get_change', 'list_changes', 'propose_plan', 'wait_for_change', 'withdraw_change'];
const FINAL = new Set(['applied', 'failed', 'rejected', 'expired', 'withdrawn']);

const text = result => result.content.map(block => block.text ?? '').join('\n');

/** Returns the first project of `list_projects`. */
export async function firstProject(client) {
    const { structuredContent } = await client.call('list_projects', {});
    const [project] = structuredContent.projects;
    assert.match(project.id, /^[0-9a-f-]{36}$/);
    return project;
}

/** Returns the issue with that title, if it exists. */
export async function issueTitled(client, projectId, title) {
    const result = await client.call('list_issues', { projectId });
    return result.structuredContent.issues.find(issue => issue.title === title);
}

/** Proposes a Story and returns the pending answer, which the SDK has validated with the output schema. */
export async function propose(client, projectId, title) {
    const result = await client.call('create_issue', { projectId, title, type: 'Story' });
    assert.notEqual(result.isError, true, text(result));
    assert.match(text(result), /pending approval/i);
    const { changeId, status, diff, expiresAt } = result.structuredContent;
    assert.match(changeId, /^chg_[A-Za-z0-9_-]{24}$/);
    assert.equal(status, 'pending');
    assert.ok(diff.fields.some(field => field.after === title), JSON.stringify(diff));
    assert.ok(Date.parse(expiresAt) > Date.now());
    assert.ok(text(result).includes(changeId), 'the text names the change');
    return result.structuredContent;
}

/** Waits with `wait_for_change` until the change is in a final state. */
export async function waitUntilFinal(client, changeId) {
    for (let round = 0; round < 20; round++) {
        const { structuredContent, ...result } = await client.call('wait_for_change', { changeId });
        if (FINAL.has(structuredContent.status)) return { ...structuredContent, text: text(result) };
    }
    throw new Error(`change ${changeId} does not end`);
}

/**
 * The steps as `[name, step]`, which run in this order over one connection. Each gets `{ client, reviewer }`. A `client` has
 * call(name, args, options), listTools, listResources, listTemplates, readResource, ping, watch(uris, onUpdated) → stop,
 * waitUntilSent() (see `followSending`), capabilities, server, modern.
 */
export const journey = [
    [
        'the server tells its name and capabilities',
        async ({ client }) => {
            assert.equal(client.server().name, 'countersign');
            assert.ok(client.server().version);
            const capabilities = client.capabilities();
            for (const name of ['tools', 'resources', 'prompts', 'completions']) assert.ok(capabilities[name], name);
            assert.equal(capabilities.resources.subscribe, true);
            if (!client.modern) await client.ping();
        }
    ],
    [
        'tools are listed, and their schemas compile',
        async ({ client }) => {
            const tools = await client.listTools();
            const names = tools.map(tool => tool.name);
            for (const name of [...WRITES, ...READS, ...OWN]) assert.ok(names.includes(name), `${name} is listed`);
            const ajv = new Ajv2020({ strict: false, allErrors: true });
            addFormats(ajv);
            for (const tool of tools) {
                assert.ok(tool.description.length > 20, `${tool.name} is described`);
                assert.equal(tool.inputSchema.type, 'object', tool.name);
                ajv.compile(tool.inputSchema);
                assert.ok(tool.outputSchema, `${tool.name} has an output schema`);
                ajv.compile(tool.outputSchema);
                assert.equal(tool.annotations.readOnlyHint === true, !WRITES.includes(tool.name) && !['withdraw_change', 'propose_plan'].includes(tool.name), tool.name);
            }
            const write = tools.find(tool => tool.name === 'delete_issue');
            assert.equal(write.annotations.destructiveHint, true);
        }
    ],
    [
        'reads run without review',
        async ({ client }) => {
            const project = await firstProject(client);
            assert.ok(project.key && project.name, JSON.stringify(project));
            const list = await client.call('list_issues', { projectId: project.id });
            assert.ok(list.structuredContent.issues.length > 0, 'the sample project has issues');
            const issueId = list.structuredContent.issues[0].id;
            const issue = await client.call('get_issue', { issueId });
            assert.notEqual(issue.isError, true, text(issue));
        }
    ],
    [
        'a write waits for approval and then exists',
        async ({ client, reviewer }) => {
            const project = await firstProject(client);
            const title = `Approved through ${client.label}`;
            const { changeId } = await propose(client, project.id, title);
            assert.equal(await issueTitled(client, project.id, title), undefined, 'nothing is created yet');
            const seen = await reviewer.change(changeId);
            assert.equal(seen.state, 'pending');
            assert.equal(seen.arguments.title, title);
            assert.equal(seen.proposer.principal, 'local-agent');
            assert.equal(seen.proposer.clientName, client.name);
            const waiting = waitUntilFinal(client, changeId);
            await reviewer.approve(changeId, 'go ahead');
            const after = await waiting;
            assert.equal(after.status, 'applied', after.text);
            assert.equal((await client.call('get_change', { changeId })).structuredContent.status, 'applied');
            assert.ok(await issueTitled(client, project.id, title), 'the issue exists');
        }
    ],
    [
        'a rejection reaches the agent with its reason',
        async ({ client, reviewer }) => {
            const project = await firstProject(client);
            const title = `Rejected through ${client.label}`;
            const { changeId } = await propose(client, project.id, title);
            await reviewer.reject(changeId, 'we have this already: see CORE-1');
            const after = await waitUntilFinal(client, changeId);
            assert.equal(after.status, 'rejected');
            assert.ok(after.text.includes('we have this already: see CORE-1'), after.text);
            const read = await client.call('get_change', { changeId });
            assert.ok(text(read).includes('alice'), 'who rejected it');
            assert.equal(await issueTitled(client, project.id, title), undefined);
        }
    ],
    [
        'a proposed change is listed and can be withdrawn',
        async ({ client, reviewer }) => {
            const project = await firstProject(client);
            const { changeId } = await propose(client, project.id, `Withdrawn through ${client.label}`);
            const listed = await client.call('list_changes', {});
            assert.ok(listed.structuredContent.changes.some(change => change.changeId === changeId));
            const withdrawn = await client.call('withdraw_change', { changeId });
            assert.equal(withdrawn.structuredContent.status, 'withdrawn', text(withdrawn));
            const answer = await reviewer.api('POST', `/changes/${changeId}/decision`, {
                decision: 'approve',
                version: withdrawn.structuredContent.version
            });
            assert.equal(answer.status, 409);
            assert.equal(answer.body.code, 'CHANGE_NOT_PENDING');
        }
    ],
    [
        'an invalid call and a failed call return different errors',
        async ({ client }) => {
            const bad = await client.call('create_issue', { title: '' }).then(
                result => result,
                error => ({ thrown: error })
            );
            if (bad.thrown) {
                assert.equal(bad.thrown.code, -32602);
            } else {
                assert.equal(bad.isError, true);
                const { error, code, details } = JSON.parse(text(bad));
                assert.equal(error, true);
                assert.equal(code, 'VALIDATION_FAILED');
                assert.ok(JSON.stringify(details).includes('/title') || JSON.stringify(details).includes('projectId'));
            }
            const missing = await client.call('get_issue', { issueId: '00000000-0000-4000-8000-000000000000' });
            assert.equal(missing.isError, true);
            await assert.rejects(client.call('no_such_tool', {}), error => error.code === -32602);
        }
    ],
    [
        'resources are listed, read and watched',
        async ({ client, reviewer }) => {
            const resources = await client.listResources();
            assert.ok(resources.length > 0);
            const first = await client.readResource(resources[0].uri);
            assert.equal(first.contents[0].uri, resources[0].uri);
            assert.ok(first.contents[0].text.length > 0);
            const templates = await client.listTemplates();
            assert.ok(templates.some(template => template.uriTemplate.startsWith('change://')), JSON.stringify(templates));
            // The code is -32002 up to 2025-11-25 and -32602 since. Some SDKs translate the old one.
            await assert.rejects(client.readResource('nowhere://at/all'), error => [-32002, -32602].includes(error.code));

            const project = await firstProject(client);
            const { changeId } = await propose(client, project.id, `Watched through ${client.label}`);
            const uri = `change://${changeId}`;
            const updated = [];
            const stop = await client.watch([uri], seen => updated.push(seen));
            await reviewer.approve(changeId);
            await eventually(`an update of ${uri}`, () => updated.includes(uri));
            await reviewer.reached(changeId, 'applied');
            const read = await client.readResource(uri);
            assert.match(read.contents[0].text, /applied/);
            await stop();
        }
    ],
    [
        'a wait reports progress and can be cancelled without ending the connection',
        async ({ client }) => {
            const project = await firstProject(client);
            const { changeId } = await propose(client, project.id, `Left waiting through ${client.label}`);
            const progress = [];
            const abort = new AbortController();
            const call = client.call('wait_for_change', { changeId }, { signal: abort.signal, onprogress: p => progress.push(p.progress) });
            call.catch(() => undefined);
            await eventually('progress of wait_for_change', () => progress.length > 0);
            abort.abort('enough');
            await assert.rejects(call);
            // Otherwise the call might be answered before the cancellation arrives.
            await client.waitUntilSent();
            assert.deepEqual(progress, [...progress].sort((a, b) => a - b), 'progress rises');
            await client.call('withdraw_change', { changeId });
        }
    ]
];

/** Runs the journey as subtests of `t`. */
export async function runJourney(t, client, reviewer) {
    for (const [name, step] of journey) await t.test(name, () => step({ client, reviewer }));
}
