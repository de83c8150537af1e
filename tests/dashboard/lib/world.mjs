// What upstream servers and operators do, on request: by a real server and the configuration's file.

import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { eventually, Gateway } from './gateway.mjs';

const SERVER = new URL('altering-server.mjs', import.meta.url).pathname;
const RULES = [{ name: 'no-db', tools: 'db__*', then: 'deny' }];

// As text: a number keeps its digits.
const definition = (name, read, description) => `{"name":"${name}","description":${JSON.stringify(description)},"inputSchema":{"type":"object","properties":{"path":{"type":"string","description":"Where"},"content":{"type":"string"},"limit":{"type":"integer","maximum":12345678901234567890123}}},"annotations":{"readOnlyHint":${read},"destructiveHint":${!read}}}`;

export class World {
  #tools = new Map();

  /** A gateway with nothing behind it yet. */
  static async start() {
    const world = new World();
    // The gateway's own files are none of a server's business.
    world.folder = mkdtempSync(join(tmpdir(), 'countersign-world-'));
    world.gateway = await Gateway.start({ rules: RULES, servers: {} });
    return world;
  }

  async end() {
    await this.gateway.end();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /**
   * `connect`: a server of that name, with two tools that say that they only read, and one that writes. `redefine` and
   * `offer` alter its tools. `waiting` is what the file would loosen, `refused` what is wrong with it.
   */
  async happen({ connect, redefine, offer, waiting, refused }) {
    if (connect) await this.#connect(connect);
    if (redefine) await this.#alter(redefine);
    if (offer) await this.#alter(offer);
    if (waiting) await this.#waits(waiting.map(({ key }) => key));
    if (refused) await this.#refused();
  }

  async #connect(name) {
    const file = join(this.folder, name);
    this.#tools.set(name, new Map([['read_file', definition('read_file', true, 'Reads a file')], ['list', definition('list', true, 'Lists a folder\u202e\u200b of files')], ['write_file', definition('write_file', false, 'Writes a file')]]));
    this.#write(name);
    this.gateway.servers[name] = { command: process.execPath, args: [SERVER, file], previews: 'filesystem' };
    this.gateway.reconfigure();
    // Recipes that the file names for a server loosen what a preview may call.
    const waiting = await eventually(`the recipes of ${name} wait for consent`, async () => (await this.gateway.api('reload')).value.waiting);
    await this.gateway.api('reload/consent', { body: { digest: waiting.digest, verdict: 'accept' } });
    await eventually(`${name} is connected`, async () => (await this.gateway.api(`servers/${name}`)).value.tools?.length === 3, 60_000);
  }

  #write(name) {
    const file = join(this.folder, name);
    writeFileSync(`${file}.new`, [...this.#tools.get(name).values()].join('\n'));
    renameSync(`${file}.new`, file);
  }

  async #alter({ server, tool, description }) {
    const name = tool.replace(`${server}__`, '');
    const tools = this.#tools.get(server);
    tools.set(name, definition(name, ['read_file', 'list'].includes(name), description));
    this.#write(server);
    await eventually(`${tool} is “${description}”`, async () => (await this.gateway.api(`servers/${server}`)).value.tools.some((t) => t.name === tool && t.definition.includes(description)), 60_000);
  }

  async #waits(keys) {
    const loosened = {
      'policy.default': () => ({ policy: { rules: RULES, default: 'allow' } }),
      'policy.rules': () => ({ policy: { rules: [] } }),
      'mcpServers.fs.trust_annotations': () => ({ mcpServers: { ...this.gateway.servers, fs: { ...this.gateway.servers.fs, trust_annotations: true } } }),
    };
    this.gateway.reconfigure(Object.assign({}, ...keys.map((key) => loosened[key]())));
    await eventually(`${keys} wait for consent`, async () => {
      const { waiting } = (await this.gateway.api('reload')).value;
      return waiting && keys.every((key) => waiting.loosens.some((l) => l.key === key));
    });
  }

  async #refused() {
    this.gateway.reconfigure({ policy: { rules: [{ tools: 'x__*' }] } });
    await eventually('the file is refused', async () => (await this.gateway.api('reload')).value.last?.result === 'refused');
  }
}
