// Shows the tools of one server: those that wait for a reviewer with their definitions, and all with their policy. An
// acceptance carries the hashes of the definitions on the page.

import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { notice } from '../core/announce.js';
import { parts, t } from '../core/locale.js';
import { go, routeTo } from '../core/router.js';
import { quote, visibleString } from '../core/text.js';
import { PRESS_GUARD_MS, time } from '../core/time.js';
import { toneBadge } from './badges.js';
import { definitionBlock, definitionDiff } from './definition.js';
import { openLetRun } from './letrun.js';
import { longText } from './longtext.js';

const VERDICTS = {
  allow: { label: t('tools.runs'), tone: 'green', icon: 'check' },
  review: { label: t('tools.reviewed'), tone: 'amber', icon: 'eye' },
  deny: { label: t('tools.denied'), tone: 'red', icon: 'cross' },
  depends: { label: t('tools.depends'), tone: 'accent', icon: 'question' },
};
const KNOWN = {
  read: '',
  dry_run: t('tools.knownDryRun'),
  sql_read: t('tools.knownSqlRead'),
};
const DEFINITION_STATUS_LABELS = { module: t('tools.builtIn'), accepted: t('tools.accepted'), seen: t('tools.notAccepted'), new: t('tools.new'), changed: t('tools.changed') };

/** Returns true if the tool declares that it only reads, accepted or not. */
const isDeclaredRead = (tool) => tool.annotations?.readOnlyHint === true;

export class ToolsPanel {
  element = h('div', { class: 'tools-panel' });
  #server;
  #canDecide;
  #act;
  #tools = null;
  #text = '';
  #error = '';
  #busy = false;
  #notBefore = 0;
  #recipes = null;
  #knownReads = null;
  #unchecked = new Set();
  #opened = new Set();

  /** `act('accept'|'accept-known-reads'|'revoke'|'allow', tools, reason)` resolves to the updated tools. */
  constructor({ server, canDecide, act }) {
    this.#server = server;
    this.#canDecide = canDecide;
    this.#act = act;
  }

  /** Repaints only if the tools have changed, so that a reader keeps folds and marks. */
  show(tools) {
    const text = JSON.stringify(tools);
    if (text === this.#text) return;
    // The definitions are not those that the reader has seen.
    const hashes = (list) => JSON.stringify(list.filter(isWaiting).map((tool) => [tool.name, tool.hash]));
    if (this.#tools && !this.#busy && hashes(tools) !== hashes(this.#tools)) this.#guardPresses();
    this.#text = text;
    this.#tools = tools;
    this.#paint();
  }

  /** Sets the names of the tools with a recipe for previews, or null if the provider makes previews itself. */
  setRecipes(names) {
    if (JSON.stringify(names) === JSON.stringify(this.#recipes)) return;
    this.#recipes = names;
    if (this.#tools) this.#paint();
  }

  /** Sets the list of known reads that the gateway has for the server (`{set, packages}`), or null. */
  setKnownReads(knownReads) {
    if (JSON.stringify(knownReads) === JSON.stringify(this.#knownReads)) return;
    this.#knownReads = knownReads;
    if (this.#tools) this.#paint();
  }

  #guardPresses() {
    this.#notBefore = Date.now() + PRESS_GUARD_MS;
    setTimeout(() => this.#tools && this.#paint(), PRESS_GUARD_MS);
  }

  #paint() {
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const offered = this.#tools.filter((tool) => tool.offered);
    const reads = this.#tools.filter((tool) => tool.claimsRead && !tool.offered);
    const marked = this.#tools.filter((tool) => tool.mark);
    fill(this.element,
      this.#error && h('p', { class: 'banner tone-red', role: 'alert' }, icon('alert'), h('span', null, visibleString(this.#error))),
      this.#knownReads && offered.length > 0 && this.#known(offered),
      this.#knownReads && this.#uncovered(),
      reads.length > 0 && this.#reads(reads),
      marked.map((tool) => this.#marked(tool)),
      this.#unannotatedOffer(),
      this.#all());
    if (focused) this.element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  #reads(reads) {
    const chosen = () => reads.filter((tool) => !this.#unchecked.has(tool.name));
    const label = () => t('tools.acceptReads', { count: chosen().length });
    const button = this.#button('accept-reads', 'accept', chosen, label);
    const relabel = () => {
      button.disabled = this.#isBlocked() || chosen().length === 0;
      button.lastChild.textContent = label();
    };
    return h('section', { class: 'offer', 'aria-label': visibleString(t('tools.claimedReads', { server: this.#server })) },
      h('div', { class: 'offer-head' }, icon('eye'), h('div', null,
        h('h3', null, t('tools.claims', { count: reads.length })),
        h('p', { class: 'quiet' }, t('tools.claimsHelp', { count: reads.length })))),
      h('ul', { class: 'offers' }, reads.map((tool) => h('li', null,
        h('label', { class: 'offer-name' },
          this.#canDecide && h('input', { type: 'checkbox', checked: !this.#unchecked.has(tool.name), data: { key: `check ${tool.name}` }, onchange: (event) => {
            if (event.target.checked) this.#unchecked.delete(tool.name);
            else this.#unchecked.add(tool.name);
            relabel();
          } }),
          h('code', null, quote(tool.name, 200))),
        tool.description && longText(tool.description, { chars: 400, lines: 4, className: 'offer-text' }),
        this.#fold(`read ${tool.name}`, t('tools.fullDefinition'), () => definitionBlock(tool))))),
      this.#canDecide ? h('div', { class: 'offer-foot' }, button) : onlyReviewers());
  }

  // Offers the tools that the list of the server's known reads covers. They are accepted together, beside their definitions.
  #known(offered) {
    const { set, packages } = this.#knownReads;
    const reads = offered.filter((tool) => tool.known === 'read' || tool.known === 'sql_read').length;
    return h('section', { class: 'offer known', 'aria-label': visibleString(t('tools.knownReads', { server: this.#server })) },
      h('div', { class: 'offer-head' }, icon('eye'), h('div', null,
        h('h3', null, t(reads > 0 ? 'tools.known' : 'tools.knownDryRuns', { set: visibleString(set), count: reads })),
        h('p', { class: 'quiet' }, parts('tools.knownHelp', { packages: quote(packages.join(', '), 300) })))),
      h('ul', { class: 'offers' }, offered.map((tool) => h('li', null,
        h('div', { class: 'offer-name' }, h('code', null, quote(tool.name, 200))),
        this.#fold(`known ${tool.name}`, t('tools.fullDefinition'), () => definitionBlock(tool)),
        KNOWN[tool.known] && h('p', { class: 'offer-text' }, KNOWN[tool.known])))),
      this.#canDecide
        ? h('div', { class: 'offer-foot' }, this.#button('accept-known', 'accept-known-reads', () => offered, () => t('tools.acceptKnown')),
          h('span', { class: 'quiet' }, t('tools.acceptKnownHelp')))
        : onlyReviewers());
  }

  // Names the tools whose definitions are not those on the list.
  #uncovered() {
    const names = this.#tools.filter((tool) => tool.known === 'other_definition' && tool.definitionStatus !== 'accepted').map((tool) => tool.name);
    if (names.length === 0) return null;
    return h('div', { class: 'unannotated' }, icon('info'), h('p', null,
      parts('tools.uncovered', { set: visibleString(this.#knownReads.set), count: names.length, packages: quote(this.#knownReads.packages.join(', '), 300), tools: quote(names.join(', '), 400) })));
  }

  // Offers to let tools run without review if the server does not declare which of them only read.
  #unannotatedOffer() {
    const unannotated = unannotatedTools(this.#tools);
    if (!this.#canDecide || unannotated.length === 0) return null;
    const reason = t(unannotated.length === this.#tools.length ? 'tools.noHints' : 'tools.someHints');
    return h('div', { class: 'unannotated' }, icon('info'), h('p', null, reason),
      h('button', { type: 'button', data: { key: 'let-run' }, onclick: () => this.#letRun(unannotated) }, t('tools.letToolsRun')));
  }

  #letRun(tools) {
    openLetRun({
      server: this.#server, tools,
      allow: async (chosen, reason) => {
        const updated = await this.#act('allow', chosen.map(({ name, hash }) => ({ name, hash })), reason);
        this.#text = '';
        this.show(updated);
      },
      done: (n) => notice(t('tools.nowRun', { count: n }), { tone: 'green', iconName: 'rule', action: { label: t('tools.standingRules'), run: () => go(routeTo('rules')) } }),
    });
  }

  #marked(tool) {
    const changed = tool.mark === 'TOOL_CHANGED';
    return h('section', { class: 'offer', 'aria-label': visibleString(t(changed ? 'tools.changedLabel' : 'tools.newLabel', { tool: tool.name })) },
      h('div', { class: 'offer-head' }, icon(changed ? 'pencil' : 'plus'), h('div', null,
        h('h3', null, h('code', null, quote(tool.name, 200)), ' ', h('span', { class: 'badge state tone-amber' }, t(changed ? 'tools.changedTitle' : 'tools.newTitle'))),
        h('p', { class: 'quiet' }, t(!changed ? 'tools.newHelp' : tool.previous ? 'tools.changedHelp' : 'tools.movedHelp')))),
      h('div', { class: 'offer-body' }, changed && tool.previous ? definitionDiff(tool) : [tool.description && longText(tool.description, { chars: 400, lines: 6 }), definitionBlock(tool)]),
      this.#canDecide
        ? h('div', { class: 'offer-foot' }, this.#button(`accept ${tool.name}`, 'accept', () => [tool], () => t(changed && tool.previous ? 'tools.acceptNew' : 'tools.acceptTool')),
          h('span', { class: 'quiet' }, t(isDeclaredRead(tool) ? 'tools.acceptReadHelp' : 'tools.acceptWriteHelp')))
        : onlyReviewers());
  }

  #button(key, kind, tools, label) {
    return h('button', {
      type: 'button', class: kind === 'revoke' ? 'ghost' : 'approve', disabled: this.#isBlocked() || tools().length === 0, data: { key },
      onclick: () => this.#send(kind, tools()),
    }, icon(kind === 'revoke' ? 'undo' : 'check'), h('span', null, label()));
  }

  #isBlocked() {
    return this.#busy || Date.now() < this.#notBefore;
  }

  async #send(kind, tools) {
    if (this.#isBlocked() || !tools.length) return;
    this.#busy = true;
    this.#error = '';
    this.#paint();
    // The page may read the tools again before the answer arrives.
    const allowedBefore = new Set(this.#tools.filter(({ verdict }) => verdict === 'allow').map(({ name }) => name));
    try {
      const updated = await this.#act(kind, tools.map(({ name, hash }) => ({ name, hash })));
      this.#busy = false;
      this.#text = '';
      this.show(updated);
      const allowedNow = updated.filter(({ name, verdict }) => verdict === 'allow' && !allowedBefore.has(name));
      if (allowedNow.length > 0) notice(t('tools.nowRun', { count: allowedNow.length }), { tone: 'green', iconName: 'check' });
    } catch (error) {
      this.#busy = false;
      this.#error = error.status === 409 ? t('tools.conflict') : error.message;
      this.#paint();
    }
  }

  #all() {
    return this.#fold('all', t('tools.all', { count: this.#tools.length }), () => h('table', { class: 'records tools' },
      h('thead', null, h('tr', null, [t('tools.tool'), t('tools.calls'), t('tools.why'), t('tools.preview'), t('tools.definition')].map((c) => h('th', { scope: 'col' }, c)))),
      h('tbody', null, this.#tools.map((tool) => this.#row(tool)))));
  }

  #row(tool) {
    const { label, tone, icon: name } = VERDICTS[tool.verdict] ?? VERDICTS.depends;
    const reason = tool.reason ?? t('tools.decidedBy', { rules: tool.rules.join(', ') });
    const rule = tool.reason && tool.rules.length > 0 && !tool.reason.includes(tool.rules[0]) && tool.rules[0];
    return h('tr', null,
      h('td', { data: { label: t('tools.tool') } }, h('code', null, quote(tool.name, 200)), tool.title && tool.title !== tool.name && h('div', { class: 'quiet' }, quote(tool.title, 120))),
      h('td', { class: 'nowrap', data: { label: t('tools.calls') } }, toneBadge(tone, name, label)),
      h('td', { data: { label: t('tools.why') } }, quote(reason, 300), rule && !tool.letRun && h('div', { class: 'quiet' }, parts('tools.byRule', { rule: h('code', null, quote(rule, 64)) })),
        tool.letRun && h('div', null, h('a', { href: routeTo('rules', tool.letRun.rule) }, t('tools.standingRule'), h('span', { class: 'sr-only' }, ' ', t('tools.standingRuleFor', { tool: visibleString(tool.name) })))),
        this.#canDecide && tool.mayLetRun && h('button', { type: 'button', class: 'small', data: { key: `let ${tool.name}` }, onclick: () => this.#letRun([tool]) }, t('tools.letThisRun'))),
      h('td', { data: { label: t('tools.preview') } }, this.#preview(tool)),
      h('td', { data: { label: t('tools.definition') } },
        h('span', null, tool.acceptedAsRead ? t('tools.acceptedAsRead') : tool.acceptedSqlReads ? t('tools.acceptedSqlReads') : DEFINITION_STATUS_LABELS[tool.definitionStatus] ?? visibleString(String(tool.definitionStatus))),
        tool.acceptedBy && h('span', { class: 'quiet' }, ' ', parts('tools.acceptance', { person: quote(tool.acceptedBy, 60), date: time(tool.acceptedAt, 'day') })),
        this.#fold(`row ${tool.name}`, t('tools.show'), () => definitionBlock(tool)),
        this.#canDecide && tool.definitionStatus === 'accepted' && this.#button(`revoke ${tool.name}`, 'revoke', () => [tool], () => t('tools.revoke'))));
  }

  // Only calls that may be reviewed are previewed.
  #preview(tool) {
    if (tool.verdict === 'allow' || tool.verdict === 'deny') return h('span', { class: 'quiet' }, '—');
    if (this.#recipes === null) return t('tools.live');
    return hasRecipe(tool.name, this.#recipes) ? t('tools.byRecipe') : h('span', { class: 'quiet' }, t('tools.argumentsOnly'));
  }

  /** Creates a fold that stays open over repaints. Its content is created when it is first opened. */
  #fold(key, label, content) {
    const body = h('div', { class: 'fold-body' });
    const open = this.#opened.has(key);
    if (open) body.append(content());
    const fold = h('details', { class: 'fold-section', open }, h('summary', { data: { key: `fold ${key}` } }, label), body);
    fold.addEventListener('toggle', () => {
      if (fold.open) this.#opened.add(key);
      else this.#opened.delete(key);
      if (fold.open && !body.hasChildNodes()) body.append(content());
    });
    return fold;
  }
}

/** Returns true if a tool has a recipe, with or without its server's prefix. Pure. */
export const hasRecipe = (name, recipes) => recipes.some((own) => name === own || name.endsWith(`__${own}`));

/** Returns the tools to offer if none declares that it only reads, and none is known to. Tools that declare to write are not among them. Pure. */
export const unannotatedTools = (tools) =>
  tools.some((tool) => isDeclaredRead(tool) || tool.letRun || tool.acceptedAsRead || tool.acceptedSqlReads || tool.offered) ? [] : tools.filter((tool) => tool.mayLetRun && !hasHint(tool));

// `tool.annotations` contains the specification's defaults, so the definition is read.
const hasHint = (tool) => (JSON.parse(tool.definition).annotations?.readOnlyHint ?? null) !== null;

const isWaiting = (tool) => Boolean(tool.claimsRead || tool.mark || tool.offered);

const onlyReviewers = () => h('p', { class: 'quiet offer-foot' }, t('common.onlyReviewer'));
