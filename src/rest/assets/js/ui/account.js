// Shows the account that a server requires, and lets its person disconnect it.

import { h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { go, routeTo } from '../core/router.js';
import { quote } from '../core/text.js';
import { time } from '../core/time.js';
import { openConfirmation } from './dialog.js';

const PROBLEMS = ['unknown-server', 'admin-only', 'access-ended', 'interrupted', 'denied', 'provider-away', 'provider-unusable', 'failed'];

/** Returns the text for the problem with which a connection ended. */
export const connectProblem = (name) => t(PROBLEMS.includes(name) ? `account.problem.${name}` : 'account.notConnected');

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
  return h('div', { class: 'banner tone-amber account' }, icon('unplugged'), h('div', null,
    h('p', null, t(isShared ? 'account.shared' : 'account.own')),
    account.problem && h('p', { class: 'account-problem' }, quote(account.problem, 300)),
    account.mayConnect ? h('button', { type: 'button', class: 'primary', onclick: () => go(connectRoute(server)) }, t('account.connect')) : isShared && h('p', { class: 'quiet' }, t('account.adminConnects'))));
}

function connected({ server, account, me, isJustConnected, isShared, disconnect }) {
  const owner = isShared ? t('account.connectedForAll') : parts('account.connectedFor', { name: h('strong', null, quote(personName(me), 60)) });
  const { problem } = account;
  const tone = problem ? 'amber' : isJustConnected ? 'green' : 'grey';
  const facts = [account.since && parts('account.since', { time: time(account.since) }), account.issuer && parts('account.through', { host: quote(hostOf(account.issuer), 100) })].filter(Boolean);
  return h('div', { class: `banner tone-${tone} account` }, icon(problem ? 'alert' : 'check'), h('div', null,
    isJustConnected && h('p', null, h('strong', null, t('account.worked')), ' ', t(isShared ? 'account.nowForAll' : 'account.nowForYou')),
    h('p', null, owner, facts.map((fact) => h('span', { class: 'quiet' }, ' · ', fact))),
    account.scopes.length > 0 && h('p', { class: 'quiet account-scopes' }, parts('account.granted', { scopes: quote(account.scopes.join(', '), 500) })),
    problem && h('p', { class: 'account-problem' }, quote(problem, 300)),
    problem && account.mayConnect && h('button', { type: 'button', class: 'primary', onclick: () => go(connectRoute(server)) }, t('connect.again'))),
  account.mayConnect && h('button', { type: 'button', class: 'account-end', onclick: () => confirm({ server, isShared, disconnect }) }, t('account.disconnect')));
}

const hostOf = (url) => (URL.canParse(url) ? new URL(url).host : url);

function confirm({ server, isShared, disconnect }) {
  openConfirmation({
    title: t('account.confirm'),
    text: parts(isShared ? 'account.forgetsShared' : 'account.forgetsOwn', { server: h('strong', null, quote(server, 80)) }),
    label: t('account.disconnectNow'),
    act: disconnect,
  });
}
