// Tests problems that new users reported: failed previews, servers without annotations, a selection that another page
// undid, calls without a preview, and searching the audit trail.

import assert from 'node:assert/strict';
import { mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { prepare, SERVERS } from '../clients/servers.mjs';
import { armed, assertAccessible, assertClean, becomes, button, dashboard, focused, heading, holds, launch, live, matches, open, row, waitForNotice } from './lib/browser.mjs';
import { eventually, Gateway } from './lib/gateway.mjs';

const ALTERING = new URL('lib/altering-server.mjs', import.meta.url).pathname;
// These definitions have no annotations, as those of many servers.
const DEFINITIONS = ['{"name":"read_query","description":"Runs a SELECT on the database","inputSchema":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}', '{"name":"write_query","description":"Runs any statement on the database","inputSchema":{"type":"object","properties":{"query":{"type":"string"},"dry":{"type":"boolean"}},"required":["query"]}}'];

let browser;
let gateway;
let folder;
let repository;

before(async () => {
  browser = await launch();
  folder = realpathSync(mkdtempSync(join(tmpdir(), 'countersign-first-')));
  repository = join(folder, 'repository');
  await prepare('filesystem', join(folder, 'files'));
  await prepare('git', repository);
  writeFileSync(join(folder, 'tools'), DEFINITIONS.join('\n'));
  gateway = await Gateway.start({
    review: { onFailedPreview: 'review' },
    servers: {
      filesystem: { ...SERVERS.filesystem.entry(join(folder, 'files')), trust_annotations: true },
      git: SERVERS.git.entry(repository),
      sqlite: { command: process.execPath, args: [ALTERING, join(folder, 'tools')] },
      broken: { command: process.execPath, args: ['-e', 'console.error("Error: DATABASE_URL is not set"); process.exit(3)', '--', '--api-key', 's3cret'] },
    },
  });
  for (const [name, n] of [['filesystem', 5], ['git', 5], ['sqlite', 2]]) await eventually(`${name} is connected`, async () => (await gateway.api(`servers/${name}`)).value.tools?.length >= n);
});
after(async () => {
  await browser?.close();
  await gateway?.end();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

const server = (page, name) => page.locator('.server', { has: page.getByRole('heading', { name, exact: true }) });
/** Returns the number of visible buttons that approve with the key a. */
const approving = (page) => page.locator('button:visible').evaluateAll((all) => all.filter((b) => /^Approve/.test(b.innerText.trim()) && /\ba$/.test(b.innerText.trim())).length);
const withdraw = async (...ids) => {
  for (const id of ids) await gateway.decide(id, 'reject');
};

test('a change without preview is approved by its own button, not by the key', async () => {
  const id = await gateway.propose('filesystem__write_file', { path: '/etc/countersign-first-hours', content: 'no\n' });
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${id}` });
  await page.locator('.preview-note', { hasText: 'This call must fail.' }).filter({ hasText: 'Access denied' }).waitFor();
  await armed(page);
  await becomes(() => page.locator('footer.decision button').evaluateAll((all) => all.map((b) => b.innerText.replace(/\s+/g, ' ').trim())), ['Reject r', 'Approve without preview']);
  let sent = 0;
  page.on('request', (r) => { sent += r.url().endsWith('/decision') ? 1 : 0; });
  await page.keyboard.press('a');
  await focused(page, '[data-act=approve]', 'the key only moves the focus to the button');
  await page.keyboard.press('a');
  assert.equal(sent, 0);
  assert.equal((await gateway.change(id)).state, 'pending');
  // A bulk approval excludes it.
  const other = await gateway.proposeIssue('Beside the failed preview');
  await page.keyboard.press('x');
  await open(page, 'Beside the failed preview');
  await page.keyboard.press('x');
  await page.keyboard.press('a');
  const dialog = page.getByRole('dialog', { name: 'Approve 1 change?' });
  await dialog.locator('li', { hasText: 'countersign-first-hours' }).getByText('its preview failed, so approve it on its own').waitFor();
  await dialog.getByRole('button', { name: 'Approve 1 change' }).click();
  await dialog.getByText('1 change decided.').waitFor();
  await dialog.getByRole('button', { name: 'Close' }).last().click();
  await gateway.reaches(other, 'applied');
  assert.equal((await gateway.change(id)).state, 'pending');
  await page.locator('.bulk').getByRole('button', { name: 'Clear' }).click();
  await page.goto(`${gateway.url}/#/inbox/${id}`);
  await armed(page);
  await page.keyboard.press('a');
  await focused(page, '[data-act=approve]');
  await page.keyboard.press('Enter');
  await page.locator('.outcome', { hasText: 'Failed' }).waitFor();
  assert.deepEqual((await gateway.reaches(id, 'failed')).decisions.map((d) => [d.reviewer, d.verdict]), [['alice', 'approve']]);
  assertClean(page);
  await page.context().close();
});

test('a call without a recipe shows its arguments once and not as a diff', async () => {
  const query = 'UPDATE cards SET credit = 500 WHERE owner = 7';
  const id = await gateway.propose('sqlite__write_query', { query, dry: false });
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${id}` });
  await heading(page).filter({ hasText: `sqlite / write_query: ${query}` }).waitFor();
  await becomes(() => page.locator('.detail-marks .badge.operation').innerText(), 'CALL');
  await page.locator('.preview-note', { hasText: 'No preview is available for this tool' }).waitFor();
  const body = page.locator('.detail-body');
  await becomes(() => body.locator('.fields tbody tr').evaluateAll((rows) => rows.map((r) => [...r.cells].map((c) => c.innerText))), [['query', query], ['dry', 'false']]);
  await becomes(async () => (await body.innerText()).split(query).length - 1, 1, 'the arguments are shown once');
  await becomes(() => body.locator('ins, del, .insert, .delete, .sign').count(), 0, 'nothing is added or removed');
  await body.getByRole('button', { name: 'JSON' }).click();
  await matches(() => body.locator('.json').innerText(), /"query": "UPDATE cards/);
  await becomes(() => body.locator('.fields').count(), 0, 'one form at a time');
  await body.getByText('Tool description').click();
  await body.getByText('Runs any statement on the database').waitFor();
  // Such a call is approved with the ordinary button.
  await armed(page);
  await button(page, 'Approve').click();
  await page.locator('.outcome', { hasText: 'Applied' }).waitFor();
  // The title of a commit is its message.
  const commit = await gateway.propose('git__git_commit', { repo_path: repository, message: 'Fix the login\n\nBecause.' });
  await row(page, 'Fix the login').waitFor();
  // The badge does not repeat the verb of the title.
  const bug = await gateway.proposeIssue('Shown once');
  await open(page, 'Shown once');
  await matches(() => heading(page).innerText(), /^Create Bug “Shown once”/);
  await becomes(() => page.locator('.detail-marks .badge.operation').count(), 0);
  await becomes(() => page.locator('.detail-marks .glyph').getAttribute('title'), 'Create');
  await becomes(async () => (await row(page, 'Shown once').textContent()).match(/create/gi).length, 1, 'screen readers hear the verb once too');
  await withdraw(commit, bug);
  assertClean(page);
  await page.context().close();
});

test('a selection survives visiting other pages and has one approve button', async () => {
  const [first, second] = [await gateway.proposeIssue('Selected one'), await gateway.proposeIssue('Selected two')];
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${first}` });
  const bob = gateway.key('reviewer', 'bob');
  await heading(page).filter({ hasText: 'Selected one' }).waitFor();
  await row(page, 'Selected one').waitFor();
  await becomes(() => approving(page), 1);
  await page.keyboard.press('x');
  await page.locator('.bulk', { hasText: '1 selected' }).waitFor();
  await page.locator('footer.decision', { hasText: '1 change selected' }).waitFor();
  await becomes(() => approving(page), 1, 'only below the list');
  await open(page, 'Selected two');
  await becomes(() => approving(page), 1);
  await button(page, 'Add this change').click();
  await page.locator('.bulk', { hasText: '2 selected' }).waitFor();
  // A small screen shows either the change or the list.
  await page.setViewportSize({ width: 390, height: 800 });
  await button(page, 'Go to the list').click();
  await page.locator('.bulk', { hasText: '2 selected' }).waitFor();
  await page.setViewportSize({ width: 1280, height: 800 });
  // Visiting other pages and lists changes nothing.
  await page.getByRole('link', { name: 'History' }).click();
  await page.getByRole('button', { name: /^Rejected/ }).click();
  await page.locator('.chip[aria-pressed=true]', { hasText: 'Rejected' }).waitFor();
  await page.keyboard.press('a');
  await becomes(() => page.getByRole('dialog').count(), 0, 'a selection of another list cannot be decided here');
  await page.getByRole('link', { name: 'Servers' }).click();
  await page.getByRole('link', { name: /^Inbox/ }).click();
  await page.locator('.bulk', { hasText: '2 selected' }).waitFor();
  await becomes(() => page.locator('.notice', { hasText: 'selected' }).count(), 0);
  // A change that was modified is announced and deselected.
  await gateway.decide(second, 'reject', 'Changed since', bob);
  await waitForNotice(page, '1 selected change has changed since and is no longer selected.');
  await page.locator('.bulk', { hasText: '1 selected' }).waitFor();
  await page.locator('.bulk').getByRole('button', { name: 'Clear' }).click();
  await open(page, 'Selected one');
  await button(page, 'Approve').waitFor();
  await becomes(() => approving(page), 1);
  await withdraw(first);
  assertClean(page);
  await page.context().close();
});

test('a vote of another reviewer keeps a change selected', async () => {
  const two = await Gateway.start({ review: { quorum: 2 } });
  try {
    const id = await two.proposeIssue('Votes come in');
    const page = await dashboard(browser, two, { route: `/#/inbox/${id}` });
    await heading(page).filter({ hasText: 'Votes come in' }).waitFor();
    await row(page, 'Votes come in').waitFor();
    await page.keyboard.press('x');
    await page.locator('.bulk', { hasText: '1 selected' }).waitFor();
    await two.decide(id, 'approve', undefined, two.key('reviewer', 'bob'));
    await row(page, 'Votes come in').locator('.badge', { hasText: '1/2' }).waitFor();
    await page.locator('.bulk', { hasText: '1 selected' }).waitFor();
    await page.keyboard.press('a');
    await page.getByRole('dialog').getByRole('button', { name: 'Approve 1 change' }).click();
    await page.getByRole('dialog').getByText('1 change decided.').waitFor();
    assert.deepEqual((await two.reaches(id, 'applied')).decisions.map((d) => d.reviewer), ['bob', 'alice']);
    assertClean(page);
    await page.context().close();
  } finally {
    await two.end();
  }
});

test('tools without annotations can be allowed, with a recorded reason', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/servers' });
  const sqlite = server(page, 'sqlite');
  await sqlite.getByRole('button', { name: 'sqlite', exact: true }).click();
  await sqlite.getByText('This server does not say which of its tools only read').waitFor();
  await sqlite.getByRole('button', { name: 'Let tools run without review…' }).click();
  let dialog = page.getByRole('dialog', { name: 'Let tools of sqlite run without review' });
  await becomes(() => dialog.getByRole('button', { name: 'Choose a tool' }).isDisabled(), true);
  await dialog.getByLabel('sqlite__read_query').check();
  await dialog.getByRole('button', { name: 'Let this tool run without review' }).click();
  await dialog.getByText('Give a reason').waitFor();
  await focused(page, '#let-run-reason');
  assert.ok((await gateway.tool('sqlite__read_query', { query: 'SELECT 0' })).structuredContent?.changeId, 'it is still reviewed');
  await dialog.getByLabel('Reason').fill('Only SELECT gets through');
  await dialog.getByRole('button', { name: 'Let this tool run without review' }).click();
  await waitForNotice(page, '1 tool now runs without review.');
  assert.equal((await gateway.tool('sqlite__read_query', { query: 'SELECT 1' })).content[0].text, 'done', 'it runs');
  assert.ok((await gateway.tool('sqlite__write_query', { query: 'DROP TABLE t' })).structuredContent.changeId, 'the other one is reviewed');
  await sqlite.getByText('All 2 tools').click();
  const tool = (name) => sqlite.locator('table.tools tbody tr', { hasText: name });
  await matches(() => tool('read_query').innerText(), /Runs[^]*alice lets it run without review: Only SELECT gets through/);
  await tool('write_query').getByRole('button', { name: 'Let this tool run without review…' }).click();
  dialog = page.getByRole('dialog', { name: 'Let this tool run without review' });
  await dialog.getByText('Runs any statement on the database').waitFor();
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  // The permission is a standing rule with a reason and can be revoked.
  await tool('read_query').getByRole('link', { name: 'Standing rule' }).click();
  const rule = page.locator('.rule.chosen');
  await matches(() => rule.innerText(), /sqlite__read_query[^]*Only SELECT gets through/);
  await rule.getByRole('button', { name: 'Revoke' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Revoke the rule' }).click();
  await waitForNotice(page, 'Rule revoked');
  await eventually('it is reviewed again', async () => Boolean((await gateway.tool('sqlite__read_query', { query: 'SELECT 2' })).structuredContent?.changeId));
  await page.goto(`${gateway.url}/#/audit?q=only+select+gets`);
  const entry = page.locator('.audit-records tbody tr', { hasText: 'let a tool run without review' });
  await matches(() => entry.first().innerText(), /alice[^]*sqlite__read_query, allowed by alice/);
  await page.goto(`${gateway.url}/#/servers`);
  // A viewer gets no such offer.
  const vera = await dashboard(browser, gateway, { key: gateway.key('viewer', 'vera'), route: '/#/servers' });
  await server(vera, 'sqlite').getByRole('button', { name: 'sqlite', exact: true }).click();
  await server(vera, 'sqlite').getByText('All 2 tools').click();
  await server(vera, 'sqlite').locator('table.tools tbody tr').first().waitFor();
  await becomes(() => vera.getByRole('button', { name: /^Let / }).count(), 0);
  for (const p of [page, vera]) {
    assertClean(p);
    await p.context().close();
  }
  const { value } = await gateway.api('changes?status=pending&limit=200');
  await withdraw(...value.changes.map((c) => c.id));
});

test('a failed server shows its error, its stderr and its restarts', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/servers' });
  const broken = server(page, 'broken');
  await broken.getByRole('button', { name: 'broken', exact: true }).click();
  await matches(() => broken.locator('.why-down').innerText(), /exited/);
  // The command is shown without the secret among its arguments.
  await matches(() => broken.locator('.server-target').innerText(), /node -e 'console\.error\(.*process\.exit\(3\)' -- --api-key \[secret\]$/);
  await matches(() => broken.locator('.stderr').innerText(), /Error on stderr: Error: DATABASE_URL is not set/);
  await matches(() => broken.locator('.why-down').innerText(), /Restarted \d+ times? so far/);
  assertClean(page);
  await page.context().close();
});

/** Returns the words of the table that are broken across lines. */
const brokenWords = (page) => page.locator('.audit-records :is(td, th)').evaluateAll((cells) => cells.flatMap((cell) => {
  const out = [];
  const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (node.parentElement.closest('.sr-only')) continue;
    for (const { 0: word, index } of node.data.matchAll(/[\p{L}\p{N}_]+/gu)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      if (new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1) out.push(word);
    }
  }
  return out;
}));

test('the audit trail is searched by title, text, actor and event', async () => {
  const key = gateway.key('agent', 'documentation-assistant');
  const wanted = await gateway.proposeIssue('Rotate the certificates', {}, { key });
  await gateway.decide(wanted, 'reject', 'Superseded by automation', gateway.key('reviewer', 'bob'));
  const other = await gateway.proposeIssue('Internationalisation of documentation');
  await gateway.decide(other, 'approve');
  await gateway.reaches(other, 'applied');
  const page = await dashboard(browser, gateway, { width: 1440, height: 900, route: '/#/audit' });
  const rows = page.locator('.audit-records tbody tr');
  await rows.filter({ hasText: 'Internationalisation of documentation' }).first().waitFor();
  await matches(() => rows.filter({ hasText: 'Rotate the certificates' }).first().innerText(), new RegExp(wanted.slice(0, 12)), 'the id is shown beside the title');
  await becomes(() => brokenWords(page), []);
  const events = () => rows.locator('.event').evaluateAll((all) => all.map((e) => e.innerText.split('→')[0].trim()));
  await page.getByRole('searchbox', { name: 'Search the audit trail' }).fill('rotate the CERT');
  await becomes(events, ['rejected', 'proposed this change']);
  await matches(() => page.url(), /q=rotate/);
  await page.getByLabel('Event', { exact: true }).selectOption({ label: 'rejected' });
  await becomes(events, ['rejected']);
  await page.reload();
  await live(page);
  await becomes(events, ['rejected'], 'the address keeps the filter');
  await page.getByRole('button', { name: 'Clear', exact: true }).click();
  const found = page.waitForResponse(/q=superseded/);
  await page.getByRole('searchbox').fill('superseded by');
  await (await found).finished();
  await becomes(events, ['rejected'], 'comments are searched too');
  // A page of a long search may be empty.
  const { nextCursor } = (await gateway.api('audit?limit=1')).value;
  await page.route('**/api/audit?*', async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...await response.json(), entries: [], nextCursor } });
  });
  for (const title of ['Meanwhile', 'Meanwhile again']) {
    const searched = page.waitForResponse('**/api/audit?*');
    await gateway.proposeIssue(title);
    await (await searched).finished();
  }
  await becomes(events, ['rejected'], 'what was found stays');
  await page.unroute('**/api/audit?*');
  await page.getByRole('button', { name: 'Clear', exact: true }).click();
  await page.getByLabel('Who', { exact: true }).selectOption('documentation-assistant');
  await becomes(events, ['proposed this change']);
  await page.getByRole('searchbox').fill('no such words');
  await page.getByText('Nothing matches').waitFor();
  await page.getByRole('button', { name: 'Clear the filter' }).click();
  await rows.filter({ hasText: 'Internationalisation' }).first().waitFor();
  await rows.filter({ hasText: 'Rotate the certificates' }).first().getByRole('link').click();
  await page.locator('.page-head', { hasText: 'Rotate the certificates' }).filter({ hasText: wanted }).waitFor();
  await becomes(events, ['rejected', 'proposed this change']);
  assertClean(page);
  await page.context().close();
});

test('the history lists ended changes and no pending ones', async () => {
  const pending = await gateway.proposeIssue('Not history yet');
  const ended = await gateway.proposeIssue('History by now');
  await gateway.decide(ended, 'reject');
  // An address with that filter does not show them either.
  const page = await dashboard(browser, gateway, { route: '/#/history?state=pending' });
  await row(page, 'History by now').waitFor();
  await becomes(() => row(page, 'Not history yet').count(), 0);
  await becomes(async () => (await page.locator('.chip').allInnerTexts()).some((text) => /Pending|Stale/.test(text)), false);
  await gateway.decide(pending, 'reject');
  await row(page, 'Not history yet').waitFor();
  assertClean(page);
  await page.context().close();
});

test('rows are compact by default and comfortable by choice', async () => {
  const ids = [];
  for (const n of [1, 2]) ids.push(await gateway.proposeIssue(`Dense ${n}`));
  const page = await dashboard(browser, gateway);
  const height = () => row(page, 'Dense 1').evaluate((e) => e.closest('.row-place').offsetHeight);
  // Rows have no gap between them.
  const gap = () => page.evaluate(() => {
    const [a, b] = [...document.querySelectorAll('.row-place')].map((r) => r.getBoundingClientRect());
    return Math.round(b.top - a.bottom);
  });
  const compact = await holds(height, (h) => h < 60);
  await becomes(gap, 0);
  await page.getByRole('button', { name: 'Compact rows', pressed: true }).click();
  const comfortable = await holds(height, (h) => h > compact * 1.4);
  await becomes(gap, 0);
  await page.reload();
  await live(page);
  await becomes(height, comfortable);
  await page.getByRole('button', { name: 'Compact rows', pressed: false }).click();
  await becomes(height, compact);
  await withdraw(...ids);
  assertClean(page);
  await page.context().close();
});

test('a change on a small screen is accessible and has its own heading', async () => {
  const id = await gateway.proposeIssue('Small and whole', { description: 'One\nTwo' });
  const call = await gateway.propose('sqlite__write_query', { query: 'SELECT 1' });
  for (const dark of [false, true]) {
    const page = await dashboard(browser, gateway, { width: 390, height: 844, dark, bypassCSP: true, route: `/#/inbox/${id}` });
    for (const open of [id, call]) {
      await page.goto(`${gateway.url}/#/inbox/${open}`);
      await page.locator(`.change-id code[title="${open}"]`).waitFor();
      await page.locator('.timeline').waitFor();
      await becomes(() => page.locator('h1').evaluateAll((all) => all.filter((h) => h.checkVisibility()).map((h) => h.textContent)), ['Change']);
      await assertAccessible(page);
    }
    await page.context().close();
  }
  await withdraw(id, call);
});
