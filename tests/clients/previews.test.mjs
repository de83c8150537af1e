// Previews of writes to servers that people use, by the recipes that come with the program: what the reviewer sees is what
// then happens, what has moved meanwhile cannot be approved, and the agent sees nothing that it could not have read.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, realpath, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';

import { startGatewayWith } from './fixture.mjs';
import { binary, environment, eventually, temporaryData } from './gateway.mjs';
import { connectPeer } from './peer.mjs';
import { SERVERS, prepare } from './servers.mjs';

const run = promisify(execFile);
const MARKS = { equal: ' ', note: ' ', insert: '+', delete: '-', skip: '@' };
/** The lines of a field, marked. */
const lines = field => field.lines?.map(({ op, text }) => `${MARKS[op]}${text}`) ?? [];
const field = (change, label) => change.diff.fields.find(field => field.label === label);
const shown = (change, label) => lines(field(change, label));
const exists = file => stat(file).then(() => true, () => false);

/** A gateway in front of these servers, whose tools keep their names. */
async function behind(t, names, { rules = [], era = 'modern', ...more } = {}) {
    const base = await realpath(await temporaryData());
    t.after(() => rm(base, { recursive: true, force: true }));
    const folders = {};
    const mcpServers = {};
    for (const name of names) {
        folders[name] = path.join(base, name);
        await prepare(name, folders[name]);
        mcpServers[name] = { ...SERVERS[name].entry(folders[name]), prefix: '', required: true, trust_annotations: true, ...more };
    }
    const gateway = await startGatewayWith({ modules: { tracker: { enabled: false } }, policy: { rules }, mcpServers });
    t.after(() => gateway.stop());
    const peer = await connectPeer(era, { http: gateway.mcp });
    t.after(() => peer.close());
    // A server that is connected is not in the lists in that very moment.
    const first = { filesystem: 'write_file', git: 'git_add', memory: 'read_graph' };
    await eventually('the tools are listed', async () => {
        const tools = (await peer.tools()).map(({ name }) => name);
        return names.every(name => tools.includes(first[name]));
    });
    return {
        gateway,
        peer,
        folder: folders[names[0]],
        /** Proposes the call; answers what the agent saw, and what the reviewer sees. */
        async propose(tool, args) {
            const answer = await peer.call(tool, args);
            assert.equal(answer.structuredContent?.status, 'pending', JSON.stringify(answer));
            const change = await gateway.change(answer.structuredContent.changeId);
            return { answer, change };
        },
        async applied(change) {
            await gateway.approve(change.id);
            return gateway.reached(change.id, 'applied');
        },
        /** Something has moved: nobody approves what was shown, and what is so now is shown beside it. */
        async moved(change) {
            const { id, version, digest } = change;
            const refused = await gateway.api('POST', `/changes/${id}/decision`, { decision: 'approve', version, digest });
            assert.equal(refused.status, 409, JSON.stringify(refused.body));
            assert.equal(refused.body.code, 'CHANGE_STALE');
            const now = refused.body.change;
            assert.deepEqual(now.previousDiff, change.diff);
            assert.notEqual(now.digest, digest);
            assert.equal(now.state, 'pending');
            return now;
        }
    };
}

for (const era of ['legacy', 'modern']) {
    test(`files, proposed by a ${era} client`, async t => {
        const { gateway, folder, propose, applied, moved } = await behind(t, ['filesystem'], { era });
        const file = name => path.join(folder, name);
        const text = name => readFile(file(name), 'utf8');

        await t.test('the set is recognised and told', async () => {
            const { servers } = (await gateway.api('GET', '/servers')).body;
            const { previews } = servers.find(server => server.name === 'filesystem');
            assert.deepEqual(previews, { sets: ['filesystem'], tools: ['create_directory', 'edit_file', 'move_file', 'write_file'] });
            assert.match(gateway.log(), /recipes preview the writes.*filesystem/);
        });

        await t.test('a file is written: its real diff', async () => {
            const { answer, change } = await propose('write_file', { path: file('a.txt'), content: 'one\n2\nthree\n' });
            assert.deepEqual(shown(change, 'Content'), [' one', '-two', '+2', ' three']);
            assert.deepEqual(change.preview, { kind: 'before_after' });
            assert.deepEqual([change.operation, change.target.label, change.summary], ['UPDATE', file('a.txt'), `Write ${file('a.txt')}`]);
            // The agent may read the file, so it may see this.
            assert.deepEqual(answer.structuredContent.diff, change.diff);
            await applied(change);
            assert.equal(await text('a.txt'), 'one\n2\nthree\n');
        });

        await t.test('a new file', async () => {
            const { change } = await propose('write_file', { path: file('new.txt'), content: 'new' });
            const { before, after } = field(change, 'Content');
            assert.deepEqual([change.operation, before, after], ['CREATE', null, 'new']);
            await applied(change);
            assert.equal(await text('new.txt'), 'new');
        });

        await t.test('a file that changes behind its back: the new diff beside the old one', async () => {
            await writeFile(file('b.txt'), 'one\n');
            const { change } = await propose('write_file', { path: file('b.txt'), content: 'three\n' });
            await writeFile(file('b.txt'), 'two\n');
            const now = await moved(change);
            assert.deepEqual(shown(now, 'Content'), ['-two', '+three']);
            assert.equal(await text('b.txt'), 'two\n');
            await applied(now);
            assert.equal(await text('b.txt'), 'three\n');
        });

        await t.test('a file that comes into being meanwhile', async () => {
            const { change } = await propose('write_file', { path: file('c.txt'), content: 'mine' });
            await writeFile(file('c.txt'), '');
            const now = await moved(change);
            assert.deepEqual([now.operation, field(now, 'Content').before], ['UPDATE', '']);
        });

        await t.test('an edit: the dry run of the tool', async () => {
            await writeFile(file('d.txt'), `${Array.from({ length: 20 }, (_, n) => `line ${n}`).join('\n')}\n`);
            const edits = [{ oldText: 'line 10', newText: 'LINE 10' }];
            const edit = () => propose('edit_file', { path: file('d.txt'), edits });
            // That it does nothing in a dry run is the server's own word, until somebody has accepted the tool.
            const { change: early } = await edit();
            assert.match(early.preview.failed, /nobody has accepted its definition/);
            const { tools } = (await gateway.api('GET', '/servers/filesystem')).body;
            const { name: tool, hash } = tools.find(({ name }) => name === 'edit_file');
            const accepted = await gateway.api('POST', '/servers/filesystem/accept', { tools: [{ name: tool, hash }] });
            assert.equal(accepted.status, 200, JSON.stringify(accepted.body));
            // The other nodes of a cluster hear of it a moment later.
            const change = await eventually('a preview by a dry run', async () => {
                const { change: next } = await edit();
                return next.preview.kind === 'dry_run' && next;
            });
            const seen = shown(change, 'Content');
            assert.ok(seen.includes('-line 10') && seen.includes('+LINE 10') && seen.includes(' line 9') && seen.includes('@6'), seen.join('\n'));
            assert.ok(!(await text('d.txt')).includes('LINE'), 'a dry run writes nothing');
            // What is far away does not matter to it, what is near does.
            const far = (await text('d.txt')).replace('line 19', 'line nineteen');
            await writeFile(file('d.txt'), far);
            const { change: other } = await propose('edit_file', { path: file('d.txt'), edits });
            await applied(change);
            assert.equal(await text('d.txt'), far.replace('line 10', 'LINE 10'));
            const now = await moved(other);
            assert.match(now.preview.failed, /Could not find exact match/);
        });

        await t.test('an edit that does not fit: told, with the reason', async () => {
            const { answer, change } = await propose('edit_file', { path: file('a.txt'), edits: [{ oldText: 'nowhere', newText: 'x' }] });
            assert.match(change.preview.failed, /the dry run answered: .*Could not find exact match/);
            assert.equal(change.preview.kind, 'arguments');
            assert.ok(field(change, 'edits'), 'the arguments are shown');
            assert.equal(answer.structuredContent.status, 'pending');
        });

        await t.test('a folder is made', async () => {
            const { change } = await propose('create_directory', { path: file('deep/er') });
            assert.deepEqual(shown(change, 'There now'), [' (nothing is there)']);
            assert.equal(change.operation, 'CREATE');
            await applied(change);
            assert.ok(await exists(file('deep/er')));
            const { change: again } = await propose('create_directory', { path: folder });
            assert.ok(shown(again, 'There now').includes(' [DIR] deep'));
        });

        await t.test('a file is moved: both ends, and that somebody reads it does not matter', async () => {
            await writeFile(file('from.txt'), 'moved');
            const { change } = await propose('move_file', { source: file('from.txt'), destination: file('to.txt') });
            assert.ok(shown(change, 'What is moved').includes(' size: 5'));
            assert.deepEqual(shown(change, 'What is at the destination now'), [' (nothing is there)']);
            await text('from.txt');
            await applied(change);
            assert.equal(await text('to.txt'), 'moved');
            await writeFile(file('from.txt'), 'again');
            const { change: other } = await propose('move_file', { source: file('from.txt'), destination: file('free.txt') });
            await writeFile(file('free.txt'), 'taken');
            const now = await moved(other);
            assert.ok(shown(now, 'What is at the destination now').includes(' size: 5'));
        });

        await t.test('names that hide something are made visible', async () => {
            const odd = file('cv\u202efdp.exe');
            const { change } = await propose('write_file', { path: odd, content: 'a\u200bb\n' });
            assert.equal(change.target.label, odd, 'what is stored is exact');
            const { stdout } = await run(binary, ['changes', 'show', change.id, '--url', gateway.url], {
                env: environment({ COUNTERSIGN_KEY: gateway.key })
            });
            assert.ok(stdout.includes('\\u{202e}') && stdout.includes('\\u{200b}'), stdout);
            assert.ok(!stdout.includes('\u202e') && !stdout.includes('\u200b'));
            await applied(change);
            assert.equal(await readFile(odd, 'utf8'), 'a\u200bb\n');
        });

        await t.test('a path outside of what the server may touch: told, and refused by the server when it runs', async () => {
            const { change } = await propose('write_file', { path: '/etc/countersign-test', content: 'x' });
            assert.match(change.preview.failed, /Access denied/);
            await gateway.approve(change.id);
            await gateway.reached(change.id, 'failed');
        });
    });
}

test('the agent is shown nothing that it could not have read', async t => {
    const start = options => behind(t, ['filesystem'], options);
    await t.test('where reads are reviewed, reviewers see the text and the agent does not', async t => {
        // Nobody vouches for what the server says of its tools, so reading is reviewed too.
        const { folder, peer, gateway, propose, applied } = await start({ trust_annotations: false, previews: 'filesystem' });
        const file = path.join(folder, 'a.txt');
        const { answer, change } = await propose('write_file', { path: file, content: 'mine\n' });
        assert.deepEqual(shown(change, 'Content'), ['-one', '-two', '-three', '+mine']);
        assert.ok(!JSON.stringify(answer).includes('three'), JSON.stringify(answer));
        const [told, ...more] = answer.structuredContent.diff.fields;
        assert.deepEqual([told.field, told.after, more], ['$preview', null, []]);
        // What is there already looks like anything else.
        const same = await propose('write_file', { path: file, content: 'one\ntwo\nthree\n' });
        assert.deepEqual(same.answer.structuredContent.diff, answer.structuredContent.diff);
        const get = await peer.call('get_change', { changeId: change.id });
        assert.ok(!JSON.stringify(get).includes('three'));
        const { contents } = await peer.read(`change://${change.id}`);
        assert.ok(!JSON.stringify(contents).includes('three'));
        const edit = await propose('edit_file', { path: file, edits: [{ oldText: 'two', newText: '2' }] });
        assert.ok(shown(edit.change, 'Content').includes(' three'));
        assert.ok(!JSON.stringify(edit.answer).includes('three'));
        // Whether a file is there is something to read, too.
        const fresh = await propose('write_file', { path: path.join(folder, 'fresh'), content: 'x' });
        assert.deepEqual([fresh.change.operation, fresh.answer.structuredContent.operation], ['CREATE', 'UPDATE']);
        await applied(change);
        assert.equal(await readFile(file, 'utf8'), 'mine\n');
        void gateway;
    });
    await t.test('where policy denies reading, the preview fails and says so', async () => {
        const rules = [{ tools: 'read_text_file', when: 'arguments.path.endsWith("a.txt")', then: 'deny' }];
        const { folder, propose, applied } = await start({ rules });
        const { answer, change } = await propose('write_file', { path: path.join(folder, 'a.txt'), content: 'mine\n' });
        assert.equal(change.preview.failed, 'policy denies read_text_file to the proposer');
        assert.ok(!JSON.stringify([answer, change]).includes('three'));
        const other = await propose('write_file', { path: path.join(folder, 'b.txt'), content: 'x' });
        assert.equal(other.change.preview.failed, undefined);
        await applied(change);
    });
    await t.test('recipes can be taken out, and written', async () => {
        const own = { create_directory: { reads: [{ label: 'Whole folder', tool: 'directory_tree', arguments: { path: '"."' } }] } };
        const { folder, propose } = await start({ previews: ['auto', { write_file: 'none', ...own }] });
        const write = await propose('write_file', { path: path.join(folder, 'a.txt'), content: 'x' });
        assert.deepEqual(write.change.preview, { kind: 'arguments' });
        const make = await propose('create_directory', { path: path.join(folder, 'x') });
        assert.match(shown(make.change, 'Whole folder').join('\n'), /"name": "a.txt"/);
    });
});

test('a repository', async t => {
    const { folder, propose, applied, moved } = await behind(t, ['git']);
    const git = async (...args) => (await run('git', ['-C', folder, ...args])).stdout.trim();
    const repo_path = folder;

    await t.test('staging: what there is to stage', async () => {
        const { change } = await propose('git_add', { repo_path, files: ['a.txt'] });
        const seen = shown(change, 'Changes that are not staged');
        assert.ok(seen.includes('-one') && seen.includes('+two'), seen.join('\n'));
        assert.match(shown(change, 'Status').join('\n'), /modified: +a\.txt/);
        assert.deepEqual([change.target.label, change.preview.kind], [folder, 'before_after']);
        await writeFile(path.join(folder, 'a.txt'), 'three\n');
        const now = await moved(change);
        assert.ok(shown(now, 'Changes that are not staged').includes('+three'));
        // What happens to other files is no concern of this one.
        await writeFile(path.join(folder, 'other.txt'), 'new\n');
        await applied(now);
        assert.equal(await git('diff', '--cached', '--name-only'), 'a.txt');
        const all = await propose('git_add', { repo_path, files: ['.'] });
        assert.match(shown(all.change, 'Status').join('\n'), /other\.txt/);
        await rm(path.join(folder, 'other.txt'));
        await moved(all.change);
    });
    await t.test('committing: what is staged, and on which branch', async () => {
        const { change } = await propose('git_commit', { repo_path, message: 'Second' });
        const seen = shown(change, 'What is committed');
        assert.ok(seen.includes('-one') && seen.includes('+three'), seen.join('\n'));
        assert.deepEqual(shown(change, 'Branch'), [' On branch main']);
        assert.equal(field(change, 'Message')?.after ?? field(change, 'message')?.after, 'Second');
        // A file that is not staged does not matter.
        await writeFile(path.join(folder, 'untracked.txt'), 'x');
        await applied(change);
        assert.equal(await git('log', '-1', '--format=%s'), 'Second');
        await rm(path.join(folder, 'untracked.txt'));
    });
    await t.test('a branch', async () => {
        const { change } = await propose('git_create_branch', { repo_path, branch_name: 'side' });
        assert.deepEqual(shown(change, 'Branches').filter(line => line.includes('side')), []);
        assert.match(shown(change, 'Where it begins')[0], new RegExp(await git('rev-parse', 'HEAD')));
        await applied(change);
        assert.match(await git('branch'), /side/);
    });
    await t.test('checking out: the commit that the branch leads to', async () => {
        await git('branch', '-f', 'side', 'HEAD~1');
        const { change } = await propose('git_checkout', { repo_path, branch_name: 'side' });
        const first = await git('rev-parse', 'side');
        assert.ok(shown(change, 'What is checked out')[0].includes(first));
        await git('branch', '-f', 'side', 'main');
        const now = await moved(change);
        assert.ok(shown(now, 'What is checked out')[0].includes(await git('rev-parse', 'main')));
        await applied(now);
        assert.equal(await git('branch', '--show-current'), 'side');
    });
    await t.test('unstaging', async () => {
        await writeFile(path.join(folder, 'a.txt'), 'four\n');
        await git('add', 'a.txt');
        const { change } = await propose('git_reset', { repo_path });
        assert.ok(shown(change, 'What is unstaged').includes('+four'));
        await applied(change);
        assert.equal(await git('diff', '--cached', '--name-only'), '');
    });
    await t.test('a branch that is not there: told', async () => {
        const { change } = await propose('git_checkout', { repo_path, branch_name: 'nowhere' });
        assert.match(change.preview.failed, /git_show answered: .*nowhere/);
    });
});

test('a graph', async t => {
    const { peer, propose, applied, moved } = await behind(t, ['memory']);
    const graph = async () => (await peer.call('read_graph', {})).structuredContent;
    const inserted = (change, label) => shown(change, label).filter(line => /^[+-]/.test(line)).map(line => line.replace(/^(.)\s+/, '$1'));
    const ada = { name: 'Ada', entityType: 'person', observations: ['exists'] };
    const knows = { from: 'Ada', to: 'Bob', relationType: 'knows' };
    /** What the graph is afterwards is what the preview said. */
    const right = async (change, part) => {
        const { after } = field(change, change.diff.fields[0].label);
        await applied(change);
        assert.deepEqual(part(await graph()), JSON.parse(after));
    };

    await t.test('entities: those that are there stay', async () => {
        const { change } = await propose('create_entities', { entities: [ada] });
        await right(change, ({ entities }) => entities);
        const { change: again } = await propose('create_entities', { entities: [{ ...ada, observations: ['other'] }, { ...ada, name: 'Bob' }] });
        assert.ok(inserted(again, 'Entities').includes('+"name": "Bob",') || inserted(again, 'Entities').includes('+"name": "Bob"'));
        assert.ok(!shown(again, 'Entities').some(line => line.includes('other')));
        await right(again, ({ entities }) => entities);
    });
    await t.test('relations', async () => {
        const { change } = await propose('create_relations', { relations: [knows, { ...knows, to: 'Nobody' }] });
        await right(change, ({ relations }) => relations);
    });
    await t.test('observations, and one that is added meanwhile', async () => {
        const { change } = await propose('add_observations', { observations: [{ entityName: 'Ada', contents: ['likes engines', 'exists'] }] });
        assert.deepEqual(inserted(change, 'Entities').filter(line => line.includes('likes')), ['+"likes engines"']);
        const { change: other } = await propose('add_observations', { observations: [{ entityName: 'Ada', contents: ['has a cat'] }] });
        await right(other, ({ entities }) => entities.filter(({ name }) => name === 'Ada'));
        const now = await moved(change);
        assert.ok(shown(now, 'Entities').some(line => line.includes('has a cat')));
        await right(now, ({ entities }) => entities.filter(({ name }) => name === 'Ada'));
    });
    await t.test('what is not there cannot be shown', async () => {
        const { change } = await propose('add_observations', { observations: [{ entityName: 'Eve', contents: ['x'] }] });
        assert.match(change.preview.failed, /`after` looks at/);
    });
    await t.test('deletions', async () => {
        const { change } = await propose('delete_observations', { deletions: [{ entityName: 'Ada', observations: ['exists', 'never'] }] });
        assert.deepEqual(change.operation, 'DELETE');
        await right(change, ({ entities }) => entities.filter(({ name }) => name === 'Ada'));
        const { change: relation } = await propose('delete_relations', { relations: [{ ...knows, to: 'Nobody' }] });
        assert.ok(inserted(relation, 'Relations').includes('-"to": "Nobody"'));
        await applied(relation);
        assert.deepEqual((await graph()).relations, [knows]);
        const { change: entity } = await propose('delete_entities', { entityNames: ['Bob'] });
        const gone = inserted(entity, 'Entities and their relations').join(' ');
        assert.ok(gone.includes('"Bob"') && gone.includes('"knows"'), gone);
        await applied(entity);
        assert.deepEqual([(await graph()).entities.map(({ name }) => name), (await graph()).relations], [['Ada'], []]);
    });
});
