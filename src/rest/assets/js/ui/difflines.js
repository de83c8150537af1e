// Computes line numbers, folds, and the parts of a line that differ. Pure.

import { t } from '../core/locale.js';

const CONTEXT = 3;
const LONG_RUN = 10;
// Longer lines are not compared within.
const MAX_EMPHASIS = 2000;
const MAX_WORD_PAIRS = 60_000;
const MAX_LINE_PAIRS = 10_000;

const FILE_HEADER = /^(?:diff --git |index [0-9a-f]+\.\.|--- |\+\+\+ |Index: |=+$)/;

/** Returns the lines of a unified diff with one note, marked as `file`, in place of the notes that only name a file. */
export function joinFileHeaders(lines) {
  const out = [];
  for (let i = 0; i < lines.length; i += 1) {
    let end = i;
    while (lines[end]?.op === 'note' && FILE_HEADER.test(lines[end].text)) end += 1;
    const header = lines.slice(i, end).map(({ text }) => text);
    const name = nameOfFile(header);
    if (name === null) {
      out.push(lines[i]);
    } else {
      out.push({ op: 'note', text: name, file: true });
      i = end - 1;
    }
  }
  return out;
}

// Returns the name of the file before and after, or null if the notes do not give both.
function nameOfFile(header) {
  const isGit = header.some((text) => text.startsWith('diff --git '));
  const [old, current] = [['--- ', 'a/'], ['+++ ', 'b/']].map(([mark, side]) => {
    const path = header.find((text) => text.startsWith(mark))?.slice(mark.length).split('\t')[0];
    return isGit && path?.startsWith(side) ? path.slice(side.length) : path;
  });
  if (old === undefined || current === undefined) return null;
  if (old === '/dev/null') return t('diff.newFile', { file: current });
  if (current === '/dev/null') return t('diff.removedFile', { file: old });
  return old === current ? current : `${old} → ${current}`;
}

/**
 * Numbers lines and folds long runs of unchanged ones. Rows are `{op, text, oldNo, newNo}` or
 * `{op: 'fold', size, rows}`; `rows` is null where the folded text is not known. Notes have no number.
 */
export function foldEqual(lines, before) {
  const rows = [];
  const known = typeof before === 'string' ? before.split('\n') : [];
  let oldNo = 1;
  let newNo = 1;
  let run = [];
  const flush = (last) => {
    const head = rows.length ? CONTEXT : 0;
    const tail = last ? 0 : CONTEXT;
    if (run.length > LONG_RUN && run.length > head + tail + 1) {
      const hidden = run.slice(head, run.length - tail);
      rows.push(...run.slice(0, head), { op: 'fold', size: hidden.length, rows: hidden }, ...run.slice(run.length - tail));
    } else {
      rows.push(...run);
    }
    run = [];
  };
  lines.forEach((line, index) => {
    if (line.op === 'equal') {
      run.push({ op: 'equal', text: line.text, oldNo, newNo });
      oldNo += 1;
      newNo += 1;
      return;
    }
    if (line.op === 'note') {
      flush(false);
      // Headers of a file in a unified diff restart the line numbers. Lines of the file itself are never notes.
      if (line.file || /^(diff |--- |Index: )/.test(line.text)) oldNo = newNo = 1;
      rows.push({ op: 'note', text: line.text, file: line.file });
      return;
    }
    if (line.op === 'skip') {
      const size = Number.parseInt(line.text, 10) || 0;
      rows.push(...run);
      run = [];
      rows.push({ op: 'fold', size, rows: skippedLines(known, oldNo, newNo, size, lines[index + 1]) });
      oldNo += size;
      newNo += size;
      return;
    }
    flush(false);
    const insert = line.op === 'insert';
    rows.push({ op: insert ? 'insert' : 'delete', text: line.text, oldNo: insert ? null : oldNo, newNo: insert ? newNo : null });
    if (insert) newNo += 1;
    else oldNo += 1;
  });
  flush(true);
  return rows;
}

// Returns the skipped lines of the earlier text, or null if it does not match these line numbers.
function skippedLines(known, oldNo, newNo, size, next) {
  const from = oldNo - 1;
  if (size === 0 || from + size > known.length) return null;
  if (next && (next.op === 'equal' || next.op === 'delete') && known[from + size] !== next.text) return null;
  return known.slice(from, from + size).map((text, i) => ({ op: 'equal', text, oldNo: oldNo + i, newNo: newNo + i }));
}

/** Marks the differing parts in each pair of a removed and an added line. */
export function pairUp(rows) {
  for (let i = 0; i < rows.length; i += 1) {
    if (rows[i].op !== 'delete') continue;
    let split = i;
    while (rows[split]?.op === 'delete') split += 1;
    let end = split;
    while (rows[end]?.op === 'insert') end += 1;
    for (const [was, now] of pairsOf(rows.slice(i, split), rows.slice(split, end))) {
      [was.parts, now.parts] = emphasis(was.text, now.text);
      was.partner = now;
    }
    i = Math.max(i, end - 1);
  }
  return rows;
}

// Pairs equal numbers of lines in order. Otherwise each removed line is paired with the next similar added line, so that
// an inserted line does not shift all comparisons.
function pairsOf(removed, added) {
  if (removed.length === added.length) return removed.map((row, n) => [row, added[n]]);
  if (removed.length * added.length > MAX_LINE_PAIRS) return [];
  const pairs = [];
  let from = 0;
  for (const row of removed) {
    const at = added.findIndex((other, n) => n >= from && isSimilar(row.text, other.text));
    if (at === -1) continue;
    pairs.push([row, added[at]]);
    from = at + 1;
  }
  return pairs;
}

// Two lines are similar if they share half of their words, in any order.
function isSimilar(a, b) {
  if (a.length > MAX_EMPHASIS || b.length > MAX_EMPHASIS) return false;
  const left = new Set(a.match(WORD) ?? []);
  const right = new Set(b.match(WORD) ?? []);
  if (!left.size || !right.size) return false;
  let common = 0;
  for (const word of left) if (right.has(word)) common += 1;
  return common * 2 >= Math.max(left.size, right.size);
}

/**
 * Arranges rows in two columns: `{op: 'pair', left, right}`, where either may be null. Folds and notes are unchanged.
 */
export function columns(rows) {
  const out = [];
  for (let i = 0; i < rows.length; i += 1) {
    const { op } = rows[i];
    if (op !== 'delete' && op !== 'insert') {
      out.push(op === 'equal' ? { op: 'pair', left: rows[i], right: rows[i] } : rows[i]);
      continue;
    }
    let split = i;
    while (rows[split]?.op === 'delete') split += 1;
    let end = split;
    while (rows[end]?.op === 'insert') end += 1;
    const removed = rows.slice(i, split);
    const added = rows.slice(split, end);
    let at = 0;
    for (const row of removed) {
      if (row.partner) {
        while (added[at] !== row.partner) out.push({ op: 'pair', left: null, right: added[at++] });
        out.push({ op: 'pair', left: row, right: added[at++] });
      } else if (removed.every(({ partner }) => !partner) && at < added.length) {
        out.push({ op: 'pair', left: row, right: added[at++] });
      } else {
        out.push({ op: 'pair', left: row, right: null });
      }
    }
    while (at < added.length) out.push({ op: 'pair', left: null, right: added[at++] });
    i = end - 1;
  }
  return out;
}

/**
 * Splits two texts at word boundaries into alternating parts: `[same, differs, same, …]`, which begin and end with an
 * equal part. Returns `[null, null]` if the texts have too little in common.
 */
export function emphasis(before, after) {
  const none = [null, null];
  if (typeof before !== 'string' || typeof after !== 'string' || before === after) return none;
  if (before.length > MAX_EMPHASIS || after.length > MAX_EMPHASIS) return none;
  const a = words(before);
  const b = words(after);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const [was, now] = splitMiddle(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  const joinParts = (list, inner) => trimParts([list.slice(0, head).join(''), ...inner, list.slice(list.length - tail).join('')]);
  const left = joinParts(a, was);
  const same = left.reduce((sum, part, n) => sum + (n % 2 ? 0 : part.length), 0);
  return same * 3 >= Math.min(before.length, after.length) ? [left, joinParts(b, now)] : none;
}

// Splits the middle of each text: `[differs, same, differs, …]`, an odd number of parts.
function splitMiddle(a, b) {
  const single = [[a.join('')], [b.join('')]];
  if (!a.length || !b.length || a.length * b.length > MAX_WORD_PAIRS) return single;
  const width = b.length + 1;
  const common = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + a[i].length : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const was = [''];
  const now = [''];
  let i = 0;
  let j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      let same = '';
      let word = false;
      while (i < a.length && j < b.length && a[i] === b[j]) {
        word ||= WORD_ONLY.test(a[i]);
        same += a[i];
        i += 1;
        j += 1;
      }
      // Equal punctuation or spaces alone are not shown as an equal part.
      if (word) {
        was.push(same, '');
        now.push(same, '');
      } else {
        was[was.length - 1] += same;
        now[now.length - 1] += same;
      }
    } else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) {
      was[was.length - 1] += a[i++];
    } else {
      now[now.length - 1] += b[j++];
    }
  }
  was[was.length - 1] += a.slice(i).join('');
  now[now.length - 1] += b.slice(j).join('');
  return [was, now];
}

// Moves spaces at the edges of a differing part to the equal parts, unless only spaces differ.
function trimParts(parts) {
  for (let n = 1; n < parts.length; n += 2) {
    const word = parts[n].trim();
    if (word === '') continue;
    const start = parts[n].indexOf(word);
    parts[n - 1] += parts[n].slice(0, start);
    parts[n + 1] = parts[n].slice(start + word.length) + parts[n + 1];
    parts[n] = word;
  }
  return parts;
}

const WORD = /[\p{L}\p{N}_]+/gu;
const WORD_ONLY = /[\p{L}\p{N}_]/u;
const words = (text) => text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
