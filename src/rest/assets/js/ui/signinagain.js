// Leads to the identity provider if a rule requires another sign-in for a decision.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { leaveForProvider } from '../core/session.js';

/** Returns the button that leads to the provider for a decision on the change with that id, or null if there is no provider. */
export async function signInButton(api, id, label = t('decision.signInAgain')) {
  const { provider, signInUrl } = await api.signInOptions().catch(() => ({}));
  return provider ? h('button', { type: 'button', data: { act: 'sign-in' }, onclick: () => leaveForProvider(signInUrl, id) }, icon('person'), label) : null;
}

/** Returns true if a decision was refused for want of such a sign-in. */
export const needsSignIn = (problem) => problem?.code === 'SIGN_IN_REQUIRED';
