// Installs the program from a release folder with the install script, and uses it up to the first approved write.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createServer } from 'node:http';
import { access, cp, mkdir, mkdtemp, readFile, readdir, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';

import { LISTEN, publishedPort, repository, run, stopChild } from '../clients/gateway.mjs';
import { approveFirstWrite } from './first-write.mjs';
import { buildPackages } from './installed.mjs';

/** Everything that the install script needs, except for curl or wget. */
const TOOLS = ['sh', 'chmod', 'cut', 'getconf', 'gzip', 'mkdir', 'mktemp', 'mv', 'rm', 'sed', 'sha256sum', 'tar', 'uname'];

let work;
/** The folder of the tarball and what is released with it. */
let output;
let server;
let base;
let version;
let name;

/** Serves the files of `work/released`. */
async function startServer() {
    server = createServer(async (request, response) => {
        try {
            response.end(await readFile(path.join(work, 'released', path.basename(request.url))));
        } catch {
            response.writeHead(404).end();
        }
    });
    await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
    base = `http://127.0.0.1:${server.address().port}`;
}

/** Creates a folder with only these tools; the values of `scripts` are shell scripts that stand for tools. */
async function toolFolder(tools, scripts = {}) {
    const folder = await mkdtemp(path.join(work, 'tools-'));
    for (const tool of tools.filter(tool => !(tool in scripts))) {
        const { stdout } = await run('/bin/sh', ['-c', `command -v ${tool}`]);
        await symlink(stdout.trim(), path.join(folder, tool));
    }
    for (const [tool, script] of Object.entries(scripts)) {
        await writeFile(path.join(folder, tool), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
    }
    return folder;
}

const emptyHome = () => mkdtemp(path.join(work, 'home-'));

/** Runs the install script in a home, with only the tools of the folder. Returns the exit code and all output. */
async function install(home, tools, { PATH = tools } = {}) {
    const script = path.join(output, 'install.sh');
    const env = { HOME: home, PATH, TMPDIR: path.join(work, 'tmp'), COUNTERSIGN_BASE_URL: base };
    const outcome = await run(path.join(tools, 'sh'), [script], { env }).catch(error => error);
    return { code: outcome.code ?? 0, text: outcome.stdout + outcome.stderr };
}

/** Returns all files and folders below a folder. */
const tree = async folder => (await readdir(folder, { recursive: true })).sort();

before(async () => {
    work = await mkdtemp(path.join(tmpdir(), 'countersign-tarball-'));
    await mkdir(path.join(work, 'tmp'));
    const packages = await buildPackages(path.join(work, 'build'), 'tarball');
    output = path.join(packages.folder, 'tarball');
    name = path.basename(packages.tarball.find(file => file.endsWith('.tar.gz')), '.tar.gz');
    version = name.match(/^countersign-(.+)-x86_64-unknown-linux-gnu$/)[1];
    await cp(output, path.join(work, 'released'), { recursive: true });
    await startServer();
});

after(async () => {
    await new Promise(resolve => server.close(resolve));
    await rm(work, { recursive: true, force: true });
});

test('programs that need a newer glibc than 2.34 are refused', async () => {
    const source = path.join(work, 'newer.c');
    await writeFile(source, 'int zero; int *pointer = &zero; int main(void) { return *pointer; }');
    await run('cc', ['-pie', '-Wl,-z,pack-relative-relocs', '-o', path.join(work, 'newer'), source]);
    const env = { ...process.env, CARGO_TARGET_DIR: path.join(work, 'target') };
    const outcome = run(path.join(repository, 'scripts/package'), ['--program', path.join(work, 'newer'), 'tarball'], { env });
    await assert.rejects(outcome, error => /newer C library than glibc 2\.34: GLIBC_ABI_DT_RELR/.test(error.stderr));
});

test('the tarball contains what it promises, and building it again gives the same files', async () => {
    const { stdout } = await run('tar', ['--numeric-owner', '-tvf', path.join(output, `${name}.tar.gz`)]);
    const entries = stdout.trim().split('\n').map(line => line.split(/\s+/));
    assert.deepEqual(new Set(entries.map(([, owner]) => owner)), new Set(['0/0']));
    const files = entries.map(entry => entry[5].slice(name.length + 1)).filter(file => file && !file.endsWith('/'));
    const pages = files.filter(file => /^man\/countersign.*\.1$/.test(file));
    assert.ok(pages.includes('man/countersign.1'));
    const others = ['CHANGELOG.md', 'LICENSE', 'README.md', 'completions/_countersign', 'completions/countersign.bash',
        'completions/countersign.fish', 'countersign'];
    assert.deepEqual(files.filter(file => !pages.includes(file)), others);
    assert.deepEqual([...files].sort(), files);

    const again = path.join(work, 'again');
    await mkdir(again);
    const { stdout: time } = await run('git', ['-C', repository, 'log', '-1', '--format=%ct']);
    await run('/bin/sh', ['-c', `umask 077; exec "$0"`, path.join(repository, 'scripts/packages/tarball')], {
        env: {
            ...process.env,
            COUNTERSIGN_FAST_PACKAGES: '1',
            TZ: 'Pacific/Auckland',
            program: path.join(output, '../program/countersign'),
            version,
            SOURCE_DATE_EPOCH: time.trim(),
            output: again
        }
    });
    // SHA256SUMS contains the checksums of all others.
    assert.equal(await readFile(path.join(again, 'SHA256SUMS'), 'utf8'), await readFile(path.join(output, 'SHA256SUMS'), 'utf8'));
    await run('sha256sum', ['--check', '--strict', 'SHA256SUMS'], { cwd: again });
});

test('the bill of materials is valid CycloneDX and lists the crates of the program', async () => {
    const file = path.join(output, `${name}.cdx.json`);
    // Checking the syntax of 400 addresses takes half a minute.
    const check = `import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from jsonschema import Draft7Validator
Draft7Validator.FORMAT_CHECKER.checkers.pop("iri-reference", None)
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(error and str(error)[:2000])`;
    await run(path.join(repository, 'tests/.cache/venv-packages/bin/python'), ['-c', check, file]);

    const document = JSON.parse(await readFile(file, 'utf8'));
    const application = document.metadata.component;
    assert.equal(application.version, version);
    const { stdout } = await run('sha256sum', [path.join(output, '../program/countersign')]);
    assert.equal(application.hashes[0].content, stdout.split(' ')[0]);
    const byName = Object.fromEntries(document.components.map(component => [component.name, component]));
    assert.match(byName.actix.purl, /^pkg:cargo\/actix@0\.13/);
    assert.equal(byName.actix.scope, 'required');
    // A build dependency, a procedural macro, and a dependency of tests only.
    assert.equal(byName.cc.scope, 'excluded');
    assert.equal(byName.serde_derive.scope, 'excluded');
    assert.equal(byName.stateright, undefined);
    for (const component of document.components) {
        assert.match(component.hashes[0].content, /^[0-9a-f]{64}$/, component.name);
        assert.ok(component.licenses, component.name);
    }
    const references = new Set([application, ...application.components, ...document.components].map(part => part['bom-ref']));
    assert.deepEqual(new Set(document.dependencies.map(dependency => dependency.ref)), references);
});

test('the formula names the released tarball and its checksum', async t => {
    const formula = await readFile(path.join(output, 'countersign.rb'), 'utf8');
    const sums = await readFile(path.join(output, 'SHA256SUMS'), 'utf8');
    assert.ok(sums.includes(`${formula.match(/sha256 "(.+)"/)[1]}  ${name}.tar.gz\n`));
    assert.ok(formula.includes(`/releases/download/v${version}/${name}.tar.gz"`));
    const ruby = await run('ruby', ['-c', path.join(output, 'countersign.rb')]).catch(error => {
        if (error.code !== 'ENOENT') throw error;
    });
    if (ruby) assert.match(ruby.stdout, /Syntax OK/);
    else t.diagnostic('ruby is not installed, so its syntax was not checked');
});

for (const downloader of ['curl', 'wget']) {
    test(`the script installs with ${downloader} and changes nothing else`, async () => {
        const home = await emptyHome();
        const tools = await toolFolder([...TOOLS, downloader]);
        const { code, text } = await install(home, tools);
        assert.equal(code, 0, text);
        assert.deepEqual(await tree(home), ['.local', '.local/bin', '.local/bin/countersign']);
        const program = path.join(home, '.local/bin/countersign');
        assert.equal((await stat(program)).mode & 0o777, 0o755);
        assert.match(text, new RegExp(`Installed countersign ${version.replaceAll('.', '\\.')}.* as ${program}`));
        assert.match(text, /\.local\/bin is not in PATH/);
        assert.deepEqual(await readdir(path.join(work, 'tmp')), []);

        // A second run replaces the program.
        await writeFile(program, 'an older program');
        const again = await install(home, tools, { PATH: `${path.dirname(program)}:${tools}` });
        assert.equal(again.code, 0, again.text);
        assert.doesNotMatch(again.text, /PATH/);
        assert.deepEqual(await tree(home), ['.local', '.local/bin', '.local/bin/countersign']);
        await access(program);
        assert.ok((await stat(program)).size > 1000);
    });
}

test('a program that was piped into a shell serves the first approved write', async () => {
    const home = await emptyHome();
    const env = { HOME: home, PATH: '/usr/bin:/bin', COUNTERSIGN_BASE_URL: base };
    const begun = performance.now();
    await run('/bin/sh', ['-c', `curl -fsSL ${base}/install.sh | sh`], { env });
    const program = path.join(home, '.local/bin/countersign');
    const gateway = spawn(program, ['serve', '--listen', LISTEN], { env, stdio: ['ignore', 'ignore', 'pipe'] });
    let log = '';
    gateway.stderr.setEncoding('utf8').on('data', text => (log += text));
    try {
        const exitError = () => gateway.exitCode !== null && `the gateway ended with ${gateway.exitCode}\n${log}`;
        const url = `http://127.0.0.1:${await publishedPort(path.join(home, '.local/state/countersign'), gateway.pid, exitError)}`;
        const tools = await fetch(`${url}/tools`);
        assert.equal(tools.status, 200);
        console.log(`${((performance.now() - begun) / 1000).toFixed(2)} s from the download to the first list of tools`);
        const { stdout: key } = await run(program, ['keys', 'create', '--role', 'reviewer', '--name', 'alice'], { env });
        await approveFirstWrite(url, key.trim());
    } finally {
        await stopChild(gateway);
    }
});

const released = file => path.join(work, 'released', file);

/** Runs the script while a released file has another content, and requires that it fails and leaves the home empty. */
async function refuses(pattern, { file, content, scripts, tools = TOOLS } = {}) {
    const original = file && (await readFile(released(file)));
    const home = await emptyHome();
    try {
        if (file) await writeFile(released(file), content(original));
        const { code, text } = await install(home, await toolFolder([...tools, 'curl'], scripts));
        assert.equal(code, 1, text);
        assert.match(text, pattern);
        assert.deepEqual(await tree(home), []);
        assert.deepEqual(await readdir(path.join(work, 'tmp')), []);
    } finally {
        if (file) await writeFile(released(file), original);
    }
}

test('nothing is installed from a wrong or an incomplete download', async () => {
    const tarball = `${name}.tar.gz`;
    await refuses(/the checksum of .* is .*, but SHA256SUMS says/, { file: tarball, content: bytes => bytes.subarray(0, -1) });
    await refuses(/names no tarball/, { file: 'SHA256SUMS', content: () => '' });
    await refuses(/names several tarballs/, { file: 'SHA256SUMS', content: text => `${text}${text}` });
    await refuses(/names no tarball/, { file: 'SHA256SUMS', content: text => String(text).replace('  countersign', '  ../countersign') });
    await refuses(/the download of .* failed/, {
        file: 'SHA256SUMS',
        content: text => String(text).replaceAll(version, '9.9.9')
    });
    // A script that ends early does nothing.
    const home = await emptyHome();
    const script = await readFile(path.join(output, 'install.sh'), 'utf8');
    await run('/bin/sh', ['-c', script.slice(0, script.lastIndexOf('main'))], { env: { HOME: home, PATH: '/usr/bin:/bin' } });
    assert.deepEqual(await tree(home), []);
});

test('the script refuses other platforms', async () => {
    await refuses(/runs on Linux only, and this is Darwin/, { scripts: { uname: 'echo Darwin' } });
    await refuses(/no program for aarch64/, { scripts: { uname: '[ "$1" = -s ] && echo Linux || echo aarch64' } });
    await refuses(/this system has glibc 2\.31/, { scripts: { getconf: 'echo glibc 2.31' } });
    await refuses(/this system has another C library/, { scripts: { getconf: 'exit 1' } });
    await refuses(/needs the command sha256sum/, { tools: TOOLS.filter(tool => tool !== 'sha256sum') });
});

test('the script does not replace a link of another installer', async () => {
    const home = await emptyHome();
    await mkdir(path.join(home, '.local/bin'), { recursive: true });
    await symlink('/opt/other/countersign', path.join(home, '.local/bin/countersign'));
    const { code, text } = await install(home, await toolFolder([...TOOLS, 'curl']));
    assert.equal(code, 1);
    assert.match(text, /is a link that another installer made/);
    assert.deepEqual(await tree(home), ['.local', '.local/bin', '.local/bin/countersign']);
});
