// Lists, creates and revokes the keys of people and agents.

import { explain } from '../core/api.js';
import { notice } from '../core/announce.js';
import { fill, h, refill } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { Poller } from '../core/poller.js';
import { routeTo } from '../core/router.js';
import { count, quote, visibleString } from '../core/text.js';
import { time } from '../core/time.js';
import { copyButton, toneBadge } from '../ui/badges.js';
import { openConfirmation, openDialog } from '../ui/dialog.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';

const POLL_INTERVAL = 15_000;
const ROLES = { agent: t('keys.role.agent'), viewer: t('keys.role.viewer'), reviewer: t('keys.role.reviewer'), admin: t('keys.role.admin') };

export class KeysView {
  element;
  #api;
  #poller;
  #painted = '';
  #creatableRoles = [];
  #parts;

  constructor({ api }) {
    this.#api = api;
    this.#parts = {
      count: h('span', { class: 'quiet' }),
      add: h('button', { type: 'button', class: 'primary', hidden: true, onclick: () => this.#askToCreate() }, icon('plus'), t('keys.create')),
      made: h('div', { class: 'key-made-box' }),
      body: h('div', { class: 'page-body' }, skeleton(5)),
    };
    this.element = h('div', { class: 'page keys-page' },
      h('div', { class: 'page-head' },
        h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, t('shell.view.keys')), this.#parts.count, h('span', { class: 'pane-tools' }, this.#parts.add)),
        h('p', { class: 'quiet' }, parts('keys.about', { sessions: h('a', { href: routeTo('sessions') }, t('shell.view.sessions')) }))),
      this.#parts.made, this.#parts.body);
    this.#poller = new Poller({
      read: (signal) => this.#api.keys(signal),
      show: (read) => this.#paint(read),
      failed: (error) => fill(this.#parts.body, error.status === 403
        ? emptyState('key', t('keys.adminsOnly'), h('p', null, parts('keys.adminsOnlyHow', { open: h('code', null, 'countersign open'), keys: h('code', null, 'countersign keys') })))
        : errorState(error, () => this.#poller.poll())),
      every: POLL_INTERVAL,
    });
  }

  dispose() {
    this.#poller.stop();
  }

  route() {}

  event() {}

  refresh() {
    this.#poller.poll();
  }

  #paint({ keys, creatableRoles }) {
    this.#parts.add.hidden = false;
    this.#creatableRoles = creatableRoles;
    const text = JSON.stringify(keys);
    // An unchanged list is not painted again, so that selected text stays selected.
    if (text === this.#painted) return;
    this.#painted = text;
    this.#parts.count.textContent = count(keys.filter((key) => !key.revokedAt).length);
    if (!keys.length) {
      fill(this.#parts.body, emptyState('key', t('keys.none'), t('keys.noneHow')));
      return;
    }
    refill(this.#parts.body, h('table', { class: 'records keys' },
      h('thead', null, h('tr', null, ['name', 'role', 'owner', 'created', 'lastUsed', 'state'].map((column) => h('th', { scope: 'col' }, t(`keys.column.${column}`))))),
      h('tbody', null, keys.map((key) => this.#row(key)))));
  }

  #row(key) {
    const { name, role, owner, revokedAt } = key;
    const proposed = role === 'agent' && h('a', { href: routeTo('history', null, { principal: name }), class: 'key-proposed' }, t('keys.changes'), h('span', { class: 'sr-only' }, ' ', t('keys.changesOf', { name: visibleString(name) })));
    const state = revokedAt ? [toneBadge('grey', 'cross', t('keys.revoked')), ' ', h('span', { class: 'quiet nowrap' }, time(revokedAt))]
      : [toneBadge('green', 'check', t('keys.active')), key.mayRevoke && h('button', { type: 'button', class: 'small', data: { key: key.id }, onclick: () => this.#askToRevoke(key) }, t('keys.revoke'), h('span', { class: 'sr-only' }, ` ${visibleString(name)}`))];
    return h('tr', revokedAt ? { class: 'over' } : null,
      h('td', { data: { label: t('keys.column.name') } }, h('div', null, quote(name, 64), ' ', proposed), h('code', { class: 'quiet' }, visibleString(key.id))),
      h('td', { class: 'nowrap', data: { label: t('keys.column.role') } }, role),
      h('td', { data: { label: t('keys.column.owner') } }, owner === name ? h('span', { class: 'quiet' }, '–') : quote(owner, 80)),
      h('td', { data: { label: t('keys.column.created') } }, h('span', { class: 'nowrap' }, time(key.createdAt)), key.createdBy && h('div', { class: 'quiet' }, parts('keys.createdBy', { name: quote(key.createdBy, 64) }))),
      h('td', { class: 'nowrap', data: { label: t('keys.column.lastUsed') } }, key.lastUsedAt ? time(key.lastUsedAt) : h('span', { class: 'quiet' }, t('keys.never'))),
      h('td', { data: { label: t('keys.column.state') } }, h('div', { class: 'key-state' }, state)));
  }

  #askToCreate() {
    const error = h('p', { class: 'edit-errors', role: 'alert' });
    const text = (id, label, help, more) => h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: id }, label), h('input', { id, autocomplete: 'off', spellcheck: 'false', maxlength: '64', 'aria-describedby': `${id}-help`, ...more }), h('span', { class: 'edit-help quiet', id: `${id}-help` }, help));
    const roles = h('fieldset', { class: 'radios' }, h('legend', null, t('keys.roleLabel')), this.#creatableRoles.map((role, n) => h('label', null, h('input', { type: 'radio', name: 'key-role', value: role, checked: n === 0 }), ROLES[role])));
    const save = h('button', { type: 'submit', class: 'primary' }, t('keys.create'));
    const submit = async (event) => {
      event.preventDefault();
      save.disabled = true;
      fill(error);
      const [name, owner] = ['key-name', 'key-owner'].map((id) => dialog.querySelector(`#${id}`).value.trim());
      const role = dialog.querySelector('[name=key-role]:checked').value;
      try {
        const created = await this.#api.createKey({ name, role, ...(owner ? { owner } : {}) });
        dialog.close();
        this.#showSecret(created);
        this.#poller.poll();
      } catch (problem) {
        save.disabled = false;
        fill(error, icon('alert'), visibleString(explain(problem)));
      }
    };
    const dialog = openDialog({ title: t('keys.createTitle'), build: (close) => h('form', { class: 'sheet-body', onsubmit: submit },
      text('key-name', t('keys.name'), t('keys.nameHelp'), { required: true }),
      roles,
      text('key-owner', t('keys.owner'), t('keys.ownerHelp')),
      h('p', { class: 'quiet' }, parts(this.#creatableRoles.includes('reviewer') ? 'keys.neverBesideYou' : 'keys.deciding', { command: h('code', null, 'countersign keys create') })),
      error,
      h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: close }, t('common.cancel')), save)) });
    dialog.querySelector('#key-name').focus();
  }

  // The secret is kept nowhere else, not even in this view.
  #showSecret({ name, secret }) {
    const banner = h('div', { class: 'banner tone-green', role: 'status', tabindex: '-1' }, icon('check'),
      h('div', null, h('p', null, parts('keys.made', { name: quote(name, 64) })), h('p', { class: 'with-copy' }, h('code', { class: 'secret' }, secret), copyButton(secret, t('keys.copy')))),
      h('button', { type: 'button', class: 'ghost', onclick: () => fill(this.#parts.made) }, t('common.done')));
    fill(this.#parts.made, banner);
    banner.focus();
  }

  #askToRevoke({ id, name }) {
    openConfirmation({
      title: t('keys.revokeTitle', { name }),
      text: t('keys.revokeMeans'),
      label: t('keys.revokeNow'),
      act: async () => this.#paint(await this.#api.revokeKey(id)),
      done: () => notice(t('keys.isRevoked', { name }), { tone: 'green', iconName: 'check' }),
      // The button that opened the dialog may have been painted again meanwhile, and a revoked key has none.
      closed: () => (this.#parts.body.querySelector(`[data-key="${CSS.escape(id)}"]`) ?? this.element.querySelector('h1')).focus({ preventScroll: true }),
    });
  }
}
