// Tries a server beside the running ones, and shows what came of it. A trial may wait for the consent of somebody else, and so may an
// edit of servers.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { quote, visibleString } from '../core/text.js';
import { yamlBlock } from './fileform.js';

const POLL_INTERVAL = 700;
const MAX_TOOLS = 100;

// What package runners write if the registry does not have the package.
const UNKNOWN_PACKAGE = /^npm (?:error|ERR!) (?:code )?E404|was not found in the package registry/i;

const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });

/** Shows the state of a trial, and its report once there is one. */
function trialReport(trial) {
  const { state, report } = trial;
  if (state === 'waiting') return banner('amber', 'eye', [h('p', null, t('serverform.trialWaiting'))]);
  if (state === 'running') return banner('grey', 'refresh', [h('p', null, t('serverform.trialRunning'))]);
  if (state === 'refused') return banner('red', 'cross', [h('p', null, parts('serverform.trialRefused', { person: trial.decidedBy ? quote(trial.decidedBy, 60) : t('serverform.somebody') }))]);
  if (!report) return null;
  if (report.works) return banner('green', 'check', [
    h('p', null, h('strong', null, t('serverform.works', { count: report.tools.length })), report.ownName && [' · ', quote(report.ownName, 80)]),
    report.tools.length > 0 && h('ul', { class: 'trial-tools', tabindex: '0', 'aria-label': t('serverform.tools') }, report.tools.slice(0, MAX_TOOLS).map((tool) => h('li', null, h('code', null, quote(tool.name, 100)), h('span', { class: 'quiet' }, t(!tool.offered ? 'serverform.leftOut' : tool.claimsRead ? 'serverform.readsOnly' : 'serverform.mayWrite'))))),
    report.tools.length > MAX_TOOLS && h('p', { class: 'quiet' }, t('serverform.moreTools', { count: report.tools.length - MAX_TOOLS })),
    notes(report),
    report.stderr.length > 0 && h('details', { class: 'fold-section' }, h('summary', null, t('serverform.stderrOfWorking')), stderrBlock(report))]);
  return banner(report.needsAccount ? 'amber' : 'red', 'alert', [
    h('p', null, report.needsAccount ? t('serverform.needsAccount') : parts('serverform.fails', { problem: quote(report.error ?? t('serverform.doesNotWork'), 500) })),
    report.stderr.some((line) => UNKNOWN_PACKAGE.test(line)) && h('p', null, h('strong', null, t('serverform.unknownPackage'))),
    report.stderr.length > 0 && [h('p', { class: 'quiet' }, t('serverform.stderr')), stderrBlock(report)],
    notes(report)]);
}

const notes = (report) => report.notes.length > 0 && h('ul', { class: 'left-out' }, report.notes.map((note) => h('li', null, quote(note, 300))));

const stderrBlock = (report) => h('pre', { class: 'trial-stderr', tabindex: '0' }, report.stderr.map((line) => [quote(line, 500), '\n']));

const banner = (tone, iconName, content) => h('div', { class: `banner tone-${tone} trial-report` }, icon(iconName), h('div', null, content));

/** Starts a trial and shows its state in `place` until it ends, or until `signal` is aborted. Each new state scrolls into view. */
export async function runTrial({ api, request, place, signal }) {
  try {
    let trial = await api.tryServer(request);
    let shown = null;
    for (;;) {
      fill(place, trialReport(trial));
      if (trial.state !== shown) place.scrollIntoView({ block: 'nearest' });
      shown = trial.state;
      if (signal.aborted || (trial.state !== 'waiting' && trial.state !== 'running')) return trial;
      await pause(POLL_INTERVAL);
      if (signal.aborted) return trial;
      const next = (await api.trials(signal)).find(({ id }) => id === trial.id);
      if (!next) {
        fill(place, banner('amber', 'alert', [h('p', null, t('serverform.trialForgotten'))]));
        return null;
      }
      trial = next;
    }
  } catch (error) {
    if (signal.aborted) return null;
    fill(place, banner('red', 'alert', explain(error).split('\n').map((line) => h('p', null, visibleString(line)))));
    place.scrollIntoView({ block: 'nearest' });
    return null;
  }
}

/** Shows the trials and edits that wait for consent. `decide(id, verdict)` sends the decision. */
export function waitingTrials(trials, me, decide) {
  const waiting = trials.filter(({ state }) => state === 'waiting');
  return waiting.map((trial) => {
    const isOwn = trial.by === me.name;
    const isSave = trial.purpose === 'save';
    return h('section', { class: 'offer trial-offer', 'aria-label': t(isSave ? 'serverform.savingOf' : 'serverform.testOf', { server: visibleString(trial.server) }) },
      h('div', { class: 'offer-head' }, icon('eye'), h('div', null, h('h2', null, parts(isSave ? 'serverform.wantsToSave' : 'serverform.wantsToTest', { person: quote(trial.by, 60), server: quote(trial.server, 64) })),
        h('p', { class: 'quiet' }, t(isOwn ? 'serverform.ownTest' : 'serverform.otherTest')))),
      // Whole, because somebody consents to it.
      trial.yaml && h('div', { class: 'offer-body' }, yamlBlock(trial.yaml, t('serverform.configuration'))),
      me.mayDecide && h('div', { class: 'offer-foot' },
        !isOwn && h('button', { type: 'button', class: 'approve', onclick: () => decide(trial.id, 'run') }, icon('check'), t(isSave ? 'serverform.saveAndStart' : 'serverform.runTest')),
        h('button', { type: 'button', class: 'reject', onclick: () => decide(trial.id, 'refuse') }, icon('cross'), t(isOwn ? 'serverform.withdraw' : 'serverform.refuse'))));
  });
}
