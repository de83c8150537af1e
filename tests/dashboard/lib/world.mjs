// Simulates upstream servers and operators with a real server and the configuration file.

import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { eventually, Gateway } from './gateway.mjs';

const SERVER = new URL('altering-server.mjs', import.meta.url).pathname;
const RULES = [{ name: 'no-db', tools: 'db__*', then: 'deny' }];

// The definition is text, so that the number keeps its digits.
const definition = (name, read, description) => `{"name":"${name}","description":${JSON.stringify(description)},"inputSchema":{"type":"object","properties":{"path":{"type":"string","description":"Where"},"content":{"type":"string"},"limit":{"type":"integer","maximum":12345678901234567890123}}},"annotations":{"readOnlyHint":${read},"destructiveHint":${!read}}}`;

export class World {
  #tools = new Map();

  /** Starts a gateway without servers. */
  static async start() {
    const world = new World();
    // The servers do not share the folder of the gateway.
    world.folder = mkdtempSync(join(tmpdir(), 'countersign-world-'));
    world.gateway = await Gateway.start({ rules: RULES, servers: {} });
    return world;
  }

  async end() {
    await this.gateway.end();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /**
   * Causes events. `connect` adds a server with two tools that declare to be reads and one that writes. `redefine` and
   * `offer` change and add tools. `waiting` lists the settings that the file loosens; `refused` writes an invalid file.
   */
  async apply({ connect, redefine, offer, waiting, refused }) {
    if (connect) await this.#connect(connect);
    if (redefine) await this.#redefine(redefine);
    if (offer) await this.#redefine(offer);
    if (waiting) await this.#loosen(waiting.map(({ key }) => key));
    if (refused) await this.#writeInvalid();
  }

  async #connect(name) {
    const file = join(this.folder, name);
    this.#tools.set(name, new Map([['read_file', definition('read_file', true, 'Reads a file')], ['list', definition('list', true, 'Lists a folder\u202e\u200b of files')], ['write_file', definition('write_file', false, 'Writes a file')]]));
    this.#write(name);
    this.gateway.servers[name] = { command: process.execPath, args: [SERVER, file], previews: 'filesystem' };
    this.gateway.reconfigure();
    // Naming recipes for a server loosens policy, so it needs approval.
    const waiting = await eventually(`the recipes of ${name} wait for consent`, async () => (await this.gateway.api('reload')).value.waiting);
    await this.gateway.api('reload/consent', { body: { digest: waiting.digest, verdict: 'accept' } });
    await eventually(`${name} is connected`, async () => (await this.gateway.api(`servers/${name}`)).value.tools?.length === 3, 60_000);
  }

  #write(name) {
    const file = join(this.folder, name);
    writeFileSync(`${file}.new`, [...this.#tools.get(name).values()].join('\n'));
    renameSync(`${file}.new`, file);
  }

  async #redefine({ server, tool, description }) {
    const name = tool.replace(`${server}__`, '');
    const tools = this.#tools.get(server);
    tools.set(name, definition(name, ['read_file', 'list'].includes(name), description));
    this.#write(server);
    await eventually(`${tool} is “${description}”`, async () => (await this.gateway.api(`servers/${server}`)).value.tools.some((t) => t.name === tool && t.definition.includes(description)), 60_000);
  }

  async #loosen(keys) {
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

  async #writeInvalid() {
    this.gateway.reconfigure({ policy: { rules: [{ tools: 'x__*' }] } });
    await eventually('the file is refused', async () => (await this.gateway.api('reload')).value.last?.result === 'refused');
  }
}
