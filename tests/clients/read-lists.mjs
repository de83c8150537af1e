// Compares the lists of known reads (config/reads) with the definitions of real servers.
// With RENEW_READS=1, writes the hashes of the installed servers into the lists instead.
import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';

import { repository } from './gateway.mjs';

export const LISTS = path.join(repository, 'config/reads');
export const RENEWS = process.env.RENEW_READS === '1';

/** Calls `change(tool, hash)` for each tool below the package, and returns the text with the hashes that it returns. */
function mapHashes(text, packages, change) {
    let isInstalled = false;
    const lines = text.split('\n').map(line => {
        const [, name] = /^- package: '?([^']*)'?$/.exec(line) ?? [];
        if (name) isInstalled = packages.includes(name);
        const [, tool, hash] = /^ {4}([\w.-]+): (sha256:[0-9a-f]*)$/.exec(line) ?? [];
        return tool && isInstalled ? `    ${tool}: ${change(tool, hash)}` : line;
    });
    return lines.join('\n');
}

/**
 * Compares the hashes below these packages in the list of that name with the definitions of a server, or writes them. `wrongReads`
 * are tools whose annotations are wrong: those that declare to read and are not on the list, and those that are on it all the same.
 */
export async function checkReads(list, packages, definitions, wrongReads = []) {
    const file = path.join(LISTS, `${list}.yaml`);
    const text = await readFile(file, 'utf8');
    const hashes = new Map(definitions.map(({ name, hash }) => [name, hash]));
    const listed = [];
    const renewed = mapHashes(text, packages, tool => {
        listed.push(tool);
        assert.ok(hashes.has(tool), `${tool} is gone`);
        return hashes.get(tool);
    });
    assert.ok(listed.length > 0, `no entry is for one of ${packages.join(', ')}`);
    if (RENEWS) return writeFile(file, renewed);
    assert.equal(renewed, text, 'RENEW_READS=1 writes the hashes of the installed version');
    // Every tool that declares to read is either on the list or left out on purpose.
    const claimed = definitions.filter(tool => Boolean(tool.annotations.readOnlyHint) !== wrongReads.includes(tool.name));
    assert.deepEqual(definitions.filter(tool => tool.known === 'read').map(({ name }) => name), claimed.map(({ name }) => name));
}
