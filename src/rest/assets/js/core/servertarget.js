// Converts between the fields of a form and the settings of a server as the configuration file has them.

import { t } from './locale.js';

const RUNNERS = {
  npm: { label: t('core.kind.npm'), command: 'npx', first: ['-y'] },
  pypi: { label: t('core.kind.pypi'), command: 'uvx', first: [] },
  docker: { label: t('core.kind.docker'), command: 'docker', first: ['run', '-i', '--rm'] },
};

/** The kinds of servers in the order of the form, each with its label. */
export const KINDS = [...Object.entries(RUNNERS).map(([kind, { label }]) => [kind, label]), ['command', t('core.kind.command')], ['url', t('core.kind.url')], ['paste', t('core.kind.paste')]];

const TARGET_KEYS = ['command', 'args', 'url', 'serverUrl', 'httpUrl', 'type', 'transport', 'env', 'headers'];

/** Returns the lines of a text without empty ones. */
const nonEmptyLines = (text) => text.split('\n').map((line) => line.replace(/\r$/, '')).filter((line) => line.trim() !== '');

/** Returns `{KEY: value}` of lines such as `KEY=value` or `Name: value`, or the first line that has no separator. */
function pairsOf(text, separator) {
  const pairs = {};
  for (const line of nonEmptyLines(text)) {
    const at = line.indexOf(separator);
    if (at < 1) return { wrong: line };
    pairs[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return { pairs };
}

const words = (value) => (Array.isArray(value) ? value.map(String) : []);
const startsWith = (all, first) => first.every((word, n) => all[n] === word);

/** Returns the fields of the form for these settings. */
export function fieldsOf(settings) {
  const args = words(settings.args);
  const shown = { kind: 'command', target: String(settings.command ?? ''), args, pairs: settings.env ?? {}, separator: '=' };
  const url = settings.url ?? settings.httpUrl ?? settings.serverUrl;
  if (url !== undefined) Object.assign(shown, { kind: 'url', target: String(url), args: [], pairs: settings.headers ?? {}, separator: ': ' });
  for (const [kind, { command, first }] of Object.entries(RUNNERS)) {
    const rest = args.slice(first.length);
    // With other flags before it, the package cannot be told from the flags.
    if (settings.command === command && startsWith(args, first) && rest.length && !rest[0].startsWith('-')) Object.assign(shown, { kind, target: rest[0], args: rest.slice(1) });
  }
  return { kind: shown.kind, target: shown.target, args: shown.args.join('\n'), pairs: Object.entries(shown.pairs).map(([key, value]) => `${key}${shown.separator}${value}`).join('\n') };
}

/**
 * Returns `{settings}` for the fields of the form, or `{problem, field}`. Keys of `old` that the form does not show stay, and so does
 * what the form shows but the user did not change, because some values do not fit into lines.
 */
export function settingsOf({ kind, target, args, pairs }, old = {}) {
  const name = target.trim();
  if (name === '') return { problem: t(kind === 'url' ? 'core.target.address' : kind === 'command' ? 'core.target.command' : 'core.target.name'), field: 'target' };
  const isUrl = kind === 'url';
  const runner = RUNNERS[kind];
  if (runner && name.startsWith('-')) return { problem: t('core.target.package'), field: 'target' };
  const read = pairsOf(pairs, isUrl ? ':' : '=');
  if (read.wrong !== undefined) return { problem: t(isUrl ? 'core.target.headers' : 'core.target.variables'), field: 'pairs' };
  const before = fieldsOf(old);
  // A path may contain spaces, and so may a command that was configured before.
  if (kind === 'command' && target !== before.target && /^[^/\s]+\s/.test(name)) return { problem: t('core.target.programOnly'), field: 'target' };
  const pick = (keys) => Object.fromEntries(Object.entries(old).filter(([key]) => keys.includes(key)));
  const isSame = before.kind === kind && before.target === target && before.args === args;
  const list = [...(runner ? [...runner.first, name] : []), ...nonEmptyLines(args)];
  const changed = isUrl ? { url: name } : { command: runner?.command ?? name, ...(list.length ? { args: list } : {}) };
  const what = isSame ? pick(['command', 'args', 'url', 'serverUrl', 'httpUrl', 'type', 'transport']) : changed;
  const values = before.kind === 'url' === isUrl && before.pairs === pairs ? pick([isUrl ? 'headers' : 'env']) : Object.keys(read.pairs).length ? { [isUrl ? 'headers' : 'env']: read.pairs } : {};
  const rest = Object.fromEntries(Object.entries(old).filter(([key]) => !TARGET_KEYS.includes(key)));
  return { settings: { ...what, ...values, ...rest } };
}
