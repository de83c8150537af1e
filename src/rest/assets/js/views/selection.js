// Selects changes of a list to decide them together, with boxes beside the rows and a bar below.

import { announce, notice } from '../core/announce.js';
import { isReachable } from '../core/connection.js';
import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { toggleMark } from '../ui/list.js';
import { BulkBar, openBulk, SELECTION_REFUSALS } from '../ui/bulk.js';
import { signInButton } from '../ui/signinagain.js';

export class Selection {
  /** The bar below the list. */
  element;
  /** The button that shows the boxes where no pointer can hover. */
  toggleButton;
  #api;
  #triage;
  #list;
  #get;
  #canSelect;
  #decided;
  #done;
  #changed;
  #shownIds = '';
  #bar;
  #isSelecting = false;
  #deciding = false;

  /**
   * `get(id)` returns the current row. `decided(change, verdict)` is called for each result, without a verdict for a change that
   * somebody else has modified, `done()` when the dialog is closed, `changed()` when the selection changes. `triage` holds what
   * was on the screen and what is selected.
   */
  constructor({ api, triage, list, get, canSelect, decided, done, changed }) {
    this.#api = api;
    this.#triage = triage;
    this.#list = list;
    this.#get = get;
    this.#canSelect = canSelect;
    this.#decided = decided;
    this.#done = done;
    this.#changed = changed;
    this.#bar = new BulkBar({ approve: () => this.decide('approve'), reject: () => this.decide('reject'), clear: () => this.clear() });
    this.element = this.#bar.element;
    this.toggleButton = h('button', { type: 'button', class: 'ghost icon-only', 'aria-pressed': 'false', 'aria-label': t('selection.several'), title: t('selection.severalKey'), onclick: () => this.#setSelecting(!this.#isSelecting) }, icon('stack'));
  }

  /** Creates the box beside a row, for the change whose id `current()` returns. */
  box(current) {
    const box = h('input', { type: 'checkbox', tabindex: '-1', 'aria-label': t('selection.this'), onclick: () => {
      const id = current();
      this.toggle(id);
      box.checked = this.#triage.isSelected(id);
    } });
    return h('label', { class: 'select-box' }, box);
  }

  decorate(row, item) {
    const selected = this.#triage.isSelected(item.id);
    const seen = this.#triage.hasSeen(item);
    toggleMark(row, 'selected', selected);
    toggleMark(row, 'seen', seen);
    toggleMark(row, 'selectable', selected || (seen && item.state === 'pending'));
    const label = row.beside;
    if (!label) return;
    if (label.firstChild.checked !== selected) label.firstChild.checked = selected;
    const title = seen ? t('selection.selectKey') : SELECTION_REFUSALS.unseen;
    if (label.title !== title) label.title = title;
  }

  markSeen(change) {
    this.#triage.markSeen(change);
    this.#paint();
  }

  /** Deselects a change that is decided on its own. */
  forget(id) {
    this.#triage.drop(id);
    this.#paint();
  }

  /** Selects or deselects a change and announces the result. Returns false if selecting is not possible here. */
  toggle(id) {
    const row = this.#get(id);
    if (!row || !this.#canSelect) return false;
    const result = this.#triage.toggle(row);
    if (SELECTION_REFUSALS[result]) notice(SELECTION_REFUSALS[result], { tone: 'amber', iconName: 'info' });
    else announce(result === 'selected' ? t('selection.selected', { count: this.#triage.size }) : t('selection.notSelected'));
    this.#paint();
    return true;
  }

  /** Clears the selection. Returns true if there was one. */
  clear() {
    if (!this.#canSelect) return false;
    const hadSelection = this.#triage.size > 0 || this.#isSelecting;
    if (hadSelection) this.#setSelecting(false);
    return hadSelection;
  }

  #setSelecting(selecting) {
    this.#isSelecting = selecting;
    this.toggleButton.setAttribute('aria-pressed', String(selecting));
    if (!selecting) this.#triage.clear();
    this.#paint();
  }

  #paint() {
    this.#show();
    this.#list.redecorate();
  }

  #show() {
    const { size } = this.#triage;
    this.#bar.show(this.#canSelect ? size : 0);
    this.#list.element.classList.toggle('shows-boxes', this.#canSelect && (this.#isSelecting || size > 0));
    const ids = this.#triage.selected.map(({ id }) => id).join();
    if (ids === this.#shownIds) return;
    this.#shownIds = ids;
    this.#changed();
  }

  get size() {
    return this.#canSelect ? this.#triage.size : 0;
  }

  has(id) {
    return this.#canSelect && this.#triage.isSelected(id);
  }

  /** Deselects changes that were modified since. The collection must be complete when this is called. */
  deselectModified() {
    if (!this.#triage.size || this.#deciding || !this.#canSelect) return;
    const dropped = this.#triage.deselectModified(this.#get);
    if (dropped) notice(t('selection.dropped', { count: dropped }), { tone: 'amber', iconName: 'refresh' });
    this.#show();
  }

  /** Opens the dialog to decide the selected changes. Returns false if that is not possible now. */
  decide(decision) {
    const { selected } = this.#triage;
    if (!selected.length || !this.#canSelect || !isReachable()) return false;
    this.#deciding = true;
    openBulk({
      decision, selected,
      decide: (verdict, comment, changes) => this.#api.decideAll(verdict, comment, changes),
      signIn: (id) => signInButton(this.#api, id),
      decided: (change, isDecided) => this.#decided(change, isDecided ? decision : null),
      done: (ids) => {
        for (const id of ids) this.#triage.drop(id);
        this.#deciding = false;
        this.#paint();
        this.deselectModified();
        this.#done();
      },
    });
    return true;
  }
}
