// Parses Markdown into blocks and inline parts. Pure. HTML, references and comments stay text, so that nothing is hidden
// that a program would read.

// What is nested deeper, and longer paragraphs, stay text.
const MAX_DEPTH = 8;
const MAX_INLINE_DEPTH = 6;
const MAX_INLINE = 10_000;

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s{0,20})([-*+]|\d{1,9}[.)])(?:(\s{1,4})(?=\S)|\s*$)/;
const TASK = /^\[([ xX])\]\s+/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/**
 * Returns `[{type, from, to, …}]` with the first and last line of each block, from 1. Types are `heading` (`level`,
 * `inline`), `paragraph` (`inline`), `code` (`text`, `info`), `rule`, `quote` (`blocks`), `list` (`ordered`, `start`,
 * `items` of `{blocks, done, from, to}`), `table` (`head`, `rows` of cells) and `text` (`text`).
 */
export function parseMarkdown(text) {
  const lines = text.split('\n').map((line, n) => ({ text: line, no: n + 1 }));
  if (lines[0].text.trimEnd() === '---') {
    const end = lines.findIndex((line, n) => n > 0 && line.text.trimEnd() === '---');
    if (end > 0) return [{ type: 'code', info: 'yaml', text: textOf(lines.slice(1, end)), from: 1, to: end + 1 }, ...parseBlocks(lines.slice(end + 1), 0)];
  }
  return parseBlocks(lines, 0);
}

const textOf = (lines) => lines.map((line) => line.text).join('\n');
const isBlank = (line) => line.text.trim() === '';
const indentOf = (text) => text.length - text.trimStart().length;
const beginsBlock = ({ text }) => FENCE.test(text) || HEADING.test(text) || RULE.test(text) || QUOTE.test(text) || ITEM.test(text);

function parseBlocks(lines, depth) {
  const out = [];
  if (depth > MAX_DEPTH) return lines.length ? [{ type: 'text', text: textOf(lines), from: lines[0].no, to: lines.at(-1).no }] : out;
  let at = 0;
  const push = (end, block) => {
    out.push({ from: lines[at].no, to: lines[Math.min(end, lines.length) - 1].no, ...block });
    at = end;
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line.text);
    const heading = HEADING.exec(line.text);
    if (isBlank(line)) {
      at += 1;
    } else if (fence) {
      const close = lines.findIndex(({ text }, n) => n > at && text.trim().startsWith(fence[1]) && text.trim().replaceAll(fence[1][0], '') === '');
      const end = close === -1 ? lines.length : close;
      push(Math.min(end + 1, lines.length), { type: 'code', info: fence[2].trim(), text: textOf(lines.slice(at + 1, end)) });
    } else if (heading) {
      push(at + 1, { type: 'heading', level: heading[1].length, inline: parseInline(heading[2] ?? '') });
    } else if (RULE.test(line.text)) {
      push(at + 1, { type: 'rule' });
    } else if (QUOTE.test(line.text)) {
      let end = at;
      while (end < lines.length && QUOTE.test(lines[end].text)) end += 1;
      push(end, { type: 'quote', blocks: parseBlocks(lines.slice(at, end).map(({ text, no }) => ({ text: text.replace(QUOTE, ''), no })), depth + 1) });
    } else if (ITEM.test(line.text)) {
      push(...listAt(lines, at, depth));
    } else if (line.text.includes('|') && at + 1 < lines.length && lines[at + 1].text.includes('-') && DELIMITERS.test(lines[at + 1].text) && cellsOf(lines[at + 1].text).length === cellsOf(line.text).length) {
      let end = at + 2;
      while (end < lines.length && !isBlank(lines[end]) && lines[end].text.includes('|')) end += 1;
      push(end, { type: 'table', head: cellsOf(line.text).map((cell) => parseInline(cell)), rows: lines.slice(at + 2, end).map(({ text }) => cellsOf(text).map((cell) => parseInline(cell))) });
    } else {
      let end = at + 1;
      while (end < lines.length && !isBlank(lines[end]) && !beginsBlock(lines[end])) end += 1;
      push(end, { type: 'paragraph', inline: parseInline(lines.slice(at, end).map(({ text }) => text.trimStart()).join('\n')) });
    }
  }
  return out;
}

// Returns the end of the list and the list. Its items contain what is indented below them.
function listAt(lines, start, depth) {
  const [, indent, marker] = ITEM.exec(lines[start].text);
  const ordered = /\d/.test(marker);
  const items = [];
  let at = start;
  while (at < lines.length) {
    const found = ITEM.exec(lines[at].text);
    if (!found || RULE.test(lines[at].text) || found[1].length > indent.length + 3 || found[1].length < indent.length || /\d/.test(found[2]) !== ordered) break;
    const offset = found[0].length;
    const inner = [{ text: lines[at].text.slice(offset), no: lines[at].no }];
    let end = at + 1;
    while (end < lines.length) {
      const next = lines[end];
      const isInside = indentOf(next.text) >= Math.min(offset, found[1].length + 2);
      const continues = isBlank(next)
        ? end + 1 < lines.length && !isBlank(lines[end + 1]) && indentOf(lines[end + 1].text) >= Math.min(offset, found[1].length + 2)
        : isInside || (!beginsBlock(next) && !isBlank(lines[end - 1]));
      if (!continues) break;
      inner.push({ text: next.text.slice(Math.min(indentOf(next.text), offset)), no: next.no });
      end += 1;
    }
    const task = TASK.exec(inner[0].text);
    if (task) inner[0].text = inner[0].text.slice(task[0].length);
    items.push({ blocks: parseBlocks(inner, depth + 1), done: task ? task[1] !== ' ' : null, from: lines[at].no, to: lines[end - 1].no });
    at = end;
    while (at < lines.length && isBlank(lines[at]) && at + 1 < lines.length && ITEM.test(lines[at + 1].text)) at += 1;
  }
  return [at, { type: 'list', ordered, start: ordered ? Number.parseInt(marker, 10) : null, items }];
}

function cellsOf(text) {
  const cells = text.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '').split(/(?<!\\)\|/);
  return cells.map((cell) => cell.trim().replaceAll('\\|', '|'));
}

const MARKS = [['**', 'strong'], ['__', 'strong'], ['~~', 'deleted'], ['*', 'emphasis'], ['_', 'emphasis']];
const LINK = /(!?)\[((?:[^[\]\\]|\\.)*)\]\(((?:[^()\s]|\([^()\s]*\))*)(?:\s+"([^"]*)")?\)/y;
const AUTOLINK = /<([A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>]*|[^\s<>@]+@[^\s<>@]+)>/y;
const WORD = /[\p{L}\p{N}]/u;

/**
 * Returns `[{type, …}]`: `text` and `code` (`text`), `strong`, `emphasis` and `deleted` (`parts`), `link` (`parts`,
 * `address`, `title`) and `image` (`text`, `address`, `title`).
 */
export function parseInline(text, depth = 0) {
  const out = [];
  const plain = (part) => {
    const last = out.at(-1);
    if (last?.type === 'text') last.text += part;
    else if (part) out.push({ type: 'text', text: part });
  };
  if (text.length > MAX_INLINE || depth > MAX_INLINE_DEPTH) return text ? [{ type: 'text', text }] : [];
  // Marks that are not closed from here on are not searched for again.
  const open = new Set();
  let at = 0;
  const match = (pattern) => {
    pattern.lastIndex = at;
    return pattern.exec(text);
  };
  while (at < text.length) {
    const char = text[at];
    if (char === '\\' && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? '')) {
      plain(text[at + 1]);
      at += 2;
      continue;
    }
    if (char === '`') {
      const ticks = /`+/y;
      const [mark] = match(ticks);
      const end = open.has(mark) ? -1 : closingTicks(text, at + mark.length, mark.length);
      if (end !== -1) {
        out.push({ type: 'code', text: text.slice(at + mark.length, end).trim() });
        at = end + mark.length;
      } else {
        open.add(mark);
        plain(mark);
        at += mark.length;
      }
      continue;
    }
    const link = char === '[' || char === '!' ? match(LINK) : null;
    if (link) {
      const [whole, bang, label, address, title] = link;
      out.push(bang ? { type: 'image', text: label, address, title } : { type: 'link', parts: parseInline(label, depth + 1), address, title });
      at += whole.length;
      continue;
    }
    const auto = char === '<' ? match(AUTOLINK) : null;
    if (auto) {
      out.push({ type: 'link', parts: [{ type: 'text', text: auto[1] }], address: auto[1] });
      at += auto[0].length;
      continue;
    }
    const found = MARKS.find(([mark]) => text.startsWith(mark, at));
    if (found) {
      const [mark, type] = found;
      const end = open.has(mark) ? -1 : closing(text, at, mark);
      if (end > 0) {
        out.push({ type, parts: parseInline(text.slice(at + mark.length, end), depth + 1) });
        at = end + mark.length;
      } else {
        if (end === -1) open.add(mark);
        plain(mark);
        at += mark.length;
      }
      continue;
    }
    const next = text.slice(at + 1).search(/[\\`[!<*_~]/);
    const end = next === -1 ? text.length : at + 1 + next;
    plain(text.slice(at, end));
    at = end;
  }
  return out;
}

// Returns the position of the closing mark, -1 if there is none, and 0 if the mark opens nothing here.
function closing(text, at, mark) {
  const start = at + mark.length;
  const isInWord = mark[0] === '_' && at > 0 && WORD.test(text[at - 1]);
  if (isInWord || start >= text.length || /\s/.test(text[start])) return 0;
  for (let end = text.indexOf(mark, start + 1); end !== -1; end = text.indexOf(mark, end + 1)) {
    const isClosed = !/[\s\\]/.test(text[end - 1]) && !(mark[0] === '_' && WORD.test(text[end + mark.length] ?? ''));
    if (isClosed && !(mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark))) return end;
  }
  return -1;
}

function closingTicks(text, from, length) {
  const ticks = /`+/g;
  ticks.lastIndex = from;
  for (let found = ticks.exec(text); found; found = ticks.exec(text)) if (found[0].length === length) return found.index;
  return -1;
}
