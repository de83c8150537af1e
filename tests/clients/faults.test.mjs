// Tests that every fault of an upstream affects only the call in which it occurs, not the session, other calls or the
// gateway, and that no process is left behind.
import assert from 'node:assert/strict';
import { readFile, readdir } from 'node:fs/promises';
import net from 'node:net';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { command, startGatewayWith, startScript } from './fixture.mjs';
import { eventually, freePort, stopChild } from './gateway.mjs';
import { connectPeer } from './peer.mjs';

const script = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../fixtures/faulty.mjs');
/** A timeout in milliseconds that no fault may reach: each result must arrive much earlier. */
const TIMEOUT = { timeout: 60_000 };

const config = (server, more = {}) => ({
    policy: { default: 'allow' },
    modules: { tracker: { enabled: false } },
    // Each fault is tested alone, so the circuit breaker is off.
    // Only calls that are never answered reach their timeout, so that it may be short.
    mcpServers: { faulty: { prefix: '', timeout: '20s', ...server, tool_timeouts: { hang: '3s', garbage: '3s', wrong_id: '3s' }, breaker: { threshold: 0 } }, ...more }
});
const stdio = (env = {}) => ({ command, args: [script, '--stdio'], env });

const text = result => result.content[0].text;
const isWorking = async peer => {
    const result = await peer.call('ok', {}, TIMEOUT);
    return result.isError !== true && text(result) === 'fine';
};
/** Returns how a call ended: `{ text }` of its result, or `{ failed }` with the error. */
const outcomeOf = promise =>
    promise.then(
        result => (result.isError ? { failed: text(result) } : { text: text(result) }),
        error => ({ failed: `${error.code}: ${error.message}` })
    );

/** Returns the processes that have this mark in their environment. */
async function processesWith(mark) {
    const found = [];
    for (const pid of (await readdir('/proc')).filter(name => /^\d+$/.test(name))) {
        const variables = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '');
        if (!variables.split('\0').includes(`FAULTY_MARK=${mark}`)) continue;
        const state = / ([A-Z]) /.exec((await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '')).replace(/\(.*\)/s, ''))?.[1];
        found.push({ pid: Number(pid), state });
    }
    return found;
}
/** Returns the number of children of the gateway that have ended without being reaped. */
async function zombies(parent) {
    let count = 0;
    for (const pid of (await readdir('/proc')).filter(name => /^\d+$/.test(name))) {
        const [state, ppid] = ((await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '')).split(') ')[1] ?? '').split(' ');
        if (state === 'Z' && Number(ppid) === parent) count++;
    }
    return count;
}
const residentMiB = async pid => Number(/VmRSS:\s+(\d+) kB/.exec(await readFile(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;

// The result that the caller must get: `fails` or the text of the answer.
const EXPECTED = {
    hang: 'fails',
    slow: 'at last',
    garbage: 'fails',
    noise: 'fine',
    half: 'fails',
    huge: 'fails',
    wrong_id: 'fails',
    twice: 'first',
    die: 'fails',
    chatty: 'said it all'
};
/** The differences over HTTP, where noise is an error, other than on the standard output of a program. */
const ONLY_HTTP = { no_body: 'fails', server_error: 'fails', noise: 'fails' };
/** Faults that are not tested over HTTP here, because the fixture is one process for all calls; see below. */
const NOT_HTTP = ['die'];

for (const era of ['legacy', 'modern']) {
    for (const transport of ['stdio', 'http']) {
        test(`a fault over ${transport} affects only its own call of a ${era} client`, async t => {
            const upstream = transport === 'http' ? await startScript(script) : undefined;
            t.after(() => upstream?.stop());
            const gateway = await startGatewayWith(config(upstream ? { url: `${upstream.url}/mcp`, required: true } : { ...stdio(), required: true }));
            t.after(() => gateway.stop());
            const target = { http: gateway.mcp };
            const [peer, bystander] = [await connectPeer(era, target, { capabilities: {} }), await connectPeer(era, target, { capabilities: {} })];
            t.after(() => Promise.all([peer.close(), bystander.close()]));
            const faults = Object.entries({ ...EXPECTED, ...(upstream ? ONLY_HTTP : {}) }).filter(([name]) => !upstream || !NOT_HTTP.includes(name));
            for (const [name, expected] of faults) {
                await t.test(name, async () => {
                    await eventually('the server works before', () => isWorking(peer));
                    const before = await residentMiB(gateway.child.pid);
                    const end = await outcomeOf(peer.call(name, { ms: 200, megabytes: 8 }, TIMEOUT));
                    if (expected === 'fails') {
                        assert.ok(end.failed, `it does not fail: ${JSON.stringify(end).slice(0, 200)}`);
                        assert.ok(end.failed.length > 20 && end.failed.length < 2000, `no clear error: ${end.failed.slice(0, 300)}`);
                        assert.ok(!/timed out.*60000|-32001: .*Request timed out/.test(end.failed), `the gateway never answered: ${end.failed}`);
                    } else {
                        assert.deepEqual(end, { text: expected });
                    }
                    await eventually('the server works after it, for this session', () => isWorking(peer));
                    assert.ok(await isWorking(bystander), 'and for other sessions');
                    if (name === 'huge') await eventually('the memory is released', async () => (await isWorking(bystander)) && (await residentMiB(gateway.child.pid)) < before + 64);
                });
            }
            await t.test('every child is reaped', () => eventually('there is no zombie', async () => (await zombies(gateway.child.pid)) === 0));
        });
    }
}

test('a server that hangs or dies fails only its own calls', async t => {
    const gateway = await startGatewayWith(config({ ...stdio(), required: true }, { steady: { ...stdio(), required: true } }));
    t.after(() => gateway.stop());
    const peer = await connectPeer('legacy', { http: gateway.mcp }, { capabilities: {} });
    t.after(() => peer.close());
    const hanging = outcomeOf(peer.call('hang', {}, TIMEOUT));
    assert.equal(text(await peer.call('steady__ok', {}, TIMEOUT)), 'fine', 'another server answers meanwhile');
    assert.ok((await hanging).failed);
    // Other calls in flight on a child that dies fail with a clear error.
    const slow = outcomeOf(peer.call('slow', { ms: 60_000 }, TIMEOUT));
    await eventually('it is in flight', async () => (await gateway.api('GET', '/sessions')).body.inFlight === 1);
    // The slow call is in the pipe by now; a call after it is answered.
    assert.equal(text(await peer.call('ok', {}, TIMEOUT)), 'fine');
    assert.ok((await outcomeOf(peer.call('die', {}, TIMEOUT))).failed);
    assert.ok((await slow).failed, 'it fails with its server');
    assert.equal(text(await peer.call('steady__ok', {}, TIMEOUT)), 'fine');
    await eventually('the server is started again', () => isWorking(peer));
});

test('calls work again whenever an HTTP server is restarted', async t => {
    const port = await freePort();
    let upstream = await startScript(script, ['--port', port]);
    t.after(() => upstream.stop());
    const gateway = await startGatewayWith(config({ url: `${upstream.url}/mcp`, required: true }));
    t.after(() => gateway.stop());
    const peers = [await connectPeer('legacy', { http: gateway.mcp }), await connectPeer('modern', { http: gateway.mcp })];
    t.after(() => Promise.all(peers.map(peer => peer.close())));
    for (let round = 0; round < 3; round++) {
        for (const peer of peers) await eventually('it works', () => isWorking(peer));
        await upstream.stop();
        for (const peer of peers) {
            const { failed } = await outcomeOf(peer.call('ok', {}, TIMEOUT));
            assert.ok(failed, 'a call while it is away fails');
            assert.ok((await peer.tools()).length > 0, 'the session and its lists remain');
        }
        upstream = await startScript(script, ['--port', port]);
    }
    // The server has lost its sessions, so the gateway must have opened new ones.
    for (const peer of peers) await eventually('it works in the end', () => isWorking(peer));
});

test('no process is left behind', async t => {
    const mark = `mark-${process.pid}`;
    const ownProcesses = () => processesWith(mark);

    await t.test('abandoned sessions leave no process behind', async t => {
        const gateway = await startGatewayWith(config({ ...stdio({ FAULTY_MARK: mark }), required: true }));
        t.after(() => gateway.stop());
        // These sessions are never ended. They share processes with sessions of the same principal and capabilities.
        for (let count = 0; count < 100; count++) {
            const capabilities = count % 2 ? { elicitation: {} } : { sampling: {} };
            const opened = await fetch(gateway.mcp, {
                method: 'POST',
                headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
                body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities, clientInfo: { name: 'a', version: '1' } } })
            });
            const session = opened.headers.get('mcp-session-id');
            await opened.text();
            const called = await fetch(gateway.mcp, {
                method: 'POST',
                headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream', 'mcp-session-id': session, 'mcp-protocol-version': '2025-11-25' },
                body: JSON.stringify({ jsonrpc: '2.0', id: 2, method: 'tools/call', params: { name: 'ok', arguments: {} } })
            });
            assert.match(await called.text(), /fine/);
        }
        const children = await ownProcesses();
        // Each child has a guard. There is a shared one, one for each set of capabilities, and for some seconds the one that
        // read the lists.
        assert.ok(children.length >= 2 && children.length <= 8, `${children.length} processes`);
        await gateway.stop();
        await eventually('all of them are gone', async () => (await ownProcesses()).length === 0);
    });

    for (const [condition, signal] of [['is stopped', 'SIGTERM'], ['is killed', 'SIGKILL']]) {
        await t.test(`children and grandchildren are gone when the gateway ${condition}`, async t => {
            const gateway = await startGatewayWith(config({ ...stdio({ FAULTY_MARK: mark }), required: true }));
            t.after(() => gateway.stop());
            const peer = await connectPeer('legacy', { http: gateway.mcp }, { capabilities: {} });
            await peer.call('grandchild', {}, TIMEOUT);
            assert.ok((await ownProcesses()).length >= 2, 'a child and its child');
            const closed = peer.close().catch(() => undefined);
            gateway.child.kill(signal);
            await eventually('none is left', async () => (await ownProcesses()).length === 0);
            await closed;
            await stopChild(gateway.child);
        });
    }
});

test('a client that does not read does not slow another', async t => {
    const upstream = await startScript(script);
    t.after(() => upstream.stop());
    const gateway = await startGatewayWith(config({ url: `${upstream.url}/mcp`, timeout: '60s', required: true }));
    t.after(() => gateway.stop());
    const before = await residentMiB(gateway.child.pid);
    const body = JSON.stringify({
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: {
            name: 'chatty',
            arguments: { megabytes: 200 },
            _meta: {
                'io.modelcontextprotocol/protocolVersion': '2026-07-28',
                'io.modelcontextprotocol/clientCapabilities': {},
                'io.modelcontextprotocol/logLevel': 'debug'
            }
        }
    });
    const stalled = [];
    for (let count = 0; count < 4; count++) {
        const socket = net.connect(gateway.port, '127.0.0.1');
        await new Promise((resolve, reject) => socket.once('connect', resolve).once('error', reject));
        socket.on('error', () => {});
        socket.pause();
        socket.write(
            `POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:${gateway.port}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n` +
                `MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: chatty\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`
        );
        stalled.push(socket);
    }
    t.after(() => stalled.forEach(socket => socket.destroy()));
    for (const era of ['legacy', 'modern']) {
        const peer = await connectPeer(era, { http: gateway.mcp }, { capabilities: {} });
        for (let count = 0; count < 50; count++) assert.ok(await isWorking(peer));
        await peer.close();
    }
    const grown = (await residentMiB(gateway.child.pid)) - before;
    assert.ok(grown < 100, `what nobody reads is not kept without bound: ${grown} MiB`);
});
