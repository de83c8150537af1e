// Reads lists of recipients. Pure.

/**
 * Returns the recipients in a JSON array of strings, or in a text with commas, semicolons or lines. Returns null for
 * anything else.
 */
function recipientsOf(text) {
  if (text === null || text === undefined) return [];
  const trimmed = text.trim();
  if (!trimmed.startsWith('[') && !trimmed.startsWith('{')) return trimmed.split(/[,;\n]/).map((name) => name.trim()).filter((name) => name !== '');
  try {
    const list = JSON.parse(trimmed);
    return Array.isArray(list) && list.every((name) => typeof name === 'string') ? list : null;
  } catch {
    return null;
  }
}

/** Returns `[{op, name}]` with the ops `equal`, `insert` and `delete`, or null if a text is no list. */
export function compareRecipients(before, after) {
  const [old, current] = [recipientsOf(before), recipientsOf(after)];
  if (!old || !current) return null;
  const [was, now] = [new Set(old), new Set(current)];
  return [...current.map((name) => ({ op: was.has(name) ? 'equal' : 'insert', name })), ...old.filter((name) => !now.has(name)).map((name) => ({ op: 'delete', name }))];
}
