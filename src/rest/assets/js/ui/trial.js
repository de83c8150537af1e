// Tries a server beside the running ones, and shows what came of it. A trial may wait for the consent of somebody else.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { count, plural, quote, visibleString } from '../core/text.js';

const POLL_INTERVAL = 700;
const MAX_TOOLS = 100;

const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });

/** Shows the state of a trial, and its report once there is one. */
export function trialReport(trial) {
  const { state, report } = trial;
  if (state === 'waiting') return banner('amber', 'eye', [h('p', null, 'Waiting for somebody else to allow this test: a reviewer finds it on this page.')]);
  if (state === 'running') return banner('grey', 'refresh', [h('p', null, 'Starting it. Servers that install themselves first may take a minute.')]);
  if (state === 'refused') return banner('red', 'cross', [h('p', null, 'The test was refused by ', quote(trial.decidedBy ?? 'somebody', 60), '.')]);
  if (!report) return null;
  if (report.works) return banner('green', 'check', [
    h('p', null, h('strong', null, `It works: ${plural(report.tools.length, 'tool')}`), report.ownName && [' · ', quote(report.ownName, 80)], report.era && ` · ${visibleString(report.era)} era`),
    report.tools.length > 0 && h('ul', { class: 'trial-tools', tabindex: '0', 'aria-label': 'Tools' }, report.tools.slice(0, MAX_TOOLS).map((tool) => h('li', null, h('code', null, quote(tool.name, 100)), h('span', { class: 'quiet' }, tool.offered ? tool.claimsRead ? 'says that it only reads' : 'may write' : 'left out by tools')))),
    report.tools.length > MAX_TOOLS && h('p', { class: 'quiet' }, `and ${count(report.tools.length - MAX_TOOLS)} more`),
    notes(report)]);
  return banner(report.needsAccount ? 'amber' : 'red', 'alert', [
    h('p', null, report.needsAccount ? 'It asks for an account, which people connect once the server is added.' : ['It ', quote(report.error ?? 'does not work', 500)]),
    report.stderr.length > 0 && [h('p', { class: 'quiet' }, 'Its last lines on stderr:'), h('pre', { class: 'trial-stderr', tabindex: '0' }, report.stderr.map((line) => [quote(line, 500), '\n']))],
    notes(report)]);
}

const notes = (report) => report.notes.length > 0 && h('ul', { class: 'left-out' }, report.notes.map((note) => h('li', null, quote(note, 300))));

const banner = (tone, iconName, content) => h('div', { class: `banner tone-${tone} trial-report` }, icon(iconName), h('div', null, content));

/** Starts a trial and shows its state in `place` until it ends, or until `signal` is aborted. */
export async function runTrial({ api, request, place, signal }) {
  try {
    let trial = await api.tryServer(request);
    for (;;) {
      fill(place, trialReport(trial));
      if (signal.aborted || (trial.state !== 'waiting' && trial.state !== 'running')) return trial;
      await pause(POLL_INTERVAL);
      if (signal.aborted) return trial;
      const next = (await api.trials(signal)).find(({ id }) => id === trial.id);
      if (!next) {
        fill(place, banner('amber', 'alert', [h('p', null, 'The test has been forgotten. Start it again.')]));
        return null;
      }
      trial = next;
    }
  } catch (error) {
    if (!signal.aborted) fill(place, banner('red', 'alert', [h('p', null, visibleString(explain(error)))]));
    return null;
  }
}

/** Shows the trials of others that wait for consent. `decide(id, verdict)` sends the decision. */
export function waitingTrials(trials, me, decide) {
  const waiting = trials.filter(({ state }) => state === 'waiting');
  return waiting.map((trial) => {
    const isOwn = trial.by === me.name;
    return h('section', { class: 'offer trial-offer', 'aria-label': `Test of ${visibleString(trial.server)}` },
      h('div', { class: 'offer-head' }, icon('eye'), h('div', null, h('h3', null, quote(trial.by, 60), ' wants to test the server ', quote(trial.server, 64)),
        h('p', { class: 'quiet' }, isOwn ? 'Somebody else must allow it, because the gateway would execute this.' : 'The gateway would execute this on its machine, as its own user.'))),
      // Whole, because somebody consents to it.
      h('div', { class: 'offer-body' }, h('pre', { class: 'server-yaml', tabindex: '0', 'aria-label': 'Configuration' }, trial.yaml.split('\n').map((line) => [quote(line, Infinity), '\n']))),
      me.mayDecide && h('div', { class: 'offer-foot' },
        !isOwn && h('button', { type: 'button', class: 'approve', onclick: () => decide(trial.id, 'run') }, icon('check'), 'Run the test'),
        h('button', { type: 'button', class: 'reject', onclick: () => decide(trial.id, 'refuse') }, icon('cross'), isOwn ? 'Withdraw' : 'Refuse')));
  });
}
