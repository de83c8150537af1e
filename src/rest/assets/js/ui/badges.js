// Small marks for the operation, the state and the proposer of a change. They never rely on colour alone.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts } from '../core/locale.js';
import { quote, visibleString, short } from '../core/text.js';
import { operationOf, proposerName, stateOf, transportOf } from '../core/vocab.js';

// A title is a sentence with a verb, unless it only names the tool: `server / tool: …`.
const hasVerb = (title) => !/^\S+ \/ /.test(title);

/** Creates the mark of an operation, with its name if the title lacks a verb. */
export function operationBadge(operation, title) {
  const { label, icon: name, tone } = operationOf(operation);
  if (hasVerb(title)) return h('span', { class: `glyph tone-${tone}`, title: label }, icon(name));
  return h('span', { class: `badge operation tone-${tone}` }, icon(name), label.toUpperCase());
}

/** Creates the mark of an operation for a list. Only screen readers read its name, and only if the title lacks a verb. */
export function operationGlyph(operation, title) {
  const { label, icon: name, tone } = operationOf(operation);
  return h('span', { class: `glyph tone-${tone}`, title: label }, icon(name), !hasVerb(title) && h('span', { class: 'sr-only' }, `${label}: `));
}

/** Creates a badge that names a state by its icon and a word. */
export const toneBadge = (tone, iconName, label) => h('span', { class: `badge state tone-${tone}` }, icon(iconName), label);

export function stateBadge(state) {
  const { label, icon: name, tone } = stateOf(state);
  return toneBadge(tone, name, label);
}

/** Creates a line such as `local-agent via Claude Code`. */
export function proposerLine(proposer) {
  const name = quote(proposerName(proposer), 40);
  return h('span', { class: 'proposer' }, proposer.clientName ? parts('list.proposerVia', { agent: name, client: quote(proposer.clientName, 40) }) : name);
}

/** Creates a line such as `WebSocket · MCP 2025-11-25`. Without its name, the revision could be taken for a date. */
export function throughLine({ transport, revision }) {
  return h('span', null, visibleString(short(transportOf(transport), 40)), revision && [' · ', h('span', { class: 'nowrap' }, 'MCP ', quote(revision, 20))]);
}

/** Shows the beginning of a session id only, because the whole id gives access to the session. */
export function sessionMark(id) {
  const text = String(id);
  return h('code', null, visibleString(text.endsWith('…') ? text : `${text.slice(0, 8)}…`));
}

/** Creates a button that copies, or null if the browser offers no clipboard (plain HTTP off loopback). */
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
