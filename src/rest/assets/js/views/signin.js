// The sign-in page, which takes a key or a one-time code of a link.

import { h, fill } from '../core/dom.js';
import { brand, icon } from '../core/icons.js';
import { ApiError, explain, otherPerson } from '../core/api.js';
import { parts, t } from '../core/locale.js';
import { quote, visibleString } from '../core/text.js';
import { copyButton } from '../ui/badges.js';
import { openConfirmation } from '../ui/dialog.js';

const COMMANDS = [
  ['countersign open', t('signin.open')],
  ['countersign keys create --role reviewer --name you', t('signin.createKey')],
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
      button: h('button', { type: 'submit', class: 'primary' }, t('signin.signIn')),
      provider: h('div', { class: 'signin-provider', hidden: true }),
    };
    this.element = h('main', { class: 'signin', id: 'main' },
      h('div', { class: 'signin-card' },
        h('div', { class: 'signin-brand' }, brand(), h('h1', null, 'Countersign')),
        h('p', { class: 'quiet' }, t('signin.claim')),
        this.#parts.provider,
        h('form', { onsubmit: (event) => this.#onSubmit(event), novalidate: true },
          h('label', { for: 'key' }, t('signin.key')), this.#parts.input, this.#parts.message, this.#parts.button),
        h('section', { class: 'signin-help', 'aria-labelledby': 'signin-help' }, h('h2', { id: 'signin-help' }, t('signin.noKey')),
          h('p', { class: 'quiet' }, t('signin.onMachine')),
          h('dl', null, COMMANDS.map(([command, text]) => h('div', null,
            h('dt', null, h('code', null, command), copyButton(command, t('signin.copy', { command }))), h('dd', null, text)))))));
    if (message) this.say(message);
    if (busy) this.busy(t('signin.signingIn'));
  }

  say(message) {
    fill(this.#parts.message, icon('alert'), h('span', null, visibleString(message)));
    this.#parts.button.disabled = false;
    this.#parts.button.textContent = t('signin.signIn');
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
    const button = h('button', { type: 'button', class: 'primary', onclick: leave }, t('signin.withProvider'));
    fill(this.#parts.provider, button, h('p', { class: 'quiet' }, t('signin.orKey')));
    this.#parts.provider.hidden = false;
    if (!this.#parts.input.value) button.focus();
  }

  async #onSubmit(event) {
    event.preventDefault();
    const text = this.#parts.input.value.trim();
    if (!text) {
      this.say(t('signin.pasteFirst'));
      this.focus();
      return;
    }
    // The user may paste the whole link instead of opening it.
    const link = /#code=([^&\s]+)/.exec(text);
    this.busy(t('signin.signingIn'));
    try {
      await this.#submit(link ? { code: decodeURIComponent(link[1]) } : { key: text });
    } catch (error) {
      this.say(signInProblem(error, Boolean(link)));
      this.#parts.input.select();
    }
  }
}

const PROVIDER_PROBLEMS = ['not-configured', 'provider-away', 'provider-unusable', 'denied', 'interrupted', 'no-entry', 'revoked', 'not-recent', 'not-strong'];

/** Returns the text for the problem with which a sign-in at the identity provider ended. */
export function providerProblem(name) {
  return t(PROVIDER_PROBLEMS.includes(name) ? `signin.problem.${name}` : 'signin.failed');
}

export function signInProblem(error, byCode) {
  if (error instanceof ApiError && error.status === 401) {
    return t(byCode ? 'signin.usedLink' : 'signin.unknownKey');
  }
  if (error instanceof ApiError && error.status === 403 && !otherPerson(error)) return t('signin.agentKey');
  return explain(error);
}

/** Opens a dialog that asks whether a link may sign the browser in as somebody else. `replace()` signs in or throws. */
export function askToReplace({ signedInAs, signInAs }, replace) {
  return openConfirmation({
    title: t('signin.replaceTitle'),
    text: parts('signin.replace', { current: h('strong', null, quote(signedInAs, 120)), other: h('strong', null, quote(signInAs, 120)) }),
    label: t('signin.signIn'),
    className: 'primary',
    act: replace,
    // The code was valid when the dialog opened.
    describe: (error) => (error instanceof ApiError && error.status === 401 ? t('signin.tooLate') : signInProblem(error, true)),
  });
}
