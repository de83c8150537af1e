// Uses an installed gateway up to the first approved write, over plain HTTP.
import assert from 'node:assert/strict';

import { Reviewer } from '../clients/gateway.mjs';

/** Calls a tool as an agent without a key. */
async function callTool(url, tool, parameters) {
    const response = await fetch(`${url}/tools/${tool}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(parameters)
    });
    return { status: response.status, body: await response.json() };
}

/**
 * Proposes an issue as an agent, approves it as a reviewer, and reads it back.
 * @param {string} url The gateway's address, without a slash at the end.
 * @param {string} key A reviewer's key, as `countersign keys create --role reviewer --name NAME` prints it.
 */
export async function approveFirstWrite(url, key) {
    const reviewer = new Reviewer(url, key);
    const projects = await callTool(url, 'list_projects', {});
    assert.equal(projects.status, 200, JSON.stringify(projects.body));
    const projectId = JSON.stringify(projects.body).match(/"id\\?":\s?\\?"([^"\\]+)/)[1];
    const proposed = await callTool(url, 'create_issue', { projectId, title: 'Say hello', type: 'Story' });
    assert.equal(proposed.status, 202, JSON.stringify(proposed.body));
    const id = JSON.stringify(proposed.body).match(/chg_\w+/)[0];
    await reviewer.approve(id);
    await reviewer.reached(id, 'applied');
}
