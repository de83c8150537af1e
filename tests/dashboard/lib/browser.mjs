// Debian's Chromium, and pages that remember everything that went wrong in them.

import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';

const ARGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];

export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ARGS });

/**
 * A page of its own context. `problems` collects errors on the console, exceptions, dialogs, and requests that leave
 * the gateway; what a test expects it names in `expected`.
 */
export async function newPage(browser, gateway, { width = 1280, height = 800, dark = false, reducedMotion = 'reduce', bypassCSP = false, context = null } = {}) {
  const own = context ?? await browser.newContext({ viewport: { width, height }, colorScheme: dark ? 'dark' : 'light', reducedMotion, bypassCSP });
  const page = await own.newPage();
  page.setDefaultTimeout(15_000);
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

/** Opens a change through its row. */
export async function open(page, text) {
  await row(page, text).first().click();
  await heading(page).filter({ hasText: text }).waitFor();
}
