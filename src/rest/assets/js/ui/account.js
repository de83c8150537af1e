// Shows the account that a server requires, and lets its person disconnect it.

import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { t } from '../core/locale.js';
import { go, routeTo } from '../core/router.js';
import { quote, visibleString } from '../core/text.js';
import { time } from '../core/time.js';
import { openDialog } from './dialog.js';

const PROBLEMS = {
  'unknown-server': 'There is no such server any more, or it needs no account.',
  'admin-only': 'Only an admin can connect this server.',
  'access-ended': 'Your access to this gateway has ended or has changed, so nothing was connected.',
  interrupted: 'The connection took too long or was begun in another browser. Try again.',
  denied: 'The server’s sign-in page did not grant access, so nothing was connected.',
  'provider-away': 'The server or its sign-in page cannot be reached now. Try again in a moment.',
  'provider-unusable': 'The server’s sign-in page does not do what the specification requires. The gateway’s log says why.',
  failed: 'The connection could not be stored. The gateway’s log says why.',
};

/** Returns the text for the problem with which a connection ended. */
export const connectProblem = (name) => (Object.hasOwn(PROBLEMS, name) ? PROBLEMS[name] : 'The server was not connected. Try again.');

/** Returns the name of the signed-in person for people. */
export const personName = (me) => me.displayName ?? me.owner;

/** Returns the link to the page that connects a server. */
export const connectRoute = (name) => `${routeTo('servers', name)}/connect`;

/**
 * Returns the section about the account of a server, or null if the server needs none. `isJustConnected` is true right
 * after the connection. `disconnect()` removes the account.
 */
export function accountSection({ server, account, me, isJustConnected, disconnect }) {
  if (!account) return null;
  const isShared = account.as === 'gateway';
  if (account.connected) return connected({ server, account, me, isJustConnected, isShared, disconnect });
  const text = isShared
    ? 'This server is used with one account for everybody. It is not connected.'
    : 'This server is used with an account of your own. Agents that act for you can use it once you have connected it.';
  return h('div', { class: 'banner tone-amber account' }, icon('unplugged'), h('div', null,
    h('p', null, text),
    account.problem && h('p', { class: 'account-problem' }, quote(account.problem, 300)),
    account.mayConnect ? h('button', { type: 'button', class: 'primary', onclick: () => go(connectRoute(server)) }, 'Connect…') : isShared && h('p', { class: 'quiet' }, 'An admin has to connect it.')));
}

function connected({ server, account, me, isJustConnected, isShared, disconnect }) {
  const owner = isShared ? 'Connected for everybody' : ['Connected for ', h('strong', null, quote(personName(me), 60))];
  const facts = [account.since && ['since ', time(account.since)], account.issuer && ['through ', quote(hostOf(account.issuer), 100)]].filter(Boolean);
  return h('div', { class: `banner tone-${isJustConnected ? 'green' : 'grey'} account` }, icon('check'), h('div', null,
    isJustConnected && h('p', null, h('strong', null, 'It worked. '), isShared ? 'Agents can use this server now.' : 'Agents that act for you can use this server now.'),
    h('p', null, owner, facts.map((fact) => h('span', { class: 'quiet' }, ' · ', fact))),
    account.scopes.length > 0 && h('p', { class: 'quiet account-scopes' }, 'Granted: ', quote(account.scopes.join(', '), 500))),
  account.mayConnect && h('button', { type: 'button', class: 'account-end', onclick: () => confirm({ server, isShared, disconnect }) }, 'Disconnect…'));
}

const hostOf = (url) => (URL.canParse(url) ? new URL(url).host : url);

function confirm({ server, isShared, disconnect }) {
  const error = h('p', { class: 'edit-errors', role: 'alert' });
  const button = h('button', { type: 'submit', class: 'danger' }, 'Disconnect');
  openDialog({
    title: 'Disconnect this server?',
    build: (close) => h('form', {
      class: 'sheet-body',
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        try {
          await disconnect();
          close();
        } catch (failure) {
          fill(error, visibleString(explain(failure)));
          button.disabled = false;
        }
      },
    },
    h('p', null, `Countersign forgets ${isShared ? 'the shared access' : 'your access'} to `, h('strong', null, quote(server, 80)), '. ',
      isShared ? 'Nobody’s agents can use it until an admin connects it again.' : 'Agents that act for you cannot use it until you connect it again.'),
    error,
    h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: close }, t('common.cancel')), button)),
  });
}
