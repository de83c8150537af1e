// Tests small screens, dark mode, accessibility, headers and a list of a thousand changes.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertAccessible, assertClean, becomes, button, dashboard, exposeModules, fitsScreen, focused, heading, holds, launch, matches, newPage, open, row, signIn } from './lib/browser.mjs';
import { Gateway } from './lib/gateway.mjs';

let browser;
let gateway;
let changes;
before(async () => {
  browser = await launch();
  gateway = await Gateway.start({ flood: true });
  // These events do not occur in this test.
  gateway.reconfigure({ webhooks: { looks: { url: 'http://127.0.0.1:9/hook', format: 'text', events: ['rule.expired'] } } });
  const description = 'First line\nSecond line\n'.repeat(10);
  const issueId = await gateway.issue('Looks like an issue', { description });
  const doomed = await gateway.issue('Looks like a doomed issue');
  changes = {
    create: await gateway.proposeIssue('A title that is quite long, so that it needs more than one line on a small screen', { description }),
    update: await gateway.propose('update_issue', { issueId, title: 'Looks like another issue', description: description.replace('Second', 'Changed') }),
    remove: await gateway.propose('delete_issue', { issueId: doomed }),
  };
  const no = await gateway.proposeIssue('Rejected one');
  await gateway.decide(no, 'reject', 'No, thank you');
  changes.rejected = no;
  for (const [verdict, which, principal] of [['allow', 'exact', 'same'], ['deny', 'exact', 'any']]) await gateway.api(`changes/${no}/rule`, { body: { verdict, arguments: which, principal, for: 3600, comment: 'Looks like a rule' } });
  const call = await gateway.mcp({ name: 'looks', version: '1' });
  await call('create_project', { name: 'Looks', key: 'LOOK' });
});
after(async () => {
  await browser?.close();
  await gateway?.end();
});

const routes = () => ['/#/inbox', `/#/inbox/${changes.create}`, `/#/inbox/${changes.update}`, `/#/inbox/${changes.remove}`, '/#/history', '/#/overview', `/#/history/${changes.rejected}`, '/#/rules', '/#/audit', `/#/audit/${changes.rejected}`, '/#/sessions', '/#/servers', '/#/webhooks'];

async function show(page, route) {
  await page.goto(`${gateway.url}${route}`);
  // The previous view may stay visible for a moment. Standing rules have no link of their own.
  await page.locator(`nav a[data-view=${/\w+/.exec(route)[0].replace('rules', 'policy')}][aria-current]`).waitFor({ state: 'attached' });
  if (route.includes('chg_') && !route.includes('audit')) {
    await page.locator(`.change-id code[title="${route.split('/').at(-1)}"]`).waitFor();
    await page.locator('.timeline').waitFor();
  } else if (/audit|sessions/.test(route)) await page.locator('.records').waitFor();
  else if (route.includes('overview')) await page.locator('.tile').first().waitFor();
  else if (route.includes('rules')) await page.locator('.rule').nth(1).waitFor();
  else if (route.includes('hooks')) await page.locator('.hook').waitFor();
  else if (route.includes('servers')) await page.locator('.server-table tbody tr').first().waitFor();
  else await row(page, 'Looks like').first().waitFor({ state: 'attached' });
}

test('at 360 pixels nothing is cut off, and list and change alternate', async () => {
  const page = await dashboard(browser, gateway, { width: 360, height: 740 });
  for (const route of routes()) {
    await show(page, route);
    await fitsScreen(page, `${route} is wider than the screen`);
    await becomes(() => page.evaluate(() => document.documentElement.scrollWidth), 360);
  }
  await show(page, '/#/webhooks');
  await becomes(() => page.locator('.hook h2').evaluate((name) => name.offsetHeight < 2 * parseFloat(getComputedStyle(name).lineHeight)), true, 'a short name is not broken');
  await show(page, '/#/inbox');
  await becomes(() => page.locator('article').isVisible(), false);
  await row(page, 'A title that is quite long').click();
  await heading(page).filter({ hasText: 'A title that is quite long' }).waitFor();
  await becomes(() => page.locator('.pane-list').isVisible(), false);
  await focused(page, 'article h2');
  for (const name of ['Approve', 'Reject']) {
    await holds(() => button(page, name).boundingBox(), (box) => box?.height >= 44, `${name} can be hit with a thumb`);
  }
  await page.getByRole('button', { name: 'All changes' }).click();
  await page.locator('.pane-list').waitFor();
  await matches(() => page.evaluate(() => document.activeElement.innerText), /A title that is quite long/, 'the focus is back on the row');
  assertClean(page);
  await page.context().close();
});

test('on a phone with text of twice the size, no control is cut off', async () => {
  const page = await dashboard(browser, gateway, { width: 390, height: 844 });
  const devTools = await page.context().newCDPSession(page);
  await devTools.send('Page.setFontSizes', { fontSizes: { standard: 32, fixed: 26 } });
  for (const route of routes()) {
    await show(page, route);
    await becomes(() => page.evaluate(() => [...document.querySelectorAll('#app :is(button, input, select, textarea)')].filter((e) => e.checkVisibility() && !e.closest('.skip, .chips, .value') && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.textContent || e.id)), [], `${route} has controls outside the screen`);
  }
  assertClean(page);
  await page.context().close();
});

test('a touch screen shows no keys', async () => {
  const context = await browser.newContext({ viewport: { width: 1024, height: 768 }, isMobile: true, hasTouch: true, reducedMotion: 'reduce' });
  const page = await dashboard(browser, gateway, { context });
  await row(page, 'Looks like').first().click();
  await button(page, 'Reject').click();
  await page.getByText('The agent reads what you write.').waitFor();
  await becomes(() => page.locator('kbd').evaluateAll((keys) => keys.filter((key) => key.checkVisibility()).length), 0);
  assertClean(page);
  await context.close();
});

test('at 390 pixels views are in a menu, and no badge covers an icon', async () => {
  const page = await dashboard(browser, gateway, { width: 390, height: 844 });
  await row(page, 'Looks like').first().waitFor({ state: 'attached' });
  // The maximum number of digits. The page hides a badge again when it reads how many there are.
  const showBadges = () => page.evaluate(() => document.querySelectorAll('.top nav .count').forEach((badge) => {
    badge.hidden = false;
    badge.firstChild ? badge.firstChild.textContent = '999+' : badge.append('999+');
  }));
  const tabs = page.locator('.top nav > a, .top nav > .more-views');
  await becomes(() => tabs.evaluateAll((all) => all.map((tab) => tab.querySelector('span:not(.count)').innerText)), ['Inbox', 'History', 'More']);
  const isSeparate = () => tabs.evaluateAll((all) => all.filter((tab) => tab.querySelector('.count')).map((tab) => {
    const [icon, badge, whole] = ['.icon', '.count', null].map((part) => (part ? tab.querySelector(part) : tab).getBoundingClientRect());
    return badge.left >= icon.right - 2 && badge.right <= whole.right;
  }));
  await becomes(() => showBadges().then(isSeparate), [true, true]);
  const menu = page.locator('.top nav .menu');
  await becomes(() => menu.isVisible(), false);
  await page.getByRole('button', { name: 'More' }).click();
  await fitsScreen(page, 'the menu is wider than the screen');
  await menu.getByRole('link', { name: 'Audit' }).click();
  await page.locator('.records').waitFor();
  await becomes(() => menu.isVisible(), false);
  await becomes(() => page.locator('.more-views.current').count(), 1);
  await page.getByRole('button', { name: 'More' }).click();
  await page.keyboard.press('Escape');
  await becomes(() => menu.isVisible(), false);
  assertClean(page);
  await page.context().close();
});

test('the header fits every width, with the account and the way out', async () => {
  const page = await dashboard(browser, gateway, { key: gateway.key('reviewer', 'looks-reviewer'), route: '/#/sessions' });
  // With a wide font not all views fit, whichever fonts are installed.
  await page.evaluate(() => { document.querySelector('.top').style.letterSpacing = '.1em'; });
  for (const width of [1600, 1440, 1280, 1100, 960]) {
    await page.setViewportSize({ width, height: 700 });
    await fitsScreen(page, `at ${width} pixels`);
  }
  await page.getByRole('button', { name: 'More' }).click();
  // A number that changes while the menu is open does not bring its links back into the header.
  await page.evaluate(() => document.querySelector('.top [data-view=inbox] .count').append('0'));
  await becomes(() => page.locator('.more-views').isVisible(), true, 'the menu keeps its button');
  await page.keyboard.press('Escape');
  await page.locator('.top nav .menu').waitFor({ state: 'hidden' });
  await fitsScreen(page, 'after the menu was closed');
  await page.getByRole('button', { name: 'More' }).click();
  await page.locator('.top nav .menu').getByRole('link', { name: 'Audit' }).click();
  await page.locator('.audit-records').waitFor();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByLabel('Access key').waitFor();
  assertClean(page);
  await page.context().close();
});

test('a notice stays under the pointer and with the focus, a problem until it is dismissed', async () => {
  const page = await newPage(browser, gateway);
  await page.clock.install();
  await exposeModules(page);
  await signIn(page, gateway, gateway.key('reviewer', 'noticed'), '/#/sessions');
  const notice = page.locator('.notice');
  const show = (tone) => page.evaluate((t) => window.load('js/core/announce.js').notice('It is done', { tone: t }), tone);
  const later = () => page.clock.fastForward(7_000);
  await show('green');
  await notice.hover();
  await later();
  await becomes(() => notice.count(), 1, 'the pointer is on it');
  await page.mouse.move(1, 1);
  await later();
  await becomes(() => notice.count(), 0);
  await show('green');
  await notice.getByRole('button').focus();
  await later();
  await focused(page, '.notice button');
  await notice.getByRole('button').blur();
  await later();
  await becomes(() => notice.count(), 0);
  await show('red');
  await later();
  await becomes(() => notice.count(), 1, 'nobody has dismissed the problem');
  for (const tone of ['green', 'green', 'green']) await show(tone);
  await becomes(() => notice.evaluateAll((all) => all.map((one) => one.classList[1])), ['tone-green', 'tone-green', 'tone-red'], 'no problem is dropped for what disappears by itself');
  await later();
  await page.evaluate(() => {
    const announce = window.load('js/core/announce.js');
    for (const tone of ['green', 'red']) announce.notice(`It is ${tone}`, { tone, key: 'it' });
  });
  await becomes(() => notice.locator('> span').allTextContents(), ['It is red', 'It is done']);
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByLabel('Access key').waitFor();
  await becomes(() => notice.count(), 0, 'nothing is left after signing out');
  assertClean(page);
  await page.context().close();
});

test('views that were left do not stay in memory', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/sessions' });
  const devTools = await page.context().newCDPSession(page);
  await devTools.send('Performance.enable');
  const visit = async () => {
    await show(page, `/#/inbox/${changes.update}`);
    await page.locator('.line.insert').first().waitFor();
    await show(page, '/#/history');
    await show(page, '/#/sessions');
  };
  const countNodes = async () => {
    await devTools.send('HeapProfiler.collectGarbage');
    const { metrics } = await devTools.send('Performance.getMetrics');
    return metrics.find(({ name }) => name === 'Nodes').value;
  };
  await visit();
  const before = await countNodes();
  for (let n = 0; n < 5; n += 1) await visit();
  // One visit creates about a thousand nodes.
  await holds(countNodes, (after) => after < before + 1000, `there were ${before} nodes`);
  assertClean(page);
  await page.context().close();
});

test('a long path stays in its column, and a double click selects a whole id', async () => {
  const issueId = await gateway.issue(`src/${'aratherlongfoldername/'.repeat(6)}file.ts`);
  const long = await gateway.propose('update_issue', { issueId, description: 'Another' });
  const page = await dashboard(browser, gateway, { route: `/#/audit/${long}` });
  for (const compact of [true, false]) {
    await page.goto(`${gateway.url}/#/audit`);
    await page.locator('.subject', { hasText: 'aratherlong' }).first().waitFor();
    await becomes(() => page.locator('.audit-records tbody tr').evaluateAll((rows) => rows.every((tr) => {
      const hash = tr.querySelector('.hash').getBoundingClientRect().left;
      return [...tr.querySelectorAll('.subject *')].every((part) => part.getBoundingClientRect().right <= hash);
    })), true, 'nothing overlaps the column of hashes');
    if (compact) await page.getByRole('button', { name: 'Compact rows' }).click();
  }
  await page.goto(`${gateway.url}/#/inbox/${long}`);
  await page.locator('.change-id code').dblclick();
  await becomes(() => page.evaluate(() => getSelection().toString().trim()), long);
  await gateway.decide(long, 'reject');
  assertClean(page);
  await page.context().close();
});

test('the mark of a change that waits fits in its row and names the other change', async () => {
  const page = await newPage(browser, gateway, { width: 390, height: 844 });
  await page.route('**/api/changes?*', async (route) => {
    const answer = await (await route.fetch()).json();
    for (const change of answer.changes) change.waitsFor = { change: changes.create };
    await route.fulfill({ json: answer });
  });
  await signIn(page, gateway, undefined, '/#/history');
  const mark = row(page, 'Rejected one').locator('.badge', { hasText: 'Waits' });
  await becomes(() => mark.getAttribute('title'), `Waits for ${changes.create}, which has the same target`);
  await becomes(() => mark.evaluate((badge) => badge.getBoundingClientRect().right < badge.closest('.row').querySelector('.row-time').getBoundingClientRect().left), true);
  await page.unrouteAll({ behavior: 'wait' });
  assertClean(page);
  await page.context().close();
});

test('the titles of the audit trail can be read at every width', async () => {
  const page = await dashboard(browser, gateway, { route: '/#/audit' });
  const title = page.locator('.subject > a', { hasText: 'Rejected one' }).first();
  for (const width of [1440, 1210, 1024, 768, 360]) {
    await page.setViewportSize({ width, height: 800 });
    await fitsScreen(page, `at ${width} pixels`);
    await becomes(() => title.evaluate((link) => [link, ...link.querySelectorAll('.quote')].every((part) => part.scrollWidth <= part.clientWidth || part.clientWidth === 0)), true, `at ${width} pixels`);
  }
  assertClean(page);
  await page.context().close();
});

test('the theme follows the system or the choice of the user', async () => {
  const page = await dashboard(browser, gateway, { dark: true });
  const brightness = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b));
  await holds(brightness, (sum) => sum < 150, 'dark');
  await page.getByRole('button', { name: 'Theme: system' }).click();
  await holds(brightness, (sum) => sum > 600, 'light');
  await page.reload();
  await holds(brightness, (sum) => sum > 600, 'the choice is kept');
  await page.getByRole('button', { name: 'Theme: light' }).click();
  await holds(brightness, (sum) => sum < 150, 'dark');
  assertClean(page);
  await page.context().close();
});

for (const [name, options] of [['light', {}], ['dark', { dark: true }], ['on a small screen', { width: 360, height: 740 }]]) {
  test(`every page is accessible, ${name}`, async () => {
    const page = await dashboard(browser, gateway, { ...options, bypassCSP: true });
    for (const route of routes()) {
      await show(page, route);
      await assertAccessible(page, route);
    }
    await show(page, `/#/inbox/${changes.remove}`);
    await button(page, 'Approve').click();
    await button(page, 'Approve deletion').waitFor();
    await assertAccessible(page, 'the second press');
    await page.keyboard.press('Escape');
    const dialog = page.getByRole('dialog');
    const closeDialog = async () => {
      await page.keyboard.press('Escape');
      await dialog.waitFor({ state: 'detached' });
    };
    await show(page, `/#/inbox/${changes.create}`);
    await page.getByRole('button', { name: 'Edit', exact: true }).click();
    await dialog.locator('.layouts').waitFor();
    await assertAccessible(page, 'editing by fields');
    await dialog.getByRole('button', { name: 'JSON' }).click();
    await dialog.locator('#edit-json').fill('{');
    await dialog.getByRole('button', { name: 'Save and preview' }).click();
    await dialog.locator('.edit-errors p').waitFor();
    await assertAccessible(page, 'editing as JSON, wrongly');
    await closeDialog();
    await page.getByRole('button', { name: 'Create standing rule…' }).click();
    await dialog.waitFor();
    await assertAccessible(page, 'a standing rule');
    await closeDialog();
    await show(page, '/#/rules');
    await page.getByRole('button', { name: 'Revoke' }).first().click();
    await dialog.waitFor();
    await assertAccessible(page, 'revoking a rule');
    await closeDialog();
    await show(page, '/#/audit');
    await page.getByRole('button', { name: 'Export…' }).click();
    await dialog.waitFor();
    await assertAccessible(page, 'exporting the trail');
    await closeDialog();
    await show(page, `/#/inbox/${changes.create}`);
    await page.keyboard.press('x');
    await page.keyboard.press('a');
    await dialog.waitFor();
    await assertAccessible(page, 'deciding together');
    await closeDialog();
    await show(page, '/#/inbox');
    await page.getByRole('button', { name: 'Filters' }).click();
    await page.locator('.bulk').waitFor();
    await assertAccessible(page, 'filters, and the bar of the selection');
    await page.keyboard.press('d');
    await show(page, `/#/inbox/${changes.update}`);
    await assertAccessible(page, 'two columns');
    if (!options.width) {
      await page.getByRole('button', { name: 'Keyboard shortcuts' }).click();
      await page.getByRole('dialog').waitFor();
      await assertAccessible(page, 'the overview of keys');
    }
    await page.context().close();
    const front = await newPage(browser, gateway, { ...options, bypassCSP: true });
    await front.goto(gateway.url);
    await front.getByLabel('Access key').waitFor();
    await assertAccessible(front);
    await front.context().close();
  });
}

test('a viewer has no control that changes anything, on any page', async () => {
  const page = await dashboard(browser, gateway, { key: gateway.key('viewer', 'vera') });
  const sent = [];
  page.on('request', (request) => request.method() !== 'GET' && sent.push(`${request.method()} ${request.url()}`));
  // Controls that only filter, open, copy or print.
  const harmlessControls = '.chip, .server-toggle, .load-more button, .fold-label, .fold, .group-row, .copy, .layout, .more, .bell, .narrow, [type=search], [data-act=print], .export, .density, .audit-filter *';
  for (const route of routes()) {
    await show(page, route);
    await becomes(() => page.locator('main :is(button, input, select, textarea):visible').evaluateAll((all, harmless) => all.filter((e) => !e.matches(harmless)).map((e) => e.outerHTML.slice(0, 160)), harmlessControls), [], route);
    await page.evaluate(() => document.activeElement?.blur());
    for (const key of ['a', 'r', 'e', 'x', 'u', 'f']) await page.keyboard.press(key);
    await becomes(() => page.locator('dialog, .bulk:visible').count(), 0, route);
  }
  assert.deepEqual(sent, []);
  assertClean(page);
  await page.context().close();
});

test('the page has landmarks and names for screen readers', async () => {
  const page = await dashboard(browser, gateway, { route: `/#/inbox/${changes.update}` });
  await page.getByRole('banner').waitFor();
  await page.getByRole('navigation', { name: 'Views' }).waitFor();
  await page.getByRole('main').waitFor();
  await page.getByRole('article', { name: 'Selected change' }).waitFor();
  await page.getByRole('columnheader', { name: 'Before' }).first().waitFor();
  await becomes(() => page.locator('#announcer').getAttribute('aria-live'), 'polite');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Shift+Tab');
  const skip = page.getByRole('button', { name: 'Skip to content' });
  await skip.focus();
  await page.keyboard.press('Enter');
  await focused(page, 'h1');
  assertClean(page);
  await page.context().close();
});

test('the content security policy forbids inline scripts and markup from text', async () => {
  const page = await dashboard(browser, gateway);
  const outcome = await page.evaluate(() => {
    const script = document.createElement('script');
    let trusted = 'refused';
    try {
      script.textContent = 'window.ran = true';
      document.head.append(script);
      document.createElement('div').innerHTML = '<b>x</b>';
      trusted = 'allowed';
    } catch {
      // The browser must refuse it.
    }
    return { ran: window.ran === true, trusted };
  });
  assert.deepEqual(outcome, { ran: false, trusted: 'refused' });
  await page.context().close();
});

test('a list of 1,200 changes renders only visible rows', async () => {
  const keys = [gateway.key('agent', 'load-1'), gateway.key('agent', 'load-2')];
  const jobs = Array.from({ length: 1200 }, (_, i) => i);
  await Promise.all(Array.from({ length: 8 }, async () => {
    for (let i = jobs.shift(); i !== undefined; i = jobs.shift()) await gateway.proposeIssue(`Load ${String(i).padStart(4, '0')}`, {}, { key: keys[i % 2] });
  }));
  const page = await dashboard(browser, gateway, { route: '/#/inbox?group=none' });
  await page.waitForFunction(() => Number(document.querySelector('.pane-title .quiet').textContent.replace(/,/g, '')) >= 1200);
  await page.waitForFunction(() => {
    const total = Number(document.querySelector('.pane-title .quiet').textContent.replace(/,/g, ''));
    return document.querySelector('.rows').offsetHeight >= total * document.querySelector('.row-place').offsetHeight;
  });
  await holds(() => page.locator('.row').count(), (n) => n > 0 && n < 60, 'only visible rows are in the page');
  await matches(() => page.title(), /^\(1,2\d\d\) /);
  await page.locator('.list-scroll').evaluate((e) => e.scrollTo(0, e.scrollHeight));
  await row(page, 'A title that is quite long').waitFor();
  await holds(() => page.locator('.row').count(), (n) => n > 0 && n < 60);
  // In the middle of the list nothing moves when a change arrives at the top.
  await page.locator('.list-scroll').evaluate((e) => e.scrollTo(0, 40_000));
  const first = () => page.evaluate(() => {
    const top = document.querySelector('.list-scroll').getBoundingClientRect().top;
    // The row must already be painted at the new scroll position.
    const inSight = [...document.querySelectorAll('.row-place')].find((r) => r.getBoundingClientRect().top >= top && r.getBoundingClientRect().top < top + r.offsetHeight);
    return inSight && [inSight.innerText, Math.round(inSight.getBoundingClientRect().top)].join('|').replace(/\b(now|\d+ (s|min))\b/, '');
  });
  const before = await holds(first, Boolean);
  const total = await page.locator('.pane-title .quiet').innerText();
  await gateway.proposeIssue('Comes in at the top');
  await holds(() => page.locator('.pane-title .quiet').innerText(), (now) => now !== total);
  await becomes(() => first(), before);
  await page.getByRole('searchbox').fill('load 0777');
  await open(page, 'Load 0777');
  assertClean(page);
  await page.context().close();
});
