// Tests all combinations with SDK clients: clients of both eras over HTTP, WebSocket and stdio, in front of a gateway whose
// upstream speaks both eras or only one of them, over HTTP or as a local command. Each client must see the same as with a
// direct connection to the fixture.
//
// COUNTERSIGN_MATRIX selects combinations: "kind=legacy upstream=stdio front=ws era=modern".
import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';

import { KINDS, inFrontOf, overHttp, overStdio, startFixture, startGatewayWith } from './fixture.mjs';
import { binary, environment, temporaryData } from './gateway.mjs';
import { LIMITED_STEPS, STEPS, observer } from './observe.mjs';

const selection = Object.fromEntries((process.env.COUNTERSIGN_MATRIX ?? '').split(' ').filter(Boolean).map(pair => pair.split('=')));
const selected = (key, values) => values.filter(value => value === (selection[key] ?? value));

const ERAS = selected('era', ['legacy', 'modern']);
const UPSTREAMS = {
    http: async kind => {
        const fixture = await startFixture(kind);
        return { server: overHttp(fixture.url), stop: () => fixture.stop() };
    },
    stdio: async kind => {
        const folder = await temporaryData();
        return { server: overStdio(kind, path.join(folder, 'state.json')), stop: () => rm(folder, { recursive: true }) };
    },
    // Only old servers use these transports: HTTP + SSE of 2024-11-05, and WebSocket, which is in no revision.
    sse: async kind => {
        const fixture = await startFixture(kind);
        return { server: { url: `${fixture.url}/sse`, transport: 'sse' }, stop: () => fixture.stop() };
    },
    ws: async kind => {
        const fixture = await startFixture(kind);
        return { server: { url: `${fixture.url.replace('http', 'ws')}/ws` }, stop: () => fixture.stop() };
    }
};
const OLD = ['sse', 'ws'];
const FRONTS = {
    http: gateway => ({ http: gateway.mcp }),
    ws: gateway => ({ ws: new URL(`${gateway.url.replace('http', 'ws')}/ws`) }),
    stdio: gateway => ({ command: binary, args: ['stdio', '--data', gateway.data], env: environment() })
};

/** Removes what the gateway adds to the lists of the fixture. */
function withoutGateway(lists, reference) {
    const keep = (list, names) => Object.fromEntries(Object.entries(list).filter(([name]) => name in names));
    return Object.fromEntries(Object.entries(reference).map(([kind, names]) => [kind, keep(lists[kind], names)]));
}

/** Combinations run in parallel, each with its own server and gateway. The clients of one gateway run one after another. */
const AT_ONCE = 5;

test('all combinations of eras and transports see the same', { concurrency: AT_ONCE }, async t => {
    // The reference is what a client of each era sees with a direct connection.
    const reference = {};
    const fixture = await startFixture('both');
    t.after(() => fixture.stop());
    for (const era of ERAS) {
        reference[era] = await observer(era, () => ({ http: new URL(`${fixture.url}/mcp`) }));
        await t.test(`the reference of the ${era} client has no error`, () => {
            for (const [name, { thrown }] of reference[era]) assert.equal(thrown, undefined, `${name}: ${thrown?.stack}`);
        });
    }

    const cells = [];
    for (const upstream of selected('upstream', Object.keys(UPSTREAMS))) {
        for (const kind of selected('kind', Object.keys(KINDS))) {
            if (OLD.includes(upstream) && kind !== 'legacy') continue;
            const cell = t.test(`upstream ${kind} over ${upstream}`, { concurrency: 1 }, async t => {
                const { server, stop } = await UPSTREAMS[upstream](kind);
                t.after(stop);
                const gateway = await startGatewayWith(inFrontOf(server));
                t.after(() => gateway.stop());
                t.after(() => !t.passed && process.env.COUNTERSIGN_SHOW_LOG && console.log(gateway.log()));
                for (const era of ERAS) {
                    for (const front of selected('front', Object.keys(FRONTS))) {
                        await t.test(`a ${era} client over ${front}`, async t => {
                            const seen = await observer(era, () => FRONTS[front](gateway));
                            for (const [name] of [...STEPS, ...LIMITED_STEPS]) {
                                await t.test(name, () => {
                                    const { value, thrown } = seen.get(name);
                                    if (thrown) throw thrown;
                                    const expected = reference[era].get(name).value;
                                    assert.deepEqual(name === 'lists' ? withoutGateway(value, expected) : value, expected);
                                });
                            }
                        });
                    }
                }
            });
            cells.push(cell);
        }
    }
    await Promise.all(cells);
});
