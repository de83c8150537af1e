// Starts the gateway of an image as a container runtime does.
//
// A runtime such as podman needs more rights than a test machine may have. Therefore the root file system is mounted read-only
// in a mount namespace of its own, and the program runs in it as the user of the image.
import { spawn } from 'node:child_process';
import { chown, mkdir, readFile } from 'node:fs/promises';
import path from 'node:path';

import { PermanentError, eventually, run } from '../clients/gateway.mjs';

/** The user of the image, which is also its group. */
export const USER = 65532;

// Mounts a root file system and its volume, then runs the rest of its arguments.
const RUN_IN_ROOT = `set -e
root=$1 data=$2 user=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind "$data" "$root/data"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -o remount,bind,ro "$root"
exec chroot --userspec="$user:$user" "$root" "$@"
`;

/** Creates an empty volume with the owner that a runtime copies from the image. */
export async function emptyVolume(data) {
    await mkdir(data, { mode: 0o700 });
    await chown(data, USER, USER);
    return data;
}

export class Image {
    /**
     * @param {string} root The folder with the image's files.
     * @param config The image's configuration, with `Env` and `Entrypoint`.
     */
    constructor(root, config) {
        this.root = root;
        Object.assign(this, config);
    }

    /** Returns the program and the arguments that run a command of the image on a volume. */
    inContainer(data, command, env = {}) {
        const namespaces = ['--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', RUN_IN_ROOT, 'sh'];
        const variables = { ...Object.fromEntries(this.Env.map(entry => entry.split(/=(.*)/s).slice(0, 2))), ...env };
        return ['unshare', [...namespaces, this.root, data, String(USER), ...command], { env: variables }];
    }

    /** Starts the gateway. Its process is the first of a PID namespace, as in a container. */
    async start(data, args) {
        const [program, parameters, options] = this.inContainer(data, [...this.Entrypoint, ...args]);
        const child = spawn(program, parameters, { ...options, stdio: ['ignore', 'ignore', 'pipe'] });
        let log = '';
        child.stderr.on('data', chunk => (log += chunk));
        const exited = new Promise(resolve => child.once('exit', resolve));
        const pid = Number(await eventually('the container starts', () => readFile(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8')));
        return {
            /** Waits until the gateway is healthy, and returns its address. */
            url: () =>
                eventually(
                    'the gateway is healthy',
                    async () => {
                        if (child.exitCode !== null) throw new PermanentError(log);
                        const { url } = JSON.parse(await readFile(path.join(data, 'gateway.json'), 'utf8').catch(() => '{}'));
                        return url && (await fetch(`${url}/health`)).ok && url;
                    }
                ),
            /** Runs a command like `docker exec`. */
            exec: (...command) =>
                run('nsenter', ['--target', pid, '--mount', '--pid', '--root', '--wd', '--setuid', USER, '--setgid', USER, ...command].map(String), options),
            /** Stops the gateway as a runtime does, and returns its exit code. */
            async stop() {
                if (child.exitCode !== null) return child.exitCode;
                process.kill(pid, 'SIGTERM');
                const timer = setTimeout(() => process.kill(pid, 'SIGKILL'), 30_000);
                const code = await exited;
                clearTimeout(timer);
                return code;
            }
        };
    }
}
