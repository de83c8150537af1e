// Runs what the chart and the Compose files describe: reads them with render.py, and starts their containers as processes.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';

import { binary, environment, eventually, repository, run, stopChild } from '../clients/gateway.mjs';
import { pythonPrograms } from './installed.mjs';

/** Runs render.py with a request and returns its answer. */
export async function askPython(parameters, request) {
    const running = run(path.join(pythonPrograms, 'python'), [path.join(repository, 'tests/packages/render.py'), ...parameters], { maxBuffer: 1 << 26 });
    running.child.stdin.end(request && JSON.stringify(request));
    return JSON.parse((await running).stdout);
}

/** A gateway that runs with the environment and the files of a container, but on loopback. */
export class ContainerProcess {
    constructor(root, env) {
        this.root = root;
        this.env = environment({ ...env, HOME: `${root}/data` });
    }

    /** Writes a file of the container. Paths in it lead to the container's other files. */
    async write(file, text) {
        await mkdir(path.dirname(this.root + file), { recursive: true });
        await writeFile(this.root + file, text.replaceAll('/etc/countersign/', `${this.root}/etc/countersign/`));
    }

    async run(...args) {
        return (await run(binary, args, { env: this.env })).stdout.trim();
    }

    start(args, port) {
        this.url = `http://127.0.0.1:${port}`;
        this.log = '';
        this.child = spawn(binary, [...args, '--listen', `127.0.0.1:${port}`], { env: this.env, stdio: ['ignore', 'ignore', 'pipe'] });
        this.child.stderr.on('data', chunk => (this.log += chunk));
    }

    async health() {
        return eventually(
            'the gateway is ready',
            async () => {
                assert.equal(this.child.exitCode, null, this.log);
                const response = await fetch(`${this.url}/health`);
                return response.ok && response.json();
            }
        );
    }

    async createKey(role, name) {
        return this.run('keys', 'create', '--role', role, '--name', name);
    }

    stop() {
        // Longer than a gateway waits for its requests.
        return stopChild(this.child, 30_000);
    }
}
