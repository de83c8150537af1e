// Boots a small Debian system in a container, with a real systemd and a network of its own, so that packages can be installed
// and their services run.
import { execFileSync, spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';

import { eventually, PermanentError, repository, run, stopChild } from '../clients/gateway.mjs';


/** Returns why no system can be booted here, or `false`. */
export function reasonToSkip() {
    if (process.getuid() !== 0) return 'only root can boot a system in a container';
    try {
        execFileSync('unshare', ['--mount', '--pid', '--net', '--uts', '--ipc', '--fork', 'true'], { stdio: 'pipe' });
    } catch (error) {
        return `this machine cannot boot a system in a container: ${error.stderr ?? error}`;
    }
    return false;
}

/** Runs a command on this machine and resolves with its output. */
export async function command(program, parameters, options = {}) {
    try {
        const { stdout, stderr } = await run(program, parameters, { cwd: repository, maxBuffer: 64 << 20, ...options });
        return { stdout, stderr };
    } catch (error) {
        throw new Error(`${program} ${parameters.join(' ')}: ${error.code}\n${error.stdout}\n${error.stderr}`);
    }
}

/** The version of npm that belongs to Node 22. */
const NPM = '10.9.9';

/** Returns the folder of npm, which is installed once. */
export async function npmFolder() {
    const { stdout } = await command('bash', ['-c', `. scripts/lib.sh
        home=$cache/npm-${NPM}
        [ -e "$home/node_modules/npm" ] || npm install --prefix "$home" --no-save --no-package-lock npm@${NPM} >/dev/null
        echo "$home/node_modules/npm"`]);
    return stdout.trim();
}

export class System {
    /** Prepares the files of a new system without booting it. */
    static async create() {
        await command('bash', ['-c', '. scripts/lib.sh && need systemd-nspawn systemd-container']);
        const original = (await command('tests/packages/debian-system', [])).stdout.trim();
        const system = new System();
        system.folder = await mkdtemp(path.join(os.tmpdir(), 'countersign-system-'));
        system.root = path.join(system.folder, 'root');
        for (const part of ['root', 'changes', 'work']) await mkdir(path.join(system.folder, part));
        // An overlay takes no time. Not every file system can hold its changes, and then the files are copied.
        const layers = `lowerdir=${original},upperdir=${system.folder}/changes,workdir=${system.folder}/work`;
        try {
            await command('mount', ['-t', 'overlay', '-o', layers, 'overlay', system.root]);
            system.isMounted = true;
        } catch {
            await command('cp', ['-a', `${original}/.`, system.root]);
        }
        // dpkg need not survive a crash of this machine.
        await writeFile(path.join(system.root, 'etc/dpkg/dpkg.cfg.d/test'), 'force-unsafe-io\n');
        return system;
    }

    /** Boots the system. `binds` maps paths in the system to paths of this machine, which are read-only there. */
    async boot(binds = {}) {
        const mounts = Object.entries(binds).map(([inside, outside]) => `--bind-ro=${outside}:${inside}`);
        const parameters = ['--quiet', '--register=no', '--keep-unit', '--private-network', '--boot', `--directory=${this.root}`, ...mounts];
        // The system ends with this process, even if that is killed.
        this.container = spawn('setpriv', ['--pdeathsig', 'TERM', 'systemd-nspawn', ...parameters], { stdio: ['ignore', 'pipe', 'pipe'] });
        let console = '';
        for (const stream of [this.container.stdout, this.container.stderr]) stream.on('data', data => (console += data));
        const children = `/proc/${this.container.pid}/task/${this.container.pid}/children`;
        await eventually(
            'the system is up',
            async () => {
                if (this.container.exitCode !== null) throw new PermanentError(`systemd-nspawn ended:\n${console}`);
                this.init = Number((await readFile(children, 'utf8')).trim().split(' ')[0]);
                const state = (await this.run('systemctl is-system-running || true')).trim();
                return ['running', 'degraded'].includes(state);
            }
        ).catch(error => {
            throw new Error(`${error.message}\n${console}`, { cause: error });
        });
    }

    /** Runs a shell script in the booted system and resolves with its output. */
    async run(script) {
        const { stdout } = await command(
            'nsenter',
            [`--target=${this.init}`, '--mount', '--uts', '--ipc', '--net', '--pid', '--root', '--wd', '--', '/bin/sh', '-ec', script],
            { env: { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', HOME: '/root', LANG: 'C.UTF-8', DEBIAN_FRONTEND: 'noninteractive' } }
        );
        return stdout;
    }

    /**
     * Runs JavaScript in the network of the booted system, but with the files of this machine. The code may use the exports of
     * first-write.mjs and tests/clients/gateway.mjs.
     */
    async script(code) {
        const imports = `import { approveFirstWrite, secondsUntilTools } from '${repository}/tests/packages/first-write.mjs';
            import { Reviewer, eventually } from '${repository}/tests/clients/gateway.mjs';`;
        const parameters = [`--net=/proc/${this.init}/ns/net`, process.execPath, '--input-type=module', '-e', `${imports}\n${code}`];
        try {
            return (await command('nsenter', parameters)).stdout;
        } catch (error) {
            throw new Error(`${error.message}\n${await this.run('journalctl --no-pager -o cat -u countersign | tail -n 40')}`);
        }
    }

    /** Shuts the system down. Its files stay until `remove`. */
    async shutDown() {
        await stopChild(this.container);
    }

    async remove() {
        await this.shutDown();
        if (this.isMounted) await command('umount', [this.root]);
        await rm(this.folder, { recursive: true, force: true });
    }
}
