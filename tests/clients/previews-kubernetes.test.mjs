// Tries every shipped recipe for Kubernetes with the real servers kubernetes-mcp-server and mcp-server-kubernetes on a fake of the
// API server.
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';

import { shareServer, startBehind, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS } from './vendors.mjs';

const WEB = { name: 'web', namespace: 'shop' };
const DEPLOYMENT = { apiVersion: 'apps/v1', kind: 'Deployment', ...WEB };
const RESOURCE = { resourceType: 'deployment', ...WEB };

const object = (state, apiVersion, plural, name, namespace = 'shop') => state.objects[[apiVersion, plural, namespace, name].join(' ')];
const web = state => object(state, 'apps/v1', 'deployments', 'web');
const settings = state => object(state, 'v1', 'configmaps', 'settings');
const node = state => object(state, 'v1', 'nodes', 'node-1', '');
const revisions = state => Object.values(state.objects).filter(({ type }) => type === 'helm.sh/release.v1').map(({ metadata }) => metadata.name);

const configMap = (name, data) => `apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: ${name}\n  namespace: shop\ndata:\n${Object.entries(data).map(([key, value]) => `  ${key}: ${value}\n`).join('')}`;
const image = tag => `apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n  namespace: shop\nspec:\n  template:\n    spec:\n      containers:\n      - name: web\n        image: shop/web:${tag}\n`;

/** Creates a chart with a config map, and returns its folder. */
async function createChart(t) {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-chart-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    await mkdir(path.join(folder, 'templates'));
    await writeFile(path.join(folder, 'Chart.yaml'), 'apiVersion: v2\nname: demo\nversion: 0.1.0\n');
    await writeFile(path.join(folder, 'values.yaml'), 'greeting: hello\n');
    await writeFile(path.join(folder, 'templates/greeting.yaml'), 'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\ndata:\n  greeting: {{ .Values.greeting }}\n');
    return folder;
}

const startServer = shareServer('kubernetes');

test('every recipe for kubernetes-mcp-server shows what its tool does', async t => {
    const behind = await startServer();
    const chart = await createChart(t);
    const tried = new TriedServer({ title: 'Kubernetes: kubernetes-mcp-server', how: `The real server ${VENDORS.kubernetes.package} on a fake of the API server with server-side apply.` });
    await tryCalls(t, behind, [
        ['resources_create_or_update', { resource: configMap('settings', { currency: 'EUR' }) }, { Object: ['-  currency: CHF', '+  currency: EUR'] }, s => [settings(s).data.currency, 'EUR']],
        ['resources_create_or_update, list', { resource: image('2.0') }, { Object: ['-        image: shop/web:1.0', '+        image: shop/web:2.0'] }, s => [web(s).spec.template.spec.containers, [{ name: 'web', image: 'shop/web:2.0', env: [{ name: 'MODE', value: 'live' }] }]]],
        ['resources_create_or_update, new', { resource: JSON.stringify({ apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'fresh', namespace: 'shop' }, data: { a: 'b' } }) }, { Object: ['+  a: b'] }, s => [object(s, 'v1', 'configmaps', 'fresh').data, { a: 'b' }]],
        ['resources_create_or_update, several', { resource: `${configMap('one', { a: 'b' })}---\n${configMap('settings', { currency: 'USD' })}` }, { 'ConfigMap one': ['+  a: b'], 'ConfigMap settings': ['+  currency: USD'] }, s => [settings(s).data.currency, 'USD']],
        ['resources_scale', { ...DEPLOYMENT, scale: 5 }, { Scale: ['-replicas: 2', '+replicas: 5'] }, s => [web(s).spec.replicas, 5]],
        ['pods_run', { image: 'nginx', name: 'once', namespace: 'shop' }, { 'Pod: image': ['+nginx'] }, s => [object(s, 'v1', 'pods', 'once').spec.containers[0].image, 'nginx']],
        ['pods_delete', { name: 'once', namespace: 'shop' }, { Pod: ['-  name: once'] }, s => [object(s, 'v1', 'pods', 'once'), undefined]],
        ['resources_delete', { apiVersion: 'v1', kind: 'ConfigMap', name: 'fresh', namespace: 'shop' }, { Object: ['-  a: b'] }, s => [object(s, 'v1', 'configmaps', 'fresh'), undefined]],
        ['helm_install', { chart, name: 'demo', namespace: 'shop' }, { Release: ['+name: demo'] }, s => [revisions(s), ['sh.helm.release.v1.demo.v1']]],
        ['helm_uninstall', { name: 'demo', namespace: 'shop' }, { Release: ['-name: demo'] }, s => [revisions(s), []]]
    ], tried);
    await t.test('the page about the servers tried says so', () => tried.check());
    await t.test('pods_exec shows its pod', async () => {
        const change = await behind.propose('pods_exec', { name: 'web-1', namespace: 'shop', command: ['ls', '/'] });
        assert.equal(change.preview.failed, undefined);
        assert.ok(change.diff.fields.some(({ label }) => label === 'Pod'));
        assert.equal(change.summary, 'Run in the pod web-1 in shop: ls /');
    });
});

test('every recipe for mcp-server-kubernetes shows what its tool does', async t => {
    const behind = await startBehind(t, 'kubectl');
    const chart = await createChart(t);
    const context = behind.definitions.find(({ name }) => name === 'kubectl_context');
    assert.equal(context.annotations.readOnlyHint, true, 'kubectl_context can set the context of later calls');
    const how = `The real server ${VENDORS.kubectl.package} with kubectl 1.35 and Helm 4.1 on a fake of the API server. The annotation of \`kubectl_context\` is wrong: it claims that the tool is read-only, but the tool can set the context of later calls.`;
    const tried = new TriedServer({ title: 'Kubernetes: mcp-server-kubernetes', how });
    await tryCalls(t, behind, [
        ['kubectl_apply', { manifest: configMap('settings', { currency: 'EUR' }), namespace: 'shop' }, { Object: ['-  currency: CHF', '+  currency: EUR'] }, s => [settings(s).data.currency, 'EUR']],
        ['kubectl_apply, several', { manifest: `${configMap('one', { a: 'b' })}---\n${configMap('two', { c: 'd' })}`, namespace: 'shop' }, { 'ConfigMap one': ['+  a: b'] }, s => [object(s, 'v1', 'configmaps', 'two').data, { c: 'd' }]],
        ['kubectl_create', { manifest: configMap('fresh', { a: 'b' }), namespace: 'shop' }, { Object: ['+  a: b'] }, s => [object(s, 'v1', 'configmaps', 'fresh').data, { a: 'b' }]],
        ['kubectl_create, by name', { resourceType: 'configmap', name: 'literal', namespace: 'shop', fromLiteral: ['a=b'] }, { Object: ['+name: literal'] }, s => [object(s, 'v1', 'configmaps', 'literal').data, { a: 'b' }]],
        ['kubectl_patch', { ...RESOURCE, patchType: 'merge', patchData: { spec: { replicas: 4 } } }, { Object: ['-  replicas: 2', '+  replicas: 4'] }, s => [web(s).spec.replicas, 4]],
        ['kubectl_patch, strategic', { ...RESOURCE, patchData: { spec: { template: { spec: { containers: [{ name: 'web', image: 'shop/web:3.0' }] } } } } }, { Object: ['+        image: shop/web:3.0'] }, s => [web(s).spec.template.spec.containers[0].env.length, 1]],
        ['kubectl_scale', { ...WEB, replicas: 6, resourceType: 'deployment' }, { Scale: ['-replicas: 4', '+replicas: 6'] }, s => [web(s).spec.replicas, 6]],
        ['kubectl_rollout, pause', { ...RESOURCE, subCommand: 'pause' }, { Rollout: ['-paused: false', '+paused: true'] }, s => [web(s).spec.paused, true]],
        ['kubectl_rollout, resume', { ...RESOURCE, subCommand: 'resume' }, { Rollout: ['-paused: true', '+paused: false'] }, s => [web(s).spec.paused ?? false, false]],
        ['kubectl_rollout, restart', { ...RESOURCE, subCommand: 'restart' }, { Rollout: [' - shop/web:3.0'] }, s => ['kubectl.kubernetes.io/restartedAt' in web(s).spec.template.metadata.annotations, true]],
        ['node_management, cordon', { operation: 'cordon', nodeName: 'node-1' }, { Node: ['-schedulable: true', '+schedulable: false'] }, s => [node(s).spec.unschedulable, true]],
        ['node_management, uncordon', { operation: 'uncordon', nodeName: 'node-1' }, { Node: ['-schedulable: false', '+schedulable: true'] }, s => [node(s).spec.unschedulable ?? false, false]],
        ['kubectl_delete', { resourceType: 'configmap', name: 'fresh', namespace: 'shop' }, { Object: ['-  a: b'] }, s => [object(s, 'v1', 'configmaps', 'fresh'), undefined]],
        ['kubectl_delete, by label', { resourceType: 'pods', labelSelector: 'app=web', namespace: 'shop' }, { Objects: ['-  "shop/web-1"'] }, s => [object(s, 'v1', 'pods', 'web-1'), undefined]],
        ['kubectl_generic/scale', { command: 'scale', ...RESOURCE, flags: { replicas: 3 } }, { Scale: ['-replicas: 6', '+replicas: 3'] }, s => [web(s).spec.replicas, 3]],
        ['kubectl_generic/patch', { command: 'patch', ...RESOURCE, flags: { patch: JSON.stringify({ spec: { replicas: 2 } }) } }, { Object: ['-  replicas: 3', '+  replicas: 2'] }, s => [web(s).spec.replicas, 2]],
        ['kubectl_generic/patch, merge', { command: 'patch', ...RESOURCE, flags: { type: 'merge', patch: JSON.stringify({ spec: { replicas: 4 } }) } }, { Object: ['-  replicas: 2', '+  replicas: 4'] }, s => [web(s).spec.replicas, 4]],
        ['kubectl_generic/set', { command: 'set', subCommand: 'image', ...RESOURCE, args: ['web=shop/web:4.0'] }, { Images: ['-- web=shop/web:3.0', '+- web=shop/web:4.0'] }, s => [web(s).spec.template.spec.containers[0].image, 'shop/web:4.0']],
        ['kubectl_generic/rollout', { command: 'rollout', subCommand: 'pause', ...RESOURCE }, { Rollout: ['-paused: false', '+paused: true'] }, s => [web(s).spec.paused, true]],
        ['kubectl_generic/rollout, resume', { command: 'rollout', subCommand: 'resume', ...RESOURCE }, { Rollout: ['-paused: true', '+paused: false'] }, s => [web(s).spec.paused ?? false, false]],
        ['kubectl_generic/rollout, restart', { command: 'rollout', subCommand: 'restart', ...RESOURCE }, { Rollout: [] }, s => ['kubectl.kubernetes.io/restartedAt' in web(s).spec.template.metadata.annotations, true]],
        ['kubectl_generic/cordon', { command: 'cordon', name: 'node-1' }, { Node: ['-schedulable: true', '+schedulable: false'] }, s => [node(s).spec.unschedulable, true]],
        ['kubectl_generic/uncordon', { command: 'uncordon', name: 'node-1' }, { Node: ['-schedulable: false', '+schedulable: true'] }, s => [node(s).spec.unschedulable ?? false, false]],
        ['kubectl_generic/delete', { command: 'delete', resourceType: 'configmap', name: 'literal', namespace: 'shop' }, { Object: ['-  a: b'] }, s => [object(s, 'v1', 'configmaps', 'literal'), undefined]],
        ['install_helm_chart', { name: 'demo', chart, namespace: 'shop' }, { Revisions: ['+  "sh.helm.release.v1.demo.v1"'] }, s => [object(s, 'v1', 'configmaps', 'demo').data.greeting, 'hello']],
        ['upgrade_helm_chart', { name: 'demo', chart, namespace: 'shop', values: { greeting: 'hi' } }, { Revisions: ['+  "sh.helm.release.v1.demo.v2"'], values: ['+{"greeting":"hi"}'] }, s => [object(s, 'v1', 'configmaps', 'demo').data.greeting, 'hi']],
        ['uninstall_helm_chart', { name: 'demo', namespace: 'shop' }, { Revisions: ['-  "sh.helm.release.v1.demo.v1",'] }, s => [revisions(s), []]]
    ], tried);
    await t.test('the page about the servers tried says so', () => tried.check());
    await t.test('kubectl_generic shows the arguments of other commands', async () => {
        const other = await behind.propose('kubectl_generic', { command: 'delete', resourceType: 'pods', args: ['--all'] });
        assert.match(other.preview.failed, /no variant/);
        const read = await behind.propose('kubectl_generic', { command: 'get', resourceType: 'pods', namespace: 'shop' });
        assert.deepEqual([read.preview.kind, read.preview.failed, read.review.mark], ['arguments', undefined, undefined]);
        const unknown = await behind.propose('kubectl_generic', { command: 'proxy' });
        assert.deepEqual([unknown.review.mark, unknown.preview.toolOperation], ['OPERATION_UNKNOWN', 'proxy']);
        const filledIn = await behind.propose('kubectl_generic', { command: 'delete', ...RESOURCE, subCommand: '', allNamespaces: false, flags: {}, args: [] });
        assert.equal(filledIn.preview.failed, undefined);
    });
    for (const [tool, args] of [
        ['kubectl_generic', { command: 'delete', ...RESOURCE, subCommand: 'namespace' }],
        ['kubectl_generic', { command: 'delete', ...RESOURCE, flags: { namespace: 'other' } }],
        ['kubectl_generic', { command: 'delete', ...RESOURCE, allNamespaces: true }],
        ['kubectl_generic', { command: 'delete', ...RESOURCE, name: '--all' }],
        ['kubectl_generic', { command: 'delete', resourceType: 'deployment', name: 'web' }],
        ['kubectl_generic', { command: 'scale', ...RESOURCE, flags: { replicas: 3, selector: 'app=web' } }],
        ['kubectl_generic', { command: 'scale', ...RESOURCE, flags: { replicas: 3 }, args: ['other'] }],
        ['kubectl_generic', { command: 'patch', ...RESOURCE, flags: { patch: '{}', subresource: 'scale' } }],
        ['kubectl_generic', { command: 'patch', ...RESOURCE, flags: { patch: '{}' }, args: ['-n', 'other'] }],
        ['kubectl_generic', { command: 'set', subCommand: 'image', ...RESOURCE, args: ['*=shop/web:9.0'] }],
        ['kubectl_generic', { command: 'set', subCommand: 'image', ...RESOURCE, args: ['web=shop/web:9.0', 'deployment/other'] }],
        ['kubectl_generic', { command: 'set', subCommand: 'image', ...RESOURCE, args: ['web=shop/web:9.0', 'web=other'] }],
        ['kubectl_generic', { command: 'rollout', subCommand: 'undo', ...RESOURCE, flags: { 'to-revision': 1 } }],
        ['kubectl_generic', { command: 'cordon', name: 'node-1', flags: { selector: 'a=b' } }],
        ['kubectl_generic', { command: 'cordon', name: 'node-1', subCommand: 'node-2' }],
        ['kubectl_delete', { ...RESOURCE, manifest: configMap('settings', {}) }],
        ['kubectl_delete', { ...RESOURCE, allNamespaces: true }],
        ['kubectl_create', { resourceType: 'configmap', name: 'harmless', filename: '/tmp/other.yaml' }],
        ['kubectl_apply', { manifest: '', filename: '/tmp/other.yaml' }]
    ]) {
        await t.test(`${tool} has no preview that leaves out a part: ${JSON.stringify(args)}`, async () => {
            const change = await behind.propose(tool, args);
            assert.match(change.preview.failed ?? 'it did not fail', /no variant/);
        });
    }
    await t.test('kubectl_create shows what a deployment runs', async () => {
        const { diff } = await behind.propose('kubectl_create', { resourceType: 'deployment', name: 'miner', namespace: 'shop', image: 'other/miner' });
        assert.ok(diff.fields.some(({ lines }) => lines?.some(({ text }) => text.includes('image: other/miner'))), JSON.stringify(diff));
    });
    await t.test('exec_in_pod shows its pod', async () => {
        const change = await behind.propose('exec_in_pod', { name: 'literal', namespace: 'shop', command: ['ls', '/'] });
        // There is no such pod.
        assert.match(change.preview.failed, /not found/);
    });
});

test('changes in the cluster meanwhile make a change stale', async t => {
    const behind = await startServer();
    const touch = of => of.metadata.resourceVersion += '0';
    await tryConcurrentChanges(t, behind, [
        ['resources_create_or_update', { resource: configMap('settings', { currency: 'EUR' }) }, s => (settings(s).data.currency = 'USD'), { Object: ['-  currency: USD'] }],
        ['resources_scale', { ...DEPLOYMENT, scale: 5 }, s => (web(s).spec.replicas = 3), { Scale: ['-replicas: 3', '+replicas: 5'] }],
        ['resources_delete', { apiVersion: 'v1', kind: 'ConfigMap', name: 'settings', namespace: 'shop' }, s => (settings(s).data.more = 'x'), { Object: ['-  more: x'] }]
    ]);
    await t.test('what a cluster changes by itself does not', async () => {
        const change = await behind.propose('resources_scale', { ...DEPLOYMENT, scale: 7 });
        touch(web(behind.fake.state));
        web(behind.fake.state).status.readyReplicas = 0;
        assert.equal((await behind.apply(change)).verification.verified, 'matches');
    });
});

test('strange answers of the cluster give no preview, and nothing is written', async t => {
    const behind = await startServer();
    settings(behind.fake.state).data.large = 'x'.repeat(6 << 20);
    const many = Array.from({ length: 51 }, (_, n) => configMap(`m${n}`, { a: 'b' })).join('---\n');
    await tryStrangeAnswers(t, behind, [
        ['resources_create_or_update', { resource: configMap('settings', { a: 'b' }) }, 'nonsense', /resources_get/],
        ['resources_create_or_update', { resource: configMap('settings', { a: 'b' }) }, 'normal', /resources_get|large|long|limit/],
        ['resources_create_or_update', { resource: 'kind: [' }, 'normal', /YAML/],
        ['resources_create_or_update', { resource: many }, 'normal', /50/],
        ['resources_scale', { ...DEPLOYMENT, name: 'none', scale: 1 }, 'normal', /not found/]
    ]);
});

test('a call that the cluster accepts without doing anything is noticed', async t => {
    const behind = await startServer();
    await trySilentWrites(t, behind, [
        ['resources_create_or_update', { resource: configMap('settings', { currency: 'EUR' }) }],
        ['resources_scale', { ...DEPLOYMENT, scale: 5 }],
        ['pods_delete', { name: 'web-1', namespace: 'shop' }]
    ]);
});
