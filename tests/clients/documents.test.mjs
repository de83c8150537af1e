// Tests every tool of the knowledge base with a TypeScript SDK of each era over HTTP, stdio and WebSocket.
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';

import { binary, eventually, startGateway } from './gateway.mjs';
import { connectPeer } from './peer.mjs';

const front = fields => `---\n${Object.entries(fields).map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join('\n')}\n---\n`;
const problem = {
    doc_type: 'problem',
    title: 'Connection pool exhausted',
    date: '2026-11-20',
    summary: 'The pool ran dry under load',
    significance: 'performance',
    problem_type: 'performance',
    symptoms: ['requests time out'],
    root_cause: 'connections were never returned',
    solution: 'return them in a finally block'
};

async function handbook(t) {
    const root = await mkdtemp(path.join(os.tmpdir(), 'handbook-'));
    t.after(() => rm(root, { recursive: true, force: true }));
    for (const [file, text] of [
        ['know/problems/pool.md', `${front(problem)}# Connection pool exhausted\n\nConnections were never returned. See [deployments](../notes/deploy.md).\n`],
        ['know/notes/deploy.md', '# Deployments\n\nWe deploy on Tuesdays.\n'],
        ['reference/guide.md', '# Guide\n\nHow to restore a backup of the store.\n']
    ]) {
        await mkdir(path.dirname(path.join(root, file)), { recursive: true });
        await writeFile(path.join(root, file), text);
    }
    const project = { root, folder: 'know', external_docs: 'reference' };
    const docs = { enabled: true, projects: { handbook: project, empty: { root, folder: 'nothing-yet' } } };
    return { root, config: { modules: { tracker: { enabled: false }, docs } } };
}

const completion = 'They were never returned to the pool [1], says nobody else [8].';
const answers = { 'sampling/createMessage': () => ({ role: 'assistant', model: 'm', stopReason: 'endTurn', content: { type: 'text', text: completion } }) };

for (const era of ['legacy', 'modern']) {
    for (const transport of ['http', 'ws', 'stdio']) {
        test(`the knowledge base with a ${era} client over ${transport}`, async t => {
            const { root, config } = await handbook(t);
            const gateway = await startGateway({ config });
            t.after(() => gateway.stop());
            const target = {
                http: { http: gateway.mcp },
                ws: { ws: new URL(gateway.url.replace('http', 'ws') + '/ws') },
                stdio: { command: binary, args: ['stdio', '--data', gateway.data] }
            }[transport];
            if (era === 'modern' && transport === 'ws') target.ws = String(target.ws);
            const peer = await connectPeer(era, target, { capabilities: { sampling: {} }, answers });
            t.after(() => peer.close());
            // A stateless client names the project in each call; other clients activate it once.
            const withProject = args => (peer.modern ? { project_name: 'handbook', ...args } : args);
            const call = async (name, args = {}, toArguments = withProject) => {
                const result = await peer.call(name, toArguments(args));
                assert.notEqual(result.isError, true, JSON.stringify(result));
                return result.structuredContent;
            };
            const fails = async (name, args) => {
                const result = await peer.call(name, args);
                assert.equal(result.isError, true, JSON.stringify(result));
                assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
                return result.structuredContent.code;
            };

            const listed = await peer.tools();
            assert.equal(listed.find(tool => tool.name === 'semantic_search').annotations.readOnlyHint, true);
            assert.equal(await fails('list_doc_types', {}), 'PROJECT_NOT_ACTIVE');
            const progress = [];
            const active = await peer.call('activate_project', { project_name: 'handbook' }, { onprogress: event => progress.push(event) });
            assert.equal(active.structuredContent.total_docs, 2);
            assert.deepEqual(active.structuredContent.doc_types.find(kind => kind.doc_count), { name: 'problem', doc_count: 1, custom: false });
            assert.equal((await call('list_doc_types')).doc_types.length, 5);
            const found = await call('semantic_search', { query: 'why is the connection pool exhausted' });
            assert.deepEqual([found.results[0].path, found.ranking], ['problems/pool.md', 'lexical']);
            const external = await call('search_external_docs', { query: 'restore a backup' });
            assert.deepEqual([external.results[0].path, external.external_docs_path], ['guide.md', 'reference']);
            if (peer.modern) assert.equal(await fails('semantic_search', { query: 'x', project_name: 'nobody' }), 'TENANT_MISMATCH');
            else assert.equal(await fails('semantic_search', { query: 'x', project_name: 'empty' }), 'TENANT_MISMATCH');

            const answer = await call('rag_query', { query: 'connection pool exhausted', min_relevance_score: 0.5 });
            assert.deepEqual([answer.answer, answer.answer_mode], ['They were never returned to the pool [1], says nobody else.', 'sampled']);
            assert.equal(answer.sources[0].path, 'problems/pool.md');
            assert.equal(answer.linked_docs[0].path, 'notes/deploy.md');
            assert.match(peer.asked[0].messages[0].content.text, /Connections were never returned/);
            const reference = await call('rag_query_external', { query: 'restore a backup', min_relevance_score: 0.5 });
            assert.equal(reference.answer_mode, 'sampled');

            // A document is written, promoted and deleted, each after a decision.
            const content = `${front({ ...problem, title: 'Disk full' })}# Disk full\n\nThe logs were never rotated.\n`;
            const pending = await call('index_document', { path: 'problems/disk.md', content });
            assert.equal(pending.status, 'pending');
            const shown = (await gateway.change(pending.changeId)).diff.fields;
            assert.ok(shown.some(field => field.field === 'front_matter.solution'), JSON.stringify(shown));
            await gateway.approve(pending.changeId, 'good');
            await gateway.reached(pending.changeId, 'applied');
            assert.equal(await readFile(path.join(root, 'know/problems/disk.md'), 'utf8'), content);
            const next = await call('semantic_search', { query: 'logs were never rotated' });
            assert.equal(next.results[0].path, 'problems/disk.md');
            assert.equal((await call('index_document', { path: 'problems/disk.md' })).status, 'indexed');
            const promotion = await call('update_promotion_level', { document_path: 'problems/disk.md', promotion_level: 'critical' });
            await gateway.approve(promotion.changeId, 'all should know');
            await gateway.reached(promotion.changeId, 'applied');
            const first = await call('rag_query', { query: 'connection pool exhausted', min_relevance_score: 0.5 });
            assert.equal(first.sources[0].promotion_level, 'critical');
            const withHandbook = args => ({ project_name: 'handbook', ...args });
            const dry = await call('delete_documents', { paths: ['problems/disk.md'], dry_run: true }, withHandbook);
            assert.deepEqual([dry.status, dry.deleted_count], ['preview', 1]);
            const deletion = await call('delete_documents', { paths: ['problems/disk.md'] }, withHandbook);
            await gateway.reject(deletion.changeId, 'keep it');
            assert.ok(await readFile(path.join(root, 'know/problems/disk.md')));

            const uri = 'docs://handbook/notes/deploy.md';
            assert.ok((await peer.resources()).some(resource => resource.uri === uri));
            assert.match((await peer.read(uri)).contents[0].text, /Tuesdays/);
            const stop = await peer.watch(uri);
            await writeFile(path.join(root, 'know/notes/deploy.md'), '# Deployments\n\nNever on Fridays.\n');
            await eventually('the client receives the update of the file', () => peer.updated.includes(uri));
            await stop();
            const prompt = await peer.prompt('capture', { type: 'tool', project: 'handbook' });
            assert.match(prompt.messages[0].content.text, /`tool_name` \(required\)/);
            assert.deepEqual(peer.errors, []);
        });
    }
}
