// The page docs/servers-tried.md: suites that try the shipped recipes collect what a reviewer saw, and compare it with the page.
// With RENEW_TRIED=1, they write their section instead.
import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';

import { repository } from './gateway.mjs';

const PAGE = path.join(repository, 'docs/servers-tried.md');
const RENEWS = process.env.RENEW_TRIED === '1';

/** The words for the results of reading a change back. */
const READ_BACK = { matches: 'as approved', differs: 'differs', unreadable: 'cannot be read' };

const isRead = ({ field }) => field.startsWith('$read');
const names = fields => [...new Set(fields.map(({ label }) => label))].join(', ');

/** Returns what the reviewer saw of the state before and after a change, as texts. */
function statesOf({ diff: { fields }, preview }) {
    const isNote = ({ lines }) => lines?.length > 0 && lines.every(({ op }) => op === 'note');
    const isState = field => /^\$(content|rows|definition)/.test(field.field) && !field.field.endsWith('.before') && !isNote(field);
    const state = preview.kind === 'arguments' ? [] : fields.filter(isState);
    const hasLines = (field, ...ops) => field.lines?.some(({ op }) => ops.includes(op));
    const existed = state.filter(field => (field.before ?? null) !== null || hasLines(field, 'delete', 'equal'));
    const remains = state.filter(field => (field.after ?? null) !== null || hasLines(field, 'insert', 'equal'));
    const beside = names(fields.filter(isRead));
    // The statement itself says what a definition will be.
    const definesObjects = fields.some(({ field }) => field.startsWith('$definition'));
    return { before: names(existed) || 'does not exist', beside, after: definesObjects ? 'Statement' : names(remains) || 'is gone' };
}

/** What was tried of one server. */
export class TriedServer {
    #rows = [];

    /** `title` is the heading of the section, and `how` a sentence that says how the server was tried. */
    constructor({ title, how }) {
        Object.assign(this, { title, how });
    }

    /**
     * Adds a change that was approved and applied. `tool` may name a variant (`issue_write, create`), and `wrong` says which annotation
     * of the definition is wrong. A recipe that shows only reads does not show the state after the call.
     */
    add(tool, change, { wrong = '' } = {}) {
        const { before, beside, after } = statesOf(change);
        const verified = READ_BACK[change.verification?.verified];
        // Without a state that was read, the fields are the arguments of the call.
        const isShown = verified !== undefined;
        this.#rows.push({
            tool,
            before: isShown ? [before, beside].filter(Boolean).join('; ') : beside,
            after: isShown ? after : 'not shown',
            verified: verified ?? 'no',
            wrong
        });
    }

    /** Returns the number of tools whose state before, after and verification were shown. */
    get shown() {
        return new Set(this.#rows.filter(({ verified }) => verified === READ_BACK.matches).map(({ tool }) => tool.split(',')[0])).size;
    }

    #section() {
        const header = ['| tool | before | after | read back | wrong annotations |', '|---|---|---|---|---|'];
        const rows = this.#rows.map(({ tool, before, after, verified, wrong }) => `| \`${tool.replace(', ', '` ')}${tool.includes(',') ? '' : '`'} | ${before} | ${after} | ${verified} | ${wrong} |`);
        const tools = this.shown === 1 ? 'tool' : 'tools';
        const summary = `${this.how} For ${this.shown} ${tools}, a reviewer sees the state before and after, and the gateway read it back as approved.`;
        return [`## ${this.title}`, '', summary, '', ...header, ...rows].join('\n');
    }

    /** Compares the section of the page with what was tried, or writes it. */
    async check() {
        const page = await readFile(PAGE, 'utf8');
        const [intro, ...sections] = page.trimEnd().split(/\n+(?=## )/);
        const isOwn = section => section.startsWith(`## ${this.title}\n`);
        const own = this.#section();
        if (!RENEWS) return assert.equal(sections.find(isOwn), own, 'RENEW_TRIED=1 writes the section');
        const others = sections.filter(section => !isOwn(section));
        await writeFile(PAGE, `${[intro, ...[...others, own].sort()].join('\n\n')}\n`);
    }
}
