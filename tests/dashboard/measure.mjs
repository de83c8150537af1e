// Measures the inbox with thousands of changes: how soon it can be used, and how long frames take while somebody
// scrolls, alone and while events arrive. Prints figures; asserts nothing.
//
//   CHROMIUM=$(command -v chromium) COUNTERSIGN_BIN=target/release/countersign node tests/dashboard/measure.mjs [CHANGES] [EVENTS PER SECOND]
//
// Without COUNTERSIGN_BIN the mock serves the changes: the page does the same work.

import { dashboard, launch, live } from './lib/browser.mjs';
import { Gateway, pause, real } from './lib/gateway.mjs';

const CHANGES = Number(process.argv[2] ?? 5000);
const RATE = Number(process.argv[3] ?? 50);
const SECONDS = 6;

/** Scrolls the whole list down and up again for so long; the time from each frame to the next, in milliseconds. */
const scroll = (page, seconds) => page.evaluate((length) => new Promise((resolve) => {
  const list = document.querySelector('.list-scroll');
  const deltas = [];
  const begin = performance.now();
  let last = begin;
  requestAnimationFrame(function frame(at) {
    if (deltas.length || at > begin) deltas.push(at - last);
    last = at;
    const part = (at - begin) / (length * 1000);
    if (part >= 1) return resolve(deltas.slice(1));
    list.scrollTop = (part < 0.5 ? part * 2 : 2 - part * 2) * (list.scrollHeight - list.clientHeight);
    return requestAnimationFrame(frame);
  });
}), seconds);

function frames(what, deltas) {
  const sorted = deltas.toSorted((a, b) => a - b);
  const at = (q) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))].toFixed(1);
  const late = deltas.filter((d) => d > 33.4).length;
  console.log(`${what}: ${deltas.length} frames, median ${at(0.5)} ms, 95 % within ${at(0.95)} ms, 99 % within ${at(0.99)} ms, longest ${at(1)} ms; ${late} over 33 ms`);
}

const gateway = await Gateway.start({ flood: true });
const browser = await launch();
try {
  const keys = Array.from({ length: 4 }, (_, i) => gateway.key('agent', `load-${i}`));
  let made = 0;
  const propose = () => {
    made += 1;
    return gateway.proposeIssue(`Load ${String(made).padStart(5, '0')}`, {}, { key: keys[made % keys.length] });
  };
  await Promise.all(Array.from({ length: 8 }, async () => {
    while (made < CHANGES) await propose();
  }));
  const page = await dashboard(browser, gateway, { route: '/#/inbox?group=none' });
  page.setDefaultTimeout(120_000);
  await page.addInitScript(() => {
    window.longTasks = [];
    new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map(({ startTime, duration }) => [startTime, duration]))).observe({ type: 'longtask', buffered: true });
  });
  await page.reload();
  const shown = await page.waitForFunction(() => document.querySelector('.row') && performance.now()).then((v) => v.jsonValue());
  await live(page);
  const whole = await page.waitForFunction((n) => {
    const rows = document.querySelector('.rows');
    return rows && rows.offsetHeight >= n * (document.querySelector('.row-place')?.offsetHeight ?? Infinity) && performance.now();
  }, CHANGES).then((v) => v.jsonValue());
  await pause(1000);
  const tasks = await page.evaluate(() => window.longTasks);
  const sum = tasks.reduce((total, [, duration]) => total + duration, 0);
  // As tools for page speed count it: the first rows are there, and the first stretch without long tasks has begun.
  const ready = Math.max(shown, ...tasks.filter(([start]) => start < shown + 50).map(([start, duration]) => start + duration));
  console.log(`${CHANGES.toLocaleString('en')} changes in ${real ? 'the gateway' : 'the mock'}, ${await browser.version()}`);
  console.log(`first rows after ${Math.round(shown)} ms, interactive after ${Math.round(ready)} ms, all loaded after ${Math.round(whole)} ms`);
  console.log(`long tasks while loading: ${tasks.length}, together ${Math.round(sum)} ms, longest ${Math.round(Math.max(0, ...tasks.map(([, duration]) => duration)))} ms`);
  frames('scrolling through all', await scroll(page, SECONDS));
  const before = made;
  const begin = Date.now();
  const open = [];
  const timer = setInterval(() => {
    const due = Math.floor((Date.now() - begin) * RATE / 1000) - (made - before);
    for (let i = 0; i < due; i += 1) open.push(propose());
  }, 20);
  const busy = await scroll(page, SECONDS);
  clearInterval(timer);
  await Promise.all(open);
  frames(`the same while ${Math.round((made - before) / ((Date.now() - begin) / 1000))} events a second arrive`, busy);
  if (page.problems.length) console.log(page.problems.join('\n'));
} finally {
  await browser.close();
  await gateway.end();
}
