// Writes the configuration with which each client connects an agent to this gateway.

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
    { id: 'claude-desktop', name: 'Claude Desktop', where: 'Add this to claude_desktop_config.json (Settings, Developer, Edit Config), and restart Claude.', text: block },
    { id: 'claude-code', name: 'Claude Code', where: 'Run this in a terminal.', text: `claude mcp add ${flag}--scope user countersign -- ${command}` },
    { id: 'cursor', name: 'Cursor', where: 'Add this to ~/.cursor/mcp.json.', text: block },
    { id: 'vscode', name: 'VS Code', where: 'Add this to .vscode/mcp.json.', text: pretty({ servers: { countersign: { type: 'stdio', ...entry } } }) },
    { id: 'codex', name: 'Codex', where: 'Run this in a terminal.', text: `codex mcp add countersign ${flag}-- ${command}` },
    { id: 'gemini', name: 'Gemini CLI', where: 'Add this to ~/.gemini/settings.json.', text: block },
    { id: 'goose', name: 'Goose', where: 'Add this to ~/.config/goose/config.yaml.', text: goose },
    { id: 'stdio', name: 'stdio', where: 'Any other client on this machine starts this command.', text: `${variable}${command}` },
    { id: 'http', name: 'HTTP', where: 'Any client that speaks Streamable HTTP connects to this address.', text: pretty({ mcpServers: { countersign: http } }), isRemote: true },
  ];
}
