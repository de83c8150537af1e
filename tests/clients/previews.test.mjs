// Tests previews of writes to real servers with the recipes of the program: the preview matches the effect, a decision on a
// modified target is refused, and the agent sees nothing that it may not read.
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
/** Returns the marked lines of a field. */
const lines = field => field.lines?.map(({ op, text }) => `${MARKS[op]}${text}`) ?? [];
const field = (change, label) => change.diff.fields.find(field => field.label === label);
const linesOf = (change, label) => lines(field(change, label));
const exists = file => stat(file).then(() => true, () => false);

/** Starts a gateway in front of these servers, whose tools keep their names. */
async function startBehind(t, names, { rules = [], era = 'modern', ...more } = {}) {
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
    // A server is listed only some time after it has connected.
    const first = { filesystem: 'write_file', git: 'git_add', memory: 'read_graph' };
    await eventually('the tools are listed', async () => {
        const tools = (await peer.tools()).map(({ name }) => name);
        return names.every(name => tools.includes(first[name]));
    });
    return {
        gateway,
        peer,
        folder: folders[names[0]],
        /** Proposes the call and returns what the agent and the reviewer see. */
        async propose(tool, args) {
            const answer = await peer.call(tool, args);
            assert.equal(answer.structuredContent?.status, 'pending', JSON.stringify(answer));
            const change = await gateway.change(answer.structuredContent.changeId);
            return { answer, change };
        },
        async apply(change) {
            await gateway.approve(change.id);
            return gateway.reached(change.id, 'applied');
        },
        /** Asserts that the outdated diff cannot be approved, and returns the change with the current one. */
        async expectStale(change) {
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
    test(`writes of files by a ${era} client are previewed`, async t => {
        const { gateway, peer, folder, propose, apply, expectStale } = await startBehind(t, ['filesystem'], { era });
        const file = name => path.join(folder, name);
        const text = name => readFile(file(name), 'utf8');

        await t.test('the set of recipes is recognised and reported', async () => {
            const { servers } = (await gateway.api('GET', '/servers')).body;
            const { previews } = servers.find(server => server.name === 'filesystem');
            assert.deepEqual(previews, { sets: ['filesystem'], tools: ['create_directory', 'edit_file', 'move_file', 'write_file'] });
            assert.match(gateway.log(), /previews are made from recipes.*filesystem/);
        });

        await t.test('writing a file shows its diff', async () => {
            const { answer, change } = await propose('write_file', { path: file('a.txt'), content: 'one\n2\nthree\n' });
            assert.deepEqual(linesOf(change, 'Content'), [' one', '-two', '+2', ' three']);
            const { stateKeys, ...preview } = change.preview;
            assert.deepEqual(preview, { kind: 'before_after', tried: '@modelcontextprotocol/server-filesystem 2026.8.31' });
            assert.match(stateKeys.join(), /^sha256:[0-9a-f]{64}$/);
            assert.deepEqual([change.operation, change.target.label, change.summary], ['UPDATE', file('a.txt'), `Write ${file('a.txt')}`]);
            // The agent may read the file, so it gets the same diff.
            assert.deepEqual(answer.structuredContent.diff, change.diff);
            await apply(change);
            assert.equal(await text('a.txt'), 'one\n2\nthree\n');
        });

        await t.test('a new file has no earlier content', async () => {
            const { change } = await propose('write_file', { path: file('new.txt'), content: 'new' });
            const { before, after } = field(change, 'Content');
            assert.deepEqual([change.operation, before, after], ['CREATE', null, 'new']);
            await apply(change);
            assert.equal(await text('new.txt'), 'new');
        });

        await t.test('a file that is modified meanwhile gets a new diff beside the old one', async () => {
            await writeFile(file('b.txt'), 'one\n');
            const { change } = await propose('write_file', { path: file('b.txt'), content: 'three\n' });
            await writeFile(file('b.txt'), 'two\n');
            const now = await expectStale(change);
            assert.deepEqual(linesOf(now, 'Content'), ['-two', '+three']);
            assert.equal(await text('b.txt'), 'two\n');
            await apply(now);
            assert.equal(await text('b.txt'), 'three\n');
        });

        await t.test('a file that is created meanwhile makes the change an update', async () => {
            const { change } = await propose('write_file', { path: file('c.txt'), content: 'mine' });
            await writeFile(file('c.txt'), '');
            const now = await expectStale(change);
            assert.deepEqual([now.operation, field(now, 'Content').before], ['UPDATE', '']);
        });

        await t.test('an edit is previewed by a dry run', async () => {
            await writeFile(file('d.txt'), `${Array.from({ length: 20 }, (_, n) => `line ${n}`).join('\n')}\n`);
            const edits = [{ oldText: 'line 10', newText: 'LINE 10' }];
            const edit = () => propose('edit_file', { path: file('d.txt'), edits });
            // The dry run is only used after a reviewer has accepted the tool, because its harmlessness is a claim of the server.
            const { change: first } = await edit();
            assert.match(first.preview.failed, /nobody has accepted its definition/);
            const { tools } = (await gateway.api('GET', '/servers/filesystem')).body;
            const { name: tool, hash } = tools.find(({ name }) => name === 'edit_file');
            const accepted = await gateway.api('POST', '/servers/filesystem/accept', { tools: [{ name: tool, hash }] });
            assert.equal(accepted.status, 200, JSON.stringify(accepted.body));
            // Other nodes of a cluster learn of it a moment later.
            const change = await eventually('a preview by a dry run', async () => {
                const { change: next } = await edit();
                return next.preview.kind === 'dry_run' && next;
            });
            const seen = linesOf(change, 'Content');
            assert.ok(seen.includes('-line 10') && seen.includes('+LINE 10') && seen.includes(' line 9') && seen.includes('@6'), seen.join('\n'));
            assert.ok(!(await text('d.txt')).includes('LINE'), 'a dry run writes nothing');
            // Changes far from the edit do not affect it, changes at its place do.
            const edited = (await text('d.txt')).replace('line 19', 'line nineteen');
            await writeFile(file('d.txt'), edited);
            const { change: other } = await propose('edit_file', { path: file('d.txt'), edits });
            await apply(change);
            assert.equal(await text('d.txt'), edited.replace('line 10', 'LINE 10'));
            const now = await expectStale(other);
            assert.match(now.preview.failed, /Could not find exact match/);
        });

        await t.test('an edit that asks for a dry run says that nothing is written', async () => {
            const edits = [{ oldText: 'LINE 10', newText: 'line ten' }];
            const { change } = await propose('edit_file', { path: file('d.txt'), edits, dryRun: true });
            assert.deepEqual(linesOf(change, 'Effect'), [' The call itself asks for a dry run, so nothing is written.']);
            assert.deepEqual([change.operation, change.summary], ['CALL', `Edit ${file('d.txt')}, only to check it`]);
            assert.ok(linesOf(change, 'Content').includes('+line ten'));
            await apply(change);
            assert.ok((await text('d.txt')).includes('LINE 10'));
        });

        await t.test('a call that must fail returns to its agent, and nobody is asked', async () => {
            const open = async () => (await gateway.api('GET', '/changes?limit=200')).body.changes.length;
            const before = await open();
            for (const [tool, args, reason] of [
                ['edit_file', { path: file('a.txt'), edits: [{ oldText: 'nowhere', newText: 'x' }] }, /the dry run answered: .*Could not find exact match/],
                ['move_file', { source: file('nowhere.txt'), destination: file('x.txt') }, /get_file_info answered: .*ENOENT/],
                ['write_file', { path: '/etc/countersign-test', content: 'x' }, /read_text_file answered: .*Access denied/]
            ]) {
                const answer = await peer.call(tool, args);
                assert.equal(answer.isError, true, JSON.stringify(answer));
                const { code, message } = JSON.parse(answer.content[0].text);
                assert.equal(code, 'CALL_MUST_FAIL');
                assert.match(message, reason);
                const { entries } = (await gateway.api('GET', '/audit?event=failing_call_returned&limit=1')).body;
                assert.equal(entries[0].details.tool, tool);
                assert.match(entries[0].details.comment, reason);
            }
            assert.equal(await open(), before);
        });

        await t.test('creating a folder shows the current content', async () => {
            const { change } = await propose('create_directory', { path: file('deep/er') });
            assert.deepEqual(linesOf(change, 'There now'), [' (nothing is there)']);
            assert.equal(change.operation, 'CREATE');
            await apply(change);
            assert.ok(await exists(file('deep/er')));
            const { change: again } = await propose('create_directory', { path: folder });
            assert.ok(linesOf(again, 'There now').includes(' [DIR] deep'));
        });

        await t.test('moving a file shows both ends and is not affected by reads', async () => {
            await writeFile(file('from.txt'), 'moved');
            const { change } = await propose('move_file', { source: file('from.txt'), destination: file('to.txt') });
            assert.ok(linesOf(change, 'What is moved').includes(' size: 5'));
            assert.deepEqual(linesOf(change, 'What is at the destination now'), [' (nothing is there)']);
            await text('from.txt');
            await apply(change);
            assert.equal(await text('to.txt'), 'moved');
            await writeFile(file('from.txt'), 'again');
            const { change: other } = await propose('move_file', { source: file('from.txt'), destination: file('free.txt') });
            await writeFile(file('free.txt'), 'taken');
            const now = await expectStale(other);
            assert.ok(linesOf(now, 'What is at the destination now').includes(' size: 5'));
        });

        await t.test('steps of a plan are previewed over what earlier steps write', async () => {
            const target = file('plan.txt');
            const plan = await peer.call('propose_plan', {
                title: 'One file, three times',
                calls: [
                    { name: 'write_file', arguments: { path: target, content: 'one\n' } },
                    { name: 'write_file', arguments: { path: target, content: 'two\n' } },
                    { name: 'write_file', arguments: { path: file('other.txt'), content: 'two\n' } }
                ]
            });
            const id = plan.structuredContent.planId;
            const { changes } = (await gateway.api('GET', `/plans/${id}`)).body;
            const shown = changes.map(change => {
                const { before, after } = field(change, 'Content');
                return [change.operation, before, after];
            });
            assert.deepEqual(shown, [['CREATE', null, 'one\n'], ['UPDATE', 'one\n', 'two\n'], ['CREATE', null, 'two\n']]);
            const digests = changes.map(({ id: change, digest }) => ({ change, digest }));
            const approved = await gateway.api('POST', `/plans/${id}/decision`, { decision: 'approve', digests });
            assert.equal(approved.status, 200, JSON.stringify(approved.body));
            for (const { id, digest } of changes) assert.equal((await gateway.reached(id, 'applied')).digest, digest, 'nobody had to look again');
            assert.equal(await text('plan.txt'), 'two\n');
            // An edit is a dry run, which cannot know the text that the earlier step leaves.
            const edits = [{ oldText: 'two', newText: '2' }];
            const noted = await peer.call('propose_plan', {
                title: 'Write and edit',
                calls: [
                    { name: 'write_file', arguments: { path: target, content: 'two\nthree\n' } },
                    { name: 'edit_file', arguments: { path: target, edits } }
                ]
            });
            const { changes: [, edit] } = (await gateway.api('GET', `/plans/${noted.structuredContent.planId}`)).body;
            assert.match(linesOf(edit, 'Earlier step').join(), /^ Step 1 writes the same target\./);
        });

        await t.test('invisible characters in names are escaped', async () => {
            const oddPath = file('cv\u202efdp.exe');
            const { change } = await propose('write_file', { path: oddPath, content: 'a\u200bb\n' });
            assert.equal(change.target.label, oddPath, 'the stored name is exact');
            const { stdout } = await run(binary, ['changes', 'show', change.id, '--url', gateway.url], {
                env: environment({ COUNTERSIGN_KEY: gateway.key })
            });
            assert.ok(stdout.includes('\\u{202e}') && stdout.includes('\\u{200b}'), stdout);
            assert.ok(!stdout.includes('\u202e') && !stdout.includes('\u200b'));
            await apply(change);
            assert.equal(await readFile(oddPath, 'utf8'), 'a\u200bb\n');
        });

    });
}

test('the agent sees nothing that it may not read', async t => {
    const start = options => startBehind(t, ['filesystem'], options);
    await t.test('if reads are reviewed, only reviewers see the text', async t => {
        // The annotations are not trusted, so reads are reviewed too.
        const { folder, peer, gateway, propose, apply } = await start({ trust_annotations: false, previews: 'filesystem' });
        const file = path.join(folder, 'a.txt');
        const { answer, change } = await propose('write_file', { path: file, content: 'mine\n' });
        assert.deepEqual(linesOf(change, 'Content'), ['-one', '-two', '-three', '+mine']);
        assert.ok(!JSON.stringify(answer).includes('three'), JSON.stringify(answer));
        const [diffField, ...more] = answer.structuredContent.diff.fields;
        assert.deepEqual([diffField.field, diffField.after, more], ['$preview', null, []]);
        // Unchanged content looks the same to the agent.
        const same = await propose('write_file', { path: file, content: 'one\ntwo\nthree\n' });
        assert.deepEqual(same.answer.structuredContent.diff, answer.structuredContent.diff);
        const get = await peer.call('get_change', { changeId: change.id });
        assert.ok(!JSON.stringify(get).includes('three'));
        const { contents } = await peer.read(`change://${change.id}`);
        assert.ok(!JSON.stringify(contents).includes('three'));
        const edit = await propose('edit_file', { path: file, edits: [{ oldText: 'two', newText: '2' }] });
        assert.ok(linesOf(edit.change, 'Content').includes(' three'));
        assert.ok(!JSON.stringify(edit.answer).includes('three'));
        // So is why a call must fail.
        const failing = await propose('edit_file', { path: file, edits: [{ oldText: 'nowhere', newText: 'x' }] });
        assert.match(failing.change.preview.failed, /Could not find exact match/);
        assert.equal(failing.change.preview.mustFail, 'restricted');
        assert.ok(!JSON.stringify(failing.answer).includes('exact match'), JSON.stringify(failing.answer));
        // The existence of a file is hidden too.
        const fresh = await propose('write_file', { path: path.join(folder, 'fresh'), content: 'x' });
        assert.deepEqual([fresh.change.operation, fresh.answer.structuredContent.operation], ['CREATE', 'UPDATE']);
        await apply(change);
        assert.equal(await readFile(file, 'utf8'), 'mine\n');
        void gateway;
    });
    await t.test('if policy denies reading, the preview fails with that reason', async () => {
        const rules = [{ tools: 'read_text_file', when: 'arguments.path.endsWith("a.txt")', then: 'deny' }];
        const { folder, propose, apply } = await start({ rules });
        const { answer, change } = await propose('write_file', { path: path.join(folder, 'a.txt'), content: 'mine\n' });
        assert.equal(change.preview.failed, 'policy denies read_text_file to the proposer');
        assert.ok(!JSON.stringify([answer, change]).includes('three'));
        const other = await propose('write_file', { path: path.join(folder, 'b.txt'), content: 'x' });
        assert.equal(other.change.preview.failed, undefined);
        await apply(change);
    });
    await t.test('recipes can be removed and added', async () => {
        const own = { create_directory: { reads: [{ label: 'Whole folder', tool: 'directory_tree', arguments: { path: '.' } }] } };
        const { folder, propose } = await start({ previews: ['auto', { write_file: 'none', ...own }] });
        const write = await propose('write_file', { path: path.join(folder, 'a.txt'), content: 'x' });
        assert.deepEqual(write.change.preview, { kind: 'arguments' });
        const make = await propose('create_directory', { path: path.join(folder, 'x') });
        assert.match(linesOf(make.change, 'Whole folder').join('\n'), /"name": "a.txt"/);
    });
});

test('writes to a git repository are previewed', async t => {
    const { folder, propose, apply, expectStale } = await startBehind(t, ['git']);
    const git = async (...args) => (await run('git', ['-C', folder, ...args])).stdout.trim();
    const repo_path = folder;

    await t.test('staging shows the unstaged changes', async () => {
        const { change } = await propose('git_add', { repo_path, files: ['a.txt'] });
        const seen = linesOf(change, 'Changes that are not staged');
        assert.ok(seen.includes('-one') && seen.includes('+two'), seen.join('\n'));
        assert.match(linesOf(change, 'Status').join('\n'), /modified: +a\.txt/);
        assert.deepEqual([change.target.label, change.preview.kind], [folder, 'before_after']);
        await writeFile(path.join(folder, 'a.txt'), 'three\n');
        const now = await expectStale(change);
        assert.ok(linesOf(now, 'Changes that are not staged').includes('+three'));
        // Other files do not affect it.
        await writeFile(path.join(folder, 'other.txt'), 'new\n');
        await apply(now);
        assert.equal(await git('diff', '--cached', '--name-only'), 'a.txt');
        const all = await propose('git_add', { repo_path, files: ['.'] });
        assert.match(linesOf(all.change, 'Status').join('\n'), /other\.txt/);
        await rm(path.join(folder, 'other.txt'));
        await expectStale(all.change);
    });
    await t.test('committing shows the staged changes and the branch', async () => {
        const { change } = await propose('git_commit', { repo_path, message: 'Second' });
        const seen = linesOf(change, 'What is committed');
        assert.ok(seen.includes('-one') && seen.includes('+three'), seen.join('\n'));
        assert.deepEqual(linesOf(change, 'Branch'), [' On branch main']);
        assert.equal(field(change, 'Message')?.after ?? field(change, 'message')?.after, 'Second');
        // A file that is not staged does not affect it.
        await writeFile(path.join(folder, 'untracked.txt'), 'x');
        await apply(change);
        assert.equal(await git('log', '-1', '--format=%s'), 'Second');
        await rm(path.join(folder, 'untracked.txt'));
    });
    await t.test('creating a branch shows the branches and the commit', async () => {
        const { change } = await propose('git_create_branch', { repo_path, branch_name: 'side' });
        assert.deepEqual(linesOf(change, 'Branches').filter(line => line.includes('side')), []);
        assert.match(linesOf(change, 'Where it begins')[0], new RegExp(await git('rev-parse', 'HEAD')));
        await apply(change);
        assert.match(await git('branch'), /side/);
    });
    await t.test('checking out shows the commit of the branch', async () => {
        await git('branch', '-f', 'side', 'HEAD~1');
        const { change } = await propose('git_checkout', { repo_path, branch_name: 'side' });
        const first = await git('rev-parse', 'side');
        assert.ok(linesOf(change, 'What is checked out, if it is a branch')[0].includes(first));
        await git('branch', '-f', 'side', 'main');
        const now = await expectStale(change);
        assert.ok(linesOf(now, 'What is checked out, if it is a branch')[0].includes(await git('rev-parse', 'main')));
        await apply(now);
        assert.equal(await git('branch', '--show-current'), 'side');
    });
    await t.test('a branch is shown even if a tag has its name', async () => {
        await git('branch', 'twice', 'main~1');
        await git('tag', 'twice', 'main');
        const [branch, tag] = [await git('rev-parse', 'main~1'), await git('rev-parse', 'main')];
        // The server begins a branch at the tag.
        const { change: made } = await propose('git_create_branch', { repo_path, branch_name: 'from-twice', base_branch: 'twice' });
        assert.ok(linesOf(made, 'Where it begins')[0].includes(tag));
        await apply(made);
        assert.equal(await git('rev-parse', 'from-twice'), tag);
        const { change } = await propose('git_checkout', { repo_path, branch_name: 'twice' });
        assert.ok(linesOf(change, 'What is checked out, if it is a branch')[0].includes(branch));
        assert.ok(linesOf(change, 'What is checked out, if it is no branch')[0].includes(tag));
        await apply(change);
        assert.deepEqual([await git('branch', '--show-current'), await git('rev-parse', 'HEAD')], ['twice', branch]);
        await git('branch', '-D', 'from-twice');
        await git('checkout', '-q', 'main');
    });
    await t.test('a tag and a relative commit are shown', async () => {
        await git('tag', 'once', 'main~1');
        const commit = await git('rev-parse', 'main~1');
        const { change: tag } = await propose('git_checkout', { repo_path, branch_name: 'once' });
        assert.deepEqual(linesOf(tag, 'What is checked out, if it is a branch'), [' (nothing is there)']);
        assert.ok(linesOf(tag, 'What is checked out, if it is no branch')[0].includes(commit));
        const { change: relative } = await propose('git_checkout', { repo_path, branch_name: 'main~1' });
        assert.ok(linesOf(relative, 'What is checked out')[0].includes(commit));
        for (const branch_name of ['@{-1}', `${commit.slice(0, 7)}~1`]) {
            const { change: unclear } = await propose('git_checkout', { repo_path, branch_name });
            assert.match(unclear.preview.failed, /no variant/);
        }
    });
    await t.test('unstaging shows the staged changes', async () => {
        await writeFile(path.join(folder, 'a.txt'), 'four\n');
        await git('add', 'a.txt');
        const { change } = await propose('git_reset', { repo_path });
        assert.ok(linesOf(change, 'What is unstaged').includes('+four'));
        await apply(change);
        assert.equal(await git('diff', '--cached', '--name-only'), '');
    });
    await t.test('an unknown branch fails its preview', async () => {
        const { change } = await propose('git_checkout', { repo_path, branch_name: 'nowhere' });
        assert.match(change.preview.failed, /git_show answered: .*nowhere/);
    });
});

test('writes to a memory graph are previewed', async t => {
    const { peer, propose, apply, expectStale } = await startBehind(t, ['memory']);
    const graph = async () => (await peer.call('read_graph', {})).structuredContent;
    const inserted = (change, label) => linesOf(change, label).filter(line => /^[+-]/.test(line)).map(line => line.replace(/^(.)\s+/, '$1'));
    const ada = { name: 'Ada', entityType: 'person', observations: ['exists'] };
    const knows = { from: 'Ada', to: 'Bob', relationType: 'knows' };
    /** Applies the change and asserts that the graph is as previewed. */
    const applyAsShown = async (change, part) => {
        const { after } = field(change, change.diff.fields[0].label);
        await apply(change);
        assert.deepEqual(part(await graph()), JSON.parse(after));
    };

    await t.test('creating entities keeps existing ones', async () => {
        const { change } = await propose('create_entities', { entities: [ada] });
        await applyAsShown(change, ({ entities }) => entities);
        const { change: again } = await propose('create_entities', { entities: [{ ...ada, observations: ['other'] }, { ...ada, name: 'Bob' }] });
        assert.ok(inserted(again, 'Entities').includes('+"name": "Bob",') || inserted(again, 'Entities').includes('+"name": "Bob"'));
        assert.ok(!linesOf(again, 'Entities').some(line => line.includes('other')));
        await applyAsShown(again, ({ entities }) => entities);
    });
    await t.test('creating relations is previewed', async () => {
        const { change } = await propose('create_relations', { relations: [knows, { ...knows, to: 'Nobody' }] });
        await applyAsShown(change, ({ relations }) => relations);
    });
    await t.test('observations are previewed again after another one was added', async () => {
        const { change } = await propose('add_observations', { observations: [{ entityName: 'Ada', contents: ['likes engines', 'exists'] }] });
        assert.deepEqual(inserted(change, 'Entities').filter(line => line.includes('likes')), ['+"likes engines"']);
        const { change: other } = await propose('add_observations', { observations: [{ entityName: 'Ada', contents: ['has a cat'] }] });
        await applyAsShown(other, ({ entities }) => entities.filter(({ name }) => name === 'Ada'));
        const now = await expectStale(change);
        assert.ok(linesOf(now, 'Entities').some(line => line.includes('has a cat')));
        await applyAsShown(now, ({ entities }) => entities.filter(({ name }) => name === 'Ada'));
    });
    await t.test('observations of an unknown entity fail their preview', async () => {
        const { change } = await propose('add_observations', { observations: [{ entityName: 'Eve', contents: ['x'] }] });
        assert.match(change.preview.failed, /`after` looks at/);
    });
    await t.test('deletions are previewed', async () => {
        const { change } = await propose('delete_observations', { deletions: [{ entityName: 'Ada', observations: ['exists', 'never'] }] });
        assert.deepEqual(change.operation, 'DELETE');
        await applyAsShown(change, ({ entities }) => entities.filter(({ name }) => name === 'Ada'));
        const { change: relation } = await propose('delete_relations', { relations: [{ ...knows, to: 'Nobody' }] });
        assert.ok(inserted(relation, 'Relations').includes('-"to": "Nobody"'));
        await apply(relation);
        assert.deepEqual((await graph()).relations, [knows]);
        const { change: entity } = await propose('delete_entities', { entityNames: ['Bob'] });
        const gone = ['entities', 'relations'].flatMap(part => inserted(entity, `Entities and their relations: ${part}`)).join(' ');
        assert.ok(gone.includes('"Bob"') && gone.includes('"knows"'), gone);
        await apply(entity);
        assert.deepEqual([(await graph()).entities.map(({ name }) => name), (await graph()).relations], [['Ada'], []]);
    });
    await t.test('deleting an entity that does not exist shows its relations', async () => {
        await apply((await propose('create_relations', { relations: [knows, { ...knows, from: 'Bob', to: 'Eve' }, { ...knows, to: 'Eve' }] })).change);
        const { change } = await propose('delete_entities', { entityNames: ['Bob'] });
        const gone = inserted(change, 'Entities and their relations: relations').join(' ');
        assert.ok(gone.includes('"to": "Bob"') && gone.includes('"from": "Bob"'), gone);
        await apply(change);
        assert.deepEqual((await graph()).relations, [{ ...knows, to: 'Eve' }]);
    });
});
