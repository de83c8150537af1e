// Handles the keyboard shortcuts of the page: single keys, and `g` followed by the letter of a view.

import { isTyping } from './dom.js';
import { t } from './locale.js';
import { preference, setPreference } from './prefs.js';

const MAX_SEQUENCE_MS = 1200;

const characterKeys = () => preference('character-keys', ['on', 'off']);
// The styles hide the keys of buttons that are off.
const showChoice = () => { document.documentElement.dataset.characterKeys = characterKeys(); };

/** Returns true if single characters are shortcuts. */
export const areCharacterKeysOn = () => characterKeys() === 'on';

/** Returns the key of a shortcut for `aria-keyshortcuts`, or null if it is off. */
export const shortcut = (key) => (areCharacterKeysOn() ? key : null);

export function setCharacterKeys(areOn) {
  setPreference('character-keys', areOn ? 'on' : 'off');
  showChoice();
}

export class Keys {
  #handlers = new Map();
  /** The time of the press of `g` that waits for the letter of a view. */
  #prefixTime = -Infinity;

  constructor() {
    showChoice();
    document.addEventListener('keydown', (event) => this.#press(event));
  }

  /** Sets the bindings `{key: handler(event)}` of one owner, or removes them. A handler returns false for an unused key. */
  bind(owner, bindings) {
    if (bindings) this.#handlers.set(owner, bindings);
    else this.#handlers.delete(owner);
  }

  #press(event) {
    if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector('dialog[open]')) return;
    if (isTyping(event.target) && event.key !== 'Escape') return;
    // The help, where they are turned on again, always opens.
    if (event.key.length === 1 && event.key !== '?' && !areCharacterKeysOn()) return;
    // Enter belongs to the button or link that has the focus.
    if (event.key === 'Enter' && event.target instanceof HTMLElement && event.target.closest('button, a, summary')) return;
    // The time of the press counts: a busy page may handle it later.
    const sequence = event.timeStamp - this.#prefixTime < MAX_SEQUENCE_MS;
    this.#prefixTime = -Infinity;
    if (event.key === 'g' && !sequence) {
      this.#prefixTime = event.timeStamp;
      return;
    }
    const key = sequence ? `g ${event.key}` : event.key;
    for (const bindings of [...this.#handlers.values()].reverse()) {
      const handler = bindings[key];
      if (handler && handler(event) !== false) {
        event.preventDefault();
        return;
      }
    }
  }
}

export const HELP = [
  [t('core.help.move'), [['j', t('core.help.move.nextChange')], ['k', t('core.help.move.previousChange')], ['Enter', t('core.help.move.openChange')], ['Esc', t('core.help.move.back')], ['/', t('core.help.move.search')], ['c', t('core.help.move.group')], ['d', t('core.help.move.layout')]]],
  [t('core.help.decide'), [['a', t('core.help.decide.approve')], ['r', t('core.help.decide.reject')], [t('core.key.ctrlEnter'), t('core.help.decide.sendRejection')], ['e', t('core.help.decide.edit')], ['u', t('core.help.decide.undo')], ['f', t('core.help.decide.refresh')]]],
  [t('core.help.many'), [['x', t('core.help.many.select')], ['a', t('core.help.many.approveSelected')], ['r', t('core.help.many.rejectSelected')], ['Esc', t('core.help.many.clearSelection')]]],
  [t('core.help.bundle'), [[t('core.key.space'), t('core.help.bundle.toggleDiff')], ['x', t('core.help.bundle.takeOut')], [t('core.key.shiftA'), t('core.help.bundle.approveAll')]]],
  [t('core.help.goTo'), [['g i', t('shell.view.inbox')], ['g h', t('shell.view.history')], ['g o', t('shell.view.overview')], ['g p', t('shell.view.policy')], ['g r', t('core.help.goTo.rules')], ['g a', t('shell.view.audit')], ['g s', t('shell.view.sessions')], ['g k', t('shell.view.keys')], ['g v', t('shell.view.servers')], ['g w', t('shell.view.webhooks')], ['?', t('core.help.goTo.these')]]],
];
