// From an agent's SDK through the gateway to the real file system and git servers, with a person at Chromium between.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { assertClean, becomes, button, dashboard, launch, row, status } from './lib/browser.mjs';
import { approve, look, openChange, outcome, propose, shows, startBehind } from './lib/upstreams.mjs';

let browser;
let gateway;
/** The agent of the tests that need no other one, and the page of alice, who reviews. */
let agent;
let page;
let folder;

before(async () => {
  // What the rule is goes by the folder.
  const rules = ({ filesystem }) => {
    const below = (name) => `has(arguments.path) && arguments.path.startsWith("${filesystem}/${name}")`;
    const review = (name, more) => ({ name, tools: 'filesystem__*', annotations: { readOnlyHint: false }, when: below(`${name}/`), then: 'review', ...more });
    return [
      review('two', { quorum: 2 }), review('short', { expire_after: '2s', on_expiry: 'reject' }), review('soon', { undo_for: '5s' }),
      review('held', { on_review: 'hold', hold_for: '10m' }),
    ];
  };
  gateway = await startBehind({
    // Named for the server, its dry run needs no acceptance.
    filesystem: { previews: 'filesystem' }, git: {},
    // Nobody vouches for what this one says of its tools.
    closed: { kind: 'filesystem', trust_annotations: false, previews: ['auto', { create_directory: 'none' }] },
  }, { rules, policy: { review: { preview: 'required' } } });
  folder = gateway.folders.filesystem;
  browser = await launch();
  agent = await gateway.agent({ era: 'legacy', name: 'writer' });
  page = await reviewer(gateway.key);
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

/** A page of whoever has the key, in a browser of their own, with patience: more than browsers runs here. */
const reviewer = (key, route) => dashboard(browser, gateway, { key, route, patience: 60_000 });

const file = (...name) => join(folder, ...name);
const text = (...name) => readFile(file(...name), 'utf8');
const write = (path, content) => propose(agent, 'filesystem__write_file', { path, content });
const ended = (label) => page.locator('.outcome .outcome-head strong', { hasText: label }).waitFor();
const clean = (...expected) => {
  assertClean(page, ...expected);
  page.problems.length = 0;
};

test('a file is written: its real diff, approved in the browser', async () => {
  const id = await write(file('a.txt'), 'one\n2\nthree\n');
  await row(page, `Write ${file('a.txt')}`).click();
  await shows(page, 'Content', [' one', '-two', '+2', ' three']);
  await page.locator('.preview-note', { hasText: 'compares the current state' }).waitFor();
  await look(page, '1-write');
  assert.equal(await text('a.txt'), 'one\ntwo\nthree\n', 'nothing has run');
  const told = outcome(agent, id);
  await approve(page);
  await ended('Applied');
  await page.locator('.block-section > .block', { hasText: 'Successfully wrote to' }).waitFor();
  await look(page, '1-applied');
  assert.equal(await text('a.txt'), 'one\n2\nthree\n');
  const { status: state, text: words } = await told;
  assert.equal(state, 'applied');
  assert.match(words, /Approved by alice/);
  assert.match(words, /Answer of the tool:\nSuccessfully wrote to/);
  clean();
});

test('a file is edited: what the server’s own dry run says', async () => {
  await writeFile(file('edit.txt'), 'red\ngreen\nblue\n');
  const id = await propose(agent, 'filesystem__edit_file', { path: file('edit.txt'), edits: [{ oldText: 'green', newText: 'yellow' }] });
  await openChange(page, gateway, id);
  await shows(page, 'Content', [' red', '-green', '+yellow', ' blue']);
  // Numbered as the file is, whatever the server says before it.
  await becomes(() => page.locator('.beside-now .line.delete .no').first().innerText(), '2');
  await page.locator('.beside-now .line.note', { hasText: file('edit.txt') }).first().waitFor();
  await page.locator('.preview-note', { hasText: 'own dry run' }).waitFor();
  await look(page, '1-edit');
  await approve(page);
  await ended('Applied');
  assert.equal(await text('edit.txt'), 'red\nyellow\nblue\n');
  assert.equal((await outcome(agent, id)).status, 'applied');
  clean();
});

test('changed behind its back: refused, the new diff beside the old one, decided anew with one keystroke', async () => {
  await writeFile(file('moved.txt'), 'one\ntwo\n');
  const id = await write(file('moved.txt'), 'one\nthree\n');
  await openChange(page, gateway, id);
  await shows(page, 'Content', [' one', '-two', '+three']);
  await writeFile(file('moved.txt'), 'zero\none\ntwo\n');
  await approve(page);
  await page.locator('.banner.altered', { hasText: 'Your decision was not recorded' }).waitFor();
  await shows(page, 'Content', ['-zero', ' one', '-two', '+three']);
  await shows(page, 'Content', [' one', '-two', '+three'], 'section.previous');
  await page.locator('footer.decision .after-conflict').waitFor();
  await look(page, '2-stale');
  const { state, decisions, version } = await gateway.change(id);
  assert.deepEqual([state, decisions], ['pending', []]);
  // Also whoever knows no page: yesterday's digest decides nothing.
  const refused = await gateway.api('POST', `/changes/${id}/decision`, { decision: 'approve', version: 1 });
  assert.equal(refused.status, 409);
  assert.ok(version > 1);
  assert.equal(await text('moved.txt'), 'zero\none\ntwo\n');
  await approve(page);
  await ended('Applied');
  assert.equal(await text('moved.txt'), 'one\nthree\n');
  await page.locator('.timeline', { hasText: 'found that the target had changed' }).waitFor();
  await look(page, '2-applied');
  clean(status(409));
});

test('changed behind its back after the approval: looked at again just before it runs, and not run', async () => {
  const path = join(await gateway.folder('filesystem', 'soon'), 'raced.txt');
  await writeFile(path, 'old\n');
  const id = await write(path, 'new\n');
  await openChange(page, gateway, id);
  await page.route('**/decision', async (route) => {
    const response = await route.fetch();
    await writeFile(path, 'raced\n');
    await route.fulfill({ response });
  }, { times: 1 });
  await approve(page);
  await page.locator('.timeline', { hasText: 'found that the target had changed' }).waitFor();
  await shows(page, 'Content', ['-raced', '+new']);
  await shows(page, 'Content', ['-old', '+new'], 'section.previous');
  await look(page, '8-raced');
  assert.equal(await readFile(path, 'utf8'), 'raced\n');
  assert.equal((await gateway.change(id)).state, 'pending');
  await gateway.reject(id);
  await ended('Rejected');
  clean();
});

test('the arguments are corrected in the browser: previewed again, and apart from what was proposed', async () => {
  await writeFile(file('note.txt'), 'Dear all,\n');
  const id = await write(file('note.txt'), 'Dear all,\nwe meet on Mnoday.\n');
  await openChange(page, gateway, id);
  await page.keyboard.press('e');
  const dialog = page.getByRole('dialog', { name: 'Edit the arguments' });
  const content = dialog.locator('#edit-content');
  await content.fill('Dear all,\nwe meet on Monday.\n');
  await dialog.getByLabel('Comment', { exact: true }).fill('A typo');
  await look(page, '3-edit');
  await dialog.getByRole('button', { name: 'Save and preview' }).click();
  await dialog.waitFor({ state: 'detached' });
  await shows(page, 'Content', [' Dear all,', '+we meet on Monday.']);
  const told = outcome(agent, id);
  await approve(page);
  await ended('Applied');
  assert.equal(await text('note.txt'), 'Dear all,\nwe meet on Monday.\n');
  const apart = page.locator('.line-diff', { hasText: 'What the agent proposed' });
  await apart.locator('.line.delete', { hasText: 'Mnoday' }).waitFor();
  await apart.locator('.line.insert', { hasText: 'Monday' }).waitFor();
  await page.locator('.timeline li', { hasText: 'applied the change' }).waitFor();
  await look(page, '3-applied');
  const hashOf = (what) => page.locator('.timeline li', { hasText: what }).locator('xpath=.//dt[.="argumentsHash"]/following-sibling::dd[1]').textContent();
  const [asked, edited, approved, ran] = await Promise.all(['proposed this change', 'edited the change', 'alice approved', 'applied the change'].map(hashOf));
  assert.match(asked, /^sha256:/);
  assert.notEqual(asked, edited);
  assert.deepEqual([approved, ran], [edited, edited]);
  const { proposedArguments, arguments: applied } = await gateway.change(id);
  assert.equal(proposedArguments.content, 'Dear all,\nwe meet on Mnoday.\n');
  assert.equal(applied.content, 'Dear all,\nwe meet on Monday.\n');
  const { text: words } = await told;
  assert.match(words, /The reviewer alice changed the arguments at .*: “A typo”/);
  assert.match(words, /What ran: .*Monday/);
  clean();
});

test('two people: each in their own browser, and never with a second key of the proposer', async () => {
  const path = join(await gateway.folder('filesystem', 'two'), 'release.txt');
  const laptop = await gateway.agent({ name: 'laptop', key: await gateway.createKey('agent', 'laptop-of-carol', 'carol') });
  const id = await propose(laptop, 'filesystem__write_file', { path, content: 'go\n' });
  // Carol's own key may review, but not this.
  const carol = await reviewer(await gateway.createKey('reviewer', 'carol'), `/#/inbox/${id}`);
  await carol.getByText('with a key of the same owner as yours').waitFor();
  await becomes(() => button(carol, 'Approve').count(), 0);
  const own = await fetch(`${gateway.url}/api/changes/${id}/decision`, {
    method: 'POST', headers: { Authorization: `Bearer ${await gateway.createKey('admin', 'carols-other', 'carol')}`, 'Content-Type': 'application/json' }, body: JSON.stringify({ decision: 'approve', version: 1 }),
  });
  assert.deepEqual([own.status, (await own.json()).code], [403, 'SELF_APPROVAL']);
  await look(carol, '4-own');
  await openChange(page, gateway, id);
  await approve(page);
  await page.locator('.quorum', { hasText: '1 of 2 approvals: alice' }).waitFor();
  await look(page, '4-one-of-two');
  const bob = await reviewer(await gateway.createKey('reviewer', 'bob'), `/#/inbox/${id}`);
  await bob.locator('.quorum', { hasText: '1 of 2 approvals: alice' }).waitFor();
  await assert.rejects(readFile(path), { code: 'ENOENT' });
  await shows(bob, 'Content', ['+go']);
  await approve(bob);
  await bob.locator('.outcome', { hasText: 'Applied' }).waitFor();
  await ended('Applied');
  assert.equal(await readFile(path, 'utf8'), 'go\n');
  assert.match((await outcome(laptop, id)).text, /Approved by alice[^]*Approved by bob/);
  for (const other of [bob, carol]) {
    assertClean(other);
    await other.context().close();
  }
  clean();
});

test('nobody decides in time, which is a no: the agent learns it', async () => {
  const path = join(await gateway.folder('filesystem', 'short'), 'late.txt');
  const id = await write(path, 'too late\n');
  const { status: state, text: words } = await outcome(agent, id);
  assert.equal(state, 'rejected');
  assert.match(words, /CHANGE_EXPIRED/);
  assert.match(words, /Next: nobody decided in time, which counts as a no here; nothing was changed/);
  await openChange(page, gateway, id, 'history');
  await ended('Rejected');
  await page.locator('.outcome', { hasText: 'CHANGE_EXPIRED' }).waitFor();
  await look(page, '5-expired');
  await assert.rejects(readFile(path), { code: 'ENOENT' });
  clean();
});

test('a preview that fails is shown as failed, and where the rule asks for one nobody can approve', async () => {
  const id = await write('/etc/countersign-end-to-end', 'no\n');
  await openChange(page, gateway, id);
  await page.locator('.preview-note', { hasText: 'The preview failed.' }).filter({ hasText: 'Access denied - path outside allowed directories' }).waitFor();
  await page.locator('footer.decision', { hasText: 'this can only be rejected or edited' }).waitFor();
  await becomes(() => button(page, 'Approve').count(), 0);
  await row(page, 'countersign-end-to-end').locator('.badge', { hasText: 'No preview' }).waitFor();
  await look(page, '8-failed-preview');
  const { version, digest } = await gateway.change(id);
  const refused = await gateway.api('POST', `/changes/${id}/decision`, { decision: 'approve', version, digest });
  assert.deepEqual([refused.status, refused.body.code], [409, 'PREVIEW_REQUIRED']);
  // Corrected, there is something to see.
  await page.keyboard.press('e');
  const dialog = page.getByRole('dialog', { name: 'Edit the arguments' });
  await dialog.locator('#edit-path').fill(file('inside.txt'));
  await dialog.getByRole('button', { name: 'Save and preview' }).click();
  await shows(page, 'Content', ['+no']);
  await approve(page);
  await ended('Applied');
  assert.equal(await text('inside.txt'), 'no\n');
  clean();
});

test('what the agent could not have read is marked, and kept from it; where there is no recipe the page says so', async () => {
  const path = join(gateway.folders.closed, 'a.txt');
  const answer = await agent.call('closed__write_file', { path, content: 'one\n2\nthree\n' });
  const id = answer.structuredContent.changeId;
  assert.ok(!JSON.stringify(answer).includes('two'), 'the agent sees only what it wrote');
  await openChange(page, gateway, id);
  await shows(page, 'Content', [' one', '-two', '+2', ' three']);
  await page.locator('.line-diff .restricted', { hasText: 'not shown to the agent' }).waitFor();
  // One short line stands in the table.
  await writeFile(join(gateway.folders.closed, 'short.txt'), 'old');
  const shortId = await propose(agent, 'closed__write_file', { path: join(gateway.folders.closed, 'short.txt'), content: 'new' });
  await openChange(page, gateway, shortId);
  await page.locator('.fields tr', { hasText: 'Content' }).locator('.restricted').waitFor();
  const folderId = await propose(agent, 'closed__create_directory', { path: join(gateway.folders.closed, 'new') });
  await openChange(page, gateway, folderId);
  await page.locator('.preview-note', { hasText: 'No preview is available for this tool' }).waitFor();
  await page.locator('.fields tr', { hasText: 'path' }).waitFor();
  await page.locator('footer.decision', { hasText: 'this can only be rejected or edited' }).waitFor();
  await look(page, '9-no-recipe');
  for (const pending of [id, shortId, folderId]) await gateway.reject(pending);
  clean();
});

const git = async (...args) => (await promisify(execFile)('git', ['-C', gateway.folders.git, ...args])).stdout.trim();

test('a repository: staged, committed and checked out, each shown before', async () => {
  const repo_path = gateway.folders.git;
  const decided = async (tool, args, see) => {
    const id = await propose(agent, `git__${tool}`, { repo_path, ...args });
    await openChange(page, gateway, id);
    await see();
    await look(page, `7-${tool}`);
    await approve(page);
    await ended('Applied');
    return outcome(agent, id);
  };
  await decided('git_add', { files: ['a.txt'] }, async () => {
    await shows(page, 'Changes that are not staged', ['-one', '+two']);
    await page.locator('.beside-now .line-diff', { hasText: 'Status' }).getByText('modified: a.txt').waitFor();
  });
  assert.equal(await git('diff', '--cached', '--name-only'), 'a.txt');
  const { text: words } = await decided('git_commit', { message: 'Second' }, async () => {
    await shows(page, 'What is committed', ['-one', '+two']);
    await shows(page, 'Branch', [' On branch main']);
  });
  assert.equal(await git('log', '-1', '--format=%s by %an'), 'Second by Ada');
  assert.match(words, new RegExp(await git('rev-parse', 'HEAD')));
  await git('branch', 'side', 'HEAD~1');
  const side = await git('rev-parse', 'side');
  await decided('git_checkout', { branch_name: 'side' }, async () => {
    await page.locator('.beside-now .line-diff', { hasText: 'What is checked out' }).getByText(`commit ${side}`).waitFor();
  });
  assert.equal(await git('branch', '--show-current'), 'side');
  clean();
});

test('a file staged behind its back: the commit is refused, and shown anew', async () => {
  const repo_path = gateway.folders.git;
  const stage = async (name) => {
    await writeFile(join(repo_path, name), `${name}\n`);
    await git('add', name);
  };
  await stage('wanted.txt');
  const id = await propose(agent, 'git__git_commit', { repo_path, message: 'Only what was seen' });
  await openChange(page, gateway, id);
  await shows(page, 'What is committed', ['+wanted.txt']);
  await stage('smuggled.txt');
  const before = await git('rev-parse', 'HEAD');
  await approve(page);
  await page.locator('.banner.altered', { hasText: 'Your decision was not recorded' }).waitFor();
  await shows(page, 'What is committed', ['+smuggled.txt', '+wanted.txt']);
  await shows(page, 'What is committed', ['+wanted.txt'], 'section.previous');
  await look(page, '7-smuggled');
  assert.equal(await git('rev-parse', 'HEAD'), before);
  assert.equal((await gateway.change(id)).state, 'pending');
  await button(page, 'Reject').click();
  await ended('Rejected');
  assert.equal(await git('rev-parse', 'HEAD'), before);
  clean(status(409));
});

// Who, why, what next: over every way in, for clients of either era, whether they come back for the answer or held the line.
const WAYS = ['stdio', 'WebSocket', 'HTTP'].flatMap((door) => ['legacy', 'modern'].map((era) => ({ door, era })));

test('a rejection reaches the agent as words that it can act on', async (t) => {
  const held = await gateway.folder('filesystem', 'held');
  for (const { door, era } of WAYS) {
    await t.test(`${era} over ${door}`, async () => {
      const name = `${era}-${door}`.toLowerCase();
      const client = await gateway.agent({ era, door, name });
      const told = [];
      const reject = async (id, why) => {
        await openChange(page, gateway, id);
        await page.locator('.fact', { hasText: name }).waitFor();
        await page.keyboard.press('r');
        await page.keyboard.type(why);
        await page.keyboard.press('Control+Enter');
        await ended('Rejected');
      };
      const id = await propose(client, 'filesystem__write_file', { path: file(`${name}.txt`), content: 'x' });
      const waits = outcome(client, id);
      await reject(id, `Not ${name}: ask the “owner” first`);
      told.push((await waits).text);
      // The same words for whoever comes back later.
      const { content } = await client.call('get_change', { changeId: id });
      assert.equal(content[0].text, told[0]);
      // And for a call that waits by itself: its own result is the rejection.
      const call = client.call('filesystem__write_file', { path: join(held, `${name}.txt`), content: 'x' }, { timeout: 60_000 });
      call.catch(() => {});
      await row(page, join(held, `${name}.txt`)).waitFor();
      const heldId = await row(page, join(held, `${name}.txt`)).getAttribute('data-id');
      await reject(heldId, `Not ${name} either`);
      const result = await call;
      assert.equal(result.isError, true);
      const words = result.content.map((block) => block.text).join('\n');
      assert.match(told[0], new RegExp(`Rejected by alice at \\S+: “Not ${name}: ask the “owner” first”`));
      assert.match(words, new RegExp(`Rejected by alice at \\S+: “Not ${name} either”`));
      for (const said of [told[0], words]) {
        assert.match(said, /^Change rejected\. ID: chg_/);
        assert.match(said, /Next: heed the reviewer's reason\. Do not propose the same change again unchanged/);
      }
      for (const path of [file(`${name}.txt`), join(held, `${name}.txt`)]) await assert.rejects(readFile(path), { code: 'ENOENT' });
    });
  }
  await look(page, '6-rejected');
  clean();
});
