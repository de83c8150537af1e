// Selecting changes of a list to decide on them together: boxes beside the rows, the bar below, the question.

import { announce, notice } from '../core/announce.js';
import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { plural } from '../core/text.js';
import { mark } from '../ui/list.js';
import { BulkBar, openBulk, PICK_REFUSALS } from '../ui/bulk.js';

export class Picking {
  /** The bar below the list, and the button that shows the boxes where there is no pointer to hover with. */
  element;
  toggle;
  #api;
  #triage;
  #list;
  #get;
  #may;
  #decided;
  #done;
  #changed;
  #told = '';
  #bar;
  #wanted = false;
  #deciding = false;

  /**
   * `get(id)` is the row as it is now; `decided(change, verdict)` is told of each result and `done()` when the dialog is
   * closed; `changed()` whenever something else is selected. `triage` knows what was on the screen and what is selected.
   */
  constructor({ api, triage, list, get, may, decided, done, changed }) {
    this.#api = api;
    this.#triage = triage;
    this.#list = list;
    this.#get = get;
    this.#may = may;
    this.#decided = decided;
    this.#done = done;
    this.#changed = changed;
    this.#bar = new BulkBar({ approve: () => this.decide('approve'), reject: () => this.decide('reject'), clear: () => this.none() });
    this.element = this.#bar.element;
    this.toggle = h('button', { type: 'button', class: 'ghost icon-only', 'aria-pressed': 'false', 'aria-label': 'Select several', title: 'Select several (x)', onclick: () => this.#want(!this.#wanted) }, icon('stack'));
  }

  /** The box beside a row, for the change that `current()` names. */
  box(current) {
    const box = h('input', { type: 'checkbox', tabindex: '-1', 'aria-label': 'Select this change', onclick: () => {
      const id = current();
      this.pick(id);
      box.checked = this.#triage.isPicked(id);
    } });
    return h('label', { class: 'pick' }, box);
  }

  decorate(row, item) {
    const picked = this.#triage.isPicked(item.id);
    const seen = this.#triage.hasSeen(item);
    mark(row, 'picked', picked);
    mark(row, 'seen', seen);
    mark(row, 'pickable', picked || (seen && item.state === 'pending'));
    const label = row.beside;
    if (!label) return;
    if (label.firstChild.checked !== picked) label.firstChild.checked = picked;
    const title = seen ? 'Select (x)' : PICK_REFUSALS.unseen;
    if (label.title !== title) label.title = title;
  }

  /** What was on the screen is known from now on. */
  saw(change) {
    this.#triage.saw(change);
    this.#paint();
  }

  /** It is decided by itself. */
  forget(id) {
    this.#triage.drop(id);
    this.#paint();
  }

  /** Picks it or no longer; says why not. Returns whether there was anything to pick. */
  pick(id) {
    const row = this.#get(id);
    if (!row || !this.#may) return false;
    const what = this.#triage.toggle(row);
    if (PICK_REFUSALS[what]) notice(PICK_REFUSALS[what], { tone: 'amber', iconName: 'info' });
    else announce(what === 'picked' ? `Selected, ${plural(this.#triage.size, 'change')} in all.` : 'No longer selected.');
    this.#paint();
    return true;
  }

  /** Picks nothing. Returns whether there was anything. */
  none() {
    if (!this.#may) return false;
    const had = this.#triage.size > 0 || this.#wanted;
    if (had) this.#want(false);
    return had;
  }

  #want(wanted) {
    this.#wanted = wanted;
    this.toggle.setAttribute('aria-pressed', String(wanted));
    if (!wanted) this.#triage.clear();
    this.#paint();
  }

  #paint() {
    this.#show();
    this.#list.redecorate();
  }

  #show() {
    const { size } = this.#triage;
    this.#bar.show(this.#may ? size : 0);
    this.#list.element.classList.toggle('picking', this.#may && (this.#wanted || size > 0));
    const told = this.#triage.picked.map(({ id }) => id).join();
    if (told === this.#told) return;
    this.#told = told;
    this.#changed();
  }

  /** How many are selected, and whether this one is. */
  get size() {
    return this.#may ? this.#triage.size : 0;
  }

  has(id) {
    return this.#may && this.#triage.isPicked(id);
  }

  /** What was selected and has changed since is not what somebody selected. To be asked once all that is pending is here. */
  follow() {
    if (!this.#triage.size || this.#deciding || !this.#may) return;
    const dropped = this.#triage.follow(this.#get);
    if (dropped) notice(`${plural(dropped, 'selected change')} ${dropped === 1 ? 'has' : 'have'} changed since and ${dropped === 1 ? 'is' : 'are'} no longer selected.`, { tone: 'amber', iconName: 'refresh' });
    this.#show();
  }

  /** Asks, and decides all that is picked. Returns whether anything is. */
  decide(decision) {
    const { picked } = this.#triage;
    if (!picked.length || !this.#may) return false;
    this.#deciding = true;
    openBulk({
      decision, picked,
      decide: (verdict, comment, changes) => this.#api.decideAll(verdict, comment, changes),
      decided: (change) => this.#decided(change, decision),
      done: (ids) => {
        for (const id of ids) this.#triage.drop(id);
        this.#deciding = false;
        this.#paint();
        this.follow();
        this.#done();
      },
    });
    return true;
  }
}
