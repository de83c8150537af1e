// Tests `own_agents: allow`: people approve what their own agents proposed with access tokens, in the dashboard and nowhere else.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';

import { Person } from './command-line.mjs';
import { binary, environment, eventually, run } from './gateway.mjs';
import { Browser, startWithProvider } from './signed-in.mjs';

describe('a rule for changes of own agents', () => {
    let it;
    let alice;
    before(async () => {
        it = await startWithProvider({ policy: { rules: [{ tools: 'create_*', then: 'review' }] }, acceptsTokens: true });
        alice = await new Browser(it.gateway).signIn(it.provider, 'alice');
    });
    after(() => it.stop());

    const token = (client_id, scope, subject = 'alice', claims = {}) => it.provider.token(subject, { aud: it.gateway.url, client_id, scope, ...claims });
    const createKey = async (role, name) => {
        const subject = ['--subject', it.provider.issuer, 'alice'];
        return (await run(binary, ['keys', 'create', '--role', role, '--name', name, ...subject, '--data', it.gateway.data], { env: environment() })).stdout.trim();
    };

    /** Proposes an issue with this credential. Returns the id of the change. */
    async function propose(credential, title) {
        const call = async (name, args) => {
            const headers = { 'content-type': 'application/json', authorization: `Bearer ${credential}` };
            const response = await fetch(`${it.gateway.url}/tools/${name}`, { method: 'POST', headers, body: JSON.stringify(args) });
            return (await response.json()).structuredContent;
        };
        const { projects } = await call('list_projects', {});
        return (await call('create_issue', { projectId: projects[0].id, title, type: 'Story' })).changeId;
    }

    const proposeWithToken = async title => propose(await token('robot', 'tools:read tools:propose'), title);

    /** Approves with a bearer credential, which must be refused to the proposer. */
    async function failToApprove(id, credential) {
        const { version, digest } = await it.gateway.change(id);
        const headers = { 'content-type': 'application/json', authorization: `Bearer ${credential}` };
        const response = await fetch(`${it.gateway.url}/api/changes/${id}/decision`, { method: 'POST', headers, body: JSON.stringify({ decision: 'approve', version, digest }) });
        await assertSelfApproval(response);
    }

    async function assertSelfApproval(response) {
        const problem = await response.json();
        assert.deepEqual([response.status, problem.code], [403, 'SELF_APPROVAL'], JSON.stringify(problem));
    }

    test('it is off by default, and turning it on waits for consent', async () => {
        const { gateway } = it;
        const id = await proposeWithToken('Before the rule');
        const config = JSON.parse(await readFile(gateway.file, 'utf8'));
        config.policy.rules[0].own_agents = 'allow';
        await gateway.reconfigure(config);
        const { waiting } = await eventually('the rule waits', async () => {
            const { body } = await gateway.api('GET', '/reload');
            return body.waiting && body;
        });
        assert.match(JSON.stringify(waiting), /own agents allowed/);
        const meanwhile = await proposeWithToken('While the rule waits');
        const consented = await gateway.api('POST', '/reload/consent', { digest: waiting.digest, verdict: 'accept' });
        assert.deepEqual([consented.status, consented.body.waiting], [200, null]);
        // A change keeps the terms with which it was proposed.
        for (const each of [id, meanwhile]) await assertSelfApproval(await alice.decide(each, 'approve'));
    });

    test('the person decides in the dashboard', async () => {
        const { gateway, provider } = it;
        const id = await proposeWithToken('By an agent of alice');
        const change = await gateway.change(id);
        assert.deepEqual([change.proposer.principal, change.proposer.owner], [`${provider.issuer}#alice#robot`, `${provider.issuer}#alice`]);
        const { decisions } = await alice.approve(id);
        assert.deepEqual(decisions.map(({ reviewer }) => reviewer), [`${provider.issuer}#alice`]);
        await gateway.reached(id, 'applied');
    });

    test('no bearer credential of the person decides', async t => {
        const { gateway, provider } = it;
        const id = await proposeWithToken('Not for other credentials');
        await failToApprove(id, await token('robot', 'changes:decide'));
        await failToApprove(id, await token('phone', 'changes:decide'));
        await failToApprove(id, await token('phone', 'admin'));
        await failToApprove(id, await token(undefined, 'changes:decide'));
        await failToApprove(id, await createKey('admin', 'alice-laptop'));
        const terminal = await Person.start(t, gateway);
        const login = await terminal.logIn(t, provider, 'alice');
        assert.equal(login.code, 0, login.stderr);
        await assert.rejects(terminal.run('changes', 'approve', id), error => /proposer/i.test(error.stderr));
        await failToApprove(id, (await terminal.entry()).accessToken);
        assert.deepEqual((await gateway.change(id)).decisions, []);
        // Another person may decide with each of them.
        const { version, digest } = await gateway.change(id);
        const bob = Object.assign(Object.create(gateway), { key: await token('phone', 'changes:decide', 'bob') });
        const decided = await bob.api('POST', `/changes/${id}/decision`, { decision: 'approve', version, digest });
        assert.equal(decided.status, 200, JSON.stringify(decided.body));
        await gateway.reached(id, 'applied');
    });

    test('another subject of the person in access tokens does not decide either', async () => {
        const { gateway, provider } = it;
        // The access tokens of Okta have the login as `sub`, and the `sub` of ID tokens as `uid`.
        const uid = await propose(await token('robot', 'tools:read tools:propose', 'alice@id.example', { uid: 'alice' }), 'By a token with uid');
        const alone = await propose(await token('robot', 'tools:read tools:propose', 'alice@id.example', { uid: 'other' }), 'By another uid');
        // Both tokens of Entra ID have the same `oid`.
        provider.accounts.dora = { name: 'Dora', groups: ['platform'], oid: 'object-7' };
        const dora = await new Browser(gateway).signIn(provider, 'dora');
        const oid = await propose(await token('robot', 'tools:read tools:propose', 'dora-of-robot', { oid: 'object-7' }), 'By a token with oid');
        await assertSelfApproval(await alice.decide(uid, 'approve'));
        await assertSelfApproval(await dora.decide(oid, 'approve'));
        assert.deepEqual((await dora.me()).otherNames, [`${provider.issuer}#object-7`]);
        // Each of them may decide on the changes of others.
        await alice.approve(oid);
        await dora.approve(uid);
        await alice.approve(alone);
        for (const id of [uid, oid, alone]) await gateway.reached(id, 'applied');
        it.dora = dora;
    });

    test('no standing rule serves another subject of its creator', async () => {
        const { gateway, dora } = it;
        const ask = (person, path, body) => person.post(`/api${path}`, body);
        const any = { arguments: 'any', principal: 'any', for: 3600 };
        const proposeAs = async (subject, claims, title) => propose(await token('robot', 'tools:read tools:propose', subject, claims), title);
        const own = await proposeAs('dora-of-robot', { oid: 'object-7' }, 'For a rule');
        await assertSelfApproval(await ask(dora, `/changes/${own}/rule`, { verdict: 'allow', ...any }));
        const denial = await ask(alice, `/changes/${own}/rule`, { verdict: 'deny', arguments: 'exact', principal: 'same' });
        const { id: denied } = await denial.json();
        await assertSelfApproval(await ask(dora, `/rules/${denied}/revoke`, {}));
        assert.equal((await ask(alice, `/rules/${denied}/revoke`, {})).status, 200);
        // The rule that she creates from the change of somebody else does not apply to her own agent.
        const other = await proposeAs('bob', {}, 'By an agent of bob');
        const { id: allowed } = await (await ask(dora, `/changes/${other}/rule`, { verdict: 'allow', ...any })).json();
        assert.equal(await proposeAs('bob', {}, 'Without review'), undefined);
        assert.match(await proposeAs('dora-of-robot', { oid: 'object-7' }, 'With a review'), /^chg_/);
        assert.equal((await ask(dora, `/rules/${allowed}/revoke`, {})).status, 200);
    });

    test('what the keys of the person propose needs somebody else', async () => {
        const { gateway, provider } = it;
        const id = await propose(await createKey('agent', 'alice-agent'), 'By a key of alice');
        await assertSelfApproval(await alice.decide(id, 'approve'));
        const bob = await new Browser(gateway).signIn(provider, 'bob');
        await bob.approve(id);
        await gateway.reached(id, 'applied');
    });
});
