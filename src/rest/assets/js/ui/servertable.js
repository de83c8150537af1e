// The table of all servers, of which each row opens into its details. Those that do not work come first.

import { h } from '../core/dom.js';
import { t } from '../core/locale.js';
import { compareServers } from '../core/serverstate.js';
import { ServerRow } from './serverrow.js';

const COLUMNS = ['serverform.server', 'serverform.state', 'serverform.tools', 'serverform.commandOrAddress'];

export class ServerTable {
  element = h('table', { class: 'records server-table' },
    h('thead', null, h('tr', null, COLUMNS.map((column) => h('th', { scope: 'col' }, t(column))))));
  #context;
  #rows = new Map();
  #abort = new AbortController();

  /** `context` has `api` and `me`; `poll()` reads the servers again, `change(name)` and `remove(name)` open the forms. */
  constructor(context) {
    this.#context = { ...context, signal: this.#abort.signal };
  }

  dispose() {
    this.#abort.abort();
  }

  /** Shows the servers. The user may change those in `editable`; the account of `connected` was connected just now. */
  show(servers, { editable, connected }) {
    for (const [name, row] of this.#rows) {
      if (servers.some((server) => server.name === name)) continue;
      row.element.remove();
      this.#rows.delete(name);
    }
    const isNew = this.#rows.size === 0;
    const sorted = [...servers].sort(compareServers);
    for (const server of sorted) {
      let row = this.#rows.get(server.name);
      if (!row) {
        row = new ServerRow(server.name, this.#context);
        this.#rows.set(server.name, row);
        this.element.append(row.element);
      }
      row.show(server, { mayEdit: editable.includes(server.name), isJustConnected: server.name === connected });
    }
    // Nothing moves while details are read or a row has the focus.
    const isBusy = this.element.contains(document.activeElement) || [...this.#rows.values()].some((row) => row.isOpen);
    if (!isNew && !isBusy) this.element.append(...sorted.map(({ name }) => this.#rows.get(name).element));
  }

  /** Opens the details of a server and scrolls to them. */
  open(name) {
    const row = this.#rows.get(name);
    row?.setOpen(true);
    row?.element.scrollIntoView({ block: 'start' });
  }

  /** Reads the tools of all open rows again. */
  reloadTools() {
    for (const row of this.#rows.values()) row.reloadTools();
  }
}
