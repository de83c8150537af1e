// Wraps an SDK client of either era in one interface and records what it is asked and notified of.
import { Client as Modern, LOG_LEVEL_META_KEY, StreamableHTTPClientTransport as ModernHttp } from '@modelcontextprotocol/client';
import { StdioClientTransport as ModernStdio } from '@modelcontextprotocol/client/stdio';
import { Client as Legacy } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as LegacyStdio } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport as LegacyHttp } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { WebSocketClientTransport as LegacySocket } from '@modelcontextprotocol/sdk/client/websocket.js';
import {
    CreateMessageRequestSchema,
    ElicitRequestSchema,
    ListRootsRequestSchema,
    LoggingMessageNotificationSchema,
    PromptListChangedNotificationSchema,
    ResourceUpdatedNotificationSchema,
    ToolListChangedNotificationSchema
} from '@modelcontextprotocol/sdk/types.js';

import { environment } from './gateway.mjs';
import { WebSocketTransport } from './websocket.mjs';

/** The capabilities that a peer declares by default. */
export const ALL_CAPABILITIES = { elicitation: { form: {} }, sampling: {}, roots: {} };

const SCHEMAS = {
    'elicitation/create': ElicitRequestSchema,
    'sampling/createMessage': CreateMessageRequestSchema,
    'roots/list': ListRootsRequestSchema,
    'notifications/message': LoggingMessageNotificationSchema,
    'notifications/resources/updated': ResourceUpdatedNotificationSchema,
    'notifications/tools/list_changed': ToolListChangedNotificationSchema,
    'notifications/prompts/list_changed': PromptListChangedNotificationSchema
};

/** Creates the transport to `{ http: URL, key }`, `{ ws: URL }` or `{ command, args }`. */
function transport(target, modern) {
    const options = target.key && { requestInit: { headers: { Authorization: `Bearer ${target.key}` } } };
    if (target.http) return modern ? new ModernHttp(target.http, options) : new LegacyHttp(target.http, options);
    if (target.ws) return modern ? new WebSocketTransport(target.ws) : new LegacySocket(target.ws);
    const child = { ...target, env: target.env ?? environment(), stderr: 'ignore' };
    return modern ? new ModernStdio(child) : new LegacyStdio(child);
}

/** The default answers of the person and the model behind the client. */
export const ANSWERS = {
    'elicitation/create': ({ requestedSchema }) => ({
        action: 'accept',
        content: Object.fromEntries(Object.entries(requestedSchema.properties).map(([name, schema]) => [name, example(schema)]))
    }),
    'sampling/createMessage': ({ messages }) => ({
        role: 'assistant',
        model: 'test-model',
        stopReason: 'endTurn',
        content: { type: 'text', text: `the model heard: ${messages.at(-1).content.text}` }
    }),
    'roots/list': () => ({ roots: [{ uri: 'file:///home/alice/work', name: 'work' }] })
};

function example(schema) {
    if ('default' in schema) return schema.default;
    const choice = schema.enum?.[0] ?? schema.oneOf?.[0].const;
    if (choice !== undefined) return choice;
    if (schema.type === 'array') return [schema.items.enum?.[0] ?? schema.items.anyOf?.[0].const];
    return { string: 'Alice', boolean: true, number: 1.5, integer: 3 }[schema.type];
}

/** The prefix of the gateway that tells which server asks. */
const SERVER_PREFIX = /^The server "[^"]+" asks(, not Countersign: | you to open a page at \S+\. Not Countersign: )/;

/** The suffix of the gateway for questions that look like a request for a credential. */
const CREDENTIAL_WARNING = /\n\nCareful: this looks like a request for a credential[^\n]*$/;

/**
 * Connects a client of that era (`legacy` with the SDK 1.x, `modern` with 2.x). `asked`, `logs`, `updated` and `changed`
 * collect its requests and notifications. `named` records for each question if it named the asking server; the prefix is
 * removed from `asked`, so that it can be compared with a direct connection.
 */
export async function connectPeer(era, target, { capabilities = ALL_CAPABILITIES, name = `peer-${era}`, answers = ANSWERS } = {}) {
    const modern = era === 'modern';
    const options = { name, version: '1.0.0' };
    const client = modern
        ? new Modern(options, { capabilities, versionNegotiation: { mode: { pin: '2026-07-28' } } })
        : new Legacy(options, { capabilities });
    const [asked, named, logs, updated, changed, errors] = [[], [], [], [], [], []];
    client.onerror = error => errors.push(error);
    const needs = { 'elicitation/create': 'elicitation', 'sampling/createMessage': 'sampling', 'roots/list': 'roots' };
    for (const [method, capability] of Object.entries(needs)) {
        if (!capabilities[capability]) continue;
        client.setRequestHandler(modern ? method : SCHEMAS[method], async ({ params }) => {
            const { _meta, ...rest } = params ?? {};
            // A form is the default mode, which some servers omit.
            if (method === 'elicitation/create') {
                named.push(SERVER_PREFIX.test(rest.message));
                asked.push({ method, mode: 'form', ...rest, message: rest.message.replace(SERVER_PREFIX, '').replace(CREDENTIAL_WARNING, '') });
            } else {
                asked.push({ method, ...rest });
            }
            return answers[method](rest);
        });
    }
    const handlers = {
        'notifications/message': params => logs.push(params),
        'notifications/resources/updated': params => updated.push(params.uri),
        'notifications/tools/list_changed': () => changed.push('tools'),
        'notifications/prompts/list_changed': () => changed.push('prompts')
    };
    for (const [method, note] of Object.entries(handlers)) {
        client.setNotificationHandler(modern ? method : SCHEMAS[method], notification => void note(notification.params));
    }
    await client.connect(transport(target, modern));
    const fresh = modern ? { cacheMode: 'refresh' } : undefined;
    return {
        era,
        modern,
        client,
        asked,
        named,
        logs,
        updated,
        changed,
        errors,
        /** `level` is the log level during the call. */
        async call(tool, args, { level, ...options } = {}) {
            const params = { name: tool, arguments: args };
            if (modern) return client.callTool(level ? { ...params, _meta: { [LOG_LEVEL_META_KEY]: level } } : params, options);
            if (level) await client.setLoggingLevel(level);
            return client.callTool(params, undefined, options);
        },
        tools: async () => (await client.listTools(undefined, fresh)).tools,
        prompts: async () => (await client.listPrompts(undefined, fresh)).prompts,
        resources: async () => (await client.listResources(undefined, fresh)).resources,
        templates: async () => (await client.listResourceTemplates(undefined, fresh)).resourceTemplates,
        read: uri => client.readResource({ uri }, fresh),
        prompt: (prompt, args) => client.getPrompt({ name: prompt, arguments: args }),
        complete: params => client.complete(params),
        /** Subscribes to changes of the lists and of this resource. Returns a function to stop. */
        async watch(uri) {
            if (!modern) {
                await client.subscribeResource({ uri });
                return () => client.unsubscribeResource({ uri });
            }
            const subscription = await client.listen({ toolsListChanged: true, promptsListChanged: true, resourceSubscriptions: [uri] });
            return () => subscription.close();
        },
        close: () => client.close()
    };
}
