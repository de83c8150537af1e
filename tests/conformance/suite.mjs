// Runs the official conformance suite and judges its results.
import { spawn } from 'node:child_process';
import { mkdtemp, readFile, readdir, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const packageFolder = path.join(here, 'node_modules/@modelcontextprotocol/conformance');
const program = path.join(packageFolder, 'dist/index.js');

/** Returns the scenarios that the suite requires for a revision: `{ server: [...], client: [...] }`. */
export async function requirements(revision) {
    const lists = {};
    let list;
    for (const line of (await readFile(path.join(packageFolder, 'requirements', `${revision}.yaml`), 'utf8')).split('\n')) {
        const [, section] = /^(\w+):\s*$/.exec(line) ?? [];
        if (section) list = lists[section] = [];
        const [, scenario] = /^  - ([\w/-]+)$/.exec(line) ?? [];
        if (scenario) list.push(scenario);
    }
    return lists;
}

/**
 * Runs the suite with these arguments and returns `{ results: scenario → checks, output, code }`. Scenarios that did not finish
 * within `limit` milliseconds are missing from the results.
 */
export async function runSuite(args, { env = {}, limit = 240_000 } = {}) {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-conformance-'));
    try {
        let output = '';
        const child = spawn(process.execPath, [program, ...args, '-o', folder], {
            stdio: ['ignore', 'pipe', 'pipe'],
            env: { ...process.env, ...env }
        });
        for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', text => (output += text));
        const timer = setTimeout(() => child.kill('SIGKILL'), limit);
        // Most callers ignore the exit code, because it includes scenarios that need not pass, and judge the checks.
        const [code, signal] = await new Promise((resolve, reject) => child.once('error', reject).once('close', (...end) => resolve(end)));
        clearTimeout(timer);
        if (signal) output += `\nthe suite was killed after ${limit} ms\n`;
        const results = new Map();
        for (const file of await readdir(folder, { recursive: true })) {
            if (path.basename(file) !== 'checks.json') continue;
            // The names of some scenarios begin with a group, such as `auth/`.
            const scenario = /^(?:server-)?(.*?)-\d{4}-\d\d-\d\dT[^/]*$/.exec(path.dirname(file))?.[1];
            if (!scenario) throw new Error(`a result folder with an unexpected name: ${file}`);
            results.set(scenario, JSON.parse(await readFile(path.join(folder, file), 'utf8')));
        }
        if (results.size === 0) throw new Error(`the suite ran nothing (exit code ${code}):\n${output}`);
        return { results, output, code };
    } finally {
        await rm(folder, { recursive: true, force: true });
    }
}

/** Judges the checks of one scenario without those whose ids `excluded` has. At least one check must succeed. */
export function judge(checks = [], excluded = {}) {
    const counted = checks.filter(check => !(check.id in excluded));
    const failures = counted.filter(check => check.status === 'FAILURE');
    const successes = counted.filter(check => check.status === 'SUCCESS').length;
    const warnings = counted.filter(check => check.status === 'WARNING');
    return { passed: successes > 0 && failures.length === 0, successes, failures, warnings };
}
