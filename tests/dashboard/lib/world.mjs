// Simulates upstream servers and operators with a real server and the configuration file.

import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { eventually, Gateway } from './gateway.mjs';

const SERVER = new URL('altering-server.mjs', import.meta.url).pathname;
// The definitions of a real server without annotations, one on each line.
const MEMORY = new URL('../../fixtures/memory-2025.4.25.jsonl', import.meta.url).pathname;
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
   * Causes events. `connect` adds a server with two tools that declare to be reads and one that writes, and `connectMemory` one
   * with the definitions of a memory server without annotations. `redefine` and
   * `offer` change and add tools. `waiting` lists the settings that the file loosens; `refused` writes an invalid file.
   */
  async apply({ connect, connectMemory, redefine, offer, waiting, refused }) {
    if (connect) await this.#connect(connect, 'filesystem', [definition('read_file', true, 'Reads a file'), definition('list', true, 'Lists a folder\u202e\u200b of files'), definition('write_file', false, 'Writes a file')]);
    if (connectMemory) await this.#connect(connectMemory, 'memory', readFileSync(MEMORY, 'utf8').trim().split('\n'));
    if (redefine) await this.#redefine(redefine);
    if (offer) await this.#redefine(offer);
    if (waiting) await this.#loosen(waiting.map(({ key }) => key));
    if (refused) await this.#writeInvalid();
  }

  async #connect(name, previews, definitions) {
    const file = join(this.folder, name);
    this.#tools.set(name, new Map(definitions.map((text) => [JSON.parse(text).name, text])));
    this.#write(name);
    this.gateway.servers[name] = { command: process.execPath, args: [SERVER, file], previews };
    this.gateway.reconfigure();
    const isConnected = async () => (await this.gateway.api(`servers/${name}`)).value.tools?.length === definitions.length;
    // Naming recipes with a dry run for a server loosens policy, so it needs consent.
    const waiting = await eventually(`${name} is connected, or waits for consent`, async () => (await this.gateway.api('reload')).value.waiting ?? isConnected());
    if (waiting !== true) await this.gateway.api('reload/consent', { body: { digest: waiting.digest, verdict: 'accept' } });
    await eventually(`${name} is connected`, isConnected);
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
    await eventually(`${tool} is “${description}”`, async () => (await this.gateway.api(`servers/${server}`)).value.tools.some((t) => t.name === tool && t.definition.includes(description)));
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
