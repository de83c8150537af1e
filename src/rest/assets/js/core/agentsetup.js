// Writes the configuration with which each client connects an agent to this gateway.

import { t } from './locale.js';

const KEY_VARIABLE = 'COUNTERSIGN_AGENT_KEY';

/** Quotes a word for a shell, if it needs quotes. */
export const shellWord = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll('\'', '\'\\\'\'')}'`);

// Lists of arguments stay on one line.
const pretty = (value) => JSON.stringify(value, null, 2).replace(/\[\n\s*([^\]]*?)\n\s*\]/g, (_, items) => `[${items.split(/,\n\s*/).join(', ')}]`);

/**
 * Returns the setup for each client: `{id, name, where, text, isRemote}`. `program` and `args` start `countersign stdio`,
 * `url` is the address for MCP over HTTP, and `key` is the agent's key or null if none is needed.
 */
export function agentSetups({ program, args, url, key }) {
  const env = key === null ? {} : { env: { [KEY_VARIABLE]: key } };
  const entry = { command: program, args, ...env };
  const block = pretty({ mcpServers: { countersign: entry } });
  const command = [program, ...args].map(shellWord).join(' ');
  const variable = key === null ? '' : `${KEY_VARIABLE}=${shellWord(key)} `;
  const flag = key === null ? '' : `--env ${variable}`;
  const goose = ['extensions:', '  countersign:', '    type: stdio', '    name: countersign', '    enabled: true', `    cmd: ${JSON.stringify(program)}`, `    args: ${JSON.stringify(args)}`,
    ...(key === null ? [] : [`    envs: { ${KEY_VARIABLE}: ${JSON.stringify(key)} }`]), '    timeout: 300'].join('\n');
  const http = { type: 'http', url, ...(key === null ? {} : { headers: { Authorization: `Bearer ${key}` } }) };
  return [
    { id: 'claude-desktop', name: 'Claude Desktop', where: t('core.setup.claudeDesktop'), text: block },
    { id: 'claude-code', name: 'Claude Code', where: t('core.setup.terminal'), text: `claude mcp add ${flag}--scope user countersign -- ${command}` },
    { id: 'cursor', name: 'Cursor', where: t('core.setup.addTo', { file: '~/.cursor/mcp.json' }), text: block },
    { id: 'vscode', name: 'VS Code', where: t('core.setup.addTo', { file: '.vscode/mcp.json' }), text: pretty({ servers: { countersign: { type: 'stdio', ...entry } } }) },
    { id: 'codex', name: 'Codex', where: t('core.setup.terminal'), text: `codex mcp add countersign ${flag}-- ${command}` },
    { id: 'gemini', name: 'Gemini CLI', where: t('core.setup.addTo', { file: '~/.gemini/settings.json' }), text: block },
    { id: 'goose', name: 'Goose', where: t('core.setup.addTo', { file: '~/.config/goose/config.yaml' }), text: goose },
    { id: 'stdio', name: 'stdio', where: t('core.setup.stdio'), text: `${variable}${command}` },
    { id: 'http', name: 'HTTP', where: t('core.setup.http'), text: pretty({ mcpServers: { countersign: http } }), isRemote: true },
  ];
}
