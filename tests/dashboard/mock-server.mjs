// A gateway made of cardboard, with the commands and doors that the dashboard needs, so that the dashboard can be
// worked on and looked at alone:
//
//   node mock-server.mjs serve --listen 127.0.0.1:8080 --data /tmp/mock [--sample] [--many 1200]
//   node mock-server.mjs keys create --role reviewer --name alice --data /tmp/mock
//   node mock-server.mjs open --data /tmp/mock --listen 127.0.0.1:8080

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { Core, Credentials } from './mock/core.mjs';
import { serve } from './mock/http.mjs';
import { fill, fillMany } from './mock/sample.mjs';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    listen: { type: 'string', default: '127.0.0.1:8080' }, data: { type: 'string', default: '/tmp/countersign-mock' }, role: { type: 'string', default: 'reviewer' },
    name: { type: 'string', default: 'you' }, owner: { type: 'string' }, print: { type: 'boolean' }, sample: { type: 'boolean' }, many: { type: 'string' },
  },
});
const credentials = new Credentials(values.data);
const command = positionals.join(' ') || 'serve';

if (command === 'keys create') {
  console.log(credentials.create(values.role, values.name, values.owner));
} else if (command === 'open') {
  console.log(`http://${values.listen}/#code=${credentials.code(values.role, values.name)}`);
} else if (command === 'serve') {
  const core = new Core(values.data);
  if (values.sample) fill(core);
  if (values.many) fillMany(core, Number(values.many));
  const [host, port] = values.listen.split(':');
  const server = serve(core, credentials, { host, port: Number(port) });
  // As the gateway does, for whoever has it take any port.
  server.once('listening', () => {
    const said = JSON.stringify({ pid: process.pid, url: `http://${host}:${server.address().port}` });
    writeFileSync(join(values.data, 'gateway.json'), said);
  });
  const stop = () => {
    server.closeAllConnections();
    server.close(() => process.exit(0));
  };
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
} else {
  console.error(`no such command: ${command}`);
  process.exit(64);
}
