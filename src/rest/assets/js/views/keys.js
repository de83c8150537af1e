// Lists the keys of people and agents, creates keys of agents and viewers, and revokes keys.

import { explain } from '../core/api.js';
import { notice } from '../core/announce.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { Poller } from '../core/poller.js';
import { routeTo } from '../core/router.js';
import { count, quote, visibleString } from '../core/text.js';
import { time } from '../core/time.js';
import { copyButton } from '../ui/badges.js';
import { openDialog } from '../ui/dialog.js';
import { emptyState, errorState, skeleton } from '../ui/states.js';

const POLL_INTERVAL = 15_000;
const ROLES = { agent: 'Agent: calls tools and proposes changes', viewer: 'Viewer: sees changes, without deciding' };

export class KeysView {
  element;
  #api;
  #poller;
  #painted = '';
  #parts;

  constructor({ api }) {
    this.#api = api;
    this.#parts = {
      count: h('span', { class: 'quiet' }),
      add: h('button', { type: 'button', class: 'primary', hidden: true, onclick: () => this.#askToCreate() }, icon('plus'), 'Create key'),
      made: h('div', { class: 'key-made-box' }),
      body: h('div', { class: 'page-body' }, skeleton(5)),
    };
    this.element = h('div', { class: 'page keys-page' },
      h('div', { class: 'page-head' },
        h('div', { class: 'pane-title' }, h('h1', { tabindex: '-1' }, 'Keys'), this.#parts.count, h('span', { class: 'pane-tools' }, this.#parts.add)),
        h('p', { class: 'quiet' }, 'The keys of people and agents. Who is connected now stands under ', h('a', { href: routeTo('sessions') }, 'Sessions'), '.')),
      this.#parts.made, this.#parts.body);
    this.#poller = new Poller({
      read: (signal) => this.#api.keys(signal),
      show: (keys) => this.#paint(keys),
      failed: (error) => fill(this.#parts.body, error.status === 403
        ? emptyState('key', 'Keys are managed by admins', 'Sign in with the key of an admin or with countersign open, or run countersign keys on the gateway\'s machine.')
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

  #paint(keys) {
    this.#parts.add.hidden = false;
    const text = JSON.stringify(keys);
    // An unchanged list is not painted again, so that the focus stays.
    if (text === this.#painted) return;
    this.#painted = text;
    this.#parts.count.textContent = count(keys.filter((key) => !key.revokedAt).length);
    if (!keys.length) {
      fill(this.#parts.body, emptyState('key', 'No keys yet', 'Create a key to give an agent a name of its own.'));
      return;
    }
    fill(this.#parts.body, h('table', { class: 'records keys' },
      h('thead', null, h('tr', null, ['Name', 'Role', 'Owner', 'Created', 'Last used', 'State'].map((name) => h('th', { scope: 'col' }, name)))),
      h('tbody', null, keys.map((key) => this.#row(key)))));
  }

  #row(key) {
    const { name, role, owner, revokedAt } = key;
    const proposed = role === 'agent' && h('a', { href: routeTo('history', null, { principal: name }), class: 'key-proposed' }, 'Changes', h('span', { class: 'sr-only' }, ` of ${visibleString(name)}`));
    const state = revokedAt ? [h('span', { class: 'badge state tone-grey' }, icon('cross'), 'Revoked'), ' ', h('span', { class: 'quiet nowrap' }, time(revokedAt))]
      : [h('span', { class: 'badge state tone-green' }, icon('check'), 'Active'), key.mayRevoke && h('button', { type: 'button', class: 'small', onclick: () => this.#askToRevoke(key) }, 'Revoke…', h('span', { class: 'sr-only' }, ` ${visibleString(name)}`))];
    return h('tr', revokedAt ? { class: 'over' } : null,
      h('td', { data: { label: 'Name' } }, h('div', null, quote(name, 64), ' ', proposed), h('code', { class: 'quiet' }, visibleString(key.id))),
      h('td', { data: { label: 'Role' } }, role),
      h('td', { data: { label: 'Owner' } }, owner === name ? h('span', { class: 'quiet' }, 'itself') : quote(owner, 80)),
      h('td', { class: 'nowrap', data: { label: 'Created' } }, time(key.createdAt)),
      h('td', { class: 'nowrap', data: { label: 'Last used' } }, key.lastUsedAt ? time(key.lastUsedAt) : h('span', { class: 'quiet' }, 'never')),
      h('td', { data: { label: 'State' } }, h('div', { class: 'key-state' }, state)));
  }

  #askToCreate() {
    const error = h('p', { class: 'edit-errors', role: 'alert' });
    const text = (id, label, help, more) => h('div', { class: 'edit-field' }, h('label', { class: 'edit-label', for: id }, label), h('input', { id, autocomplete: 'off', spellcheck: 'false', maxlength: '64', 'aria-describedby': `${id}-help`, ...more }), h('span', { class: 'edit-help quiet', id: `${id}-help` }, help));
    const roles = h('fieldset', { class: 'radios' }, h('legend', null, 'Role'), Object.entries(ROLES).map(([role, label], n) => h('label', null, h('input', { type: 'radio', name: 'key-role', value: role, checked: n === 0 }), label)));
    const save = h('button', { type: 'submit', class: 'primary' }, 'Create key');
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
    const dialog = openDialog({ title: 'Create a key', build: (close) => h('form', { class: 'sheet-body', onsubmit: submit },
      text('key-name', 'Name', 'Letters, digits and . _ - @ +. Rules and the audit trail refer to it.', { required: true }),
      roles,
      text('key-owner', 'Owner (optional)', 'The person behind the key, who then cannot approve what it proposes.'),
      h('p', { class: 'quiet' }, 'Keys that may decide on changes are created with ', h('code', null, 'countersign keys create'), ' on the gateway\'s machine.'),
      error,
      h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: close }, 'Cancel'), save)) });
    dialog.querySelector('#key-name').focus();
  }

  // The secret is kept nowhere else, not even in this view.
  #showSecret({ name, secret }) {
    const banner = h('div', { class: 'banner tone-green', role: 'status', tabindex: '-1' }, icon('check'),
      h('div', null, h('p', null, 'The key of ', quote(name, 64), '. It is shown only now.'), h('p', { class: 'with-copy' }, h('code', { class: 'secret' }, secret), copyButton(secret, 'Copy the key'))),
      h('button', { type: 'button', class: 'ghost', onclick: () => fill(this.#parts.made) }, 'Done'));
    fill(this.#parts.made, banner);
    banner.focus();
  }

  #askToRevoke({ id, name }) {
    const error = h('p', { class: 'edit-errors', role: 'alert' });
    const save = h('button', { type: 'submit', class: 'primary' }, 'Revoke the key');
    const submit = async (event) => {
      event.preventDefault();
      save.disabled = true;
      try {
        this.#paint(await this.#api.revokeKey(id));
        dialog.close();
        notice(`The key of ${name} is revoked.`, { tone: 'green', iconName: 'check' });
      } catch (problem) {
        save.disabled = false;
        fill(error, icon('alert'), visibleString(explain(problem)));
      }
    };
    const dialog = openDialog({ title: `Revoke the key of ${name}?`, build: (close) => h('form', { class: 'sheet-body', onsubmit: submit },
      h('p', null, 'Its sessions, calls and feeds end at once, and its votes on changes that have not run no longer count. This cannot be undone.'),
      error,
      h('div', { class: 'sheet-foot' }, h('button', { type: 'button', onclick: close }, 'Cancel'), save)) });
  }
}
