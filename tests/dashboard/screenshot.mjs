// Takes the README's picture of the inbox, .github/dashboard.png, from a real gateway with its sample project:
//
//   COUNTERSIGN_BIN=target/debug/countersign node tests/dashboard/screenshot.mjs
//
// The picture looks as meant where the fonts Inter and JetBrains Mono are installed.

import { mkdirSync } from 'node:fs';
import { launch, newPage, row, signIn } from './lib/browser.mjs';
import { Gateway, pause, real } from './lib/gateway.mjs';

const OUT = process.argv[2] ?? new URL('../../.github/dashboard.png', import.meta.url).pathname;
if (!real) throw new Error('COUNTERSIGN_BIN must name the gateway');

const gateway = await Gateway.start();
const browser = await launch();
try {
  const { issues } = (await gateway.tool('list_issues', { limit: 50 })).structuredContent;
  const issue = (words) => {
    const found = issues.find((i) => i.title.includes(words));
    if (!found) throw new Error(`the sample project has no issue “${words}”`);
    return found.id;
  };
  const { people } = (await gateway.tool('list_projects', { includePeople: true })).structuredContent;
  const projectId = await gateway.project();

  // What the agents ask for, oldest first and not all in one second.
  const PACE = Number(process.env.PACE ?? 20) * 1000;
  const later = () => pause(PACE);
  const claude = await gateway.mcp({ name: 'Claude Code', version: '2.1.0' });
  const cursor = await gateway.mcp({ name: 'Cursor', version: '2.4.1' });
  const triage = await gateway.mcp({ name: 'triage-agent', version: '0.9.2' });
  const ci = { key: gateway.key('agent', 'release-bot') };
  await cursor('delete_issue', { issueId: issue('Welcome mail is sent twice') });
  await later();
  await triage('assign_issue', { issueId: issue('Avatar upload'), assigneeId: people.at(-1).id });
  await later();
  await gateway.propose('update_status', { issueId: issue('Ask the browser for a new passkey'), newStatus: 'Done' }, ci);
  await later();
  await claude('create_issue', { projectId, title: 'Book a correction for invoices that were rounded down', type: 'Story', priority: 'High', estimatedHours: 8, description: 'Find the invoices since 4.12 whose VAT was rounded down, and book the difference.' });
  await later();
  await cursor('add_comment', { issueId: issue('Limit sign-in mails'), content: 'The limiter of the public API can be used for this: it has both windows already.' });
  await later();
  await triage('update_status', { issueId: issue('Invoices round half a cent'), newStatus: 'InProgress' });
  await later();
  const main = issue('Login redirects to a blank page');
  const { description } = (await gateway.tool('get_issue', { issueId: main })).structuredContent.issue;
  await claude('update_issue', {
    issueId: main,
    title: 'Login redirects to a blank page after the session was renewed',
    estimatedHours: 2,
    description: description
      .replace('`return_to` is empty.', '`return_to` is lost.')
      .concat('\n\nCause: since 4.12, renewing the session clears all parameters.\nFix: keep `return_to`, with a test for the renewal.'),
  });

  const page = await newPage(browser, gateway);
  await signIn(page, gateway, gateway.key('reviewer', 'maria'));
  await row(page, 'Login redirects').click();
  await page.locator('.line-diff').waitFor();
  await page.locator('.timeline').waitFor();
  await page.mouse.move(640, 790);
  await page.evaluate(() => document.activeElement?.blur());
  await pause(1500);
  mkdirSync(new URL('.', `file://${OUT}`), { recursive: true });
  await page.screenshot({ path: OUT });
  console.log(OUT);
} finally {
  await browser.close();
  await gateway.end();
}
