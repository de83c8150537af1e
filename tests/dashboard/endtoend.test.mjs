// Tests the whole path: an agent's SDK, the gateway, the real file system and git servers, and a reviewer in Chromium.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { repeatUntilInTime } from '../clients/gateway.mjs';
import { assertClean, becomes, button, dashboard, launch, reject, row, status, waitForOutcome } from './lib/browser.mjs';
import { approve, openChange, outcome, propose, screenshotChange, shows, startBehind } from './lib/upstreams.mjs';

let browser;
let gateway;
/** The default agent, and the page of the reviewer alice. */
let agent;
let page;
let folder;

before(async () => {
  // Each folder has a rule of its own.
  const rules = ({ filesystem }) => {
    const below = (name) => `has(arguments.path) && arguments.path.startsWith("${filesystem}/${name}")`;
    const review = (name, more) => ({ name, tools: 'filesystem__*', annotations: { readOnlyHint: false }, when: below(`${name}/`), then: 'review', ...more });
    return [
      review('two', { quorum: 2 }), review('short', { expire_after: '2s', on_expiry: 'reject' }), review('soon', { undo_for: '5s' }),
      review('held', { on_review: 'hold', hold_for: '10m' }),
    ];
  };
  gateway = await startBehind({
    // The set is named explicitly, so its dry run needs no acceptance.
    filesystem: { previews: 'filesystem' }, git: {},
    // The annotations of this server are not trusted.
    closed: { kind: 'filesystem', trust_annotations: false, previews: ['auto', { create_directory: 'none' }] },
  }, { rules, policy: { review: { preview: 'required', on_failed_preview: 'review' } } });
  folder = gateway.folders.filesystem;
  browser = await launch();
  agent = await gateway.agent({ era: 'legacy', name: 'writer' });
  page = await reviewer(gateway.key);
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

/** Opens a page for a key in a separate browser context. Timeouts are long because servers run beside the browser. */
const reviewer = (key, route) => dashboard(browser, gateway, { key, route, patience: 60_000 });

const file = (...name) => join(folder, ...name);
const text = (...name) => readFile(file(...name), 'utf8');
const write = (path, content) => propose(agent, 'filesystem__write_file', { path, content });
const clean = (...expected) => {
  assertClean(page, ...expected);
  page.problems.length = 0;
};

test('writing a file shows its diff and is approved in the browser', async () => {
  const id = await write(file('a.txt'), 'one\n2\nthree\n');
  await row(page, `Write ${file('a.txt')}`).click();
  await shows(page, 'Content', [' one', '-two', '+2', ' three']);
  await page.locator('.preview-note', { hasText: 'compares the current state' }).waitFor();
  await screenshotChange(page, '1-write');
  assert.equal(await text('a.txt'), 'one\ntwo\nthree\n', 'nothing has run yet');
  const answer = outcome(agent, id);
  await approve(page);
  await waitForOutcome(page, 'Applied');
  await page.locator('.block-section > .block', { hasText: 'Successfully wrote to' }).waitFor();
  await screenshotChange(page, '1-applied');
  assert.equal(await text('a.txt'), 'one\n2\nthree\n');
  const { status: state, text: answerText } = await answer;
  assert.equal(state, 'applied');
  assert.match(answerText, /Approved by alice/);
  assert.match(answerText, /Answer of the tool:\nSuccessfully wrote to/);
  clean();
});

test('editing a file shows the dry run of the server', async () => {
  await writeFile(file('edit.txt'), 'red\ngreen\nblue\n');
  const id = await propose(agent, 'filesystem__edit_file', { path: file('edit.txt'), edits: [{ oldText: 'green', newText: 'yellow' }] });
  await openChange(page, gateway, id);
  await shows(page, 'Content', [' red', '-green', '+yellow', ' blue']);
  // Line numbers are those of the file, even though the server sends a header.
  await becomes(() => page.locator('.beside-now .line.delete .no').first().innerText(), '2');
  await page.locator('.beside-now .line.note', { hasText: file('edit.txt') }).first().waitFor();
  await page.locator('.preview-note', { hasText: 'own dry run' }).waitFor();
  await screenshotChange(page, '1-edit');
  await approve(page);
  await waitForOutcome(page, 'Applied');
  assert.equal(await text('edit.txt'), 'red\nyellow\nblue\n');
  assert.equal((await outcome(agent, id)).status, 'applied');
  clean();
});

test('a decision on a modified file is refused and repeated on the new diff', async () => {
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
  await screenshotChange(page, '2-stale');
  const { state, decisions, version } = await gateway.change(id);
  assert.deepEqual([state, decisions], ['pending', []]);
  // A decision by REST with an old version is refused too.
  const refused = await gateway.api('POST', `/changes/${id}/decision`, { decision: 'approve', version: 1 });
  assert.equal(refused.status, 409);
  assert.ok(version > 1);
  assert.equal(await text('moved.txt'), 'zero\none\ntwo\n');
  await approve(page);
  await waitForOutcome(page, 'Applied');
  assert.equal(await text('moved.txt'), 'one\nthree\n');
  await page.locator('.timeline', { hasText: 'found that what was shown no longer held' }).waitFor();
  await screenshotChange(page, '2-applied');
  clean(status(409));
});

test('a file that is modified after the approval is not written', async () => {
  const soon = await gateway.folder('filesystem', 'soon');
  // On a busy machine the change may run before the file is modified, and then another one is approved.
  const { path, id } = await repeatUntilInTime('no file was modified in time', async (n) => {
    const path = join(soon, `raced-${n}.txt`);
    await writeFile(path, 'old\n');
    const id = await write(path, 'new\n');
    await openChange(page, gateway, id);
    const { promise: isModifiedInTime, resolve } = Promise.withResolvers();
    await page.route('**/decision', async (route) => {
      const response = await route.fetch();
      await writeFile(path, 'raced\n');
      resolve(Date.now() < Date.parse((await response.json()).runAfter));
      await route.fulfill({ response });
    }, { times: 1 });
    await approve(page);
    return (await isModifiedInTime) && { path, id };
  });
  await page.locator('.timeline', { hasText: 'found that what was shown no longer held' }).waitFor();
  await shows(page, 'Content', ['-raced', '+new']);
  await shows(page, 'Content', ['-old', '+new'], 'section.previous');
  await screenshotChange(page, '8-raced');
  assert.equal(await readFile(path, 'utf8'), 'raced\n');
  assert.equal((await gateway.change(id)).state, 'pending');
  await gateway.reject(id);
  await waitForOutcome(page, 'Rejected');
  clean();
});

test('edited arguments are previewed again and shown beside the proposed ones', async () => {
  await writeFile(file('note.txt'), 'Dear all,\n');
  const id = await write(file('note.txt'), 'Dear all,\nwe meet on Mnoday.\n');
  await openChange(page, gateway, id);
  await page.keyboard.press('e');
  const dialog = page.getByRole('dialog', { name: 'Edit the arguments' });
  const content = dialog.locator('#edit-content');
  await content.fill('Dear all,\nwe meet on Monday.\n');
  await dialog.getByLabel('Comment', { exact: true }).fill('A typo');
  await screenshotChange(page, '3-edit');
  await dialog.getByRole('button', { name: 'Save and preview' }).click();
  await dialog.waitFor({ state: 'detached' });
  await shows(page, 'Content', [' Dear all,', '+we meet on Monday.']);
  const answer = outcome(agent, id);
  await approve(page);
  await waitForOutcome(page, 'Applied');
  assert.equal(await text('note.txt'), 'Dear all,\nwe meet on Monday.\n');
  const apart = page.locator('.line-diff', { hasText: 'What the agent proposed' });
  await apart.locator('.line.delete', { hasText: 'Mnoday' }).waitFor();
  await apart.locator('.line.insert', { hasText: 'Monday' }).waitFor();
  await page.locator('.timeline li', { hasText: 'applied the change' }).waitFor();
  await screenshotChange(page, '3-applied');
  const hashOf = (event) => page.locator('.timeline li', { hasText: event }).locator('xpath=.//dt[.="argumentsHash"]/following-sibling::dd[1]').textContent();
  const [proposed, edited, approved, ran] = await Promise.all(['proposed this change', 'edited the change', 'alice approved', 'applied the change'].map(hashOf));
  assert.match(proposed, /^sha256:/);
  assert.notEqual(proposed, edited);
  assert.deepEqual([approved, ran], [edited, edited]);
  const { proposedArguments, arguments: applied } = await gateway.change(id);
  assert.equal(proposedArguments.content, 'Dear all,\nwe meet on Mnoday.\n');
  assert.equal(applied.content, 'Dear all,\nwe meet on Monday.\n');
  const { text: answerText } = await answer;
  assert.match(answerText, /The reviewer alice changed the arguments at .*: “A typo”/);
  assert.match(answerText, /What ran: .*Monday/);
  clean();
});

test('a quorum of two needs two people, and the proposer is none of them', async () => {
  const path = join(await gateway.folder('filesystem', 'two'), 'release.txt');
  const laptop = await gateway.agent({ name: 'laptop', key: await gateway.createKey('agent', 'laptop-of-carol', 'carol') });
  const id = await propose(laptop, 'filesystem__write_file', { path, content: 'go\n' });
  // Carol may review, but not her own proposal.
  const carol = await reviewer(await gateway.createKey('reviewer', 'carol'), `/#/inbox/${id}`);
  await carol.getByText('with a key of the same owner as yours').waitFor();
  await becomes(() => button(carol, 'Approve').count(), 0);
  const own = await fetch(`${gateway.url}/api/changes/${id}/decision`, {
    method: 'POST', headers: { Authorization: `Bearer ${await gateway.createKey('admin', 'carols-other', 'carol')}`, 'Content-Type': 'application/json' }, body: JSON.stringify({ decision: 'approve', version: 1 }),
  });
  assert.deepEqual([own.status, (await own.json()).code], [403, 'SELF_APPROVAL']);
  await screenshotChange(carol, '4-own');
  await openChange(page, gateway, id);
  await approve(page);
  await page.locator('.quorum', { hasText: '1 of 2 approvals: alice' }).waitFor();
  await screenshotChange(page, '4-one-of-two');
  const bob = await reviewer(await gateway.createKey('reviewer', 'bob'), `/#/inbox/${id}`);
  await bob.locator('.quorum', { hasText: '1 of 2 approvals: alice' }).waitFor();
  await assert.rejects(readFile(path), { code: 'ENOENT' });
  await shows(bob, 'Content', ['+go']);
  await approve(bob);
  await bob.locator('.outcome', { hasText: 'Applied' }).waitFor();
  await waitForOutcome(page, 'Applied');
  assert.equal(await readFile(path, 'utf8'), 'go\n');
  assert.match((await outcome(laptop, id)).text, /Approved by alice[^]*Approved by bob/);
  for (const other of [bob, carol]) {
    assertClean(other);
    await other.context().close();
  }
  clean();
});

test('an expired change is rejected, and the agent learns why', async () => {
  const path = join(await gateway.folder('filesystem', 'short'), 'late.txt');
  const id = await write(path, 'too late\n');
  const { status: state, text: answerText } = await outcome(agent, id);
  assert.equal(state, 'rejected');
  assert.match(answerText, /CHANGE_EXPIRED/);
  assert.match(answerText, /Next: nobody decided in time, which counts as a no here; nothing was changed/);
  await openChange(page, gateway, id, 'history');
  await waitForOutcome(page, 'Rejected');
  await page.locator('.outcome', { hasText: 'CHANGE_EXPIRED' }).waitFor();
  await screenshotChange(page, '5-expired');
  await assert.rejects(readFile(path), { code: 'ENOENT' });
  clean();
});

test('a failed preview is shown and prevents approval if the rule requires one', async () => {
  const id = await write('/etc/countersign-end-to-end', 'no\n');
  await openChange(page, gateway, id);
  await page.locator('.preview-note', { hasText: 'This call must fail.' }).filter({ hasText: 'Access denied - path outside allowed directories' }).waitFor();
  await page.locator('footer.decision', { hasText: 'this can only be rejected or edited' }).waitFor();
  await becomes(() => button(page, 'Approve').count(), 0);
  await row(page, 'countersign-end-to-end').locator('.badge', { hasText: 'No preview' }).waitFor();
  await screenshotChange(page, '8-failed-preview');
  const { version, digest } = await gateway.change(id);
  const refused = await gateway.api('POST', `/changes/${id}/decision`, { decision: 'approve', version, digest });
  assert.deepEqual([refused.status, refused.body.code], [409, 'PREVIEW_REQUIRED']);
  // Corrected arguments can be previewed.
  await page.keyboard.press('e');
  const dialog = page.getByRole('dialog', { name: 'Edit the arguments' });
  await dialog.locator('#edit-path').fill(file('inside.txt'));
  await dialog.getByRole('button', { name: 'Save and preview' }).click();
  await shows(page, 'Content', ['+no']);
  await approve(page);
  await waitForOutcome(page, 'Applied');
  assert.equal(await text('inside.txt'), 'no\n');
  clean();
});

test('values that the agent may not read are marked and kept from it', async () => {
  const path = join(gateway.folders.closed, 'a.txt');
  const answer = await agent.call('closed__write_file', { path, content: 'one\n2\nthree\n' });
  const id = answer.structuredContent.changeId;
  assert.ok(!JSON.stringify(answer).includes('two'), 'the agent sees only its own text');
  await openChange(page, gateway, id);
  await shows(page, 'Content', [' one', '-two', '+2', ' three']);
  await page.locator('.line-diff .restricted', { hasText: 'not shown to the agent' }).waitFor();
  // A single short line is shown in the table.
  await writeFile(join(gateway.folders.closed, 'short.txt'), 'old');
  const shortId = await propose(agent, 'closed__write_file', { path: join(gateway.folders.closed, 'short.txt'), content: 'new' });
  await openChange(page, gateway, shortId);
  await page.locator('.fields tr', { hasText: 'Content' }).locator('.restricted').waitFor();
  const folderId = await propose(agent, 'closed__create_directory', { path: join(gateway.folders.closed, 'new') });
  await openChange(page, gateway, folderId);
  await page.locator('.preview-note', { hasText: 'No preview is available for this tool' }).waitFor();
  await page.locator('.fields tr', { hasText: 'path' }).waitFor();
  await page.locator('footer.decision', { hasText: 'this can only be rejected or edited' }).waitFor();
  await screenshotChange(page, '9-no-recipe');
  for (const pending of [id, shortId, folderId]) await gateway.reject(pending);
  clean();
});

const git = async (...args) => (await promisify(execFile)('git', ['-C', gateway.folders.git, ...args])).stdout.trim();

test('staging, committing and checking out are previewed and approved', async () => {
  const repo_path = gateway.folders.git;
  const approveAfter = async (tool, args, checkPreview) => {
    const id = await propose(agent, `git__${tool}`, { repo_path, ...args });
    await openChange(page, gateway, id);
    await checkPreview();
    await screenshotChange(page, `7-${tool}`);
    await approve(page);
    await waitForOutcome(page, 'Applied');
    return outcome(agent, id);
  };
  await approveAfter('git_add', { files: ['a.txt'] }, async () => {
    await shows(page, 'Changes that are not staged', ['-one', '+two']);
    await page.locator('.beside-now .line-diff', { hasText: 'Status' }).getByText('modified: a.txt').waitFor();
  });
  assert.equal(await git('diff', '--cached', '--name-only'), 'a.txt');
  const { text: answerText } = await approveAfter('git_commit', { message: 'Second' }, async () => {
    await shows(page, 'What is committed', ['-one', '+two']);
    await page.locator('.beside-now .read-facts tr', { hasText: 'Branch' }).getByText('On branch main').waitFor();
  });
  assert.equal(await git('log', '-1', '--format=%s by %an'), 'Second by Ada');
  assert.match(answerText, new RegExp(await git('rev-parse', 'HEAD')));
  await git('branch', 'side', 'HEAD~1');
  const side = await git('rev-parse', 'side');
  await approveAfter('git_checkout', { branch_name: 'side' }, async () => {
    await page.locator('.beside-now .line-diff', { hasText: 'What is checked out, if it is a branch' }).getByText(`commit ${side}`).waitFor();
  });
  assert.equal(await git('branch', '--show-current'), 'side');
  clean();
});

test('a commit is refused after another file was staged', async () => {
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
  await screenshotChange(page, '7-smuggled');
  assert.equal(await git('rev-parse', 'HEAD'), before);
  assert.equal((await gateway.change(id)).state, 'pending');
  await reject(page);
  await waitForOutcome(page, 'Rejected');
  assert.equal(await git('rev-parse', 'HEAD'), before);
  clean(status(409));
});

// Each transport with a client of each era.
const CONNECTIONS = ['stdio', 'WebSocket', 'HTTP'].flatMap((transport) => ['legacy', 'modern'].map((era) => ({ transport, era })));

test('a rejection tells the agent who, why and what to do next', async (t) => {
  const held = await gateway.folder('filesystem', 'held');
  for (const { transport, era } of CONNECTIONS) {
    await t.test(`${era} over ${transport}`, async () => {
      const name = `${era}-${transport}`.toLowerCase();
      const client = await gateway.agent({ era, transport, name });
      const texts = [];
      const rejectWith = async (id, why) => {
        await openChange(page, gateway, id);
        await page.locator('.fact', { hasText: name }).waitFor();
        await page.keyboard.press('r');
        await page.keyboard.type(why);
        await page.keyboard.press('Control+Enter');
        await waitForOutcome(page, 'Rejected');
      };
      const id = await propose(client, 'filesystem__write_file', { path: file(`${name}.txt`), content: 'x' });
      const pendingAnswer = outcome(client, id);
      await rejectWith(id, `Not ${name}: ask the “owner” first`);
      texts.push((await pendingAnswer).text);
      // A later request returns the same text.
      const { content } = await client.call('get_change', { changeId: id });
      assert.equal(content[0].text, texts[0]);
      // A held call returns the rejection as its own result.
      const call = client.call('filesystem__write_file', { path: join(held, `${name}.txt`), content: 'x' }, { timeout: 60_000 });
      call.catch(() => {});
      await row(page, join(held, `${name}.txt`)).waitFor();
      const heldId = await row(page, join(held, `${name}.txt`)).getAttribute('data-id');
      await rejectWith(heldId, `Not ${name} either`);
      const result = await call;
      assert.equal(result.isError, true);
      const answerText = result.content.map((block) => block.text).join('\n');
      assert.match(texts[0], new RegExp(`Rejected by alice at \\S+: “Not ${name}: ask the “owner” first”`));
      assert.match(answerText, new RegExp(`Rejected by alice at \\S+: “Not ${name} either”`));
      for (const text of [texts[0], answerText]) {
        assert.match(text, /^Change rejected\. ID: chg_/);
        assert.match(text, /Next: heed the reviewer's reason\. Do not propose the same change again unchanged/);
      }
      for (const path of [file(`${name}.txt`), join(held, `${name}.txt`)]) await assert.rejects(readFile(path), { code: 'ENOENT' });
    });
  }
  await screenshotChange(page, '6-rejected');
  clean();
});
