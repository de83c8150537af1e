// An upstream that goes wrong in every way spoils only the call that it goes wrong in: not the session, not the others,
// not the gateway; and whatever happens, no process is left behind.
import assert from 'node:assert/strict';
import { readFile, readdir } from 'node:fs/promises';
import net from 'node:net';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { command, startGatewayWith, startScript } from './fixture.mjs';
import { eventually, stopChild } from './gateway.mjs';
import { connectPeer } from './peer.mjs';

const script = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../fixtures/faulty.mjs');
/** A patience that no fault outlasts, in milliseconds: what is waited for must come long before. */
const PATIENCE = { timeout: 30_000 };

const config = (server, more = {}) => ({
    policy: { default: 'allow' },
    modules: { tracker: { enabled: false } },
    // Faults come thick here, and what is tested is each one by itself.
    mcpServers: { faulty: { ...server, prefix: '', timeout: '3s', breaker: { threshold: 0 } }, ...more }
});
const stdio = (env = {}) => ({ command, args: [script, '--stdio'], env });

const text = result => result.content[0].text;
const works = async peer => {
    const result = await peer.call('ok', {}, PATIENCE);
    return result.isError !== true && text(result) === 'fine';
};
/** How a call ended: the text of its result, or that it failed and how. */
const ending = promise =>
    promise.then(
        result => (result.isError ? { failed: text(result) } : { text: text(result) }),
        error => ({ failed: `${error.code}: ${error.message}` })
    );

/** The processes with this variable in their environment, by id. */
async function marked(mark) {
    const found = [];
    for (const pid of (await readdir('/proc')).filter(name => /^\d+$/.test(name))) {
        const variables = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '');
        if (!variables.split('\0').includes(`FAULTY_MARK=${mark}`)) continue;
        const state = / ([A-Z]) /.exec((await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '')).replace(/\(.*\)/s, ''))?.[1];
        found.push({ pid: Number(pid), state });
    }
    return found;
}
/** Processes that stopped existing but were not reaped, among the gateway's children. */
async function zombies(parent) {
    let count = 0;
    for (const pid of (await readdir('/proc')).filter(name => /^\d+$/.test(name))) {
        const [state, ppid] = ((await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '')).split(') ')[1] ?? '').split(' ');
        if (state === 'Z' && Number(ppid) === parent) count++;
    }
    return count;
}
const resident = async pid => Number(/VmRSS:\s+(\d+) kB/.exec(await readFile(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;

// What the caller must get: `fails`, the answer, or either.
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
/** Over HTTP there is no reason for noise, as there is on a program's standard output. */
const ONLY_HTTP = { no_body: 'fails', server_error: 'fails', noise: 'fails' };
/** Over HTTP the fixture is one process for all; its end is the test of its own below. */
const NOT_HTTP = ['die'];

for (const era of ['legacy', 'modern']) {
    for (const transport of ['stdio', 'http']) {
        test(`faults over ${transport}, seen by a ${era} client`, async t => {
            const upstream = transport === 'http' ? await startScript(script) : undefined;
            t.after(() => upstream?.stop());
            const gateway = await startGatewayWith(config(upstream ? { url: `${upstream.url}/mcp`, required: true } : { ...stdio(), required: true }));
            t.after(() => gateway.stop());
            const where = { http: gateway.mcp };
            const [peer, bystander] = [await connectPeer(era, where, { capabilities: {} }), await connectPeer(era, where, { capabilities: {} })];
            t.after(() => Promise.all([peer.close(), bystander.close()]));
            const faults = Object.entries({ ...EXPECTED, ...(upstream ? ONLY_HTTP : {}) }).filter(([name]) => !upstream || !NOT_HTTP.includes(name));
            for (const [name, expected] of faults) {
                await t.test(name, async () => {
                    await eventually('the server works before', () => works(peer));
                    const before = await resident(gateway.child.pid);
                    const end = await ending(peer.call(name, { ms: 200, megabytes: 8 }, PATIENCE));
                    if (expected === 'fails') {
                        assert.ok(end.failed, `it does not fail: ${JSON.stringify(end).slice(0, 200)}`);
                        assert.ok(end.failed.length > 20 && end.failed.length < 2000, `no clear error: ${end.failed.slice(0, 300)}`);
                        assert.ok(!/timed out.*30000|-32001: .*Request timed out/.test(end.failed), `the gateway never answered: ${end.failed}`);
                    } else {
                        assert.deepEqual(end, { text: expected });
                    }
                    await eventually('the server works after it, for this session', () => works(peer));
                    assert.ok(await works(bystander), 'and for the others');
                    if (name === 'huge') assert.ok((await resident(gateway.child.pid)) < before + 64, 'nothing of that size is kept');
                });
            }
            await t.test('nothing is left unreaped', async () => assert.equal(await zombies(gateway.child.pid), 0));
        });
    }
}

test('a server that hangs or dies takes only its own calls along', async t => {
    const gateway = await startGatewayWith(config({ ...stdio(), required: true }, { steady: { ...stdio(), required: true } }));
    t.after(() => gateway.stop());
    const peer = await connectPeer('legacy', { http: gateway.mcp }, { capabilities: {} });
    t.after(() => peer.close());
    const hanging = ending(peer.call('hang', {}, PATIENCE));
    assert.equal(text(await peer.call('steady__ok', {}, PATIENCE)), 'fine', 'another server answers meanwhile');
    assert.ok((await hanging).failed);
    // Those in flight on the child that dies end too, and clearly.
    const slow = ending(peer.call('slow', { ms: 2500 }, PATIENCE));
    await eventually('it is in flight', async () => (await gateway.api('GET', '/sessions')).body.inFlight === 1);
    // Its pipe has the slow one by now: what comes after it is answered.
    assert.equal(text(await peer.call('ok', {}, PATIENCE)), 'fine');
    assert.ok((await ending(peer.call('die', {}, PATIENCE))).failed);
    assert.ok((await slow).failed, 'it ends with its server, and not by itself');
    assert.equal(text(await peer.call('steady__ok', {}, PATIENCE)), 'fine');
    await eventually('the server is started again', () => works(peer));
});

test('an HTTP server that comes and goes', async t => {
    // Any port at first, and that one ever after: should another program take it meanwhile, the fixture cannot start and says so.
    let upstream = await startScript(script);
    const { port } = new URL(upstream.url);
    t.after(() => upstream.stop());
    const gateway = await startGatewayWith(config({ url: `${upstream.url}/mcp`, required: true }));
    t.after(() => gateway.stop());
    const peers = [await connectPeer('legacy', { http: gateway.mcp }), await connectPeer('modern', { http: gateway.mcp })];
    t.after(() => Promise.all(peers.map(peer => peer.close())));
    for (let round = 0; round < 3; round++) {
        for (const peer of peers) await eventually('it works', () => works(peer));
        await upstream.stop();
        for (const peer of peers) {
            const { failed } = await ending(peer.call('ok', {}, PATIENCE));
            assert.ok(failed, 'a call while it is away fails');
            assert.ok((await peer.tools()).length > 0, 'the session lives on, and the lists too');
        }
        upstream = await startScript(script, ['--port', port]);
    }
    // Its sessions were forgotten with the process: the gateway must have opened new ones.
    for (const peer of peers) await eventually('it works in the end', () => works(peer));
});

test('processes', async t => {
    const mark = `mark-${process.pid}`;
    const mine = () => marked(mark);

    await t.test('abandoned sessions leave no process behind', async t => {
        const gateway = await startGatewayWith(config({ ...stdio({ FAULTY_MARK: mark }), required: true }));
        t.after(() => gateway.stop());
        // Sessions that nobody ends, each with capabilities: they share what the principal and the capabilities share.
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
        const children = await mine();
        // Each with its guard: the one that is shared, one for either set of capabilities, and for the first seconds the
        // one that the lists are read on.
        assert.ok(children.length >= 2 && children.length <= 8, `${children.length} processes`);
        await gateway.stop();
        await eventually('all of them are gone', async () => (await mine()).length === 0);
    });

    for (const [how, signal] of [['is stopped', 'SIGTERM'], ['is killed', 'SIGKILL']]) {
        await t.test(`children and grandchildren are gone when the gateway ${how}`, async t => {
            const gateway = await startGatewayWith(config({ ...stdio({ FAULTY_MARK: mark }), required: true }));
            t.after(() => gateway.stop());
            const peer = await connectPeer('legacy', { http: gateway.mcp }, { capabilities: {} });
            await peer.call('grandchild', {}, PATIENCE);
            assert.ok((await mine()).length >= 2, 'a child and its child');
            const closed = peer.close().catch(() => undefined);
            gateway.child.kill(signal);
            await eventually('none is left', async () => (await mine()).length === 0, 20_000);
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
    const before = await resident(gateway.child.pid);
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
        for (let count = 0; count < 50; count++) assert.ok(await works(peer));
        await peer.close();
    }
    const grown = (await resident(gateway.child.pid)) - before;
    assert.ok(grown < 100, `what nobody reads is not kept without bound: ${grown} MiB`);
});
