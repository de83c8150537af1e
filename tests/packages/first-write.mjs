// Uses an installed gateway up to the first approved write, over plain HTTP.
import assert from 'node:assert/strict';

import { Reviewer, eventually } from '../clients/gateway.mjs';

/** Calls a tool as an agent. */
export async function callTool(url, tool, parameters, key) {
    const response = await fetch(`${url}/tools/${tool}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...(key && { authorization: `Bearer ${key}` }) },
        body: JSON.stringify(parameters)
    });
    return { status: response.status, body: await response.json() };
}

/** Proposes an issue as an agent. Returns the id of the pending change. */
export async function proposeWrite(url, agentKey) {
    const projects = await callTool(url, 'list_projects', {}, agentKey);
    assert.equal(projects.status, 200, JSON.stringify(projects.body));
    const projectId = JSON.stringify(projects.body).match(/"id\\?":\s?\\?"([^"\\]+)/)[1];
    const issue = { projectId, title: 'Say hello', type: 'Story' };
    const proposed = await callTool(url, 'create_issue', issue, agentKey);
    assert.equal(proposed.status, 202, JSON.stringify(proposed.body));
    return JSON.stringify(proposed.body).match(/chg_\w+/)[0];
}

/**
 * Proposes an issue as an agent, approves it as a reviewer, and waits until it is applied.
 * @param {string} url The gateway's address, without a slash at the end.
 * @param {string} key A reviewer's key, as `countersign keys create --role reviewer --name NAME` prints it.
 * @param {string} [agentKey] An agent's key, which `auth.mode: keys` requires.
 */
export async function approveFirstWrite(url, key, agentKey) {
    const id = await proposeWrite(url, agentKey);
    const reviewer = new Reviewer(url, key);
    await reviewer.approve(id);
    await reviewer.reached(id, 'applied');
}

/** Waits until a new gateway answers `tools/list`. Returns the seconds since `began`, which is a time of `Date.now()`. */
export async function secondsUntilTools(url, began, agentKey) {
    const headers = {
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        ...(agentKey && { authorization: `Bearer ${agentKey}` })
    };
    const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' });
    await eventually('it lists tools', async () => (await (await fetch(`${url}/mcp`, { method: 'POST', headers, body })).text()).includes('create_issue'));
    return ((Date.now() - began) / 1000).toFixed(1);
}
