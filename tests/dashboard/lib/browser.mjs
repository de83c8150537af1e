// Starts Debian's Chromium and opens pages that record every problem in them.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { pause } from './gateway.mjs';

const ARGS = ['--headless', '--no-sandbox', '--disable-gpu', '--in-process-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];

// The timeout in milliseconds. Only a failing test waits this long, but a machine may be very slow.
const WAIT = 45_000;

export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium-headless-shell', args: ARGS });

/**
 * Opens a page in its own context. `problems` collects errors on the console, exceptions, dialogs and requests to other
 * hosts; see `assertClean`. The first steps of a new gateway are hidden unless `firstSteps` is true.
 */
export async function newPage(browser, gateway, { width = 1280, height = 800, dark = false, reducedMotion = 'reduce', bypassCSP = false, context = null, patience = WAIT, firstSteps = false } = {}) {
  const own = context ?? await browser.newContext({
    viewport: { width, height },
    colorScheme: dark ? 'dark' : 'light',
    reducedMotion,
    bypassCSP,
    // A debug gateway needs a third of a second to compress the dashboard.
    extraHTTPHeaders: { 'Accept-Encoding': 'identity' },
  });
  const page = await own.newPage();
  page.setDefaultTimeout(patience);
  if (!firstSteps) await page.addInitScript(() => location.protocol === 'http:' && localStorage.setItem('countersign.first-steps', 'hidden'));
  // A notice disappears after some seconds; see `waitForNotice`.
  await page.addInitScript(() => {
    window.notices = [];
    const record = ({ target, addedNodes }) => target.matches?.('.notices') && window.notices.push(...[...addedNodes].map((notice) => notice.textContent));
    new MutationObserver((mutations) => mutations.forEach(record)).observe(document, { childList: true, subtree: true });
  });
  page.problems = [];
  page.on('console', (message) => message.type() === 'error' && page.problems.push(`console: ${message.text()}`));
  page.on('pageerror', (error) => page.problems.push(`exception: ${error.stack}`));
  page.on('dialog', (dialog) => {
    page.problems.push(`dialog: ${dialog.message()}`);
    return dialog.dismiss();
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(`${gateway.url}/`)) page.problems.push(`request to ${request.url()}`);
  });
  return page;
}

/** Lets tests use the modules of the page, which is not open yet: `window.load('js/core/api.js')` returns what one exports. */
export const exposeModules = (page) => page.route('**/assets/js/load.js', async (route) => {
  const response = await route.fetch();
  await route.fulfill({ response, body: `${await response.text()}\nwindow.load = load;` });
});

/** Signs in with a key through the form. */
export async function signIn(page, gateway, key = gateway.key('reviewer', 'alice'), route = '/') {
  await page.goto(`${gateway.url}${route}`);
  await page.getByLabel('Access key').fill(key);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await live(page);
}

export const live = (page) => page.locator('.connection[data-state=live]').waitFor();

/** Opens a page that is signed in and connected to the live feed. */
export async function dashboard(browser, gateway, { key, route, ...options } = {}) {
  const page = await newPage(browser, gateway, options);
  await signIn(page, gateway, key, route);
  return page;
}

/**
 * Repeats `read` until the assertion `check` accepts its value, or throws the last error. A page paints asynchronously,
 * so a single read proves nothing.
 */
export async function settles(read, check, limit = WAIT) {
  const end = Date.now() + limit;
  for (;;) {
    try {
      const value = await read();
      check(value);
      return value;
    } catch (error) {
      if (Date.now() > end) throw error;
    }
    await pause(40);
  }
}

/** Reads until the value equals `expected`. */
export const becomes = (read, expected, message) => settles(read, (value) => assert.deepEqual(value, expected, message));

/** Reads until the value matches `pattern`. */
export const matches = (read, pattern, message) => settles(read, (value) => assert.match(value, pattern, message));

/** Reads until `predicate(value)` is true. */
export const holds = (read, predicate, message) => settles(read, (value) => assert.ok(predicate(value), message ?? `it is ${JSON.stringify(value)}`));

/** Waits until an element that matches the selector has the focus. */
export const focused = (page, selector, message) => holds(() => page.evaluate((s) => document.activeElement?.matches(s) || (document.activeElement?.outerHTML.slice(0, 200) ?? 'nothing'), selector), (at) => at === true, message);

/** Waits until no element exceeds the screen, except those that scroll sideways by design. */
export const fitsScreen = (page, message) => becomes(() => page.evaluate(() => [...document.querySelectorAll('#app *')].filter((e) => {
  const { right, left, width } = e.getBoundingClientRect();
  return width > 1 && !e.closest('.sr-only, .skip, .chips, .chart-table') && (right > innerWidth + 1 || left < -1);
}).map((e) => `${e.tagName}.${e.className}`)), [], message);

/** Asserts that no problems were recorded except those that match one of `expected`. */
export function assertClean(page, ...expected) {
  assert.deepEqual(page.problems.filter((p) => !expected.some((e) => e.test(p))), []);
}

/**
 * Stores a picture of the page in the folder of the variable SHOTS, if it is set. `size` is that of the viewport meanwhile; see
 * Playwright for the other options.
 */
export async function screenshot(page, name, { size, ...options } = {}) {
  const { SHOTS } = process.env;
  if (!SHOTS) return;
  const previousSize = page.viewportSize();
  if (size) await page.setViewportSize(size);
  await page.screenshot({ ...options, path: join(SHOTS, `${name}.png`) });
  if (size) await page.setViewportSize(previousSize);
}

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Asserts that axe finds no violation. The page must be opened with `bypassCSP`. */
export async function assertAccessible(page, message) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  assert.deepEqual(violations.map(({ id, nodes }) => [id, nodes.map(({ html, failureSummary }) => `${html.slice(0, 160)} ${failureSummary}`)]), [], message);
}

/** Chromium reports every 4xx as an error on the console. */
export const status = (code) => new RegExp(`status of ${code}`);
export const disconnected = /ERR_(CONNECTION_REFUSED|CONTENT_LENGTH_MISMATCH|CONNECTION_RESET|INTERNET_DISCONNECTED|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE|SOCKET_NOT_CONNECTED|CONNECTION_CLOSED|ABORTED|NETWORK_CHANGED|NETWORK_IO_SUSPENDED)/;

export const row = (page, text) => page.locator('.row', { hasText: text });
export const heading = (page) => page.locator('article h2');
export const button = (page, name) => page.locator('footer.decision').getByRole('button', { name });

/** Waits until the open change can be approved; a change that opened by itself blocks presses for a moment. */
export async function armed(page) {
  const footer = page.locator('footer.decision');
  try {
    await footer.locator('[data-act=approve]:enabled').waitFor();
  } catch (error) {
    throw new Error(`${error.message}\n${await footer.evaluate((element) => element.outerHTML)}`, { cause: error });
  }
}

/** Rejects the open change with the button, whose first press asks for the reason. */
export async function reject(page) {
  await button(page, 'Reject').click();
  await focused(page, '#comment');
  await button(page, 'Reject').click();
}

/** Waits until the open change has that outcome; otherwise the error tells what the page shows instead. */
export async function waitForOutcome(page, label) {
  try {
    await page.locator('.outcome .outcome-head strong', { hasText: label }).waitFor();
  } catch (error) {
    throw new Error(`${error.message}\n${await page.locator('article').innerText()}`, { cause: error });
  }
}

/** Waits until the page has shown a notice with that text, which disappears by itself. */
export const waitForNotice = (page, text) => page.waitForFunction((part) => window.notices.some((notice) => notice.includes(part)), text);

/** Presses keys that belong together, such as `g` and `h`. They are sent at once, because the page accepts no long pause. */
export const pressTogether = (page, keys) => Promise.all([...keys].map((key) => page.keyboard.press(key)));

/**
 * Opens a change through its row. Rows may move under a click when changes are grouped. `id` is needed if other changes
 * have the same text: an issue has that of the change that created it, whose row may be the first for a moment.
 */
export async function open(page, text, id = null) {
  const rows = id === null ? row(page, text) : page.locator(`.row[data-id="${id}"]`);
  const opened = id === null ? heading(page).filter({ hasText: text }) : page.locator(`.change-id code[title="${id}"]`);
  await settles(async () => {
    await rows.first().click({ timeout: 5_000 });
    await opened.waitFor({ timeout: 5_000 });
  }, () => {});
}

/** Waits for the list of changes on the page of a bundle or a plan, and scrolls each change to its end. */
export async function readAll(page) {
  const items = page.locator('.list-item');
  await items.first().waitFor();
  for (const item of await items.all()) {
    // A new state paints the change again.
    await holds(() => item.locator('.list-end').evaluate((end) => end.scrollIntoView({ block: 'center' })).then(() => item.locator('.seen-mark').count()), (marks) => marks > 0);
  }
}
