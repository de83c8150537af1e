// Tests the dashboard in German: every page fits its screen, is accessible and shows no English text of its own.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import english from '../../src/rest/assets/js/locales/en.js';
import german from '../../src/rest/assets/js/locales/de.js';
import { assertAccessible, assertClean, becomes, fitsScreen, holds, launch, live, newPage, screenshot } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

// What the gateway, its servers and agents wrote.
const FOREIGN = '.quote, code, pre, q, .mono, .facts-small dt, [lang]:not(html), .me';

let browser;
let gateway;
let pages;
before(async () => {
  browser = await launch();
  gateway = await Gateway.start({ flood: true });
  // The event does not occur here.
  gateway.reconfigure({ webhooks: { looks: { url: 'http://127.0.0.1:9/hook', format: 'text', events: ['rule.expired'] } } });
  const issueId = await gateway.issue('Deutsch');
  const update = await gateway.propose('update_issue', { issueId, title: 'Deutsches Thema', description: 'Eine Zeile\nNoch eine Zeile' });
  const remove = await gateway.propose('delete_issue', { issueId: await gateway.issue('Veraltetes') });
  const rejected = await gateway.proposeIssue('Abgelehntes');
  await gateway.decide(rejected, 'reject', 'Nein, danke');
  for (const [verdict, which, principal] of [['allow', 'exact', 'same'], ['deny', 'exact', 'any']]) await gateway.api(`changes/${rejected}/rule`, { body: { verdict, arguments: which, principal, for: 3600, comment: 'Eine Regel' } });
  await (await gateway.mcp({ name: 'deutsch', version: '1' }))('create_project', { name: 'Deutsch', key: 'DE' });
  const projectId = await gateway.project();
  const calls = ['Erstes', 'Zweites'].map((title) => ({ name: 'create_issue', arguments: { projectId, title, type: 'Bug' } }));
  const { planId } = (await gateway.tool('propose_plan', { title: 'Zwei Themen', calls })).structuredContent;
  for (const title of ['Drittes', 'Viertes']) await gateway.proposeIssue(title, {}, { key: gateway.key('agent', 'robot') });
  const bundle = (await gateway.api('bundles')).value.bundles.find(({ principal }) => principal === 'robot');
  const timelineOf = (id) => `article:has(.change-id code[title="${id}"]) .timeline`;
  pages = {
    inbox: ['/#/inbox', '.row'], update: [`/#/inbox/${update}`, timelineOf(update)], deletion: [`/#/inbox/${remove}`, timelineOf(remove)], history: ['/#/history', '.row'], rejected: [`/#/history/${rejected}`, timelineOf(rejected)],
    plan: [`/#/plans/${planId}`, '.plan-decision .buttons'], bundle: [`/#/bundles/${bundle.id}`, '.plan-decision .buttons'], overview: ['/#/overview', '.tile'], rules: ['/#/rules', '.rule'], audit: ['/#/audit', '.records'],
    trail: [`/#/audit/${update}`, '.records'], sessions: ['/#/sessions', '.records'], keys: ['/#/keys', '.records'], servers: ['/#/servers', '.server'], webhooks: ['/#/webhooks', '.hook'],
  };
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

const forms = (texts) => Object.entries(texts).flatMap(([key, text]) => Object.values(typeof text === 'string' ? [text] : text).map((form) => [key, form]));
const piecesOf = (form) => form.split(/\{\w+\}/).map((piece) => piece.trim());
const germanPieces = new Set(forms(german).flatMap(([, form]) => piecesOf(form)));

const patterns = forms(english).filter(([key]) => JSON.stringify(english[key]) !== JSON.stringify(german[key])).flatMap(([key, form]) => {
  const pieces = piecesOf(form);
  // Nodes may stand in the place of values, so each part of a sentence counts, if it is longer than a word such as `of`.
  const parts = pieces.filter((piece) => /[A-Za-z]{4}/.test(piece) && !germanPieces.has(piece)).map((piece) => [key, new RegExp(`^${escape(piece)}$`)]);
  const whole = pieces.length > 1 && /[A-Za-z]{4}.*[A-Za-z]{4}/.test(pieces.join(' ')) ? [[key, new RegExp(`^${pieces.map(escape).join('.+')}$`)]] : [];
  return [...parts, ...whole];
});
/** Returns the key of the English text that a text of the page shows, or undefined. */
const englishKey = (text) => patterns.find(([, pattern]) => pattern.test(text))?.[0];
const englishOn = (name, texts) => texts.map((text) => [name, text, englishKey(text)]).filter(([, , key]) => key);

function escape(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}

/** Returns the texts that the page itself shows or tells a screen reader. */
const textsOf = (page) => page.evaluate((foreign) => {
  const isOwn = (element) => element && !element.closest(foreign) && !element.closest('script, style, noscript, [hidden]');
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) if (isOwn(walker.currentNode.parentElement)) texts.push(walker.currentNode.data);
  for (const element of document.querySelectorAll('[aria-label], [title], [placeholder]')) {
    if (isOwn(element)) texts.push(...['aria-label', 'title', 'placeholder'].map((name) => element.getAttribute(name)).filter(Boolean));
  }
  return [...new Set(texts.map((text) => text.trim().replace(/\s+/g, ' ')).filter(Boolean)), document.title];
}, FOREIGN);

/** Goes to a page and waits for an element of it. The previous page may stay visible for a moment. */
async function visit(page, route, loaded) {
  await page.goto(`${gateway.url}${route}`);
  // Standing rules, plans and bundles have no link of their own.
  const view = /\w+/.exec(route)[0].replace('rules', 'policy');
  if (!/plans|bundles/.test(view)) await page.locator(`nav a[data-view=${view}][aria-current]`).waitFor({ state: 'attached' });
  await page.locator(`main ${loaded}`).first().waitFor();
}

async function check(page, name, width) {
  await screenshot(page, `german-${name}-${width}`);
  await fitsScreen(page, `${name} is wider than the screen`);
  await becomes(() => page.evaluate(() => document.documentElement.scrollWidth), width, name);
  await becomes(() => page.evaluate(() => [...document.querySelectorAll('dialog, dialog *')].filter((e) => e.clientWidth > 1 && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible' && !e.matches('input')).map((e) => e.className)), [], name);
  await assertAccessible(page, name);
  return englishOn(name, await textsOf(page));
}

// The dialogs with the page and the button that open them.
const DIALOGS = [['keyboard', 'inbox', '.top [title^="Tastenkürzel"]'], ['edit', 'update', '.detail-actions button'], ['standing rule', 'update', '.detail-actions button:nth-of-type(2)'], ['key', 'keys', '.page-head button'],
  ['revoke', 'rules', '.revoke'], ['export', 'audit', '.export'], ['server', 'servers', '.add-server']];

for (const [width, height] of [[1280, 800], [360, 740]]) {
  test(`every page is German at ${width} pixels`, async () => {
    const page = await newPage(browser, gateway, { width, height, bypassCSP: true });
    await page.addInitScript(() => localStorage.setItem('countersign.language', 'de'));
    await page.goto(gateway.url);
    await page.getByLabel('Zugangsschlüssel').waitFor();
    const found = await check(page, 'sign-in', width);
    await page.getByLabel('Zugangsschlüssel').fill(gateway.key('admin', 'alice'));
    await page.getByRole('button', { name: 'Anmelden' }).click();
    await live(page);
    for (const [name, [route, loaded]] of Object.entries(pages)) {
      await visit(page, route, loaded);
      found.push(...await check(page, name, width));
    }
    for (const [name, place, button] of DIALOGS.filter(([name]) => width > 960 || name !== 'keyboard')) {
      await visit(page, ...pages[place]);
      await page.locator(button).first().click();
      await page.getByRole('dialog').waitFor();
      found.push(...await check(page, `dialog ${name}`, width));
      await page.keyboard.press('Escape');
    }
    assert.deepEqual(found, [], 'English texts');
    assertClean(page);
    await page.context().close();
  });
}

test('the language is chosen in the header and otherwise that of the browser', async () => {
  const context = await browser.newContext({ locale: 'de-AT', viewport: { width: 1280, height: 800 } });
  const page = await newPage(browser, gateway, { context });
  await page.goto(gateway.url);
  await page.getByLabel('Zugangsschlüssel').fill(gateway.key('reviewer', 'bob'));
  await page.getByRole('button', { name: 'Anmelden' }).click();
  await live(page);
  const language = () => page.locator('html').getAttribute('lang');
  await becomes(language, 'de');
  await page.getByRole('button', { name: 'Sprache' }).click();
  await page.getByRole('button', { name: 'English' }).click();
  await page.getByRole('link', { name: 'Overview' }).waitFor();
  await becomes(language, 'en');
  // The test above would find them.
  await holds(async () => englishOn('', await textsOf(page)).length, (n) => n > 5);
  await page.reload();
  await page.getByRole('button', { name: 'Language' }).click();
  await page.getByRole('button', { name: 'As the browser' }).click();
  await page.getByRole('link', { name: 'Übersicht' }).waitFor();
  assertClean(page);
  await context.close();
});
