// Uses an installed gateway up to the first approved write, over plain HTTP.
import assert from 'node:assert/strict';

import { Reviewer } from '../clients/gateway.mjs';

/** Calls a tool as an agent. */
export async function callTool(url, tool, parameters, key) {
    const response = await fetch(`${url}/tools/${tool}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...(key && { authorization: `Bearer ${key}` }) },
        body: JSON.stringify(parameters)
    });
    return { status: response.status, body: await response.json() };
}

/**
 * Proposes an issue as an agent, approves it as a reviewer, and reads it back.
 * @param {string} url The gateway's address, without a slash at the end.
 * @param {string} key A reviewer's key, as `countersign keys create --role reviewer --name NAME` prints it.
 * @param {string} [agentKey] An agent's key, which `auth.mode: keys` requires.
 */
export async function approveFirstWrite(url, key, agentKey) {
    const reviewer = new Reviewer(url, key);
    const projects = await callTool(url, 'list_projects', {}, agentKey);
    assert.equal(projects.status, 200, JSON.stringify(projects.body));
    const projectId = JSON.stringify(projects.body).match(/"id\\?":\s?\\?"([^"\\]+)/)[1];
    const issue = { projectId, title: 'Say hello', type: 'Story' };
    const proposed = await callTool(url, 'create_issue', issue, agentKey);
    assert.equal(proposed.status, 202, JSON.stringify(proposed.body));
    const id = JSON.stringify(proposed.body).match(/chg_\w+/)[0];
    await reviewer.approve(id);
    await reviewer.reached(id, 'applied');
}
