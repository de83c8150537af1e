// Shows one bundle: the waiting changes that an agent proposed shortly after one another, with all diffs, and the decision on
// those that the reviewer has seen at its end. Every change keeps its own decision.

import { explain } from '../core/api.js';
import { announce, notice } from '../core/announce.js';
import { isReachable, needsGateway } from '../core/connection.js';
import { fill, h, separated } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { go, routeTo } from '../core/router.js';
import { SerialRead } from '../core/serialread.js';
import { quote, visibleString } from '../core/text.js';
import { time } from '../core/time.js';
import { MAX_SELECTED, shownOf } from '../core/triage.js';
import { isDecidable, operationOf, proposerName, shownOperation } from '../core/vocab.js';
import { explainProblem, openBulk } from '../ui/bulk.js';
import { ChangeList, decisionHint } from '../ui/changelist.js';
import { inputSchemaOf, openEdit } from '../ui/edit.js';
import { switchLayout } from '../ui/lines.js';
import { needsSignIn, signInButton } from '../ui/signinagain.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';
import { barredText, hasVoted, isApprovedByDeputy, isBarredAsProposer, isReviewerOf, mayEdit } from '../ui/terms.js';

export class BundleView {
  element;
  #api;
  #me;
  #undos;
  #decided;
  #id = null;
  #bundle = null;
  // The changes on the page, in order. A decided one stays, so that its outcome can be seen.
  #entries = new Map();
  // The changes that the reviewer took out of the selection.
  #excluded = new Set();
  // Why the gateway refused the last decision on a change.
  #problems = new Map();
  // Changes whose state is to be read again.
  #outdated = new Set();
  #reader = new SerialRead(() => this.#read());
  #abort = new AbortController();
  #head = h('div', { class: 'page-head' }, h('h1', { tabindex: '-1' }, t('shell.view.bundles')));
  #status = h('div');
  #list;
  #decision = h('section', { class: 'card plan-decision', tabindex: '-1', 'aria-label': t('bundle.decisionOn') });
  #hint = decisionHint(this.#decision);

  /** `decided(change)` is called with each change in an answer. `undos` holds the approvals that can be undone. */
  constructor({ api, me, undos, decided }) {
    this.#api = api;
    this.#me = me;
    this.#undos = undos;
    this.#decided = decided;
    this.#list = new ChangeList({
      hint: this.#hint,
      label: t('bundle.label'),
      linkTo: (position) => `${routeTo('bundles', this.#id)}/${position + 1}`,
      mustRead: (change) => this.#isSelected(change),
      someSeen: (seen, all) => t('bundle.someSeen', { seen, count: all }),
      tools: (change) => this.#tools(change),
      seen: () => this.#paintDecision(),
    });
    this.element = h('div', { class: 'page bundle' }, this.#head, h('div', { class: 'page-body' }, this.#status, this.#list.element, this.#decision));
    this.#hideContent();
  }

  dispose() {
    this.#abort.abort();
    this.#list.dispose();
  }

  /** Opens the bundle of a route. The part is the number of a change. */
  async route({ id, part }) {
    if (id !== this.#id) {
      this.#id = id;
      this.#bundle = null;
      this.#entries.clear();
      this.#excluded.clear();
      this.#problems.clear();
      this.#hideContent();
      fill(this.#status, skeleton());
      await this.#load();
    }
    if (part && this.#bundle) this.#list.reveal(Number(part) - 1);
  }

  event({ change }) {
    if (this.#entries.has(change.id)) this.#outdated.add(change.id);
    else if (change.proposer?.principal !== this.#bundle?.principal) return;
    this.#load();
  }

  refresh() {
    for (const id of this.#entries.keys()) this.#outdated.add(id);
    this.#load();
  }

  adopt({ change, source }) {
    if (this.#entries.has(change.id)) this.#put(change, source);
  }

  #hideContent() {
    this.#list.element.hidden = true;
    this.#decision.hidden = true;
  }

  #load() {
    return this.#reader.run();
  }

  async #read() {
    const { signal } = this.#abort;
    if (signal.aborted) return;
    if (this.#id === null) {
      fill(this.#status, emptyState('stack', t('bundle.none'), t('bundle.noneHow')));
      return;
    }
    const id = this.#id;
    try {
      const bundle = await this.#readChanges(id, signal);
      if (this.#id === id && bundle) this.#show(bundle);
    } catch (error) {
      if (!signal.aborted && error.status !== 401 && !this.#bundle) {
        if (error.status === 404) fill(this.#status, emptyState('check', t('bundle.gone'), h('p', null, parts('bundle.goneWhy', { link: h('a', { href: routeTo('history') }, t('bundle.seeHistory')) }))));
        else fill(this.#status, errorState(error, () => this.#load()));
      }
    }
  }

  // Reads the bundle, and the changes on the page that no longer wait. What an event reports meanwhile is read again.
  async #readChanges(id, signal) {
    const outdated = new Set(this.#outdated);
    this.#outdated.clear();
    try {
      const bundle = await this.#readBundle(id, signal);
      const steps = bundle?.steps ?? [];
      const waiting = new Set(steps.map(({ change }) => change.id));
      const gone = [...this.#entries.values()].map(({ change }) => change).filter((change) => !waiting.has(change.id) && (isDecidable(change.state) || outdated.has(change.id)));
      const others = await Promise.all(gone.map((change) => this.#api.change(change.id, signal)));
      if (this.#id !== id) return null;
      for (const { change, source } of [...steps, ...others]) {
        const known = this.#entries.get(change.id);
        if (!known || known.change.version <= change.version) this.#entries.set(change.id, { change, source });
      }
      return bundle ?? this.#bundle;
    } catch (error) {
      for (const changeId of outdated) this.#outdated.add(changeId);
      throw error;
    }
  }

  async #readBundle(id, signal) {
    try {
      return await this.#api.bundle(id, signal);
    } catch (error) {
      // Everything may have been decided since the page was opened.
      if (error.status === 404 && this.#bundle !== null) return null;
      throw error;
    }
  }

  #show(bundle) {
    const isFirst = this.#bundle === null;
    this.#bundle = bundle;
    const entries = [...this.#entries.values()];
    const waiting = entries.filter(({ change }) => isDecidable(change.state)).length;
    const { proposer } = entries[0]?.change ?? { proposer: { principal: bundle.principal } };
    const heading = h('h1', { tabindex: '-1' }, parts('bundle.title', { count: entries.length, name: quote(proposerName(proposer), 80) }));
    const hadFocus = document.activeElement?.tagName === 'H1';
    fill(this.#head, h('div', { class: 'pane-title' }, heading),
      h('p', { class: 'quiet' }, proposer.clientName && [parts('bundle.via', { client: quote(proposer.clientName, 80) }), ' · '], bundle.servers.length > 0 && [separated(bundle.servers.slice(0, 5).map((name) => quote(name, 40))), ' · '],
        parts('bundle.proposed', { time: time(bundle.firstAt) }), ' · ', h('strong', null, waiting === 0 ? t('bundle.allDecided') : t('bundle.waiting', { count: waiting }))));
    if (hadFocus || isFirst) heading.focus({ preventScroll: true });
    fill(this.#status, waiting === 0 && h('p', { class: 'banner tone-green' }, icon('check'), h('span', null, parts('bundle.done', { link: h('a', { href: routeTo('inbox') }, t('bundle.backToInbox')) }))));
    this.#list.element.hidden = false;
    this.#list.show(entries);
    this.#paintDecision();
  }

  #put(change, source) {
    const known = this.#entries.get(change.id);
    if (known && known.change.version > change.version) return;
    // A refused decision returns the new content without its exact arguments, so it is read again.
    if (source === undefined && known && known.change.digest !== change.digest) {
      this.#outdated.add(change.id);
      return;
    }
    this.#entries.set(change.id, { change, source: source ?? known?.source });
    if (this.#bundle) this.#show(this.#bundle);
  }

  // ── What can be decided ──

  // Tells why this person cannot decide on a change, or returns null. The gateway enforces the same rules.
  #obstacle(change) {
    if (!isReviewerOf(change, this.#me)) return t('bundle.others');
    if (isBarredAsProposer(change, this.#me)) return barredText(change, this.#me);
    if (isApprovedByDeputy(change, this.#me)) return t('absence.approvedForYou');
    if (hasVoted(change, this.#me)) return t('bundle.voted');
    return null;
  }

  // Tells why a change cannot be approved together with others, or returns null.
  #bulkObstacle(change) {
    if (change.state === 'stale') return t('bundle.stale');
    const { truncated, previewFailed } = shownOf(change);
    if (previewFailed) return t('bundle.previewFailed');
    return truncated ? t('bundle.truncated') : null;
  }

  #waiting() {
    return [...this.#entries.values()].map(({ change }) => change).filter((change) => isDecidable(change.state));
  }

  #isSelected(change) {
    return isDecidable(change.state) && !this.#excluded.has(change.id) && !this.#obstacle(change) && !this.#bulkObstacle(change);
  }

  #selected() {
    return this.#waiting().filter((change) => this.#isSelected(change));
  }

  #tools(change) {
    if (!isDecidable(change.state) || !this.#me.mayDecide) return { key: '', nodes: null };
    const obstacle = this.#obstacle(change);
    const bulkObstacle = this.#bulkObstacle(change);
    const problem = this.#problems.get(change.id);
    const isIncluded = this.#isSelected(change);
    const key = JSON.stringify([change.version, obstacle, bulkObstacle, isIncluded, problem]);
    const button = (act, name, text, shortcut, run, props = {}) => h('button', { type: 'button', data: { act }, onclick: run, ...needsGateway(), ...props }, icon(name), text, h('kbd', { 'aria-hidden': 'true' }, shortcut));
    const { id } = change;
    const note = obstacle ?? bulkObstacle;
    const nodes = [
      problem && h('p', { class: 'list-problem tone-red', role: 'alert' }, icon('alert'), h('span', null, t('bundle.notDecided', { problem: visibleString(problem) }))),
      h('div', { class: 'list-actions' },
        note ? h('p', { class: 'list-note quiet' }, icon('info'), h('span', null, note))
          : h('label', { class: 'list-include' }, h('input', { type: 'checkbox', checked: isIncluded, data: { act: 'include' }, onchange: () => this.#toggleIncluded(id) }), t('bundle.include')),
        h('div', { class: 'buttons' },
          isReviewerOf(change, this.#me) && mayEdit(change.terms) && button('edit', 'pencil', t('bundle.edit'), 'e', () => this.#edit(id), { class: 'ghost' }),
          change.state === 'stale' && button('refresh', 'refresh', t('bundle.refresh'), 'f', () => this.#refreshPreview(id)),
          isReviewerOf(change, this.#me) && button('reject', 'cross', t('bundle.reject'), 'r', () => this.#decide('reject', [change]), { class: 'reject' }),
          !note && button('approve', 'check', t('bundle.approve'), 'a', () => this.#decide('approve', [change])))),
    ];
    return { key, nodes };
  }

  #toggleIncluded(id) {
    const change = this.#entries.get(id)?.change;
    if (!change || !isDecidable(change.state) || this.#obstacle(change) || this.#bulkObstacle(change)) return;
    if (!this.#excluded.delete(id)) this.#excluded.add(id);
    announce(t(this.#excluded.has(id) ? 'bundle.leftOut' : 'bundle.included'));
    this.#list.repaintTools();
    this.#paintDecision();
  }

  #paintDecision() {
    if (!this.#bundle) return;
    const waiting = this.#waiting();
    this.#decision.hidden = waiting.length === 0;
    this.#hint.hidden = this.#decision.hidden || !this.#me.mayDecide;
    if (waiting.length === 0) return;
    if (!this.#me.mayDecide) {
      fill(this.#decision, h('p', { class: 'decision-note' }, icon('eye'), t('decision.viewer')));
      return;
    }
    const selected = this.#selected();
    const unseen = selected.filter((change) => !this.#list.hasSeen(change.id));
    const leftOut = waiting.length - selected.length;
    const act = this.#decision.contains(document.activeElement) ? document.activeElement.dataset.act : null;
    const text = selected.length === 0 ? t('bundle.nothingSelected')
      : unseen.length > 0 ? t('bundle.unseen', { count: unseen.length })
        : t('bundle.allSeen', { count: selected.length });
    fill(this.#decision,
      h('p', { class: 'decision-note' }, icon(selected.length === 0 ? 'info' : unseen.length > 0 ? 'eye' : 'check'), h('span', null, text,
        unseen.length > 0 && [' ', this.#list.nextButton()])),
      h('ul', { class: 'bundle-kinds', 'aria-label': t('bundle.kinds') }, kindsOf(selected).map(([operation, n]) => {
        const { icon: name, tone } = operationOf(operation);
        return h('li', { class: `badge tone-${tone}` }, icon(name), t(`bundle.kind.${operation}`, { count: n }));
      }), leftOut > 0 && h('li', { class: 'quiet' }, t('bundle.countLeftOut', { count: leftOut }))),
      h('div', { class: 'buttons' },
        h('button', { type: 'button', class: 'reject', ...needsGateway(() => selected.length === 0), data: { act: 'reject-all' }, onclick: () => this.#decide('reject', this.#selected()) }, icon('cross'), t('bundle.rejectAll')),
        h('button', { type: 'button', class: 'approve', ...needsGateway(() => selected.length === 0 || unseen.length > 0), data: { act: 'approve-all' }, onclick: () => this.#approveAll() }, icon('check'), selected.length > 0 ? t('bundle.approveCount', { count: selected.length }) : t('bundle.approveAll'), h('kbd', { 'aria-hidden': 'true' }, t('core.key.shiftA')))));
    if (act) this.#decision.querySelector(`[data-act="${act}"]`)?.focus({ preventScroll: true });
  }

  // ── Decisions ──

  #approveAll() {
    const selected = this.#selected();
    const unseen = selected.filter((change) => !this.#list.hasSeen(change.id)).length;
    if (selected.length === 0) return false;
    if (unseen > 0) {
      notice(t('bundle.readFirst', { count: unseen }), { tone: 'amber', iconName: 'eye' });
      return true;
    }
    this.#decide('approve', selected);
    return true;
  }

  #decide(decision, changes) {
    if (changes.length === 0 || !isReachable()) return;
    openBulk({
      decision, selected: changes.map(shownOf),
      decide: (verdict, comment, shown) => this.#send(verdict, comment, shown),
      signIn: (id) => signInButton(this.#api, id),
      decided: (change, isDecided) => {
        this.#put(change);
        this.#decided(change);
        if (isDecided && decision === 'approve') this.#undos.add(change);
      },
      done: () => {
        this.#list.repaintTools();
        this.#paintDecision();
        this.#load();
      },
    });
  }

  // The gateway decides on a hundred changes at once.
  async #send(verdict, comment, shown) {
    const results = [];
    for (let at = 0; at < shown.length; at += MAX_SELECTED) {
      results.push(...await this.#api.decideAll(verdict, comment, shown.slice(at, at + MAX_SELECTED)));
    }
    for (const { id, problem } of results) {
      if (problem) this.#problems.set(id, explainProblem(problem));
      else this.#problems.delete(id);
    }
    return results;
  }

  #edit(id) {
    const entry = this.#entries.get(id);
    if (!entry || !isReachable() || !isDecidable(entry.change.state) || !isReviewerOf(entry.change, this.#me)) return false;
    if (!mayEdit(entry.change.terms)) {
      notice(t('core.api.editForbidden'), { tone: 'amber', iconName: 'hidden' });
      return true;
    }
    openEdit({
      open: { change: entry.change, source: entry.source ?? 'null' },
      schema: () => inputSchemaOf(this.#api, entry.change),
      send: (source, comment) => this.#api.edit(id, { source, version: entry.change.version, comment }),
      remedy: async (error) => (needsSignIn(error) ? signInButton(this.#api, id, t('bundle.discard')) : null),
      done: ({ change, source }) => {
        this.#put(change, source);
        this.#list.reveal([...this.#entries.keys()].indexOf(id));
        notice(t('bundle.saved'), { tone: 'green', iconName: 'check' });
      },
    });
    return true;
  }

  async #refreshPreview(id) {
    const change = this.#entries.get(id)?.change;
    if (!change || !isDecidable(change.state)) return;
    try {
      const answer = await this.#api.refreshPreview(id, change.version);
      this.#problems.delete(id);
      this.#put(answer.change, answer.source);
    } catch (error) {
      this.#problems.set(id, explain(error));
      this.#list.repaintTools();
    }
  }

  keys() {
    const once = (action) => (event) => (event.repeat ? undefined : action(event));
    const withCurrent = (action) => {
      const id = this.#list.current;
      return id === null ? false : action(id);
    };
    const decideOne = (decision) => withCurrent((id) => {
      const { change } = this.#entries.get(id);
      if (!isDecidable(change.state) || !isReviewerOf(change, this.#me)) return false;
      const obstacle = decision === 'approve' ? this.#obstacle(change) ?? this.#bulkObstacle(change) : null;
      if (obstacle) notice(obstacle, { tone: 'amber', iconName: 'info' });
      else this.#decide(decision, [change]);
      return true;
    });
    return {
      j: () => this.#list.move(1),
      k: () => this.#list.move(-1),
      ' ': once((event) => (event.target.closest?.('button, a, summary, input') ? false : withCurrent((id) => this.#list.toggle(id)))),
      a: once(() => decideOne('approve')),
      r: once(() => decideOne('reject')),
      A: once(() => this.#approveAll()),
      e: once(() => withCurrent((id) => this.#edit(id))),
      f: once(() => withCurrent((id) => this.#refreshPreview(id))),
      x: once(() => withCurrent((id) => this.#toggleIncluded(id))),
      u: once(() => this.#undos.undoLast()),
      d: once(() => switchLayout()),
      o: once(() => withCurrent((id) => go(routeTo('changes', id)))),
      Enter: once(() => withCurrent((id) => go(routeTo('changes', id)))),
      Escape: () => go(routeTo('inbox')),
    };
  }
}

/** Returns how many of the changes have each operation, most first. */
function kindsOf(changes) {
  const kinds = new Map();
  for (const change of changes) kinds.set(shownOperation(change), (kinds.get(shownOperation(change)) ?? 0) + 1);
  return [...kinds].sort((a, b) => b[1] - a[1]);
}
