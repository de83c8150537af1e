// Cuts JSON text into values and tokens without parsing numbers. `JSON.parse` would round long numbers, drop duplicate
// keys and reorder some, but a reviewer must see exactly what will run.

/** Returns the source text of the member at `path` in a JSON object, or null. The text must be valid JSON. */
export function sourceOf(text, path) {
  let at = skipSpace(text, 0);
  for (const name of path) {
    const position = member(text, at, name);
    if (position === -1) return null;
    at = position;
  }
  return text.slice(at, endOfValue(text, at));
}

/** Returns the source texts of the elements of a JSON array. The text must be a valid array. */
export function elementsOf(text) {
  const out = [];
  for (let at = skipSpace(text, 1); text[at] !== ']' && at < text.length;) {
    const end = endOfValue(text, at);
    out.push(text.slice(at, end));
    at = skipSpace(text, end);
    if (text[at] === ',') at = skipSpace(text, at + 1);
  }
  return out;
}

function skipSpace(text, at) {
  while (at < text.length && ' \t\r\n'.includes(text[at])) at += 1;
  return at;
}

function endOfString(text, at) {
  for (let i = at + 1; i < text.length; i += 1) {
    if (text[i] === '\\') i += 1;
    else if (text[i] === '"') return i + 1;
  }
  return text.length;
}

function endOfValue(text, at) {
  if (text[at] === '"') return endOfString(text, at);
  if (text[at] === '{' || text[at] === '[') {
    let depth = 0;
    for (let i = at; i < text.length; i += 1) {
      const char = text[i];
      if (char === '"') i = endOfString(text, i) - 1;
      else if (char === '{' || char === '[') depth += 1;
      else if ((char === '}' || char === ']') && --depth === 0) return i + 1;
    }
    return text.length;
  }
  let i = at;
  while (i < text.length && !',]} \t\r\n'.includes(text[i])) i += 1;
  return i;
}

function member(text, at, name) {
  if (text[at] !== '{') return -1;
  let i = skipSpace(text, at + 1);
  while (i < text.length && text[i] === '"') {
    const end = endOfString(text, i);
    const key = JSON.parse(text.slice(i, end));
    i = skipSpace(text, end);
    i = skipSpace(text, i + 1); // the colon
    if (key === name) return i;
    i = skipSpace(text, endOfValue(text, i));
    if (text[i] === ',') i = skipSpace(text, i + 1);
  }
  return -1;
}

/** Returns `[{key, source}]` of an object's members in their order, with duplicates, or null for anything else. */
export function members(text) {
  let i = skipSpace(text, 0);
  if (text[i] !== '{') return null;
  const out = [];
  i = skipSpace(text, i + 1);
  while (i < text.length && text[i] === '"') {
    const end = endOfString(text, i);
    const key = JSON.parse(text.slice(i, end));
    i = skipSpace(text, skipSpace(text, end) + 1);
    const valueEnd = endOfValue(text, i);
    out.push({ key, source: text.slice(i, valueEnd) });
    i = skipSpace(text, valueEnd);
    if (text[i] === ',') i = skipSpace(text, i + 1);
  }
  return out;
}

/** Returns the JSON text of an object with the members `[{key, source}]`. */
export const compose = (list) => `{${list.map(({ key, source }) => `${JSON.stringify(key)}:${source}`).join(',')}}`;

/** Returns a JSON value with indentation; its tokens are unchanged. */
export const pretty = (source) => layout(source).map(({ indent, tokens }) => '  '.repeat(indent) + tokens.map((t) => t.text).join('')).join('\n');

/** Returns lines of `{indent, tokens: [{kind, text}]}`; kinds are `key`, `string`, `number`, `word` and `mark`. */
export function layout(source) {
  const lines = [];
  let tokens = [];
  let indent = 0;
  const flush = () => {
    if (tokens.length) lines.push({ indent, tokens });
    tokens = [];
  };
  let i = skipSpace(source, 0);
  while (i < source.length) {
    const char = source[i];
    if (char === '{' || char === '[') {
      const close = skipSpace(source, i + 1);
      if (source[close] === '}' || source[close] === ']') {
        tokens.push({ kind: 'mark', text: char + source[close] });
        i = close + 1;
      } else {
        tokens.push({ kind: 'mark', text: char });
        flush();
        indent += 1;
        i += 1;
      }
    } else if (char === '}' || char === ']') {
      flush();
      indent = Math.max(0, indent - 1);
      tokens.push({ kind: 'mark', text: char });
      i += 1;
    } else if (char === ',') {
      tokens.push({ kind: 'mark', text: ',' });
      flush();
      i += 1;
    } else if (char === '"') {
      const end = endOfString(source, i);
      const after = skipSpace(source, end);
      const isKey = source[after] === ':';
      tokens.push({ kind: isKey ? 'key' : 'string', text: source.slice(i, end) });
      i = end;
      if (isKey) {
        tokens.push({ kind: 'mark', text: ': ' });
        i = after + 1;
      }
    } else {
      const end = Math.max(endOfValue(source, i), i + 1);
      const text = source.slice(i, end);
      tokens.push({ kind: /^[-0-9]/.test(text) ? 'number' : 'word', text });
      i = end;
    }
    i = skipSpace(source, i);
  }
  flush();
  return lines;
}
