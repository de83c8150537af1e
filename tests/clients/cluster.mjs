// Starts several gateways on one PostgreSQL behind nginx, which distributes requests among them. Clients see one gateway.
//
// Tests in other languages run `node cluster.mjs NODES [CONFIG]`, where CONFIG is a JSON file. It prints one line of JSON with
// the addresses and stops everything when its standard input ends.
import { spawn } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { Gateway, LISTEN, eventually, freePort, repository, run, startGateway, stopChild } from './gateway.mjs';


/** Returns the shipped configuration with its addresses and servers replaced. */
async function nginxConfiguration(folder, port, ports) {
    const shipped = await readFile(path.join(repository, 'config/nginx.conf'), 'utf8');
    const servers = ports.map(node => `server 127.0.0.1:${node} max_fails=0;`).join(' ');
    const site = shipped
        .replace(/(server 10\.[^;]*;\s*)+/, servers)
        .replace(/listen [^;]*;/, `listen 127.0.0.1:${port};`)
        .replace(/(server_name|ssl_certificate|ssl_certificate_key) [^;]*;/g, '');
    const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(name => `${name}_temp_path ${folder}/${name};`).join('\n');
    return `daemon off; worker_processes 1; pid ${folder}/pid; error_log stderr error;\nevents {}\nhttp { access_log off;\n${paths}\n${site}}\n`;
}

class Cluster extends Gateway {
    log() {
        return this.nodes.map(node => node.log()).join('\n--- the next node ---\n');
    }

    terminate() {
        for (const node of this.nodes) node.terminate();
    }

    async restart(signal) {
        await Promise.all(this.nodes.map(node => node.restart(signal)));
    }

    async stop() {
        for (const node of this.nodes) await node.stop();
        await stopChild(this.nginx);
        await this.postgres.stop();
        await rm(this.folder, { recursive: true, force: true });
    }
}

/** Starts a PostgreSQL. Returns its address, and `stop`, which ends it. */
export async function startPostgres() {
    const server = spawn(path.join(repository, 'scripts/postgres'), ['-c', 'fsync=off', '-c', 'max_connections=200'], {
        stdio: ['pipe', 'pipe', 'inherit']
    });
    const address = await new Promise((resolve, reject) => {
        server.once('error', reject).once('exit', code => reject(new Error(`scripts/postgres ended with ${code}`)));
        createInterface({ input: server.stdout }).once('line', resolve);
    });
    const ended = new Promise(resolve => server.once('exit', resolve));
    const stop = () => {
        server.stdin.end();
        return ended;
    };
    return { address, stop };
}

/** Starts `size` gateways with that configuration behind nginx, which listens on `listen`; the result is as that of `startGateway`, with `nodes`. */
export async function startCluster(size, { env = {}, config, listen = LISTEN } = {}) {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-cluster-'));
    const postgres = await startPostgres();
    const cluster = new Cluster({ port: 0, folder, postgres, nodes: [] });
    try {
        await run('psql', ['--quiet', '--dbname', postgres.address, '--command', 'CREATE DATABASE cluster']);
        cluster.env = { ...env, COUNTERSIGN_STORE__URL: postgres.address.replace(/postgres$/, 'cluster') };
        for (let n = 0; n < size; n++) {
            // A node is started again on its port.
            cluster.nodes.push(await startGateway({ env: cluster.env, config, listen: `127.0.0.1:${await freePort()}`, nodes: 1 }));
        }
        // Clients on stdio use the first gateway.
        cluster.data = cluster.nodes[0].data;
        await eventually('all nodes know of each other', async () => {
            const live = await Promise.all(cluster.nodes.map(async node => (await (await fetch(`${node.url}/health`)).json()).checks.nodes.live));
            return live.every(count => count === size);
        });
        // nginx inherits the listening socket, so that no other program can take its port.
        const listener = net.createServer();
        const { hostname, port: wanted } = new URL(`http://${listen}`);
        await new Promise((resolve, reject) => listener.once('error', reject).listen(Number(wanted), hostname, resolve));
        const { port } = listener.address();
        const file = path.join(folder, 'nginx.conf');
        await writeFile(file, await nginxConfiguration(folder, port, cluster.nodes.map(node => node.port)));
        cluster.nginx = spawn('nginx', ['-c', file, '-p', folder], {
            stdio: ['ignore', 'ignore', 'inherit', listener._handle],
            env: { ...process.env, PATH: `${process.env.PATH}:/usr/sbin`, NGINX: '3;' }
        });
        await new Promise((resolve, reject) => cluster.nginx.once('spawn', resolve).once('error', reject));
        listener.close();
        cluster.port = port;
        cluster.url = `http://127.0.0.1:${port}`;
        cluster.child = cluster.nginx;
        await cluster.waitHealthy();
        cluster.key = await cluster.createKey('reviewer', 'alice');
        return cluster;
    } catch (error) {
        const log = cluster.log();
        await cluster.stop();
        throw new Error(`${error.message}\n--- stderr of the gateways ---\n${log}`, { cause: error });
    }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
    const [size, file] = process.argv.slice(2);
    const cluster = await startCluster(Number(size), { config: file && JSON.parse(await readFile(file, 'utf8')) });
    console.log(JSON.stringify({ url: cluster.url, key: cluster.key, data: cluster.data, nodes: cluster.nodes.map(node => node.url) }));
    process.stdin.resume().once('end', () => cluster.stop());
}
