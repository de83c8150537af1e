// Takes the README's picture of the inbox, .github/dashboard.png: a gateway with the sample project and the real
// filesystem server, several agents, and one open change of a file.
//
//   COUNTERSIGN_BIN=target/debug/countersign node tests/dashboard/screenshot.mjs [FILE]
//
// Needs the packages that `scripts/test dashboard typescript` installs, and the fonts Inter and JetBrains Mono for the
// intended look. PACE is the time between two proposals, in seconds.

import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { mkdtemp, realpath } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { launch, newPage, row, signIn } from './lib/browser.mjs';
import { eventually, Gateway, pause } from './lib/gateway.mjs';

const OUT = process.argv[2] ?? new URL('../../.github/dashboard.png', import.meta.url).pathname;
const FILES = new URL('../fixtures/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js', import.meta.url).pathname;
const PACE = Number(process.env.PACE ?? 20) * 1000;

const SESSION = `import { clock } from './clock';
import { store } from './store';

const LIFETIME = 24 * 60 * 60;

/** Renews a session that is still good. */
export async function renew(id: string) {
  const session = await store.read(id);
  if (!session || session.ends < clock.now()) return null;
  session.ends = clock.now() + LIFETIME;
  session.query = '';
  await store.write(session);
  return session;
}
`;
const RENEWED = SESSION
  .replace('24 * 60 * 60', '8 * 60 * 60')
  .replace("  session.query = '';\n", '')
  .replace('/** Renews a session that is still good. */', '/** Renews a session that is still good, unless it was revoked. */')
  .replace('  await store.write(session);\n', "  await store.write(session, { unless: 'revoked' });\n");

const folder = await realpath(await mkdtemp(join(tmpdir(), 'countersign-picture-')));
mkdirSync(join(folder, 'src'));
writeFileSync(join(folder, 'src/session.ts'), SESSION);
const gateway = await Gateway.start({
  servers: { files: { command: process.execPath, args: [FILES, folder], prefix: '', required: true, trust_annotations: true } },
  groups: { platform: ['maria', 'jonas'] },
  rules: [{ name: 'four-eyes', tools: 'write_file', then: 'review', reason: 'code is read by two people', reviewers: ['platform'], quorum: 2, preview: 'required' }],
});
const browser = await launch();
try {
  await eventually('the files are served', async () => (await gateway.api('servers/files')).value.tools?.some((t) => t.name === 'write_file'));
  const { issues } = (await gateway.tool('list_issues', { limit: 50 })).structuredContent;
  const issue = (words) => {
    const found = issues.find((i) => i.title.includes(words));
    if (!found) throw new Error(`the sample project has no issue “${words}”`);
    return found.id;
  };
  const { people } = (await gateway.tool('list_projects', { includePeople: true })).structuredContent;

  // The proposals of the agents, oldest first, at different times.
  const later = () => pause(PACE);
  const claude = await gateway.mcp({ name: 'Claude Code', version: '2.1.0' });
  const cursor = await gateway.mcp({ name: 'Cursor', version: '2.4.1' });
  const triage = await gateway.mcp({ name: 'triage-agent', version: '0.9.2' });
  const ci = { key: gateway.key('agent', 'release-bot') };
  await cursor('delete_issue', { issueId: issue('Welcome mail is sent twice') });
  await later();
  await gateway.propose('update_status', { issueId: issue('Ask the browser for a new passkey'), newStatus: 'Done' }, ci);
  await later();
  await triage('assign_issue', { issueId: issue('Invoices round half a cent'), assigneeId: people[0].id });
  await later();
  await triage('assign_issue', { issueId: issue('Limit sign-in mails'), assigneeId: people.at(-1).id });
  await triage('assign_issue', { issueId: issue('Avatar upload'), assigneeId: people.at(-1).id });
  await later();
  await cursor('add_comment', { issueId: issue('Limit sign-in mails'), content: 'The limiter of the public API can be used for this: it has both windows already.' });
  await later();
  const main = await claude('write_file', { path: 'src/session.ts', content: RENEWED });
  await later();
  await gateway.decide(main, 'approve', 'The shorter lifetime is what we agreed on.', gateway.key('reviewer', 'jonas'));

  const page = await newPage(browser, gateway, { width: 1360, height: 850 });
  await signIn(page, gateway, gateway.key('reviewer', 'maria'));
  await row(page, 'src/session.ts').click();
  await page.locator('article h2', { hasText: 'src/session.ts' }).waitFor();
  await page.locator('.line-diff .line.insert').first().waitFor();
  await page.locator('.quorum', { hasText: '1 of 2' }).waitFor();
  await page.locator('.timeline').waitFor();
  await page.locator('footer.decision [data-act=approve]:enabled').waitFor();
  await page.mouse.move(page.viewportSize().width - 20, page.viewportSize().height - 20);
  await page.evaluate(async () => {
    document.activeElement?.blur();
    await document.fonts.ready;
  });
  mkdirSync(dirname(OUT), { recursive: true });
  await page.screenshot({ path: OUT });
  console.log(OUT);
} finally {
  await browser.close();
  await gateway.end();
  rmSync(folder, { recursive: true, force: true });
}
