// Tests the Helm chart: its form by the schemas of Kubernetes and of the chart itself, and the commands and configurations in it,
// started as processes.
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { pipeline } from 'node:stream';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { startPostgres } from '../clients/cluster.mjs';
import { Reviewer, eventually, freePort, repository, run } from '../clients/gateway.mjs';
import { ContainerProcess, askPython } from './container-process.mjs';
import { approveFirstWrite, proposeWrite } from './first-write.mjs';
import { buildPackages } from './installed.mjs';

const POSTGRESQL = { store: { type: 'postgresql', postgresql: { existingSecret: 'database' } } };
const ACCEPTED = {
    'one node on SQLite': {},
    'one node with servers and another image': {
        image: { tools: true, tag: '9.9.9' },
        config: { mcpServers: { files: { command: 'npx', args: ['-y', 'server', '/srv'] } }, policy: { default: 'review_all' } },
        envFrom: [{ secretRef: { name: 'tickets' } }],
        extraVolumes: [{ name: 'srv', persistentVolumeClaim: { claimName: 'srv' } }],
        extraVolumeMounts: [{ name: 'srv', mountPath: '/srv' }],
        nodeSelector: { disktype: 'ssd' },
        tolerations: [{ key: 'dedicated', operator: 'Exists', effect: 'NoSchedule' }],
        persistence: { storageClass: 'fast', size: '10Gi' }
    },
    'one node with TLS behind a load balancer': {
        tls: { existingSecret: 'certificate' },
        publicUrl: 'https://gateway.example.com',
        port: 8443,
        service: { type: 'LoadBalancer', port: 443, annotations: { 'example.com/internal': 'true' } }
    },
    'three nodes on PostgreSQL behind an ingress': {
        ...POSTGRESQL,
        replicas: 3,
        publicUrl: 'https://gateway.example.com',
        ingress: { enabled: true, className: 'nginx', tlsSecret: 'gateway-tls', annotations: { 'nginx.ingress.kubernetes.io/proxy-read-timeout': '330' } }
    },
    'nodes with a password in a secret and without volumes': {
        store: {
            type: 'postgresql',
            postgresql: { existingSecret: 'database', url: 'postgres://countersign:${DB_PASSWORD}@db/countersign', caSecret: 'authority' }
        },
        replicas: 2,
        persistence: { enabled: false },
        podDisruptionBudget: { enabled: false },
        preStopSleepSeconds: 0
    },
    'nodes with metrics and closed networks': {
        ...POSTGRESQL,
        replicas: 2,
        fullnameOverride: 'gateway',
        metrics: { serviceMonitor: { enabled: true, keySecret: 'prometheus', labels: { release: 'prometheus' } } },
        networkPolicy: {
            from: [{ namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'ingress-nginx' } } }],
            egress: [{ to: [{ ipBlock: { cidr: '10.0.0.0/8' } }], ports: [{ port: 5432, protocol: 'TCP' }] }]
        }
    },
    'TLS with metrics, without policies': {
        tls: { existingSecret: 'certificate' },
        networkPolicy: { enabled: false },
        metrics: { serviceMonitor: { enabled: true, keySecret: 'prometheus', interval: '1m' } },
        serviceAccountName: 'gateway',
        priorityClassName: 'high',
        imagePullSecrets: [{ name: 'registry' }]
    }
};
const REFUSED = {
    'two nodes on SQLite': [{ replicas: 2 }, /replicas/],
    'SQLite without a volume': [{ persistence: { enabled: false } }, /persistence/],
    'PostgreSQL without a secret': [{ store: { type: 'postgresql' } }, /existingSecret/],
    'an unknown key': [{ replica: 2 }, /replica/],
    'a key of the configuration that another value sets': [{ config: { listen: '0.0.0.0:1' } }, /'listen'/],
    'another store': [{ store: { type: 'mysql' } }, /store/],
    'a port below 1024': [{ port: 443 }, /port/],
    'a public address with a path': [{ publicUrl: 'https://gateway.example.com/countersign' }, /publicUrl/],
    'metrics without a key': [{ metrics: { serviceMonitor: { enabled: true } } }, /keySecret/],
    'an ingress without a host': [{ ingress: { enabled: true } }, /name the host/]
};

let folder;
let packages;
let answer;

before(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-chart-'));
    packages = await buildPackages(path.join(folder, 'build'), 'chart');
    answer = await askPython([], {
        chart: packages.chart[0],
        source: path.join(repository, 'config/packages/chart'),
        versions: ['1.30', '1.37'],
        accepted: ACCEPTED,
        refused: Object.fromEntries(Object.entries(REFUSED).map(([name, [values]]) => [name, values]))
    });
});

after(() => rm(folder, { recursive: true, force: true }));

const documentsOf = (name, kind) => answer.rendered[name].filter(document => document.kind === kind);
const only = (name, kind) => {
    const documents = documentsOf(name, kind);
    assert.equal(documents.length, 1, `${name}: ${kind}`);
    return documents[0];
};

/** Creates the container of a pod from the rendered documents, with the values of secrets that Kubernetes would fill in. */
async function podContainer(name, documents, secrets) {
    const { spec } = documents.find(({ kind }) => kind === 'StatefulSet').spec.template;
    const [container] = spec.containers;
    const root = path.join(folder, name);
    const env = {};
    for (const { name: variable, value, valueFrom } of container.env) {
        if (valueFrom?.secretKeyRef) env[variable] = secrets[valueFrom.secretKeyRef.name][valueFrom.secretKeyRef.key];
        else if (valueFrom?.fieldRef.fieldPath === 'status.podIP') env[variable] = '127.0.0.1';
        else env[variable] = value.replace(/\$\((\w+)\)/g, (_, used) => env[used]).replace(/^\/(data|etc)\//, `${root}/$1/`);
    }
    const created = new ContainerProcess(root, env);
    await mkdir(`${root}/data`, { recursive: true });
    for (const { name: volume, mountPath } of container.volumeMounts) {
        const { configMap, secret } = spec.volumes.find(candidate => candidate.name === volume) ?? {};
        const files = configMap ? documents.find(({ kind, metadata }) => kind === 'ConfigMap' && metadata.name === configMap.name).data : secrets[secret?.secretName];
        for (const [file, text] of Object.entries(files ?? {})) await created.write(`${mountPath}/${file}`, text);
    }
    return { container: created, args: container.args };
}

test('chart passes strict lint', () => {
    assert.deepEqual(answer.lint.errors, []);
});

for (const name of Object.keys(ACCEPTED)) {
    test(`chart renders valid resources: ${name}`, () => {
        assert.deepEqual(answer.faults[name], []);
        const { replicas, template, serviceName, volumeClaimTemplates } = only(name, 'StatefulSet').spec;
        const { spec } = template;
        const [container] = spec.containers;
        assert.ok(spec.securityContext.runAsNonRoot && container.securityContext.readOnlyRootFilesystem);
        assert.equal(container.securityContext.allowPrivilegeEscalation, false);
        assert.deepEqual(container.securityContext.capabilities, { drop: ['ALL'] });
        assert.deepEqual([container.readinessProbe.httpGet.path, container.readinessProbe.httpGet.port], ['/health', container.ports[0].name]);
        assert.ok(documentsOf(name, 'Service').some(({ metadata }) => metadata.name === serviceName));
        // Every mounted volume exists.
        const volumes = [...spec.volumes, ...(volumeClaimTemplates ?? []).map(({ metadata }) => metadata)].map(volume => volume.name);
        for (const mount of container.volumeMounts) assert.ok(volumes.includes(mount.name), mount.name);
        // Selectors fit the pods.
        const selectors = [
            ...documentsOf(name, 'Service').map(({ spec }) => spec.selector),
            ...documentsOf(name, 'PodDisruptionBudget').map(({ spec }) => spec.selector.matchLabels),
            ...documentsOf(name, 'NetworkPolicy').map(({ spec }) => spec.podSelector.matchLabels)
        ];
        for (const selector of selectors) {
            for (const [label, value] of Object.entries(selector)) assert.equal(template.metadata.labels[label], value);
        }
        const budgets = replicas > 1 && ACCEPTED[name].podDisruptionBudget?.enabled !== false ? 1 : 0;
        assert.equal(documentsOf(name, 'PodDisruptionBudget').length, budgets);
        assert.equal(documentsOf(name, 'NetworkPolicy').length, ACCEPTED[name].networkPolicy?.enabled === false ? 0 : 1);
        const image = only(name, 'StatefulSet').spec.template.spec.containers[0].image;
        assert.match(image, ACCEPTED[name].image ? /:9\.9\.9-tools$/ : /^ghcr\.io\/countersign\/countersign:\d+\.\d+\.\d+$/);
    });
}

for (const [name, [, message]] of Object.entries(REFUSED)) {
    test(`chart refuses ${name}`, () => assert.match(answer.refused[name] ?? 'accepted', message));
}

test('ServiceMonitor selects the service of the nodes and shows a key', () => {
    for (const [name, values] of Object.entries(ACCEPTED)) {
        const wanted = values.metrics?.serviceMonitor;
        if (!wanted) {
            assert.deepEqual(documentsOf(name, 'ServiceMonitor'), []);
            continue;
        }
        const { apiVersion, metadata, spec } = only(name, 'ServiceMonitor');
        assert.equal(apiVersion, 'monitoring.coreos.com/v1');
        for (const [label, value] of Object.entries(wanted.labels ?? {})) assert.equal(metadata.labels[label], value);
        const fits = ({ metadata: { labels } }) => Object.entries(spec.selector.matchLabels).every(([label, value]) => labels[label] === value);
        const selected = documentsOf(name, 'Service').filter(fits);
        assert.deepEqual(selected.map(service => service.spec.clusterIP), ['None']);
        const [endpoint] = spec.endpoints;
        assert.ok(selected[0].spec.ports.some(port => port.name === endpoint.port));
        assert.equal(endpoint.path, '/metrics');
        assert.equal(endpoint.interval, wanted.interval ?? '30s');
        assert.equal(endpoint.scheme, values.tls && 'https');
        assert.deepEqual(endpoint.authorization, { credentials: { name: 'prometheus', key: 'key' } });
    }
});

test('gateway accepts all rendered configurations', async () => {
    const [certificate, key] = ['tls.crt', 'tls.key'].map(file => path.join(folder, file));
    const names = ['-subj', '/CN=gateway.example.com', '-keyout', key, '-out', certificate];
    await run('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', ...names]);
    const pem = await readFile(certificate, 'utf8');
    const secrets = {
        database: { url: 'postgres://countersign:secret@db/countersign', password: 'secret' },
        authority: { 'ca.crt': pem },
        certificate: { 'tls.crt': pem, 'tls.key': await readFile(key, 'utf8') }
    };
    for (const [index, documents] of Object.values(answer.rendered).entries()) {
        const { container } = await podContainer(`check-${index}`, documents, secrets);
        await container.run('config', 'check');
    }
});

/** Renders the chart with a free port. */
async function renderWith(values) {
    const request = { accepted: { values }, refused: {}, versions: [], source: path.join(repository, 'config/packages/chart') };
    return (await askPython([], { ...request, chart: packages.chart[0] })).rendered.values;
}

test('rendered node on SQLite runs up to the first approved write', async () => {
    const port = await freePort();
    const { container, args } = await podContainer('sqlite', await renderWith({ port }), {});
    container.start(args, port);
    try {
        await container.health();
        const key = await container.createKey('reviewer', 'alice');
        await approveFirstWrite(container.url, key, await container.createKey('agent', 'ci'));
        const metrics = await fetch(`${container.url}/metrics`, { headers: { authorization: `Bearer ${await container.createKey('viewer', 'prometheus')}` } });
        assert.equal(metrics.status, 200);
        // A service is called by its name.
        const named = await new Promise((resolve, reject) => {
            const socket = net.connect(port, '127.0.0.1', () => socket.write('GET /health HTTP/1.1\r\nHost: demo-countersign.prod.svc:8080\r\nConnection: close\r\n\r\n'));
            socket.once('data', data => resolve(String(data))).once('error', reject);
        });
        assert.match(named, /^HTTP\/1.1 200/);
    } finally {
        assert.equal(await container.stop(), 0);
    }
});

test('two rendered nodes share a PostgreSQL', async () => {
    const database = await startPostgres();
    const nodes = [];
    try {
        const started = [0, 1].map(async ordinal => {
            const port = await freePort();
            const documents = await renderWith({ ...POSTGRESQL, replicas: 2, port });
            const { container, args } = await podContainer(`node-${ordinal}`, documents, { database: { url: database.address } });
            container.start(args, port);
            nodes.push(container);
        });
        // Both start at once, as the pods of the StatefulSet do.
        await Promise.all(started);
        await eventually('both nodes know of each other', async () => {
            const live = await Promise.all(nodes.map(async node => (await node.health()).checks.nodes.live));
            return live.every(count => count === 2);
        });
        const [first, second] = nodes;
        const key = await first.createKey('reviewer', 'alice');
        const agentKey = await second.createKey('agent', 'ci');
        await eventually('both nodes know the keys', async () => {
            const answers = await Promise.all(nodes.flatMap(node => [key, agentKey].map(credential => fetch(`${node.url}/info`, { headers: { authorization: `Bearer ${credential}` } }))));
            return answers.every(response => response.ok);
        });
        await approveFirstWrite(second.url, key, agentKey);
        await approveFirstWrite(first.url, key, agentKey);
        first.env.COUNTERSIGN_KEY = key;
        // Nodes reach each other at the addresses of their pods.
        const listed = JSON.parse(await first.run('nodes', '--json', '--url', first.url));
        assert.deepEqual(listed.nodes.map(({ url }) => url).sort(), nodes.map(({ url }) => url).sort());
    } finally {
        for (const node of nodes) await node.stop();
        await database.stop();
    }
});

/** Stands for a Service of Kubernetes: it connects each client to one of the nodes that are ready. */
class Service {
    ready = [];
    count = 0;

    async listen() {
        this.server = net.createServer(client => {
            pipeline(client, net.connect(this.ready[this.count++ % this.ready.length], '127.0.0.1'), client, () => {});
        });
        await new Promise((resolve, reject) => this.server.once('error', reject).listen(0, '127.0.0.1', resolve));
        this.url = `http://127.0.0.1:${this.server.address().port}`;
    }

    remove(port) {
        this.ready = this.ready.filter(other => other !== port);
    }
}

/** Calls a tool over a connection of its own. Resolves with the status of the answer. */
function callOnce(url, tool, key) {
    return new Promise((resolve, reject) => {
        const headers = { 'content-type': 'application/json', authorization: `Bearer ${key}` };
        const request = http.request(`${url}/tools/${tool}`, { method: 'POST', agent: false, headers }, response => {
            response.resume().once('end', () => resolve(response.statusCode)).once('error', reject);
        });
        request.once('error', reject).end('{}');
    });
}

test('rendered nodes restart one after another without a failed call', async t => {
    const database = await startPostgres();
    const service = new Service();
    await service.listen();
    const pods = [];
    let spec;
    let isOver = false;

    /** Starts a pod at an address of its own, with the volume of the pod before it. */
    const startPod = async ordinal => {
        const port = await freePort();
        const documents = await renderWith({ ...POSTGRESQL, replicas: 3, port, preStopSleepSeconds: 1, minReadySeconds: 1 });
        spec = documents.find(({ kind }) => kind === 'StatefulSet').spec;
        const { container, args } = await podContainer(`restart-${ordinal}`, documents, { database: { url: database.address } });
        container.start(args, port);
        pods[ordinal] = { container, port };
        await container.health();
        service.ready.push(port);
    };
    const endPod = async ({ container, port }) => {
        const pause = 1000 * spec.template.spec.containers[0].lifecycle.preStop.sleep.seconds;
        // The machines of a cluster need a moment to notice that the pod ends.
        await sleep(pause / 2);
        service.remove(port);
        await sleep(pause / 2);
        assert.equal(await container.stop(), 0);
    };
    try {
        await Promise.all([0, 1, 2].map(startPod));
        const key = await pods[0].container.createKey('reviewer', 'alice');
        const agentKey = await pods[0].container.createKey('agent', 'ci');
        await eventually('all nodes know the keys', async () => {
            const answers = await Promise.all(service.ready.map(port => callOnce(`http://127.0.0.1:${port}`, 'list_projects', agentKey)));
            return answers.every(status => status === 200);
        });
        const change = await proposeWrite(service.url, agentKey);

        const statuses = [];
        const agent = (async () => {
            while (!isOver) {
                statuses.push(await callOnce(service.url, 'list_projects', agentKey).catch(String));
                await sleep(20);
            }
        })();
        // The order of a StatefulSet.
        for (const ordinal of [2, 1, 0]) {
            await endPod(pods[ordinal]);
            await startPod(ordinal);
            await sleep(1000 * spec.minReadySeconds);
        }
        isOver = true;
        await agent;
        t.diagnostic(`${statuses.length} calls`);
        assert.deepEqual(statuses.filter(status => status !== 200), []);

        const reviewer = new Reviewer(service.url, key);
        await reviewer.approve(change);
        await reviewer.reached(change, 'applied');
    } finally {
        isOver = true;
        for (const { container } of pods.filter(Boolean)) await container.stop();
        service.server.close();
        await database.stop();
    }
});
