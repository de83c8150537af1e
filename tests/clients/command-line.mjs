// People who use the command line, and sign in there with an identity provider (`countersign login`).
import { spawn } from 'node:child_process';
import { readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';

import { binary, environment, eventually, run, stopChild, temporaryData } from './gateway.mjs';

/** The client of the command line at the provider. */
export const COMMAND_LINE = {
    client_id: 'countersign-cli',
    application_type: 'native',
    token_endpoint_auth_method: 'none',
    redirect_uris: ['http://127.0.0.1/callback'],
    grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code']
};

/** A person with a home folder who uses the command line. */
export class Person {
    static async start(t, gateway) {
        const person = new Person();
        Object.assign(person, { gateway, home: await temporaryData() });
        t.after(() => rm(person.home, { recursive: true, force: true }));
        return person;
    }

    get file() {
        return path.join(this.home, 'countersign/credentials.json');
    }

    get env() {
        // The program does not wait for the browser, which the tests play.
        return environment({ XDG_CONFIG_HOME: this.home, BROWSER: 'true' });
    }

    run(...args) {
        return run(binary, [...args, '--url', this.gateway.url], { env: this.env });
    }

    async runJson(...args) {
        return JSON.parse((await this.run(...args, '--json')).stdout);
    }

    /** Starts `countersign login`. `url` resolves with the page for the browser, and `ended` with the outcome. */
    startLogin(t, ...args) {
        const child = spawn(binary, ['login', ...args, '--url', this.gateway.url], { env: this.env, stdio: ['ignore', 'pipe', 'pipe'] });
        t.after(() => stopChild(child));
        const output = { stdout: '', stderr: '' };
        for (const name of ['stdout', 'stderr']) child[name].setEncoding('utf8').on('data', text => (output[name] += text));
        const ended = new Promise(resolve => child.once('close', code => resolve({ code, ...output })));
        const find = pattern => eventually(`login prints ${pattern}`, () => pattern.exec(output.stderr)?.[0]);
        return { ended, find, url: () => find(/http:\S+\/auth\?\S+/) };
    }

    async logIn(t, provider, subject) {
        const login = this.startLogin(t);
        const back = await provider.signIn(await login.url(), subject);
        const page = await fetch(back);
        return { page: { status: page.status, text: await page.text() }, ...(await login.ended) };
    }

    async entry() {
        return JSON.parse(await readFile(this.file, 'utf8'))[this.gateway.url];
    }

    /** Changes the stored tokens as if time had passed. */
    async changeEntry(change) {
        const entry = { ...(await this.entry()), ...change };
        await writeFile(this.file, JSON.stringify({ [this.gateway.url]: entry }));
    }
}
