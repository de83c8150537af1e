// Debian's Chromium, and pages that remember everything that went wrong in them.

import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';
import { pause } from './gateway.mjs';

const ARGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];

// What never happens is told after this, in milliseconds: only a failing test waits so long, a machine may be very slow.
const WAIT = 45_000;

export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ARGS });

/**
 * A page of its own context. `problems` collects errors on the console, exceptions, dialogs, and requests that leave
 * the gateway; what a test expects it names in `expected`.
 */
export async function newPage(browser, gateway, { width = 1280, height = 800, dark = false, reducedMotion = 'reduce', bypassCSP = false, context = null, patience = WAIT } = {}) {
  const own = context ?? await browser.newContext({ viewport: { width, height }, colorScheme: dark ? 'dark' : 'light', reducedMotion, bypassCSP });
  const page = await own.newPage();
  page.setDefaultTimeout(patience);
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

/** Signs in with a key through the form. */
export async function signIn(page, gateway, key = gateway.key('reviewer', 'alice'), route = '/') {
  await page.goto(`${gateway.url}${route}`);
  await page.getByLabel('Access key').fill(key);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await live(page);
}

export const live = (page) => page.locator('.connection[data-state=live]').waitFor();

/** A page that is signed in and live. */
export async function dashboard(browser, gateway, { key, route, ...options } = {}) {
  const page = await newPage(browser, gateway, options);
  await signIn(page, gateway, key, route);
  return page;
}

/**
 * Reads again until `check`, an assertion, holds for it; what it says last is what is thrown. A page paints some time
 * after whatever a test did: what it shows is never read once and for all.
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

/** Reads until it is this. */
export const becomes = (read, expected, message) => settles(read, (value) => assert.deepEqual(value, expected, message));

/** Reads until this is in it. */
export const matches = (read, pattern, message) => settles(read, (value) => assert.match(value, pattern, message));

/** Reads until `holds(value)`. */
export const holds = (read, predicate, message) => settles(read, (value) => assert.ok(predicate(value), message ?? `it is ${JSON.stringify(value)}`));

/** Waits until the keyboard is in what matches the selector. */
export const focused = (page, selector, message) => holds(() => page.evaluate((s) => document.activeElement?.matches(s) || (document.activeElement?.outerHTML.slice(0, 200) ?? 'nothing'), selector), (at) => at === true, message);

/** Nothing stands beyond the edges of the screen, apart from what scrolls sideways by design. */
export const fitsScreen = (page, message) => becomes(() => page.evaluate(() => [...document.querySelectorAll('#app *')].filter((e) => {
  const { right, left, width } = e.getBoundingClientRect();
  return width > 1 && !e.closest('.sr-only, .skip, .chips') && (right > innerWidth + 1 || left < -1);
}).map((e) => `${e.tagName}.${e.className}`)), [], message);

/** Nothing went wrong, apart from what matches one of `expected`. */
export function assertClean(page, ...expected) {
  assert.deepEqual(page.problems.filter((p) => !expected.some((e) => e.test(p))), []);
}

/** Chromium reports every 4xx as an error on the console. */
export const status = (code) => new RegExp(`status of ${code}`);
export const disconnected = /ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INTERNET_DISCONNECTED|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE|SOCKET_NOT_CONNECTED|CONNECTION_CLOSED|ABORTED|NETWORK_CHANGED|NETWORK_IO_SUSPENDED)/;

export const row = (page, text) => page.locator('.row', { hasText: text });
export const heading = (page) => page.locator('article h2');
export const button = (page, name) => page.locator('footer.decision').getByRole('button', { name });

/** Waits until the open change can be approved: what opened by itself is not decided on by a press that was under way. */
export async function armed(page) {
  const footer = page.locator('footer.decision');
  try {
    await footer.locator('[data-act=approve]:enabled').waitFor();
  } catch (error) {
    throw new Error(`${error.message}\n${await footer.evaluate((element) => element.outerHTML)}`, { cause: error });
  }
}

/** Opens a change through its row. */
export async function open(page, text) {
  await row(page, text).first().click();
  await heading(page).filter({ hasText: text }).waitFor();
}
