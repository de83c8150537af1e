#!/usr/bin/env node
// Runs the program from the package of this platform. The program gets the arguments, stdin, stdout, stderr and the signals of
// this process, and this process ends as the program ends.
'use strict';

const { spawn } = require('node:child_process');
const { constants } = require('node:os');

/** The exit code of a program that cannot run (`EX_UNAVAILABLE`). */
const UNAVAILABLE = 69;
/** The interval at which the end of the parent is noticed. */
const PARENT_POLL_INTERVAL_MS = 200;
/** The platforms that have a package, which package.json lists as optional dependencies. */
const supported = Object.keys(require('../package.json').optionalDependencies);
const FORWARDED = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'];

function fail(message) {
    console.error(`countersign: ${message}`);
    process.exit(UNAVAILABLE);
}

function findProgram() {
    const platform = `${process.platform}-${process.arch}`;
    const name = `@countersign/${platform}`;
    if (!supported.includes(name)) {
        const platforms = supported.map(supportedName => supportedName.split('/')[1]).join(', ');
        fail(
            `there is no program for ${platform} (there is one for ${platforms}). ` +
                'Build it from source: https://github.com/countersign/countersign'
        );
    }
    try {
        return require.resolve(`${name}/bin/countersign`);
    } catch {
        return fail(
            `the package ${name}, which contains the program, is not installed. ` +
                'Install countersign again without --omit=optional or --no-optional, on a Linux with glibc.'
        );
    }
}

const program = findProgram();
const child = spawn(program, process.argv.slice(2), { stdio: 'inherit' });
for (const signal of FORWARDED) process.on(signal, () => child.kill(signal));
// npx passes a signal to the shell that it starts this process from, and the shell ends without passing it on.
if (process.env.npm_lifecycle_event === 'npx') {
    const shell = process.ppid;
    const timer = setInterval(() => {
        if (process.ppid === shell) return;
        clearInterval(timer);
        child.kill('SIGTERM');
    }, PARENT_POLL_INTERVAL_MS).unref();
}
child.on('error', error => {
    // The file exists, so what is missing is the dynamic loader that it names.
    const reason = error.code === 'ENOENT' ? 'it needs a Linux with glibc 2.34 or newer' : error.message;
    fail(`cannot run ${program}: ${reason}`);
});
child.on('exit', (code, signal) => {
    if (signal === null) process.exit(code);
    // Without the listener, the signal ends this process too, so that the parent sees the same end.
    process.removeAllListeners(signal);
    process.exitCode = 128 + constants.signals[signal];
    process.kill(process.pid, signal);
});
