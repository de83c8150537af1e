// Builds the deb and the apt repository, installs from it in a booted Debian system, and uses, upgrades and removes it there.
import assert from 'node:assert/strict';
import { mkdtemp, rm, symlink } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';

import { eventually, repository } from '../clients/gateway.mjs';
import { buildOlderVersion, buildPackages } from './installed.mjs';
import { System, command, npmFolder, reasonToSkip } from './system.mjs';

const URL_OF_SERVICE = 'http://127.0.0.1:8080';

describe('deb', () => {
    let target, packages, lintian;

    before(async () => {
        target = await mkdtemp(path.join(os.tmpdir(), 'countersign-deb-'));
        packages = await buildPackages(target, 'deb');
        await command('bash', ['-c', '. scripts/lib.sh && need lintian lintian']);
        // It takes long for a debug program, so it runs beside the other tests. The packages of tests are not compressed.
        const options = ['--allow-root', '--tag-display-limit=0', '--fail-on=error,warning', '--suppress-tags=uses-no-compression-for-data-tarball'];
        lintian = command('lintian', [...options, packages.deb[0]]).then(({ stdout }) => stdout, String);
        await buildOlderVersion(packages, 'deb');
        await buildOlderVersion(packages, 'apt');
    });
    after(() => rm(target, { recursive: true, force: true }));

    describe('in a system', { skip: reasonToSkip() }, () => {
        let system, key, mainPid;

        before(async () => {
            system = await System.create();
            await symlink('/opt/npm/bin/npx-cli.js', path.join(system.root, 'usr/local/bin/npx'));
            await system.boot({
                '/srv/apt': path.join(packages.folder, 'apt'),
                '/usr/local/bin/node': process.execPath,
                '/opt/npm': await npmFolder(),
                '/opt/servers/node_modules': path.join(repository, 'tests/fixtures/node_modules')
            });
        });
        after(() => system?.remove());

        const show = async property => (await system.run(`systemctl show --value -p ${property} countersign`)).trim();
        const waitUntilHealthy = () =>
            system.script(`await eventually('healthy', async () => (await fetch('${URL_OF_SERVICE}/health')).ok);`);

        /** Puts lines of the example at the head of the unit into force. */
        const addExample = (name, ...keys) =>
            system.run(`
                mkdir -p /etc/systemd/system/countersign.service.d
                (echo '[Service]'; sed -nE 's/^# +((${keys.join('|')})=)/\\1/p' /usr/lib/systemd/system/countersign.service) \\
                    >/etc/systemd/system/countersign.service.d/${name}.conf
                systemctl daemon-reload
                systemctl restart countersign`);

        test('installs from the signed repository', async t => {
            await system.run(`
                rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
                cp /srv/apt/countersign.asc /etc/apt/keyrings/
                printf 'Types: deb\\nURIs: file:/srv/apt\\nSuites: stable\\nComponents: main\\nSigned-By: /etc/apt/keyrings/countersign.asc\\n' \\
                    >/etc/apt/sources.list.d/countersign.sources
                apt-get update -q -o APT::Update::Error-Mode=any`);
            const began = Date.now();
            const output = await system.run('apt-get install -q -y countersign=0.0.9-1');
            assert.match(output, /countersign-admin open --print/);
            const seconds = await system.script(`console.log(await secondsUntilTools('${URL_OF_SERVICE}', ${began}));`);
            t.diagnostic(`${seconds.trim()} s from apt-get install to the answer to tools/list`);
        });

        test('the service runs as its own user', async () => {
            await waitUntilHealthy();
            assert.equal(await show('ActiveState'), 'active');
            assert.equal((await system.run('systemctl is-enabled countersign')).trim(), 'enabled');
            assert.equal(await show('Type'), 'notify');
            assert.notEqual(await show('StatusText'), '');
            mainPid = await show('MainPID');
            assert.equal((await system.run(`stat -c %U /proc/${mainPid}`)).trim(), 'countersign');
            const status = await system.run(`cat /proc/${mainPid}/status`);
            assert.match(status, /^CapEff:\s0+$/m);
            assert.match(status, /^NoNewPrivs:\s1$/m);
            assert.match(status, /^Seccomp:\s2$/m);
            const modes = await system.run('stat -c "%a %U %G" /var/lib/countersign /etc/countersign/countersign.yaml');
            assert.equal(modes, '700 countersign countersign\n640 root countersign\n');
        });

        test('the service tells systemd about reloads', async () => {
            const isActive = async () => (await show('ActiveState')) === 'active';
            await system.run('systemctl reload countersign');
            await eventually('the reload is over', isActive);
            // systemd notices a reload that it did not ask for only if the gateway reports it.
            const changedAt = () => show('StateChangeTimestampMonotonic');
            const before = await changedAt();
            await system.run(`kill -HUP ${mainPid}`);
            await eventually('the reload is over', async () => (await changedAt()) !== before && isActive());
        });

        test('a user runs a service of their own', async () => {
            await system.run('useradd --create-home bob; loginctl enable-linger bob; systemctl start user@$(id -u bob)');
            const asBob = script =>
                system.run(`runuser -u bob -- env -i HOME=/home/bob PATH=/usr/bin:/bin XDG_RUNTIME_DIR=/run/user/$(id -u bob) sh -e <<'END'\ncd\n${script}\nEND`);
            // The service of the system has the port of the defaults.
            await asBob("mkdir -p .config/countersign; echo 'listen: 127.0.0.1:8081' >.config/countersign/countersign.yaml");
            const status = () => asBob('countersign service status || echo "exit code $?"');
            const files = () => asBob('find . -path ./.local -prune -o -print | sort');
            const before = await files();
            assert.match(await status(), /^not installed .*\nexit code 3\n$/);

            await asBob('countersign service install');
            assert.match(await status(), /^enabled: enabled\nstate: {3}active\n$/m);
            assert.match(await asBob('countersign health'), /127\.0\.0\.1:8081 is ready/);
            assert.equal(await asBob('stat -c %U /proc/$(systemctl --user show --value -p MainPID countersign)'), 'bob\n');

            // After a boot, the service starts before the user has logged in.
            await system.run('systemctl restart user@$(id -u bob)');
            await eventually('healthy', () => asBob('countersign health'));
            assert.match(await status(), /^state: {3}active\n$/m);

            assert.match(await asBob('countersign service uninstall'), /^removed .*countersign\.service$/m);
            assert.match(await status(), /^not installed/);
            await asBob('! countersign health 2>/dev/null');
            assert.equal(await files(), before);
            await system.run('loginctl disable-linger bob');
        });

        test('systemd accepts the unit and rates its exposure at most 2.0', async () => {
            const unit = '/usr/lib/systemd/system/countersign.service';
            assert.equal(await system.run(`systemd-analyze verify --man=no ${unit} 2>&1`), '');
            const rating = await system.run('systemd-analyze security --no-pager --threshold=20 countersign.service | tail -n 1');
            assert.match(rating, /Overall exposure level for countersign\.service: [01]\.\d|: 2\.0/);
        });

        test('prints the link of the first reviewer', async () => {
            const link = (await system.run('countersign-admin open --print')).trim();
            const [url, code] = link.split('/#code=');
            assert.equal(url, URL_OF_SERVICE);
            await system.script(`
                const response = await fetch('${url}/api/sign-in', {
                    method: 'POST', headers: { origin: '${url}', 'content-type': 'application/json' }, body: JSON.stringify({ code: '${code}' })
                });
                const answer = await response.text();
                if (!response.ok || !answer.includes('"reviewer"')) throw new Error(answer);`);
        });

        test('applies the first approved write', async () => {
            key = (await system.run('countersign-admin keys create --role reviewer --name alice')).trim();
            await system.script(`await approveFirstWrite('${URL_OF_SERVICE}', '${key}');`);
        });

        test('a server under npx writes under the restrictions of the service', async () => {
            await system.run(`
                install -d -o countersign -g countersign /srv/documents
                cat >>/etc/countersign/countersign.yaml <<'END'
mcpServers:
  files:
    # npx finds the installed package in this folder and downloads nothing.
    cwd: /opt/servers
    command: npx
    args: [-y, "@modelcontextprotocol/server-filesystem", /srv/documents]
END`);
            await addExample('documents', 'ReadWritePaths');
            await system.script(`
                const reviewer = new Reviewer('${URL_OF_SERVICE}', '${key}');
                const id = await eventually('the server takes the write', async () => {
                    const response = await fetch('${URL_OF_SERVICE}/tools/files__write_file', {
                        method: 'POST', headers: { 'content-type': 'application/json' },
                        body: JSON.stringify({ path: '/srv/documents/hello', content: 'hello' })
                    });
                    return (await response.text()).match(/chg_\\w+/)?.[0];
                });
                await reviewer.approve(id);
                await reviewer.reached(id, 'applied');`);
            assert.equal(await system.run('cat /srv/documents/hello'), 'hello');
            await system.run('test -d /var/cache/countersign/npm/_logs');
            // Later starts are faster without it.
            await system.run("sed -i 's/^  files:/&\\n    disabled: true/' /etc/countersign/countersign.yaml");
        });

        test('a private key and an environment that only root can read reach the service', async () => {
            // systemd and countersign-admin take the values of the file as they are.
            await system.run(`
                cd /etc/countersign
                umask 077
                openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -keyout tls.key -out tls.crt 2>/dev/null
                chmod 644 tls.crt
                cat >environment <<'END'
# HTTPS
COUNTERSIGN_TLS__CERT="/etc/countersign/tls.crt"
COUNTERSIGN_TLS__KEY=$CREDENTIALS_DIRECTORY/tls.key
END`);
            await addExample('tls', 'LoadCredential');
            await system.script(`
                process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0';
                await eventually('healthy', async () => (await fetch('https://127.0.0.1:8080/health')).ok);`);
            assert.match(await system.run('countersign-admin open --print'), /^https:/);
            await system.run(`
                rm /etc/countersign/tls.* /etc/countersign/environment /etc/systemd/system/countersign.service.d/tls.conf
                systemctl daemon-reload
                systemctl restart countersign`);
            await waitUntilHealthy();
        });

        test('an upgrade restarts the service and keeps its data and its configuration', async () => {
            mainPid = await show('MainPID');
            await system.run('apt-get install -q -y countersign');
            assert.notEqual((await system.run("dpkg-query -W -f '${Version}' countersign")), '0.0.9-1');
            await waitUntilHealthy();
            assert.equal(await show('ActiveState'), 'active');
            assert.notEqual(await show('MainPID'), mainPid);
            assert.match(await system.run('cat /etc/countersign/countersign.yaml'), /^mcpServers:$/m);
            await system.script(`
                const { status, body } = await new Reviewer('${URL_OF_SERVICE}', '${key}').api('GET', '/changes');
                if (status !== 200 || body.changes.filter(change => change.state === 'applied').length !== 2) throw new Error(JSON.stringify(body));`);
        });

        test('a removal stops the service and keeps its data, and a purge deletes them', async () => {
            await system.run('apt-get remove -q -y countersign');
            assert.equal(await show('ActiveState'), 'inactive');
            await system.run('test -e /var/lib/countersign/countersign.db -a -e /etc/countersign/countersign.yaml');
            await system.run('apt-get purge -q -y countersign');
            await system.run('! test -e /var/lib/countersign -o -e /etc/countersign -o -e /var/cache/countersign');
        });
    });

    test('lintian finds no error and no warning', async () => assert.equal(await lintian, ''));
});
