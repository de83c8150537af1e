// Measures the inbox with thousands of changes: the time until it is usable, the frame times while scrolling, with and
// without events, and the processor time of the main thread per frame and event, which excludes other load of the
// machine. It prints figures and asserts nothing.
//
//   CHROMIUM=$(command -v chromium-headless-shell) COUNTERSIGN_BIN=target/release/countersign node tests/dashboard/measure.mjs [CHANGES] [EVENTS PER SECOND]
//
// PROFILE=FILE writes a CPU profile of the last part for Chromium's developer tools.

import { writeFileSync } from 'node:fs';
import { dashboard, launch, live } from './lib/browser.mjs';
import { Gateway, pause } from './lib/gateway.mjs';

const CHANGES = Number(process.argv[2] ?? 5000);
const RATE = Number(process.argv[3] ?? 50);
const SECONDS = 6;
const ROUTE = process.env.ROUTE ?? '/#/inbox?group=none';

/** Scrolls the list down and up during `seconds`, or only waits, and returns the time of each frame in milliseconds. */
const recordFrames = (page, seconds, scrolling) => page.evaluate(([length, moving]) => new Promise((resolve) => {
  const list = document.querySelector('.list-scroll');
  const deltas = [];
  const begin = performance.now();
  let last = begin;
  requestAnimationFrame(function frame(at) {
    if (deltas.length || at > begin) deltas.push(at - last);
    last = at;
    const part = (at - begin) / (length * 1000);
    if (part >= 1) return resolve(deltas.slice(1));
    if (moving) list.scrollTop = (part < 0.5 ? part * 2 : 2 - part * 2) * (list.scrollHeight - list.clientHeight);
    return requestAnimationFrame(frame);
  });
}), [seconds, scrolling]);

function printFrames(what, deltas) {
  const sorted = deltas.toSorted((a, b) => a - b);
  const at = (q) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))].toFixed(1);
  const late = deltas.filter((d) => d > 33.4).length;
  console.log(`${what}: ${deltas.length} frames, median ${at(0.5)} ms, 95 % within ${at(0.95)} ms, 99 % within ${at(0.99)} ms, longest ${at(1)} ms; ${late} over 33 ms (${(late / deltas.length * 100).toFixed(1)} %)`);
}

const gateway = await Gateway.start({ flood: true });
const browser = await launch();
try {
  const keys = Array.from({ length: 4 }, (_, i) => gateway.key('agent', `load-${i}`));
  let proposed = 0;
  const propose = () => {
    proposed += 1;
    return gateway.proposeIssue(`Load ${String(proposed).padStart(5, '0')}`, {}, { key: keys[proposed % keys.length] });
  };
  await Promise.all(Array.from({ length: 8 }, async () => {
    while (proposed < CHANGES) await propose();
  }));
  const page = await dashboard(browser, gateway, { route: ROUTE });
  const devtools = await page.context().newCDPSession(page);
  await devtools.send('Performance.enable', { timeDomain: 'threadTicks' });
  /** Returns the milliseconds of the main thread so far: script, style, layout and all tasks. */
  const work = async () => {
    const { metrics } = await devtools.send('Performance.getMetrics');
    const metric = (name) => metrics.find((m) => m.name === name).value * 1000;
    return [metric('ScriptDuration'), metric('RecalcStyleDuration'), metric('LayoutDuration'), metric('TaskDuration')];
  };
  const printWork = (before, after, n, each) => {
    const [script, style, layout, all] = after.map((v, i) => ((v - before[i]) / n).toFixed(2));
    console.log(`  for each ${each}: script ${script} ms, style ${style} ms, layout ${layout} ms; all work of the main thread ${all} ms`);
  };
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
    const count = Number(/[\d,]+/.exec(document.querySelector('.pane-title .quiet')?.textContent ?? '')?.[0].replaceAll(',', ''));
    return rows && count >= n && (!location.hash.includes('group=none') || rows.offsetHeight >= n * (document.querySelector('.row-place')?.offsetHeight ?? Infinity)) && performance.now();
  }, CHANGES).then((v) => v.jsonValue());
  await pause(1000);
  const tasks = await page.evaluate(() => window.longTasks);
  const sum = tasks.reduce((total, [, duration]) => total + duration, 0);
  // The page counts as ready when it has rows and its first long tasks have ended, as tools for page speed define it.
  const ready = Math.max(shown, ...tasks.filter(([start]) => start < shown + 50).map(([start, duration]) => start + duration));
  console.log(`${CHANGES.toLocaleString('en')} changes, ${await browser.version()}`);
  console.log(`first rows after ${Math.round(shown)} ms, interactive after ${Math.round(ready)} ms, all loaded after ${Math.round(whole)} ms`);
  console.log(`long tasks while loading: ${tasks.length}, together ${Math.round(sum)} ms, longest ${Math.round(Math.max(0, ...tasks.map(([, duration]) => duration)))} ms`);

  /** Measures frames and work, with `rate` events a second. */
  const part = async (what, scrolling, rate, profile = null) => {
    const first = proposed;
    const begin = Date.now();
    const open = [];
    let failed = null;
    const timer = rate > 0 ? setInterval(() => {
      const due = Math.floor((Date.now() - begin) * rate / 1000) - (proposed - first);
      for (let i = 0; i < due; i += 1) open.push(propose().catch((error) => { failed = error; }));
    }, 20) : null;
    if (profile) {
      await devtools.send('Profiler.enable');
      await devtools.send('Profiler.setSamplingInterval', { interval: 200 });
      await devtools.send('Profiler.start');
    }
    const before = await work();
    const deltas = await recordFrames(page, SECONDS, scrolling);
    const after = await work();
    if (profile) writeFileSync(profile, JSON.stringify((await devtools.send('Profiler.stop')).profile));
    clearInterval(timer);
    const events = proposed - first;
    await Promise.all(open);
    if (failed) throw failed;
    printFrames(rate > 0 ? `${what}, ${Math.round(events / ((Date.now() - begin) / 1000))} events a second` : what, deltas);
    printWork(before, after, deltas.length, 'frame');
    if (rate > 0) printWork(before, after, events, 'event');
  };
  await part('scrolling through all', true, 0);
  await page.evaluate(() => { document.querySelector('.list-scroll').scrollTop = 0; });
  await part('looking at the top', false, RATE);
  await part('scrolling through all', true, RATE, process.env.PROFILE);
  if (page.problems.length) console.log(page.problems.join('\n'));
} finally {
  await browser.close();
  await gateway.end();
}
