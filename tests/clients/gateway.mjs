// Starts the gateway for a test, creates a reviewer's key, decides over REST, and stops the started processes.
import { spawn, execFile } from 'node:child_process';
import { mkdtemp, readFile, readdir, readlink, rename, rm, writeFile } from 'node:fs/promises';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

/** Runs a program to its end; resolves with `{ stdout, stderr }`. */
export const run = promisify(execFile);
/** The folder of the repository. */
export const repository = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');

/** The program under test. */
export const binary = path.resolve(repository, process.env.COUNTERSIGN_BIN ?? 'target/debug/countersign');

/** Returns the environment of the program, without the developer's own configuration. */
export function environment(extra = {}) {
    const kept = Object.fromEntries(['PATH', 'HOME', 'TMPDIR'].filter(k => process.env[k]).map(k => [k, process.env[k]]));
    return { ...kept, XDG_CONFIG_HOME: path.join(os.tmpdir(), 'countersign-no-config'), ...extra };
}

/** Ends the wait of `eventually` at once. */
export class PermanentError extends Error {}

/**
 * Repeats an attempt that a busy machine may make too late, at most ten times. Returns the first true value of `attempt(n)`, where
 * `n` counts from 0.
 */
export async function repeatUntilInTime(problem, attempt) {
    for (let n = 0; n < 10; n += 1) {
        const value = await attempt(n);
        if (value) return value;
    }
    throw new Error(problem);
}

/**
 * Calls `check` every 25 ms until it returns a true value. Rejects after `limit` ms, or at once on a `PermanentError`. Only a
 * failing test waits this long, but a machine may be very busy.
 */
export async function eventually(what, check, limit = 60_000) {
    const end = Date.now() + limit;
    let last;
    for (;;) {
        try {
            const value = await check();
            if (value) return value;
            last = undefined;
        } catch (error) {
            if (error instanceof PermanentError) throw error;
            last = error;
        }
        if (Date.now() > end) throw new Error(`not within ${limit} ms: ${what}`, { cause: last });
        await new Promise(resolve => setTimeout(resolve, 25));
    }
}

/** A reviewer who uses the REST API. */
export class Reviewer {
    constructor(url, key) {
        this.url = url;
        this.key = key;
    }

    async api(method, route, body) {
        const response = await fetch(`${this.url}/api${route}`, {
            method,
            headers: { authorization: `Bearer ${this.key}`, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
            body: body === undefined ? undefined : JSON.stringify(body)
        });
        const text = await response.text();
        return { status: response.status, body: text ? JSON.parse(text) : null };
    }

    async change(id) {
        const answer = await this.api('GET', `/changes/${id}`);
        if (answer.status !== 200) throw new Error(`GET change: ${answer.status} ${JSON.stringify(answer.body)}`);
        return answer.body;
    }

    async decide(id, decision, comment) {
        const { version, digest } = await this.change(id);
        const answer = await this.api('POST', `/changes/${id}/decision`, { decision, comment, version, digest });
        if (answer.status !== 200) throw new Error(`${decision}: ${answer.status} ${JSON.stringify(answer.body)}`);
        return answer.body;
    }

    approve(id, comment) {
        return this.decide(id, 'approve', comment);
    }

    reject(id, comment) {
        return this.decide(id, 'reject', comment);
    }

    /** Waits until the change is in that state. */
    reached(id, state) {
        return eventually(`change ${id} is ${state}`, async () => {
            const change = await this.change(id);
            return change.state === state && change;
        });
    }
}

/** The system chooses the port; the gateway publishes it in its data directory. */
export const LISTEN = '127.0.0.1:0';

/** Returns the port of the gateway with this pid after it listens; the file of another process is ignored. */
export function publishedPort(data, pid, exitError = () => undefined) {
    return eventually(
        'the gateway says where it listens',
        async () => {
            if (exitError()) throw new PermanentError(exitError());
            const file = JSON.parse(await readFile(path.join(data, 'gateway.json'), 'utf8').catch(() => '{}'));
            return file.pid === pid && Number(new URL(file.url).port);
        }
    );
}

/** Returns the port that a process listens on, for programs that do not print it. */
export async function listeningPort(pid) {
    return eventually(`process ${pid} listens`, async () => {
        const folder = `/proc/${pid}/fd`;
        const open = await Promise.all((await readdir(folder)).map(fd => readlink(path.join(folder, fd)).catch(() => '')));
        for (const table of ['tcp', 'tcp6']) {
            for (const line of (await readFile(`/proc/${pid}/net/${table}`, 'utf8')).split('\n').slice(1)) {
                const [, local, , state, , , , , , inode] = line.trim().split(/\s+/);
                if (state === '0A' && open.includes(`socket:[${inode}]`)) return parseInt(local.split(':').at(-1), 16);
            }
        }
    });
}

/** The first of the ports that the system gives to programs that do not choose one. */
const FIRST_SYSTEM_PORT = 32_768;

/**
 * Returns a port that is free now, and that the system gives to nobody else until it is used. A program that can choose its port
 * itself needs no such port.
 */
export async function freePort() {
    for (;;) {
        const port = FIRST_SYSTEM_PORT - 1 - Math.floor(Math.random() * 20_000);
        const server = net.createServer();
        const isFree = await new Promise(resolve => server.once('error', () => resolve(false)).listen(port, '127.0.0.1', () => resolve(true)));
        if (!isFree) continue;
        await new Promise(resolve => server.close(resolve));
        return port;
    }
}

/** Reserves a port and closes every connection to it, as if no server were there. */
export async function startClosedPort() {
    const server = net.createServer(socket => socket.on('error', () => undefined).resetAndDestroy());
    await new Promise((resolve, reject) => server.once('error', reject).listen(0, '127.0.0.1', resolve));
    return { port: server.address().port, close: () => new Promise(resolve => server.close(resolve)) };
}

export class Gateway extends Reviewer {
    constructor(parts) {
        super(parts.port && `http://127.0.0.1:${parts.port}`, undefined);
        Object.assign(this, { output: '' }, parts);
    }

    log() {
        return this.output;
    }

    /** Starts the program with the gateway's data, and waits until it is healthy. */
    async launch(listen) {
        const file = this.file ? ['--config', this.file] : [];
        const child = spawn(binary, ['serve', ...file, '--listen', listen, '--data', this.data], {
            env: environment(this.env),
            stdio: ['ignore', 'ignore', 'pipe']
        });
        this.child = child;
        child.stderr.setEncoding('utf8').on('data', text => (this.output = (this.output + text).slice(-64_000)));
        await new Promise((resolve, reject) => child.once('spawn', resolve).once('error', reject));
        const exitError = () => child.exitCode !== null && `the gateway ended with ${child.exitCode}\n--- stderr of the gateway ---\n${this.log()}`;
        this.port = await publishedPort(this.data, child.pid, exitError);
        this.url = `http://127.0.0.1:${this.port}`;
        await this.waitHealthy();
    }

    /** Ends the program with that signal. */
    async end(signal = 'SIGTERM') {
        const exited = new Promise(resolve => this.child.once('exit', resolve));
        this.child.kill(signal);
        await exited;
    }

    /** Starts the program again on the same port, after `end`. */
    relaunch() {
        return this.launch(`127.0.0.1:${this.port}`);
    }

    async restart(signal) {
        await this.end(signal);
        await this.relaunch();
    }

    /** Replaces the configuration, and makes the gateway read it. */
    async reconfigure(config) {
        // The file is replaced atomically, because the gateway may read it at any time.
        await writeFile(`${this.file}.new`, JSON.stringify(config, null, 4), { mode: 0o600 });
        await rename(`${this.file}.new`, this.file);
        this.child.kill('SIGHUP');
    }

    get mcp() {
        return new URL('/mcp', this.url);
    }

    /** Creates an API key with the command line. */
    async createKey(role, name, owner) {
        const whose = owner ? ['--owner', owner] : [];
        const { stdout } = await run(binary, ['keys', 'create', '--role', role, '--name', name, ...whose, '--data', this.data], {
            // The environment names the store if it is PostgreSQL.
            env: environment(this.env)
        });
        return stdout.trim();
    }

    async waitHealthy() {
        await eventually(
            'the gateway answers /health',
            async () => {
                if (this.child?.exitCode !== null && this.child?.exitCode !== undefined) {
                    throw new PermanentError(`the gateway ended with ${this.child.exitCode}`);
                }
                return (await fetch(`${this.url}/health`)).ok;
            }
        ).catch(error => {
            throw new Error(`${error.message}\n--- stderr of the gateway ---\n${this.log()}`, { cause: error });
        });
    }

    /** Asks the gateway to end, without waiting. */
    terminate() {
        this.child.kill('SIGTERM');
    }

    /** Stops the gateway and removes its data. */
    async stop() {
        await stopChild(this.child);
        for (const folder of [this.data, this.home]) if (folder) await rm(folder, { recursive: true, force: true });
    }
}

/** Sends SIGTERM, and SIGKILL after `limit` milliseconds. Resolves with the exit code. */
export async function stopChild(child, limit = 5_000) {
    // Without a pid it was never started.
    if (!child?.pid || child.exitCode !== null || child.signalCode !== null) return child?.exitCode;
    const exited = new Promise(resolve => child.once('exit', code => resolve(code)));
    child.kill('SIGTERM');
    const timer = setTimeout(() => child.kill('SIGKILL'), limit);
    const code = await exited;
    clearTimeout(timer);
    return code;
}

export function temporaryData() {
    return mkdtemp(path.join(os.tmpdir(), 'countersign-test-'));
}

/** Returns the gateways: one, or the nodes behind nginx. */
export const nodesOf = gateway => gateway.nodes ?? [gateway];

/** The number of gateways that replace each gateway, unless a test sets it. */
export const NODES = Number(process.env.COUNTERSIGN_TEST_NODES ?? 1);

/**
 * Starts `countersign serve` with new data and a reviewer named alice. `config` is the content of the configuration file, and
 * `listen` the address.
 * With `nodes`, several gateways run on one PostgreSQL behind nginx.
 */
export async function startGateway({ env = {}, config, listen = LISTEN, nodes = NODES } = {}) {
    if (nodes > 1) {
        const { startCluster } = await import('./cluster.mjs');
        return startCluster(nodes, { env, config, listen });
    }
    const data = await temporaryData();
    // The file is not in the data directory, because a server that may read its folder must not reach the store.
    const home = config && (await temporaryData());
    const file = config && path.join(home, 'countersign.yaml');
    // JSON is YAML.
    if (config) await writeFile(file, JSON.stringify(config, null, 4), { mode: 0o600 });
    const gateway = new Gateway({ data, home, env, file });
    try {
        await gateway.launch(listen);
        gateway.key = await gateway.createKey('reviewer', 'alice');
        return gateway;
    } catch (error) {
        await gateway.stop();
        throw error;
    }
}

/**
 * Watches what an SDK sends over its transport. The returned function waits until everything is accepted: an HTTP client sends
 * each message on a connection of its own, so that a later message may overtake an earlier one.
 */
export function followSending(transport) {
    const sending = new Set();
    const send = transport.send.bind(transport);
    transport.send = (...message) => {
        const sent = send(...message).finally(() => sending.delete(sent));
        sending.add(sent);
        return sent;
    };
    return () => Promise.allSettled(sending);
}

/** Starts a TCP relay that can cut every connection, to test that a client resumes. */
export async function startRelay(port) {
    const pairs = new Set();
    const server = net.createServer(client => {
        const upstream = net.connect(port, '127.0.0.1');
        const pair = { client, upstream };
        pairs.add(pair);
        for (const [from, to] of [
            [client, upstream],
            [upstream, client]
        ]) {
            from.on('data', chunk => to.write(chunk));
            from.on('error', () => to.destroy());
            from.on('close', () => {
                to.destroy();
                pairs.delete(pair);
            });
        }
    });
    await new Promise((resolve, reject) => server.once('error', reject).listen(0, '127.0.0.1', resolve));
    return {
        port: server.address().port,
        cut() {
            for (const { client, upstream } of pairs) {
                client.resetAndDestroy();
                upstream.destroy();
            }
            return pairs.size;
        },
        async close() {
            for (const { client, upstream } of pairs) {
                client.destroy();
                upstream.destroy();
            }
            await new Promise(resolve => server.close(resolve));
        }
    };
}
