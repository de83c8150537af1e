// Small marks that say what a change does, where it stands and who asked. Never by colour alone.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { said, visibleString, short } from '../core/text.js';
import { operationOf, stateOf, transportOf } from '../core/vocab.js';

// A title is a sentence that begins with its verb, unless it only names the tool: `server / tool: …`.
const hasVerb = (title) => !/^\S+ \/ /.test(title);

/** The operation of a change with that title: in a word, where the title has none. */
export function operationBadge(operation, title) {
  const { label, icon: name, tone } = operationOf(operation);
  if (hasVerb(title)) return h('span', { class: `glyph tone-${tone}`, title: label }, icon(name));
  return h('span', { class: `badge operation tone-${tone}` }, icon(name), label.toUpperCase());
}

/** The same as a square of the list, with the word for screen readers only, and only if the title lacks it. */
export function operationGlyph(operation, title) {
  const { label, icon: name, tone } = operationOf(operation);
  return h('span', { class: `glyph tone-${tone}`, title: label }, icon(name), !hasVerb(title) && h('span', { class: 'sr-only' }, `${label}: `));
}

export function stateBadge(state) {
  const { label, icon: name, tone } = stateOf(state);
  return h('span', { class: `badge state tone-${tone}` }, icon(name), label);
}

/** `local-agent via Claude Code`. */
export function proposerLine(proposer) {
  const name = said(proposer.principal, 40);
  return proposer.clientName ? h('span', { class: 'proposer' }, name, ' via ', said(proposer.clientName, 40)) : h('span', { class: 'proposer' }, name);
}

/** `WebSocket · 2025-11-25`. */
export function throughLine({ transport, revision }) {
  return h('span', null, visibleString(short(transportOf(transport), 40)), revision && [' · ', h('span', { class: 'nowrap' }, said(revision, 20))]);
}

/** A session id gives access to the session: only its beginning is ever shown. */
export function sessionMark(id) {
  const text = String(id);
  return h('code', null, visibleString(text.endsWith('…') ? text : `${text.slice(0, 8)}…`));
}

/** A button that copies; nothing where the browser has no clipboard to offer (plain HTTP off loopback). */
export function copyButton(text, label) {
  if (!navigator.clipboard) return null;
  const button = h('button', { type: 'button', class: 'ghost icon-only copy', 'aria-label': label, title: label }, icon('copy'));
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return;
    }
    button.replaceChildren(icon('check'));
    button.classList.add('done');
    setTimeout(() => {
      button.replaceChildren(icon('copy'));
      button.classList.remove('done');
    }, 1600);
  });
  return button;
}
