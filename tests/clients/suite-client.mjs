// The program that the conformance suite starts as "the client under test". It starts a gateway with the suite's mock server as
// its only upstream, and in front of it an SDK client of the era FRONT that runs the scenario.
//
//   MCP_CONFORMANCE_SCENARIO=… FRONT=legacy|modern [DIRECT=1] node suite-client.mjs URL
//
// DIRECT omits the gateway, which tests this script itself.
import { Client as Modern, StreamableHTTPClientTransport as ModernTransport } from '@modelcontextprotocol/client';
import { Client as Legacy } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as LegacyTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

import { startGatewayWith } from './fixture.mjs';
import { eventually } from './gateway.mjs';

const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const url = process.argv.at(-1);
const modern = process.env.FRONT === 'modern';
const direct = process.env.DIRECT === '1';
/** The prefixes of the gateway for names and URIs of its upstream `up`. */
const [PREFIX, SCHEME] = direct ? ['', ''] : ['up__', 'up+'];
const TIMEOUT = { timeout: 20_000 };

/** Accepts every form, with the default of each field or `true`. */
const accept = ({ params }) => {
    const properties = Object.entries(params.requestedSchema?.properties ?? {});
    return { action: 'accept', content: Object.fromEntries(properties.map(([name, schema]) => [name, schema.default ?? true])) };
};

async function connect(endpoint) {
    const clientInfo = { name: 'suite-client', version: '1.0.0' };
    const capabilities = { elicitation: { form: { applyDefaults: true } } };
    const client = modern ? new Modern(clientInfo, { capabilities, versionNegotiation: { mode: { pin: '2026-07-28' } } }) : new Legacy(clientInfo, { capabilities });
    client.setRequestHandler(modern ? 'elicitation/create' : ElicitRequestSchema, accept);
    await client.connect(modern ? new ModernTransport(endpoint) : new LegacyTransport(endpoint));
    return client;
}

/** Returns the tools of the mock server, without the gateway's own, after they are listed. */
async function tools(client) {
    return eventually('the tools of the upstream', async () => {
        const { tools } = await client.listTools(undefined, modern ? { cacheMode: 'refresh' } : undefined);
        const upstreamTools = tools.filter(tool => tool.name.startsWith(PREFIX));
        return upstreamTools.length > 0 && upstreamTools;
    });
}

/** Returns arguments for a tool of the mock server. */
function sample(tool) {
    const examples = { number: 2, integer: 2, string: 'eu', boolean: true, array: [], object: {}, null: null };
    const { properties = {}, required = [] } = tool.inputSchema;
    return Object.fromEntries(required.map(name => [name, examples[properties[name]?.type] ?? 'a']));
}

const call = (client, name, args = {}) =>
    modern ? client.callTool({ name, arguments: args }, TIMEOUT) : client.callTool({ name, arguments: args }, undefined, TIMEOUT);

/** Calls every listed tool with arguments of its schema. */
async function callAll(client) {
    for (const tool of await tools(client)) console.log(tool.name, JSON.stringify(await call(client, tool.name, sample(tool))));
}

const scenarios = {
    initialize: async client => void (await client.listTools()),
    'request-metadata': async client => void (await client.listTools()),
    tools_call: callAll,
    'elicitation-sep1034-client-defaults': callAll,
    'sse-retry': callAll,
    'sep-2322-client-request-state': callAll,
    'http-invalid-tool-headers': callAll,
    'json-schema-ref-no-deref': tools,
    'http-custom-headers': async client => {
        await tools(client);
        for (const { name, arguments: args } of context.toolCalls) console.log(name, JSON.stringify(await call(client, `${PREFIX}${name}`, args)));
    },
    'http-standard-headers': async client => {
        await callAll(client);
        const resources = (await client.listResources()).resources.filter(({ uri }) => uri.startsWith(SCHEME));
        for (const { uri } of resources) console.log(uri, JSON.stringify(await client.readResource({ uri })));
        const prompts = (await client.listPrompts()).prompts.filter(({ name }) => name.startsWith(PREFIX));
        for (const { name } of prompts) console.log(name, JSON.stringify(await client.getPrompt({ name })));
        if (resources.length < 2 || prompts.length < 1) throw new Error(`too little is listed: ${resources.length} resources, ${prompts.length} prompts`);
    }
};

const steps = scenarios[scenario];
if (!steps) throw new Error(`nothing is written for the scenario ${scenario}`);
const gateway = direct
    ? undefined
    : await startGatewayWith({
          policy: { default: 'allow' },
          modules: { tracker: { enabled: false } },
          mcpServers: { up: { url, required: true } }
      });
try {
    const client = await connect(gateway?.mcp ?? new URL(url));
    await steps(client);
    await client.close();
} catch (error) {
    console.error(error);
    if (gateway) console.error(`--- stderr of the gateway ---\n${gateway.log()}`);
    process.exitCode = 1;
} finally {
    await gateway?.stop();
}
