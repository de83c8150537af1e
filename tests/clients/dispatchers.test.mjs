// Tools that carry many operations: policy, acceptances, standing rules, metrics and the inbox treat `tool/operation` like a tool.
import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { test } from 'node:test';

import { CLOUD } from '../fixtures/stand-ins/atlassian.mjs';
import { ACCOUNT } from '../fixtures/stand-ins/stripe.mjs';
import { binary, environment, eventually, freePort, run } from './gateway.mjs';
import { startBehind } from './recipe-suite.mjs';

const write = (stripe_api_operation_id, parameters = {}) => ['stripe_api_write', { stripe_api_operation_id, parameters, stripe_context: ACCOUNT, livemode: true }];
const execute = (name, inputs = {}) => ({ name, cloudId: CLOUD, inputs });

/** Returns what becomes of a call: `ran`, the code of its error, or the change that waits. */
async function outcome({ peer, gateway }, [tool, args]) {
    const answer = await peer.call(tool, args);
    if (answer.structuredContent?.status === 'pending') return gateway.change(answer.structuredContent.changeId);
    return answer.isError ? (answer.structuredContent?.code ?? answer.content[0].text) : 'ran';
}

/** Returns the samples of the counter of operations: `[labels, value]`. */
async function counted({ gateway }) {
    const text = await (await fetch(`${gateway.url}/metrics`, { headers: { authorization: `Bearer ${gateway.key}` } })).text();
    const lines = text.split('\n').filter(line => line.startsWith('countersign_operation_calls_total{'));
    return lines.map(line => {
        const [, labels, value] = /\{(.*)\} (\d+)$/.exec(line);
        return [Object.fromEntries(labels.split(',').map(label => label.split('=').map(part => part.replaceAll('"', '')))), Number(value)];
    });
}

test('rules name an operation like a tool', async t => {
    const rules = [
        { name: 'refunds', tools: 'stripe_api_write/PostRefunds', then: 'review' },
        { name: 'no-deletions', tools: 'stripe_api_write/Delete*', then: 'deny' },
        { name: 'products', when: "tool.operation == 'PostProducts'", then: 'deny' },
        { name: 'everything', tools: 'stripe_api_write', then: 'allow' }
    ];
    const behind = await startBehind(t, 'stripe', { settings: { policy: { default: 'deny', rules } } });
    const { fake, gateway, peer } = behind;

    await t.test('a rule for the tool covers its operations', async () => {
        assert.equal(await outcome(behind, write('PostCustomers', { name: 'Cleo' })), 'ran');
        assert.equal(Object.values(fake.state.customers).at(-1).name, 'Cleo');
    });
    await t.test('a rule for an operation comes first', async () => {
        const change = await outcome(behind, write('PostRefunds', { charge: 'ch_Books' }));
        assert.deepEqual([change.review.rule, change.preview.toolOperation], ['refunds', 'PostRefunds']);
        assert.match(JSON.stringify(await outcome(behind, write('DeleteCouponsCoupon', { coupon: 'SPRING' }))), /POLICY_DENIED/);
        assert.match(JSON.stringify(await outcome(behind, write('PostProducts', { name: 'Map' }))), /POLICY_DENIED/);
    });
    await t.test('an unknown operation is reviewed although the tool is allowed, unless it is denied', async () => {
        const before = fake.writes.length;
        const unknown = await outcome(behind, write('PostPayouts', { amount: 100 }));
        assert.deepEqual([unknown.review.mark, unknown.preview.toolOperation], ['OPERATION_UNKNOWN', 'PostPayouts']);
        assert.equal((await outcome(behind, write('postcustomers', { name: 'x' }))).review.mark, 'OPERATION_UNKNOWN');
        assert.match(JSON.stringify(await outcome(behind, write('DeleteAccountsAccount'))), /POLICY_DENIED/);
        assert.equal(fake.writes.length, before);
    });
    await t.test('a denied operation stays denied if the arguments do not name it clearly', async () => {
        const before = fake.writes.length;
        const [tool, args] = write('DeleteCouponsCoupon', { coupon: 'SPRING' });
        for (const unclear of [
            { STRIPE_API_OPERATION_ID: 'PostCustomers' },
            { stripe_api_operation_id: ['DeleteCouponsCoupon'] },
            { stripe_api_operation_id: undefined },
            { stripe_api_operation_id: ' deletecouponscoupon' },
            { extra: 1e20 },
            { extra: Array(20_000).fill(1) },
            { extra: 'x'.repeat(1 << 20) }
        ]) {
            const answer = await outcome(behind, [tool, { ...args, ...unclear }]).catch(String);
            assert.match(JSON.stringify(answer), /POLICY_DENIED/, JSON.stringify(unclear).slice(0, 80));
        }
        assert.equal(fake.writes.length, before);
    });
    await t.test('the name of an operation forges no line of the log', async () => {
        assert.match(JSON.stringify(await outcome(behind, write('Delete\nforged line'))), /POLICY_DENIED/);
        await eventually('the denial is logged', () => gateway.log().includes('forged line'));
        assert.doesNotMatch(gateway.log(), /^forged line/m);
    });
    await t.test('an allowed rule can be tried for an operation', async () => {
        const tried = async operation => (await gateway.api('POST', '/policy/test', { tool: 'stripe_api_write', arguments: write(operation)[1] })).body;
        const [known, unknown] = [await tried('PostRefunds'), await tried('PostPayouts')];
        assert.deepEqual([known.tool, known.verdict, known.rule], ['stripe_api_write/PostRefunds', 'review', 'refunds']);
        assert.deepEqual([unknown.tool, unknown.verdict, unknown.mark], ['stripe_api_write/PostPayouts', 'review', 'OPERATION_UNKNOWN']);
    });
    await t.test('metrics have labels only for operations that the recipe names', async () => {
        for (let n = 0; n < 20; n += 1) await peer.call(...write(`PostInvented${n}`));
        const samples = await counted(behind);
        const of = (operation, verdict) => samples.find(([labels]) => labels.operation === operation && labels.verdict === verdict)?.[1];
        assert.deepEqual([of('PostCustomers', 'allow'), of('PostRefunds', 'review'), of('DeleteCouponsCoupon', 'deny')], [1, 1, 1]);
        assert.ok(of('(unknown)', 'review') >= 22, JSON.stringify(samples));
        assert.deepEqual(samples.filter(([{ operation }]) => /Invented|Payouts|Accounts|postcustomers/.test(operation)), []);
    });
    await t.test('the inbox shows the operation', async () => {
        const { stdout } = await run(binary, ['changes', 'list', '--url', gateway.url], { env: environment({ COUNTERSIGN_KEY: gateway.key }) });
        const { changes } = (await gateway.api('GET', '/changes')).body;
        const refund = changes.find(({ preview }) => preview.toolOperation === 'PostRefunds');
        assert.ok(refund && stdout.includes('Refund the rest of the charge ch_Books'), stdout);
        const shown = await run(binary, ['changes', 'show', refund.id, '--url', gateway.url], { env: environment({ COUNTERSIGN_KEY: gateway.key }) });
        assert.match(shown.stdout, /stripe \/ stripe_api_write\/PostRefunds/);
    });
});

test('one operation is let run, and one is allowed by a standing rule', async t => {
    const behind = await startBehind(t, 'stripe');
    const { fake, gateway } = behind;
    const tools = async () => Object.fromEntries((await gateway.api('GET', '/servers/stripe')).body.tools.map(tool => [tool.name, tool]));
    const { hash } = (await tools())['stripe_api_write/PostProducts'];
    const isPending = async call => typeof (await outcome(behind, call)) === 'object';

    const allowed = await gateway.api('POST', '/servers/stripe/allow', { tools: [{ name: 'stripe_api_write/PostProducts', hash }], reason: 'Products are cheap' });
    assert.equal(allowed.status, 200, JSON.stringify(allowed.body));
    assert.equal(await outcome(behind, write('PostProducts', { name: 'Map' })), 'ran');
    assert.ok(await isPending(write('PostCoupons', { percent_off: 5, duration: 'once' })));
    const described = await tools();
    assert.deepEqual([described['stripe_api_write/PostProducts'].verdict, described['stripe_api_write/PostCoupons'].verdict], ['allow', 'review']);

    const refund = await outcome(behind, write('PostRefunds', { charge: 'ch_Books', amount: 100 }));
    const rule = { verdict: 'allow', arguments: 'any', principal: 'same', for: 3600 };
    const created = await gateway.api('POST', `/changes/${refund.id}/rule`, rule);
    assert.equal(created.status, 200, JSON.stringify(created.body));
    assert.equal(created.body.tool, 'stripe_api_write/PostRefunds');
    assert.equal(await outcome(behind, write('PostRefunds', { charge: 'ch_Books', amount: 200 })), 'ran');
    assert.ok(await isPending(write('PostCoupons', { percent_off: 6, duration: 'once' })));

    const coupon = await outcome(behind, write('PostCoupons', { percent_off: 8, duration: 'once' }));
    const denial = await gateway.api('POST', `/changes/${coupon.id}/rule`, { verdict: 'deny', arguments: 'any', principal: 'same', for: 3600 });
    assert.equal(denial.status, 200, JSON.stringify(denial.body));
    const [tool, args] = write('PostCoupons', { percent_off: 9, duration: 'once' });
    for (const unclear of [{ STRIPE_API_OPERATION_ID: 'PostProducts' }, { extra: 1e20 }, { stripe_api_operation_id: 'POSTCOUPONS' }]) {
        assert.match(JSON.stringify(await outcome(behind, [tool, { ...args, ...unclear }])), /POLICY_DENIED/);
    }
    assert.equal((await gateway.api('POST', `/rules/${denial.body.id}/revoke`, {})).status, 200);

    const unknown = await outcome(behind, write('PostPayouts', { amount: 1 }));
    const refused = await gateway.api('POST', `/changes/${unknown.id}/rule`, rule);
    assert.deepEqual([refused.status, refused.body.code], [403, 'FORBIDDEN']);
    // Even the whole tool does not let an unknown operation run.
    const whole = await gateway.api('POST', '/servers/stripe/allow', { tools: [{ name: 'stripe_api_write', hash }], reason: 'All of it' });
    assert.equal(whole.status, 200, JSON.stringify(whole.body));
    assert.equal(await outcome(behind, write('PostCoupons', { percent_off: 7, duration: 'once' })), 'ran');
    const before = fake.writes.length;
    assert.ok(await isPending(write('PostPayouts', { amount: 1 })));
    assert.equal(fake.writes.length, before);
});

test('one operation is accepted alone', async t => {
    const behind = await startBehind(t, 'hostedAtlassian', { entrySettings: { trust_annotations: false } });
    const { gateway } = behind;
    const read = name => outcome(behind, ['executeRead', execute(name)]);
    const accept = async (action, name) => {
        const { tools } = (await gateway.api('GET', '/servers/atlassian-hosted')).body;
        const { hash } = tools.find(tool => tool.name === name);
        const answer = await gateway.api('POST', `/servers/atlassian-hosted/${action}`, { tools: [{ name, hash }] });
        assert.equal(answer.status, 200, JSON.stringify(answer.body));
    };
    assert.equal((await read('listConfluenceSpaces')).state, 'pending');
    await accept('accept', 'executeRead/listConfluenceSpaces');
    assert.equal(await read('listConfluenceSpaces'), 'ran');
    assert.equal((await read('listJiraProjects')).state, 'pending');
    await accept('revoke', 'executeRead/listConfluenceSpaces');
    assert.equal((await read('listConfluenceSpaces')).state, 'pending');
    // An acceptance of the tool covers its operations, but no unknown one.
    await accept('accept', 'executeRead');
    assert.equal(await read('listJiraProjects'), 'ran');
    assert.equal((await read('exportEverything')).review.mark, 'OPERATION_UNKNOWN');
});

test('a pattern for tools lets no operation run by chance', async t => {
    const rules = [{ name: 'comments', tools: '*Comment*', then: 'allow' }];
    const behind = await startBehind(t, 'hostedAtlassian', { settings: { policy: { default: 'review_all', rules } } });
    const before = behind.fake.writes.length;
    const change = await outcome(behind, ['executeDestructive', execute('deleteJiraComment', { issueIdOrKey: 'CORE-1', commentId: '1' })]);
    assert.equal(change.preview.toolOperation, 'deleteJiraComment');
    assert.equal(behind.fake.writes.length, before);
});

test('operations are told apart until a reviewer consents to other recipes', async t => {
    const rules = [
        { tools: 'stripe_api_write/Delete*', then: 'deny' },
        { tools: 'stripe_api_write', then: 'allow' }
    ];
    // The gateway is started again on this port.
    const listen = `127.0.0.1:${await freePort()}`;
    const behind = await startBehind(t, 'stripe', { settings: { policy: { default: 'deny', rules } }, listen });
    const { fake, gateway } = behind;
    const payout = await outcome(behind, write('PostPayouts', { amount: 100 }));
    const before = fake.writes.length;
    const restartWith = async previews => {
        await gateway.end();
        const config = JSON.parse(await readFile(gateway.file, 'utf8'));
        config.mcpServers.stripe.previews = previews;
        await writeFile(gateway.file, JSON.stringify(config));
        await gateway.relaunch();
        await eventually('the tools are listed', async () => ((await gateway.api('GET', '/servers/stripe')).body.tools?.length ?? 0) > 0);
        return (await gateway.api('GET', '/reload')).body.waiting;
    };
    const own = { stripe_api_write: { operation: 'arguments.stripe_api_operation_id', summary: 'Write', operations: { DeleteCouponsCoupon: {} } } };
    for (const previews of [own, 'none']) {
        const waiting = await restartWith(previews);
        assert.deepEqual(waiting.loosens.map(({ key }) => key), ['mcpServers.stripe.previews']);
        assert.match(JSON.stringify(await outcome(behind, write('DeleteCouponsCoupon', { coupon: 'SPRING' }))), /POLICY_DENIED/);
    }
    assert.equal(fake.writes.length, before);

    const { digest } = (await gateway.api('GET', '/reload')).body.waiting;
    assert.equal((await gateway.api('POST', '/reload/consent', { digest, verdict: 'accept' })).status, 200);
    // The change shows an operation that the recipe no longer finds.
    const refused = await gateway.api('POST', `/changes/${payout.id}/rule`, { verdict: 'deny', arguments: 'any', principal: 'same', for: 3600 });
    assert.deepEqual([refused.status, refused.body.code], [409, 'VERSION_CONFLICT']);
});
