// Connects SDK clients as agents, the gateway, and the real servers behind it, with the helpers of tests/clients.

import { mkdir, realpath, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { startGatewayWith } from '../../clients/fixture.mjs';
import { binary, environment, eventually, temporaryData } from '../../clients/gateway.mjs';
import { connectPeer } from '../../clients/peer.mjs';
import { prepare, SERVERS } from '../../clients/servers.mjs';
import { armed, screenshot } from './browser.mjs';

/** The arguments of `connectPeer` for each transport. */
export const TRANSPORTS = {
  stdio: (gateway) => ({ command: binary, args: ['stdio', '--data', gateway.data], env: environment() }),
  WebSocket: (gateway) => ({ ws: new URL('/ws', gateway.url.replace('http', 'ws')) }),
  HTTP: (gateway) => ({ http: gateway.mcp }),
};

/**
 * Starts a gateway in front of servers. `servers` maps names to a `kind` (a key of `SERVERS`, by default the name) and
 * more keys of the entry. Each server works in its own folder, which `rules(folders)` and `folders` name. `agent()`
 * connects a client, `end()` stops everything.
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
    async agent({ era = 'modern', transport = 'HTTP', key, name = 'end-to-end' } = {}) {
      const peer = await connectPeer(era, { ...TRANSPORTS[transport](gateway), key }, { name, capabilities: {} });
      agents.push(peer);
      // A server is listed only some time after it has connected.
      await eventually('the tools are listed', async () => {
        const servers = (await peer.tools()).map((tool) => tool.name.split('__')[0]);
        return names.every((server) => servers.includes(server));
      });
      return peer;
    },
    async end() {
      for (const agent of agents) await agent.close().catch(() => {});
      await gateway.stop();
      await rm(base, { recursive: true, force: true });
    },
  });
}

/** Proposes a change as an agent and returns its id. */
export async function propose(agent, tool, args) {
  const answer = await agent.call(tool, args);
  if (answer.structuredContent?.status !== 'pending') throw new Error(`${tool} made no change: ${JSON.stringify(answer)}`);
  return answer.structuredContent.changeId;
}

/** Returns what the agent receives when the change has ended. */
export async function outcome(agent, changeId) {
  const { content, structuredContent } = await agent.call('wait_for_change', { changeId, timeoutSeconds: 60 }, { timeout: 70_000 });
  return { text: content.map((block) => block.text).join('\n'), ...structuredContent };
}

const MARKS = { equal: ' ', insert: '+', delete: '-', fold: '@' };

/** Returns the marked lines of a diff on the page without its notes, or undefined while there is no diff. */
const linesOf = (part) => part.evaluateAll(([section], marks) => section && [...section.querySelectorAll('.line:not(.note)')].map((line) => {
  const kind = Object.keys(marks).find((name) => line.classList.contains(name));
  return `${marks[kind]}${(line.querySelector('.code') ?? line).innerText}`;
}), MARKS);

/** Waits until the diff of a field shows exactly these lines. `within` selects a part of the page. */
export async function shows(page, label, expected, within = '.beside-now') {
  // Beside the state after a creation, "(now)" says that nothing exists yet.
  const part = page.locator(`${within} .line-diff`, { has: page.locator('.line-name', { hasText: label }) })
    .filter({ hasNot: page.locator('.line-name', { hasText: '(now)' }) });
  let shownLines;
  try {
    await eventually(label, async () => {
      shownLines = await linesOf(part);
      return isDeepStrictEqual(shownLines, expected);
    });
  } catch {
    throw new Error(`${within} ${label} shows\n${shownLines?.join('\n')}\n--- and not\n${expected.join('\n')}`);
  }
}

/** Opens a change and waits until it is on the screen. */
export async function openChange(page, gateway, id, view = 'inbox') {
  await page.goto(`${gateway.url}/#/${view}/${id}`);
  await page.locator(`.change-id code[title="${id}"]`).waitFor();
}

/** Presses `a` after the page accepts it; see `armed`. */
export async function approve(page) {
  await armed(page);
  await page.keyboard.press('a');
}

/** Stores a picture of a whole change, which is longer than most screens. */
export const screenshotChange = (page, name) => screenshot(page, name, { size: { width: 1440, height: 1700 } });
