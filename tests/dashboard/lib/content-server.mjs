// An MCP server on stdio that keeps texts by name: `write` replaces one and `read` returns it. `send` only answers.

import { createInterface } from 'node:readline';

const texts = new Map();
const text = { type: 'string' };
const tool = (name, readOnlyHint, properties) => ({ name, description: `Tool ${name}`, inputSchema: { type: 'object', properties }, annotations: { readOnlyHint, destructiveHint: !readOnlyHint } });
const tools = [tool('read', true, { name: text }), tool('write', false, { name: text, value: text }), tool('send', false, {})];

const CALLS = {
  read: ({ name }) => (texts.has(name) ? { content: [{ type: 'text', text: texts.get(name) }] } : { content: [{ type: 'text', text: 'no such text' }], isError: true }),
  write: ({ name, value }) => {
    texts.set(name, value);
    return { content: [{ type: 'text', text: 'written' }] };
  },
  send: () => ({ content: [{ type: 'text', text: 'sent' }] }),
};

createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: () => ({ protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'content', version: '1.0.0' } }),
    ping: () => ({}),
    'tools/list': () => ({ tools }),
    'tools/call': () => CALLS[params.name](params.arguments ?? {}),
  };
  const answer = results[method] ? { result: results[method]() } : { error: { code: -32601, message: 'there is no such method' } };
  process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', id, ...answer })}\n`);
}).on('close', () => process.exit(0));
