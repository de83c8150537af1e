// The whole of it: SDK clients as agents, the gateway, and behind it the servers that people really use. Everything is
// borrowed from the tests of clients.

import { mkdir, realpath, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { startGatewayWith } from '../../clients/fixture.mjs';
import { binary, environment, eventually, temporaryData } from '../../clients/gateway.mjs';
import { connectPeer } from '../../clients/peer.mjs';
import { prepare, SERVERS } from '../../clients/servers.mjs';
import { armed } from './browser.mjs';

/** For what takes a moment only, unless much else runs. */
const SLOW = 60_000;

/** The ways in, by name: where `connectPeer` is to connect to. */
export const DOORS = {
  stdio: (gateway) => ({ command: binary, args: ['stdio', '--data', gateway.data], env: environment() }),
  WebSocket: (gateway) => ({ ws: new URL('/ws', gateway.url.replace('http', 'ws')) }),
  HTTP: (gateway) => ({ http: gateway.mcp }),
};

/**
 * A gateway in front of servers: by name what kind they are (one of `SERVERS`, the name itself if it says nothing) and
 * more keys of their entry. Each works in a folder of its own, which `rules(folders)` and `folders` name. `agent()`
 * connects a client, `end()` ends everything that this has started.
 */
export async function startBehind(servers, { rules = () => [], policy = {} } = {}) {
  const names = Object.keys(servers);
  const kindOf = (name) => servers[name].kind ?? name;
  const base = await realpath(await temporaryData());
  const folders = Object.fromEntries(names.map((name) => [name, join(base, name)]));
  for (const name of names) await prepare(kindOf(name), folders[name]);
  const mcpServers = Object.fromEntries(names.map((name) => {
    const { kind, ...more } = servers[name];
    return [name, { ...SERVERS[kindOf(name)].entry(folders[name]), required: true, trust_annotations: true, ...more }];
  }));
  let gateway;
  try {
    gateway = await startGatewayWith({ modules: { tracker: { enabled: false } }, policy: { ...policy, rules: rules(folders) }, mcpServers });
  } catch (error) {
    await rm(base, { recursive: true, force: true });
    throw error;
  }
  const agents = [];
  return Object.assign(gateway, {
    folders,
    async folder(name, ...path) {
      const folder = join(folders[name], ...path);
      await mkdir(folder, { recursive: true });
      return folder;
    },
    async agent({ era = 'modern', door = 'HTTP', key, name = 'end-to-end' } = {}) {
      const peer = await connectPeer(era, { ...DOORS[door](gateway), key }, { name, capabilities: {} });
      agents.push(peer);
      // A server that is connected is not in the lists in that very moment.
      await eventually('the tools are listed', async () => {
        const servers = (await peer.tools()).map((tool) => tool.name.split('__')[0]);
        return names.every((server) => servers.includes(server));
      }, SLOW);
      return peer;
    },
    async end() {
      for (const agent of agents) await agent.close().catch(() => {});
      await gateway.stop();
      await rm(base, { recursive: true, force: true });
    },
  });
}

/** What an agent is told when it proposes: the change's id. */
export async function propose(agent, tool, args) {
  const answer = await agent.call(tool, args);
  if (answer.structuredContent?.status !== 'pending') throw new Error(`${tool} made no change: ${JSON.stringify(answer)}`);
  return answer.structuredContent.changeId;
}

/** What the agent reads once it is decided, and done. */
export async function outcome(agent, changeId) {
  const { content, structuredContent } = await agent.call('wait_for_change', { changeId, timeoutSeconds: 60 }, { timeout: 70_000 });
  return { text: content.map((block) => block.text).join('\n'), ...structuredContent };
}

const MARKS = { equal: ' ', insert: '+', delete: '-', fold: '@' };

/** The lines of a diff on the page, marked, without the notes between them; undefined until it is there. */
const linesOf = (part) => part.evaluateAll(([section], marks) => section && [...section.querySelectorAll('.line:not(.note)')].map((line) => {
  const kind = Object.keys(marks).find((name) => line.classList.contains(name));
  return `${marks[kind]}${(line.querySelector('.code') ?? line).innerText}`;
}), MARKS);

/** Waits until the diff of that field shows exactly these lines. `within` is a part of the page. */
export async function shows(page, label, expected, within = '.beside-now') {
  const part = page.locator(`${within} .line-diff`, { has: page.locator('.line-name', { hasText: label }) });
  let seen;
  try {
    await eventually(label, async () => {
      seen = await linesOf(part);
      return isDeepStrictEqual(seen, expected);
    }, SLOW);
  } catch {
    throw new Error(`${within} ${label} shows\n${seen?.join('\n')}\n--- and not\n${expected.join('\n')}`);
  }
}

/** Opens a change, from wherever the page is, until it is on the screen and can be decided. */
export async function openChange(page, gateway, id, view = 'inbox') {
  await page.goto(`${gateway.url}/#/${view}/${id}`);
  await page.locator(`.change-id code[title="${id}"]`).waitFor();
}

/** Presses `a` once the page takes it: what has just altered under the reader waits for a moment. */
export async function approve(page) {
  await armed(page);
  await page.keyboard.press('a');
}

/** `SHOTS=folder`: how each step looks. */
export async function look(page, name) {
  if (!process.env.SHOTS) return;
  const size = page.viewportSize();
  await page.setViewportSize({ width: 1440, height: 1700 });
  await page.screenshot({ path: join(process.env.SHOTS, `${name}.png`) });
  await page.setViewportSize(size);
}
