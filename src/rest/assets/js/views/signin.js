// The sign-in page, which takes a key or a one-time code of a link.

import { h, fill } from '../core/dom.js';
import { brand, icon } from '../core/icons.js';
import { ApiError, explain } from '../core/api.js';
import { visibleString } from '../core/text.js';
import { copyButton } from '../ui/badges.js';

const COMMANDS = [
  ['countersign open', 'opens this page, signed in'],
  ['countersign keys create --role reviewer --name you', 'prints a key to paste here'],
];

export class SignInView {
  element;
  #submit;
  #parts;

  /** `submit({key} | {code})` signs in or throws. */
  constructor({ submit, message = '', busy = false }) {
    this.#submit = submit;
    this.#parts = {
      message: h('div', { class: 'signin-message', role: 'alert' }),
      input: h('input', { id: 'key', type: 'password', name: 'key', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', required: true, maxlength: '512' }),
      button: h('button', { type: 'submit', class: 'primary' }, 'Sign in'),
      provider: h('div', { class: 'signin-provider', hidden: true }),
    };
    this.element = h('main', { class: 'signin', id: 'main' },
      h('div', { class: 'signin-card' },
        h('div', { class: 'signin-brand' }, brand(), h('h1', null, 'Countersign')),
        h('p', { class: 'quiet' }, 'Agents propose. You decide.'),
        this.#parts.provider,
        h('form', { onsubmit: (event) => this.#onSubmit(event), novalidate: true },
          h('label', { for: 'key' }, 'Access key'), this.#parts.input, this.#parts.message, this.#parts.button),
        h('section', { class: 'signin-help', 'aria-labelledby': 'signin-help' }, h('h2', { id: 'signin-help' }, 'No key?'),
          h('p', { class: 'quiet' }, 'On the machine that runs the gateway:'),
          h('dl', null, COMMANDS.map(([command, text]) => h('div', null,
            h('dt', null, h('code', null, command), copyButton(command, `Copy: ${command}`)), h('dd', null, text)))))));
    if (message) this.say(message);
    if (busy) this.busy('Signing in…');
  }

  say(message) {
    fill(this.#parts.message, icon('alert'), h('span', null, visibleString(message)));
    this.#parts.button.disabled = false;
    this.#parts.button.textContent = 'Sign in';
  }

  busy(text) {
    fill(this.#parts.message);
    this.#parts.button.disabled = true;
    this.#parts.button.textContent = text;
  }

  focus() {
    this.#parts.input.focus();
  }

  /** Offers the identity provider above the keys. `leave()` goes there. */
  offerProvider(leave) {
    const button = h('button', { type: 'button', class: 'primary', onclick: leave }, 'Sign in with the identity provider');
    fill(this.#parts.provider, button, h('p', { class: 'quiet' }, 'Or with a key:'));
    this.#parts.provider.hidden = false;
    if (!this.#parts.input.value) button.focus();
  }

  async #onSubmit(event) {
    event.preventDefault();
    const text = this.#parts.input.value.trim();
    if (!text) {
      this.say('Paste a key first.');
      this.focus();
      return;
    }
    // The user may paste the whole link instead of opening it.
    const link = /#code=([^&\s]+)/.exec(text);
    this.busy('Signing in…');
    try {
      await this.#submit(link ? { code: decodeURIComponent(link[1]) } : { key: text });
    } catch (error) {
      this.say(signInProblem(error, Boolean(link)));
      this.#parts.input.select();
    }
  }
}

const PROVIDER_PROBLEMS = {
  'not-configured': 'No identity provider is configured here any more.',
  'provider-away': 'The identity provider does not answer. Try again in a moment.',
  'provider-unusable': 'The identity provider’s answer cannot be used. The gateway’s log says why.',
  denied: 'The identity provider did not sign you in.',
  interrupted: 'This sign-in was begun in another tab or too long ago. Try again.',
  'no-entry': 'Your groups give you no role here.',
  revoked: 'Your access to this gateway was revoked.',
  'not-recent': 'The identity provider did not ask you to sign in again, or does not say when you did, so you cannot decide on this change. Ask an administrator: the provider must support “max_age”.',
  'not-strong': 'The identity provider did not sign you in as strongly as the rule requires, so you cannot decide on this change. Choose another way to sign in there, or ask an administrator: the provider must support “acr_values”.',
};

/** Returns the text for the problem with which a sign-in at the identity provider ended. */
export function providerProblem(name) {
  return Object.hasOwn(PROVIDER_PROBLEMS, name) ? PROVIDER_PROBLEMS[name] : 'The sign-in failed. Try again.';
}

export function signInProblem(error, byCode) {
  if (error instanceof ApiError && error.status === 401) {
    return byCode ? 'This link has already been used or has expired. Run “countersign open” for a new one.' : 'This key is not known here or has been revoked.';
  }
  if (error instanceof ApiError && error.status === 403) return 'This key is for agents. The dashboard needs a key with the role reviewer, viewer or admin.';
  return explain(error);
}
