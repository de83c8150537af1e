// Shows one plan: its steps in order with all diffs, what each waits for, and the decision on all of them at the end.

import { explain } from '../core/api.js';
import { announce, notice } from '../core/announce.js';
import { isReachable, needsGateway } from '../core/connection.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { routeTo } from '../core/router.js';
import { SerialRead } from '../core/serialread.js';
import { MAX_COMMENT, quote, short, visibleString } from '../core/text.js';
import { shownOf } from '../core/triage.js';
import { isDecidable, proposerName } from '../core/vocab.js';
import { openBulk } from '../ui/bulk.js';
import { ChangeList, decisionHint } from '../ui/changelist.js';
import { needsSignIn, signInButton } from '../ui/signinagain.js';
import { emptyState, errorState, missingState, skeleton } from '../ui/states.js';
import { countsApproval, isBarredAsProposer, isReviewerOf, missingApprovals } from '../ui/terms.js';

export class PlanView {
  element;
  #api;
  #me;
  #id = null;
  #plan = null;
  #abort = new AbortController();
  #reader = new SerialRead(() => this.#read());
  #busy = false;
  #error = null;
  #head = h('div', { class: 'page-head' }, h('h1', { tabindex: '-1' }, t('shell.view.plans')));
  #status = h('div');
  #list;
  #comment = h('textarea', { id: 'plan-comment', rows: '2', maxlength: String(MAX_COMMENT) });
  #decision = h('section', { class: 'card plan-decision', tabindex: '-1', 'aria-label': t('plan.decisionOn') });
  #hint = decisionHint(this.#decision);

  constructor({ api, me }) {
    this.#api = api;
    this.#me = me;
    this.#list = new ChangeList({
      hint: this.#hint,
      label: t('plan.label'),
      linkTo: (position) => `${routeTo('plans', this.#id)}/${position + 1}`,
      mustRead: (change) => this.#mustApprove(change),
      someSeen: (seen, all) => t('plan.someSeen', { seen, count: all }),
      waits: (change) => this.#waitsFor(change),
      seen: () => this.#paintDecision(),
    });
    this.element = h('div', { class: 'page plan' }, this.#head, h('div', { class: 'page-body' }, this.#status, this.#list.element, this.#decision));
    this.#hideContent();
  }

  dispose() {
    this.#abort.abort();
    this.#list.dispose();
  }

  /** Opens the plan of a route. The part is the number of a step. */
  async route({ id, part }) {
    if (id !== this.#id) {
      this.#id = id;
      this.#plan = null;
      this.#error = null;
      this.#hideContent();
      fill(this.#status, skeleton());
      await this.#load();
    }
    if (part && this.#plan) this.#list.reveal(Number(part) - 1);
  }

  event({ change }) {
    if (change.plan?.id === this.#id) this.#load();
  }

  refresh() {
    this.#load();
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
      fill(this.#status, emptyState('stack', t('plan.none'), t('plan.noneHow')));
      return;
    }
    const id = this.#id;
    try {
      const plan = await this.#api.plan(id, signal);
      if (this.#id === id) this.#show(plan);
    } catch (error) {
      if (!signal.aborted && error.status !== 401 && !this.#plan) {
        if (error.status === 404) fill(this.#status, missingState(t('plan.missing', { id: visibleString(short(id, 60)) }), t('plan.missingWhy')));
        else fill(this.#status, errorState(error, () => this.#load()));
      }
    }
  }

  #show(plan) {
    const isFirst = this.#plan === null;
    this.#plan = plan;
    const { title, reason, proposer, isComplete, stopped, steps } = plan;
    const applied = steps.filter(({ change }) => change.state === 'applied').length;
    const heading = h('h1', { tabindex: '-1' }, parts('plan.title', { title: quote(title, 200) }));
    const hadFocus = document.activeElement?.tagName === 'H1';
    fill(this.#head, h('div', { class: 'pane-title' }, heading),
      h('p', { class: 'quiet' }, parts(proposer.clientName ? 'plan.byVia' : 'plan.by', { name: h('strong', null, quote(proposerName(proposer), 80)), client: quote(proposer.clientName ?? '', 80) }), ' ',
        t(isComplete ? 'plan.steps' : 'plan.stepsSoFar', { count: steps.length, applied })),
      reason && h('p', { class: 'plan-reason' }, parts('plan.agentSays', { reason: h('q', null, quote(reason, 2000)) })));
    if (hadFocus || isFirst) heading.focus({ preventScroll: true });
    fill(this.#status,
      stopped && h('p', { class: 'banner tone-red' }, icon('alert'), h('span', null, h('strong', null, t('plan.stopped')), ' ', t('plan.stoppedWhy', { reason: visibleString(stopped) }))),
      !stopped && !isComplete && h('p', { class: 'banner tone-amber' }, icon('clock'), h('span', null, t('plan.incomplete'))));
    this.#list.element.hidden = false;
    this.#list.show(steps);
    this.#paintDecision();
  }

  #waitsFor(change) {
    const { plan } = change;
    const steps = this.#plan?.steps ?? [];
    if (isDecidable(change.state)) return t(change.state === 'stale' ? 'plan.waits.stale' : 'plan.waits.decision');
    if (change.state === 'outcome_unknown') return t('plan.waits.settled');
    if (change.state !== 'approved') return null;
    if (!this.#plan?.isComplete) return t('plan.waits.last');
    const undecided = steps.find((step) => isDecidable(step.change.state));
    if (undecided) return t('plan.waits.approval', { step: undecided.change.plan.index + 1 });
    const earlier = steps.find((step) => step.change.plan.index < plan.index && step.change.state !== 'applied');
    return earlier ? t('plan.waits.step', { step: earlier.change.plan.index + 1 }) : null;
  }

  // The steps that this user can still approve.
  #ownSteps() {
    return this.#plan.steps.filter(({ change }) => this.#mustApprove(change));
  }

  #mustApprove(change) {
    return isDecidable(change.state) && isReviewerOf(change, this.#me) && countsApproval(change, this.#me);
  }

  // The steps that this user ends by rejecting the plan: approved ones, too, that have not begun.
  #rejectableSteps() {
    return this.#plan.steps.filter(({ change }) => (isDecidable(change.state) || change.state === 'approved') && isReviewerOf(change, this.#me));
  }

  #isAllApproved() {
    return !this.#plan.steps.some(({ change }) => isDecidable(change.state));
  }

  #paintDecision() {
    if (!this.#plan) return;
    const { stopped, isComplete, steps } = this.#plan;
    const waiting = steps.filter(({ change }) => isDecidable(change.state));
    const rejectable = this.#rejectableSteps();
    this.#decision.hidden = Boolean(stopped) || (waiting.length === 0 && rejectable.length === 0);
    this.#hint.hidden = this.#decision.hidden || !this.#me.mayDecide;
    if (this.#decision.hidden) {
      this.#decision.replaceChildren();
      return;
    }
    if (!this.#me.mayDecide) {
      fill(this.#decision, h('p', { class: 'decision-note' }, icon('eye'), t('plan.viewer')));
      return;
    }
    const own = this.#ownSteps();
    const obstacle = this.#obstacle(own, isComplete);
    const needsComment = [...own, ...rejectable].some(({ change }) => change.terms.requireComment);
    const unseen = own.filter(({ change }) => !this.#list.hasSeen(change.id)).length;
    const busy = this.#busy;
    const active = this.#decision.contains(document.activeElement) ? document.activeElement : null;
    const act = active?.dataset.act;
    this.#comment.placeholder = t(needsComment ? 'decision.commentRequired' : 'decision.commentOptional');
    this.#comment.disabled = busy;
    fill(this.#decision,
      this.#error && h('p', { class: 'banner tone-red', role: 'alert' }, icon('alert'), h('span', null, visibleString(this.#error.text)), this.#error.remedy),
      h('p', { class: 'decision-note' }, icon(obstacle ? 'person' : unseen ? 'eye' : 'check'),
        h('span', null, obstacle ?? (unseen > 0 ? [t('plan.unseen', { count: unseen }), ' ', this.#list.nextButton()] : t(isLast(own, waiting) ? 'plan.approvesAndRuns' : 'plan.approvesSome', { count: own.length })))),
      h('label', { class: 'sr-only', for: 'plan-comment' }, t('controls.comment')), this.#comment,
      h('div', { class: 'buttons' },
        h('button', { type: 'button', class: 'reject', ...needsGateway(() => busy || rejectable.length === 0), data: { act: 'reject' }, onclick: () => this.#reject() }, icon('cross'), t(this.#isAllApproved() ? 'plan.stop' : 'plan.reject')),
        waiting.length > 0 && h('button', { type: 'button', class: 'approve', ...needsGateway(() => busy || Boolean(obstacle) || unseen > 0), data: { act: 'approve' }, onclick: () => this.#approve() }, icon('check'), t(busy ? 'decision.approving' : 'plan.approve'))));
    if (active === this.#comment) this.#comment.focus({ preventScroll: true });
    else if (act) this.#decision.querySelector(`[data-act=${act}]`)?.focus({ preventScroll: true });
  }

  // Tells why this person cannot approve, or returns null. Except for rows that are not shown, the gateway enforces the same rules.
  #obstacle(own, isComplete) {
    if (this.#isAllApproved()) return t('plan.stopNote');
    const barred = this.#plan.steps.some(({ change }) => isBarredAsProposer(change, this.#me));
    if (barred) return t('plan.barred');
    if (own.length === 0) return t('plan.nothingForYou');
    if (!isComplete) return t('plan.notComplete');
    const stale = own.find(({ change }) => change.state === 'stale');
    if (stale) return t('plan.stale', { step: stale.change.plan.index + 1 });
    const cut = own.find(({ change }) => shownOf(change).truncated);
    if (cut) return t('plan.truncated', { step: cut.change.plan.index + 1 });
    return null;
  }

  async #approve() {
    if (this.#busy || !this.#plan) return;
    const comment = this.#comment.value.trim();
    if (!comment && this.#ownSteps().some(({ change }) => change.terms.requireComment)) {
      this.#error = { text: t('plan.needsComment') };
      this.#paintDecision();
      this.#comment.focus();
      return;
    }
    this.#busy = true;
    this.#error = null;
    this.#paintDecision();
    const { id, version, steps } = this.#plan;
    try {
      const plan = await this.#api.decidePlan(id, { decision: 'approve', comment: comment || undefined, version, digests: digestsOf(steps) });
      this.#comment.value = '';
      this.#busy = false;
      announce(t('plan.approved'));
      notice(t('plan.approved'), { tone: 'green', iconName: 'check' });
      if (this.#id === id) this.#show(plan);
    } catch (error) {
      this.#busy = false;
      // The refused step says which sign-in it requires.
      const remedy = needsSignIn(error) ? await signInButton(this.#api, error.problem.change.id) : null;
      this.#error = { text: error.code === 'VERSION_CONFLICT' ? t('plan.conflict') : explain(error), remedy };
      this.#paintDecision();
      this.#load();
    }
  }

  // Asks for the reason first, because rejected and withdrawn steps cannot be brought back.
  #reject() {
    if (this.#busy || !this.#plan || !isReachable()) return;
    const shown = this.#plan;
    const { id } = shown;
    const isStop = this.#isAllApproved();
    const selected = this.#rejectableSteps().map(({ change }) => shownOf(change));
    let refused = null;
    this.#error = null;
    openBulk({
      decision: 'reject', selected, draft: this.#comment.value,
      texts: { title: t(isStop ? 'plan.stopTitle' : 'plan.rejectTitle'), confirm: t(isStop ? 'plan.stop' : 'plan.reject') },
      decide: async (decision, comment) => {
        // While a plan runs, its version rises with each step, and results may be filled in.
        const { steps } = isStop && this.#plan?.id === id ? this.#plan : shown;
        try {
          const plan = await this.#api.decidePlan(id, { decision, comment: comment || undefined, version: isStop ? undefined : shown.version, digests: digestsOf(steps) });
          if (this.#id === id) this.#show(plan);
          return plan.steps.map(({ change }) => ({ id: change.id, change })).filter((step) => selected.some((change) => change.id === step.id));
        } catch (error) {
          if (error.status !== 409 && !needsSignIn(error)) throw error;
          refused = error.problem.change?.id;
          return selected.map((change) => ({ id: change.id, problem: error.problem }));
        }
      },
      // The refused step says which sign-in it requires.
      signIn: () => signInButton(this.#api, refused),
      decided: () => {},
      done: (ids) => {
        if (ids.length > 0) this.#comment.value = '';
        this.#load();
      },
    });
  }
}

const digestsOf = (steps) => steps.map(({ change }) => ({ change: change.id, digest: change.digest }));

// The plan runs once these steps are approved.
const isLast = (own, waiting) => own.length === waiting.length && own.every(({ change }) => missingApprovals(change) <= 1);
