// An MCP server that requires an access token for every request, and keeps the notes of each person apart. It speaks one era.
import { createServer } from 'node:http';

import { createRemoteJWKSet, decodeJwt, jwtVerify } from 'jose';

/** The scopes that the server asks for. */
export const SCOPES = ['notes:read', 'notes:write'];

const MODERN = '2026-07-28';
const LEGACY = '2025-11-25';

const text = { type: 'string' };
const tool = (name, properties, readOnlyHint) => ({
    name,
    description: `The tool ${name}`,
    inputSchema: { type: 'object', properties, required: Object.keys(properties) },
    annotations: { readOnlyHint }
});
/** `as` is the person for whom the agent calls. The server compares it with the token. */
const TOOLS = [
    tool('whoami', { as: text }, true),
    tool('read_note', { as: text, id: text }, true),
    tool('write_note', { as: text, id: text, text }, false)
];
/** Only some people have it. */
const PURGE = tool('purge', { as: text }, false);

const toolResult = value => ({ content: [{ type: 'text', text: JSON.stringify(value) }], structuredContent: value });

export class HostedServer {
    /**
     * Starts the server. `issuer` grants its tokens, and only the people in `admins` have all tools. `intercept` is called before
     * a tool runs; it may wait, and returns true to refuse the token.
     */
    static async start({ issuer, era = 'modern', admins = [] }) {
        const server = new HostedServer();
        // `tokens` maps each valid token that came to its person, and `calls` lists the calls of tools.
        Object.assign(server, { issuer, era, admins, tokens: new Map(), refused: [], calls: [], mixUps: [], sessions: new Map(), notes: new Map() });
        server.keys = createRemoteJWKSet(new URL(`${issuer}/jwks`));
        server.http = createServer((request, response) => {
            server.#answer(request).then(
                ({ status, headers = {}, body }) => {
                    response.writeHead(status, { 'content-type': 'application/json', ...headers });
                    response.end(body === undefined ? '' : JSON.stringify(body));
                },
                error => response.writeHead(500).end(String(error.stack))
            );
        });
        await new Promise((resolve, reject) => server.http.once('error', reject).listen(0, '127.0.0.1', resolve));
        server.origin = `http://127.0.0.1:${server.http.address().port}`;
        server.url = `${server.origin}/mcp`;
        return server;
    }

    async stop() {
        this.http.closeAllConnections();
        await new Promise(resolve => this.http.close(resolve));
    }

    note(person, id) {
        return this.notes.get(`${person} ${id}`);
    }

    setNote(person, id, value) {
        this.notes.set(`${person} ${id}`, value);
    }

    /** Returns the calls of a tool. */
    callsOf(name) {
        return this.calls.filter(call => call.name === name);
    }

    async #answer(request) {
        if (request.url === '/.well-known/oauth-protected-resource/mcp') {
            return { status: 200, body: { resource: this.url, authorization_servers: [this.issuer], scopes_supported: SCOPES } };
        }
        if (request.url !== '/mcp') return { status: 404 };
        const token = /^Bearer (.+)$/.exec(request.headers.authorization)?.[1];
        const person = token && (await this.#authenticate(token));
        if (!person) return this.#challenge(request);
        const session = request.headers['mcp-session-id'];
        if (session !== undefined && this.sessions.get(session) !== person) {
            this.mixUps.push(`the session of ${this.sessions.get(session)} is used by ${person}`);
            return { status: 404 };
        }
        if (request.method !== 'POST') return { status: request.method === 'DELETE' ? 200 : 405 };
        let body = '';
        for await (const part of request.setEncoding('utf8')) body += part;
        const message = JSON.parse(body);
        if (message.id === undefined) return { status: 202 };
        if (message.method === 'tools/call') {
            this.calls.push({ person, token, name: message.params.name, args: message.params.arguments });
            if (await this.intercept?.(message.params)) return this.#challenge(request);
        }
        const result = this.#result(person, message);
        if (!result) {
            const error = { code: -32601, message: `${message.method} is not known` };
            return { status: this.era === 'modern' ? 404 : 200, body: { jsonrpc: '2.0', id: message.id, error } };
        }
        const headers = {};
        if (message.method === 'initialize') this.sessions.set((headers['mcp-session-id'] = crypto.randomUUID()), person);
        const more = this.era === 'modern' ? { resultType: 'complete', ttlMs: 0, cacheScope: 'private' } : {};
        return { status: 200, headers, body: { jsonrpc: '2.0', id: message.id, result: { ...result, ...more } } };
    }

    #challenge({ headers }) {
        const challenge = `Bearer resource_metadata="${this.origin}/.well-known/oauth-protected-resource/mcp", scope="${SCOPES.join(' ')}"`;
        return { status: 401, headers: { 'www-authenticate': headers.authorization ? `${challenge}, error="invalid_token"` : challenge } };
    }

    /** Returns the person whose valid token it is. */
    async #authenticate(token) {
        // The times in tokens are whole seconds, and a token may end while the request is on its way.
        const checks = { issuer: this.issuer, audience: this.url, requiredClaims: ['exp'], clockTolerance: 15 };
        try {
            const { payload } = await jwtVerify(token, this.keys, checks);
            this.tokens.set(token, payload.sub);
            return payload.sub;
        } catch (error) {
            // A token that has expired is the gateway's own; others must never come here.
            if (error.code !== 'ERR_JWT_EXPIRED') this.refused.push(error.message);
            else this.tokens.set(token, decodeJwt(token).sub);
            return undefined;
        }
    }

    #result(person, { method, params }) {
        const serverInfo = { name: 'hosted', version: '1.0.0' };
        const tools = this.admins.includes(person) ? [...TOOLS, PURGE] : TOOLS;
        if (method === 'tools/list') return { tools };
        if (method === 'tools/call') return this.#call(person, params, tools);
        if (this.era === 'modern') {
            const _meta = { 'io.modelcontextprotocol/serverInfo': serverInfo };
            return method === 'server/discover' ? { supportedVersions: [MODERN], capabilities: { tools: {} }, _meta } : undefined;
        }
        if (method === 'ping') return {};
        return method === 'initialize' ? { protocolVersion: LEGACY, capabilities: { tools: {} }, serverInfo } : undefined;
    }

    #call(person, { name, arguments: args }, tools) {
        if (args.as !== person) this.mixUps.push(`${name} for ${args.as} with the token of ${person}`);
        if (!tools.some(tool => tool.name === name)) return { ...toolResult({ error: 'not allowed' }), isError: true };
        if (name === 'write_note') this.setNote(person, args.id, args.text);
        if (name === 'purge') this.notes.clear();
        return toolResult({ person, text: args.id === undefined ? '' : (this.note(person, args.id) ?? '') });
    }
}
