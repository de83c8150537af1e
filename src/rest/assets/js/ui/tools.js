// Shows the tools of one server: those that wait for a reviewer with their definitions, and all with their policy. An
// acceptance carries the hashes of the definitions on the page.

import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { notice } from '../core/announce.js';
import { go, routeTo } from '../core/router.js';
import { plural, quote, visibleString } from '../core/text.js';
import { PRESS_GUARD_MS, time } from '../core/time.js';
import { definitionBlock, definitionDiff } from './definition.js';
import { openLetRun } from './letrun.js';
import { longText } from './longtext.js';

const VERDICTS = {
  allow: { label: 'Runs', tone: 'green', icon: 'check' },
  review: { label: 'Reviewed', tone: 'amber', icon: 'eye' },
  deny: { label: 'Denied', tone: 'red', icon: 'cross' },
  depends: { label: 'Depends', tone: 'accent', icon: 'question' },
};
const KNOWN = {
  read: '',
  dry_run: 'It writes, but not in its dry run: its calls are reviewed as before, with the dry run as their preview.',
  sql_read: 'It runs SQL. Statements that only read run without review, as far as parsing tells: it does not see what a view or an operator of the database runs. All other statements are reviewed.',
};
const STANDING_LABELS = { module: 'built in', accepted: 'accepted', seen: 'not accepted', new: 'new', changed: 'changed' };

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
    const hashes = (list) => JSON.stringify(list.filter(isWaiting).map((t) => [t.name, t.hash]));
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
    const offered = this.#tools.filter((t) => t.offered);
    const reads = this.#tools.filter((t) => t.claimsRead && !t.offered);
    const marked = this.#tools.filter((t) => t.mark);
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
    const chosen = () => reads.filter((t) => !this.#unchecked.has(t.name));
    const button = this.#button('accept-reads', 'accept', chosen, () => `Accept ${plural(chosen().length, 'read')}`);
    const relabel = () => {
      button.disabled = this.#isBlocked() || chosen().length === 0;
      button.lastChild.textContent = `Accept ${plural(chosen().length, 'read')}`;
    };
    return h('section', { class: 'offer', 'aria-label': visibleString(`Claimed reads of ${this.#server}`) },
      h('div', { class: 'offer-head' }, icon('eye'), h('div', null,
        h('h3', null, `${plural(reads.length, 'tool says', 'tools say')} that ${reads.length === 1 ? 'it only reads' : 'they only read'}`),
        h('p', { class: 'quiet' }, `Until a reviewer accepts ${reads.length === 1 ? 'it, its calls are' : 'them, their calls are'} reviewed like writes. Accepting covers only the definition shown here.`))),
      h('ul', { class: 'offers' }, reads.map((tool) => h('li', null,
        h('label', { class: 'offer-name' },
          this.#canDecide && h('input', { type: 'checkbox', checked: !this.#unchecked.has(tool.name), data: { key: `check ${tool.name}` }, onchange: (event) => {
            if (event.target.checked) this.#unchecked.delete(tool.name);
            else this.#unchecked.add(tool.name);
            relabel();
          } }),
          h('code', null, quote(tool.name, 200))),
        tool.description && longText(tool.description, { chars: 400, lines: 4, className: 'offer-text' }),
        this.#fold(`read ${tool.name}`, 'Full definition', () => definitionBlock(tool))))),
      this.#canDecide ? h('div', { class: 'offer-foot' }, button) : onlyReviewers());
  }

  // Offers the tools that the list of the server's known reads covers. They are accepted together, beside their definitions.
  #known(offered) {
    const { set, packages } = this.#knownReads;
    const reads = offered.filter((t) => t.known === 'read' || t.known === 'sql_read').length;
    const title = reads > 0 ? `${plural(reads, 'tool is', 'tools are')} known to only read` : 'The server’s dry runs are known to change nothing';
    return h('section', { class: 'offer', 'aria-label': visibleString(`Known reads of ${this.#server}`) },
      h('div', { class: 'offer-head' }, icon('eye'), h('div', null,
        h('h3', null, `This is the ${visibleString(set)} server: ${title}`),
        h('p', { class: 'quiet' }, 'These definitions were examined and tried: ', quote(packages.join(', '), 300), '. Until a reviewer accepts them, their calls are reviewed like writes. Once accepted, reads run without review, whether or not they say that they only read.'))),
      h('ul', { class: 'offers' }, offered.map((tool) => h('li', null,
        h('div', { class: 'offer-name' }, h('code', null, quote(tool.name, 200))),
        KNOWN[tool.known] && h('p', { class: 'offer-text' }, KNOWN[tool.known]),
        this.#fold(`known ${tool.name}`, 'Full definition', () => definitionBlock(tool))))),
      this.#canDecide
        ? h('div', { class: 'offer-foot' }, this.#button('accept-known', 'accept-known-reads', () => offered, () => 'Accept the known reads'),
          h('span', { class: 'quiet' }, 'This loosens the policy for these definitions from the server’s current command or address. The audit trail records it, and each acceptance can be revoked.'))
        : onlyReviewers());
  }

  // Names the tools whose definitions are not those on the list.
  #uncovered() {
    const names = this.#tools.filter((t) => t.known === 'other_definition' && t.standing !== 'accepted').map((t) => t.name);
    if (names.length === 0) return null;
    return h('div', { class: 'unannotated' }, icon('info'), h('p', null,
      `The list of known reads of the ${visibleString(this.#knownReads.set)} server does not cover ${names.length === 1 ? 'this tool, because its definition differs' : 'these tools, because their definitions differ'} from `, quote(this.#knownReads.packages.join(', '), 300), ': ', quote(names.join(', '), 400)));
  }

  // Offers to let tools run without review if the server does not declare which of them only read.
  #unannotatedOffer() {
    const unannotated = unannotatedTools(this.#tools);
    if (!this.#canDecide || unannotated.length === 0) return null;
    const reason = unannotated.length === this.#tools.length
      ? 'This server does not say which of its tools only read, so every call is reviewed.'
      : 'Not every tool of this server says whether it only reads, so every call is reviewed.';
    return h('div', { class: 'unannotated' }, icon('info'), h('p', null, `${reason} You can let tools that you trust run without review.`),
      h('button', { type: 'button', data: { key: 'let-run' }, onclick: () => this.#letRun(unannotated) }, 'Let tools run without review…'));
  }

  #letRun(tools) {
    openLetRun({
      server: this.#server, tools,
      allow: async (chosen, reason) => {
        const updated = await this.#act('allow', chosen.map(({ name, hash }) => ({ name, hash })), reason);
        this.#text = '';
        this.show(updated);
      },
      done: (n) => notice(`${plural(n, 'tool now runs', 'tools now run')} without review.`, { tone: 'green', iconName: 'rule', action: { label: 'Standing rules', run: () => go(routeTo('rules')) } }),
    });
  }

  #marked(tool) {
    const changed = tool.mark === 'TOOL_CHANGED';
    return h('section', { class: 'offer', 'aria-label': visibleString(`${changed ? 'Changed' : 'New'}: ${tool.name}`) },
      h('div', { class: 'offer-head' }, icon(changed ? 'pencil' : 'plus'), h('div', null,
        h('h3', null, h('code', null, quote(tool.name, 200)), ' ', h('span', { class: 'badge state tone-amber' }, changed ? 'Changed' : 'New')),
        h('p', { class: 'quiet' }, changed && !tool.previous
          ? 'It was accepted when this server had another command or address. Every call is reviewed until a reviewer accepts it again.'
          : changed
          ? 'Its definition has changed since it was accepted or first seen. Every call is reviewed until a reviewer accepts the new one.'
          : 'The server added it after it was first connected. Every call is reviewed until a reviewer accepts it.'))),
      h('div', { class: 'offer-body' }, changed && tool.previous ? definitionDiff(tool) : [tool.description && longText(tool.description, { chars: 400, lines: 6 }), definitionBlock(tool)]),
      this.#canDecide
        ? h('div', { class: 'offer-foot' }, this.#button(`accept ${tool.name}`, 'accept', () => [tool], () => (changed && tool.previous ? 'Accept the new definition' : 'Accept this tool')),
          h('span', { class: 'quiet' }, isDeclaredRead(tool) ? 'It says that it only reads: once accepted, its calls run without review unless a rule says otherwise.' : 'It may write: accepting the definition does not let it run without review.'))
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
    try {
      const updated = await this.#act(kind, tools.map(({ name, hash }) => ({ name, hash })));
      this.#busy = false;
      this.#text = '';
      this.show(updated);
    } catch (error) {
      this.#busy = false;
      this.#error = error.status === 409 ? 'A definition changed while you were reading, so nothing was accepted. This page now shows the current definitions.' : error.message;
      this.#paint();
    }
  }

  #all() {
    return this.#fold('all', `All ${plural(this.#tools.length, 'tool')}`, () => h('table', { class: 'records tools' },
      h('thead', null, h('tr', null, ['Tool', 'Calls', 'Why', 'Preview', 'Definition'].map((c) => h('th', { scope: 'col' }, c)))),
      h('tbody', null, this.#tools.map((tool) => this.#row(tool)))));
  }

  #row(tool) {
    const { label, tone, icon: name } = VERDICTS[tool.verdict] ?? VERDICTS.depends;
    const reason = tool.reason ?? `decided by ${tool.rules.join(', ')}`;
    const rule = tool.reason && tool.rules.length > 0 && !tool.reason.includes(tool.rules[0]) && tool.rules[0];
    return h('tr', null,
      h('td', { data: { label: 'Tool' } }, h('code', null, quote(tool.name, 200)), tool.title && tool.title !== tool.name && h('div', { class: 'quiet' }, quote(tool.title, 120))),
      h('td', { class: 'nowrap', data: { label: 'Calls' } }, h('span', { class: `badge state tone-${tone}` }, icon(name), label)),
      h('td', { data: { label: 'Why' } }, quote(reason, 300), rule && !tool.letRun && h('div', { class: 'quiet' }, 'by ', h('code', null, quote(rule, 64))),
        tool.letRun && h('div', null, h('a', { href: routeTo('rules', tool.letRun.rule) }, 'Standing rule', h('span', { class: 'sr-only' }, ` for ${visibleString(tool.name)}`))),
        this.#canDecide && tool.mayLetRun && h('button', { type: 'button', class: 'small', data: { key: `let ${tool.name}` }, onclick: () => this.#letRun([tool]) }, 'Let this tool run without review…')),
      h('td', { data: { label: 'Preview' } }, this.#preview(tool)),
      h('td', { data: { label: 'Definition' } },
        h('span', null, tool.acceptedAsRead ? 'accepted as a read' : tool.acceptedSqlReads ? 'accepted for reads in SQL' : STANDING_LABELS[tool.standing] ?? visibleString(String(tool.standing))),
        tool.acceptedBy && h('span', { class: 'quiet' }, ' by ', quote(tool.acceptedBy, 60), ' ', time(tool.acceptedAt, 'day')),
        this.#fold(`row ${tool.name}`, 'Show', () => definitionBlock(tool)),
        this.#canDecide && tool.standing === 'accepted' && this.#button(`revoke ${tool.name}`, 'revoke', () => [tool], () => 'Revoke')));
  }

  // Only calls that may be reviewed are previewed.
  #preview(tool) {
    if (tool.verdict === 'allow' || tool.verdict === 'deny') return h('span', { class: 'quiet' }, '—');
    if (this.#recipes === null) return 'live';
    return hasRecipe(tool.name, this.#recipes) ? 'by recipe' : h('span', { class: 'quiet' }, 'arguments only');
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

export const isWaiting = (tool) => Boolean(tool.claimsRead || tool.mark || tool.offered);

const onlyReviewers = () => h('p', { class: 'quiet offer-foot' }, 'Only a reviewer can decide on this.');
