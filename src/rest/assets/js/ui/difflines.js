// The arithmetic of diffs: line numbers, folds, and which part of a line differs. Pure.

const CONTEXT = 3;
const LONG_RUN = 10;
// Comparing two lines character by character is for lines that a person can compare.
const MAX_EMPHASIS = 2000;
const MOST_WORDS = 60_000;
const MOST_PAIRS = 10_000;

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
      // Another file begins, and its numbers with it. No line of a file can say so: those are no notes.
      if (/^(diff |--- |Index: )/.test(line.text)) oldNo = newNo = 1;
      rows.push({ op: 'note', text: line.text });
      return;
    }
    if (line.op === 'skip') {
      const size = Number.parseInt(line.text, 10) || 0;
      rows.push(...run);
      run = [];
      rows.push({ op: 'fold', size, rows: skipped(known, oldNo, newNo, size, lines[index + 1]) });
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

// The folded lines out of the text before, if it really is the text that these numbers belong to.
function skipped(known, oldNo, newNo, size, next) {
  const from = oldNo - 1;
  if (size === 0 || from + size > known.length) return null;
  if (next && (next.op === 'equal' || next.op === 'delete') && known[from + size] !== next.text) return null;
  return known.slice(from, from + size).map((text, i) => ({ op: 'equal', text, oldNo: oldNo + i, newNo: newNo + i }));
}

/** Marks in each pair of a removed and an added line what differs. */
export function pairUp(rows) {
  for (let i = 0; i < rows.length; i += 1) {
    if (rows[i].op !== 'delete') continue;
    let split = i;
    while (rows[split]?.op === 'delete') split += 1;
    let end = split;
    while (rows[end]?.op === 'insert') end += 1;
    for (const [was, now] of partners(rows.slice(i, split), rows.slice(split, end))) {
      [was.parts, now.parts] = emphasis(was.text, now.text);
      was.partner = now;
    }
    i = Math.max(i, end - 1);
  }
  return rows;
}

// As many lines added as removed: one after the other. Otherwise each removed line goes with the next added one that
// is like it, so that a line put in before does not shift all comparisons.
function partners(removed, added) {
  if (removed.length === added.length) return removed.map((row, n) => [row, added[n]]);
  if (removed.length * added.length > MOST_PAIRS) return [];
  const pairs = [];
  let from = 0;
  for (const row of removed) {
    const at = added.findIndex((other, n) => n >= from && alike(row.text, other.text));
    if (at === -1) continue;
    pairs.push([row, added[at]]);
    from = at + 1;
  }
  return pairs;
}

// Half of the words in common, in any order.
function alike(a, b) {
  if (a.length > MAX_EMPHASIS || b.length > MAX_EMPHASIS) return false;
  const left = new Set(a.match(WORD) ?? []);
  const right = new Set(b.match(WORD) ?? []);
  if (!left.size || !right.size) return false;
  let common = 0;
  for (const word of left) if (right.has(word)) common += 1;
  return common * 2 >= Math.max(left.size, right.size);
}

/**
 * Two columns out of rows: `{op: 'pair', left, right}` (either may be null), folds and equal lines as they are.
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
      } else if (!row.partner && removed.every((r) => !r.partner) && at < added.length) {
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
 * Of two texts, each cut at word boundaries into parts that are in turn the same and different: `[same, differs, same,
 * …]`, beginning and ending with a part that is the same. `[null, null]` where they have too little in common for that
 * to help.
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
  const [was, now] = between(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  const whole = (list, inner) => tight([list.slice(0, head).join(''), ...inner, list.slice(list.length - tail).join('')]);
  const left = whole(a, was);
  const same = left.reduce((sum, part, n) => sum + (n % 2 ? 0 : part.length), 0);
  return same * 3 >= Math.min(before.length, after.length) ? [left, whole(b, now)] : none;
}

// What lies between the same beginning and the same end: `[differs, same, differs, …]` of each, odd in number.
function between(a, b) {
  const single = [[a.join('')], [b.join('')]];
  if (!a.length || !b.length || a.length * b.length > MOST_WORDS) return single;
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
      // A comma or a space that happens to be on both sides is no island worth showing.
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

// Spaces at the edges of what differs are only marked where nothing else does.
function tight(parts) {
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
