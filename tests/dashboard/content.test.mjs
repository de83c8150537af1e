// Tests the forms of content: highlighted code, rendered Markdown, rows, images and recipients, also with hostile content.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertAccessible, assertClean, becomes, button, dashboard, fitsScreen, focused, holds, launch, matches, screenshot } from './lib/browser.mjs';
import { eventually, Gateway } from './lib/gateway.mjs';

const SERVER = new URL('lib/content-server.mjs', import.meta.url).pathname;
const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const ATTACK = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>';

let browser;
let gateway;
before(async () => {
  browser = await launch();
  const write = { entity: 'file', target: 'arguments.name', before: { tool: 'read', arguments: { name: 'arguments.name' }, missing: 'no such text' }, after: 'arguments.value',
    reads: [{ for_each: 'has(arguments.about) ? [arguments.about] : []', label: 'File', tool: 'read', arguments: { name: 'element' }, as: 'json' }] };
  gateway = await Gateway.start({ servers: { box: { command: process.execPath, args: [SERVER], trust_annotations: true, previews: [{ write }] } } });
  await eventually('the server is connected', async () => (await gateway.api('servers/box')).value.tools?.length === 3);
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

const send = (args) => gateway.propose('box__send', args);

/** Proposes to replace a text, whose earlier value is written first. `about` names a text that is read beside it. */
async function replace(name, was, now, about = {}) {
  if (was !== null) {
    const id = await gateway.propose('box__write', { name, value: was });
    await gateway.decide(id, 'approve');
    await gateway.reaches(id, 'applied');
  }
  return gateway.propose('box__write', { name, value: now, ...about });
}

async function show(id, options = {}) {
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${id}`, ...options });
  await page.locator('article .block-section').first().waitFor();
  return page;
}

async function close(page, name) {
  if (name) await screenshot(page, name);
  await becomes(() => page.evaluate(() => [window.pwned, document.querySelectorAll('#app script, #app iframe, #app [onerror], #app a[href^="javascript"]').length]), [undefined, 0]);
  assertClean(page);
  await page.context().close();
}

test('code is highlighted, and every character stays', async () => {
  const code = (n) => `// Renews${'\u200b'} it\nconst a = ${n};\nreturn \`${ATTACK}\nmore\`;\n`;
  const id = await replace('src/session.ts', code(1), code(2));
  assert.deepEqual((await gateway.change(id)).diff.fields.map((f) => [f.format, f.language]), [['code', 'typescript']]);
  const page = await show(id);
  await page.locator('.line.insert .t-keyword', { hasText: 'const' }).waitFor();
  await page.locator('.line.insert mark .t-number', { hasText: '2' }).waitFor();
  await page.locator('.t-comment .hidden-char', { hasText: '‹U+200B›' }).waitFor();
  await page.locator('.t-string', { hasText: 'more`' }).waitFor();
  const shown = ['// Renews‹U+200B› it', 'const a = 1;', 'const a = 2;', `return \`${ATTACK}`, 'more`;'];
  await becomes(() => page.locator('.line .code').allInnerTexts(), shown);
  await close(page, 'code');
});

test('YAML, JSON and SQL are highlighted by the file or the argument', async () => {
  const yaml = await show(await replace('deploy.yaml', 'replicas: 2 # few\n', 'replicas: 5 # few\n'));
  await yaml.locator('.line.insert .t-key', { hasText: 'replicas' }).waitFor();
  await close(yaml, 'yaml');
  const sql = await show(await send({ sql: 'UPDATE accounts\nSET plan = \'pro\' -- all\n', patch: '--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n', options: { a: { b: [1, 2, 3] }, c: 'a long text that needs more than one line of the table' } }));
  await sql.locator('.t-keyword', { hasText: 'UPDATE' }).waitFor();
  await sql.locator('.t-comment', { hasText: '-- all' }).waitFor();
  await sql.locator('.patch .line.insert', { hasText: 'new' }).waitFor();
  await sql.locator('.t-key', { hasText: '"b"' }).waitFor();
  await close(sql, 'sql');
});

test('Markdown is compared as source and rendered on request', async () => {
  const was = '# Pool\n\nIt has ten connections.\n\nThe end.\n';
  const now = `# Pool\n\nIt has **twenty**, see [the page](https://wiki.example/a "Wiki") or [this](javascript:window.pwned=1).\n\n![plan](https://evil.example/x.png)\n\n${ATTACK}\n\n<!-- ignore -->\n\n- [x] done\n- one\n  - two\n\n| a | b |\n|---|---|\n| 1 | \u202e2 |\n\n\`\`\`rust\nlet a = 1;\n\`\`\`\n\nThe end.\n`;
  const page = await show(await replace('pool.md', was, now));
  await page.locator('.line.insert', { hasText: 'It has **twenty**' }).waitFor();
  const rendered = page.getByRole('button', { name: 'Rendered' });
  await rendered.focus();
  await page.keyboard.press('Enter');
  const view = page.locator('.markdown');
  await view.getByRole('heading', { name: 'Pool' }).waitFor();
  await focused(page, 'button[aria-pressed=true]');
  await view.locator('strong', { hasText: 'twenty' }).waitFor();
  const texts = ['the page (https://wiki.example/a “Wiki”)', 'this (javascript:window.pwned=1)', 'plan (https://evil.example/x.png)', ATTACK, '<!-- ignore -->', '‹U+202E›2', 'let a = 1;'];
  for (const text of texts) await holds(() => view.innerText(), (shown) => shown.includes(text), text);
  await becomes(() => view.locator('img, a').count(), 0);
  await becomes(() => view.locator('.changed', { hasText: 'twenty' }).count(), 1);
  await becomes(() => view.locator('.changed', { hasText: 'The end.' }).count(), 0);
  await close(page, 'markdown');
});

test('hostile Markdown is shown in parts and to a bounded depth', async () => {
  const page = await show(await replace('deep.md', null, `${'> '.repeat(400)}deep\n\n${'- x\n\ny\n\n'.repeat(400)}`));
  await page.getByRole('button', { name: 'Rendered' }).click();
  await page.locator('.markdown pre', { hasText: 'deep' }).waitFor();
  await matches(() => page.locator('.markdown > .more').innerText(), /Show more \([\d,]+ parts\)/);
  await holds(() => page.evaluate(() => Math.max(...[...document.querySelectorAll('.markdown *')].map((e) => { let n = 0; for (let at = e; !at.matches('.markdown'); at = at.parentElement) n += 1; return n; }))), (depth) => depth < 40);
  await close(page);
});

test('rows are a table with the changed cells marked', async () => {
  const was = JSON.stringify([{ id: 1, plan: 'free' }, { id: 2, plan: ATTACK }, { id: 3, plan: 'pro' }]);
  const now = '[{"id":1,"plan":"p\\u202ero"},{"id":3,"plan":"pro"},{"id":12345678901234567890,"plan":null}]';
  const page = await show(await replace('accounts', was, now));
  const table = page.locator('.rows-table');
  await table.locator('tr.update td.changed', { hasText: 'free' }).locator('ins', { hasText: 'p‹U+202E›ro' }).waitFor();
  await becomes(() => table.locator('td.changed').allInnerTexts(), ['free → p‹U+202E›ro']);
  // A line through the text would hide hyphens and minus signs.
  await becomes(() => table.locator('del').evaluateAll((all) => all.filter((del) => getComputedStyle(del).textDecorationLine !== 'none').length), 0);
  await table.locator('tr.delete', { hasText: ATTACK }).waitFor();
  await table.locator('tr.insert', { hasText: '12345678901234567890' }).waitFor();
  await becomes(() => table.locator('tr.equal').count(), 1);
  await page.getByRole('button', { name: 'JSON' }).first().click();
  await page.locator('.lines', { hasText: '"plan"' }).waitFor();
  await close(page, 'rows');
});

test('words of a table with many columns stay whole', async () => {
  const row = (n) => Object.fromEntries(Array.from({ length: 16 }, (_, column) => [`c${column}`, `Bahnhofstrasse ${n}`]));
  const page = await show(await send({ rows: [row(1), row(2)] }));
  const cells = page.locator('.rows-table .cell');
  await becomes(() => cells.count(), 32);
  await becomes(() => cells.evaluateAll((all) => all.map((cell) => Math.round(cell.offsetHeight / parseFloat(getComputedStyle(cell).lineHeight))).filter((lines) => lines > 1).length), 0);
  await close(page, 'wide-rows');
});

test('lists and what was read beside the change need no JSON', async () => {
  await gateway.decide(await replace('facts', null, '{"title":"The plan","labels":["a","b"],"draft":false}'), 'approve');
  await holds(async () => (await gateway.tool('box__read', { name: 'facts' })).content[0].text, (text) => text.includes('The plan'));
  const page = await show(await replace('labels', '["bug","web"]', `["bug",${JSON.stringify(ATTACK)}]`, { about: 'facts' }));
  const cells = page.locator('.fields.both tr', { hasText: 'Content' }).locator('td');
  await becomes(() => cells.nth(0).locator('.item').allInnerTexts(), ['bug', 'web']);
  await becomes(() => cells.nth(1).locator('ins mark').allInnerTexts(), [ATTACK]);
  await becomes(() => page.locator('.target-name').innerText(), 'File: The plan');
  await becomes(() => page.locator('.read-facts dd').allInnerTexts(), ['false', 'a\nb', 'The plan']);
  await close(page, 'list');
  const records = await show(await replace('records', '[{"type":"x","name":"Ada","notes":["a","b"]},{"type":"x","name":"Bob","notes":[]}]', '[{"type":"x","name":"Ada","notes":["b","c"]}]'));
  await records.locator('tr.update td.changed del', { hasText: 'a' }).waitFor();
  await records.locator('tr.update td.changed ins', { hasText: 'c' }).waitFor();
  await records.locator('tr.delete', { hasText: 'Bob' }).waitFor();
  await close(records, 'records');
  const long = await show(await replace('long', JSON.stringify(Array.from({ length: 40 }, (_, n) => `line ${n}`)), JSON.stringify(Array.from({ length: 41 }, (_, n) => `line ${n}`))));
  await becomes(() => long.locator('.line.insert .code').allInnerTexts(), ['line 40']);
  await long.getByRole('button', { name: /unchanged lines/ }).waitFor();
  await close(long, 'long-list');
});

test('rows that are not compared need a second press', async () => {
  const rows = (n) => Array.from({ length: n }, (_, id) => ({ id, name: `row ${id}` }));
  const page = await show(await send({ rows: rows(53) }));
  await page.locator('.rows-beyond', { hasText: 'Rows beyond 50 are not compared: 3 more rows' }).waitFor();
  await becomes(() => page.locator('.rows-table tbody tr').count(), 50);
  await button(page, 'Approve').click();
  await page.locator('.decision', { hasText: 'Some rows are not compared. Have you read the JSON?' }).waitFor();
  await page.keyboard.press('Escape');
  await close(page, 'rows-beyond');
  const calls = [1, 53].map((n) => ({ name: 'box__send', arguments: { rows: rows(n) } }));
  const { planId } = (await gateway.tool('propose_plan', { title: 'Two lists', reason: 'to be read alone', calls })).structuredContent;
  const plan = await dashboard(browser, gateway, { route: `/#/plans/${planId}` });
  await plan.locator('.plan-decision', { hasText: 'Step 2 is too large to be shown completely.' }).waitFor();
  await close(plan);
  const whole = await show(await send({ rows: rows(50) }));
  await whole.locator('.rows-table').waitFor();
  await becomes(() => whole.locator('.rows-beyond').count(), 0);
  await close(whole);
});

test('images are shown as thumbnails, and only from the call itself', async () => {
  const damaged = Buffer.concat([Buffer.from(PNG, 'base64').subarray(0, 33), Buffer.alloc(60)]).toString('base64');
  const page = await show(await send({ good: PNG, damaged, svg: 'data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+', address: 'https://evil.example/x.png' }));
  await matches(() => page.locator('.thumbnail', { has: page.locator('img') }).locator('figcaption').innerText(), /PNG · 1 × 1 pixels · 70 bytes/);
  await page.locator('.thumbnail', { hasText: 'This image is damaged and cannot be shown.' }).waitFor();
  await becomes(() => page.locator('img').count(), 1);
  await page.locator('.fields', { hasText: 'https://evil.example/x.png' }).waitFor();
  await close(page, 'images');
});

test('recipients come before the rest, one by one', async () => {
  const page = await show(await send({ subject: 'Hello', body: 'Dear all,\nhello', to: ['ann@example.com', `b\u202eob@example.com`, ATTACK.replace('<', '@<')], cc: 'team@example.com', channel: '#general' }));
  await becomes(() => page.locator('.diff > *').evaluateAll((all) => all.map((e) => e.className)), ['recipients', 'recipients', 'recipients', 'fields one', 'line-diff']);
  await page.locator('.recipient', { hasText: 'b‹U+202E›ob@example.com' }).waitFor();
  await becomes(() => page.locator('.recipient').count(), 5);
  await close(page, 'recipients');
  const many = await show(await send({ recipients: Array.from({ length: 120 }, (_, n) => `user${n}@example.com`) }));
  await many.getByRole('button', { name: 'Show more (80 recipients)' }).click();
  await becomes(() => many.locator('.recipient').count(), 120);
  await close(many);
});

for (const [name, options] of [['light', {}], ['dark', { dark: true }], ['on a small screen', { width: 360, height: 740, dark: true }]]) {
  test(`every form fits and is accessible, ${name}`, async () => {
    const ids = {
      markdown: await replace('a.md', '# A\n\n- x\n', '# A\n\n- y `code` [l](https://a.example/a/very/long/address/that/needs/more/than/one/line/on/a/phone)\n\n```js\n// c\nlet a = "b" + 1;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n'),
      code: await replace('a.py', '# c\ndef a():\n    return "x"\n', '# d\ndef a():\n    return "y" + 1\n'),
      rows: await replace('rows', '[{"id":1,"a":"x","b":"y","c":"z"}]', '[{"id":1,"a":"a long text without any end that must wrap","b":"y2","c":null},{"id":2,"a":"x"}]'),
      call: await send({ to: ['ann@example.com', `${'x'.repeat(90)}@example.com`], image: PNG, rows: Array.from({ length: 52 }, (_, id) => ({ id })), sql: 'SELECT 1\nFROM t -- c\n' }),
    };
    for (const [form, id] of Object.entries(ids)) {
      const page = await show(id, { ...options, bypassCSP: true });
      if (form === 'markdown') await page.getByRole('button', { name: 'Rendered' }).click();
      await fitsScreen(page, form);
      await assertAccessible(page, form);
      await close(page, `${form}-${name.replaceAll(' ', '-')}`);
    }
  });
}
