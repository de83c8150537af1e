// An MCP server on stdio whose tool definitions are the lines of a file. It announces when the file changes.
//
//   node altering-server.mjs TOOLS_FILE

import { readFileSync, watchFile } from 'node:fs';
import { createInterface } from 'node:readline';

const [file] = process.argv.slice(2);
const answer = (id, result) => process.stdout.write(`{"jsonrpc":"2.0","id":${JSON.stringify(id)},${result}}\n`);

watchFile(file, { interval: 100 }, () => process.stdout.write('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'));
createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: () => JSON.stringify({ protocolVersion: params.protocolVersion, capabilities: { tools: { listChanged: true } }, serverInfo: { name: 'altering', version: '1.0.0' } }),
    ping: () => '{}',
    'tools/list': () => `{"tools":[${readFileSync(file, 'utf8').trim().split('\n').join(',')}]}`,
    'tools/call': () => '{"content":[{"type":"text","text":"done"}]}',
  };
  answer(id, results[method] ? `"result":${results[method]()}` : '"error":{"code":-32601,"message":"there is no such method"}');
}).on('close', () => process.exit(0));
