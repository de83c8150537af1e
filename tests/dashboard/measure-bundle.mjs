// Measures the page of a bundle of 200 changes: the time until it is usable, the memory, and the frames while scrolling to its
// end. It prints figures and asserts nothing.
//
//   CHROMIUM=$(command -v chromium-headless-shell) COUNTERSIGN_BIN=target/release/countersign node tests/dashboard/measure-bundle.mjs [CHANGES] [LINES]

import { dashboard, launch } from './lib/browser.mjs';
import { Gateway, pause } from './lib/gateway.mjs';

const CHANGES = Number(process.argv[2] ?? 200);
const LINES = Number(process.argv[3] ?? 60);
const SCROLL_SECONDS = 6;

const gateway = await Gateway.start({ flood: true });
const browser = await launch();
try {
  const key = gateway.key('agent', 'bundle-load');
  const description = Array.from({ length: LINES }, (_, n) => `Line ${n + 1} of the description of an issue`).join('\n');
  const first = await gateway.proposeIssue('Bundled 001', { description }, { key });
  for (let n = 2; n <= CHANGES; n += 1) await gateway.proposeIssue(`Bundled ${String(n).padStart(3, '0')}`, { description }, { key });
  const page = await dashboard(browser, gateway, { route: '/#/audit' });
  page.setDefaultTimeout(120_000);
  const devtools = await page.context().newCDPSession(page);
  await devtools.send('Performance.enable');
  await page.addInitScript(() => {
    window.longTasks = [];
    new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map(({ startTime, duration }) => [startTime, duration]))).observe({ type: 'longtask', buffered: true });
  });
  await page.goto(`${gateway.url}/#/bundles/${first}`);
  await page.reload();
  const shown = await page.waitForFunction((n) => document.querySelectorAll('.list-item').length === n && performance.now(), CHANGES).then((value) => value.jsonValue());
  await pause(1500);
  const tasks = await page.evaluate(() => window.longTasks);
  const ready = Math.max(shown, ...tasks.filter(([start]) => start < shown + 50).map(([start, duration]) => start + duration));
  const memory = async () => {
    await devtools.send('HeapProfiler.collectGarbage');
    const { metrics } = await devtools.send('Performance.getMetrics');
    const metric = (name) => metrics.find((m) => m.name === name).value;
    return `${(metric('JSHeapUsedSize') / 1048576).toFixed(1)} MiB of JavaScript heap, ${metric('Nodes').toLocaleString('en')} nodes`;
  };
  console.log(`${CHANGES} changes with ${LINES} lines each, ${await browser.version()}`);
  console.log(`all listed after ${Math.round(shown)} ms, interactive after ${Math.round(ready)} ms, longest task ${Math.round(Math.max(0, ...tasks.map(([, duration]) => duration)))} ms`);
  console.log(`opened: ${await memory()}`);
  const frames = await page.evaluate((seconds) => new Promise((resolve) => {
    const scroller = document.querySelector('.page');
    const deltas = [];
    const begin = performance.now();
    let last = begin;
    requestAnimationFrame(function frame(at) {
      deltas.push(at - last);
      last = at;
      const part = (at - begin) / (seconds * 1000);
      scroller.scrollTop = Math.max(0, part) * (scroller.scrollHeight - scroller.clientHeight);
      if (part >= 1) return resolve(deltas.slice(1));
      return requestAnimationFrame(frame);
    });
  }), SCROLL_SECONDS);
  const sorted = frames.toSorted((a, b) => a - b);
  const at = (q) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))].toFixed(1);
  console.log(`scrolled to the end: ${frames.length} frames, median ${at(0.5)} ms, 95 % within ${at(0.95)} ms, longest ${at(1)} ms`);
  console.log(`scrolled: ${await memory()}`);
} finally {
  await browser.close();
  await gateway.end();
}
