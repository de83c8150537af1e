// The arithmetic of diffs: line numbers, folds, and which part of a line differs. Pure.

const CONTEXT = 3;
const LONG_RUN = 10;
// Comparing two lines character by character is for lines that a person can compare.
const MAX_EMPHASIS = 2000;

/**
 * Numbers lines and folds long runs of unchanged ones. Rows are `{op, text, oldNo, newNo}` or
 * `{op: 'fold', size, rows}`; `rows` is null where the folded text is not known.
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

/** Where as many lines were added as removed, marks in each pair what differs. */
export function pairUp(rows) {
  for (let i = 0; i < rows.length; i += 1) {
    if (rows[i].op !== 'delete') continue;
    let split = i;
    while (rows[split]?.op === 'delete') split += 1;
    let end = split;
    while (rows[end]?.op === 'insert') end += 1;
    if (split - i === end - split) {
      for (let n = 0; n < split - i; n += 1) {
        const [was, now] = emphasis(rows[i + n].text, rows[split + n].text);
        rows[i + n].parts = was;
        rows[split + n].parts = now;
      }
    }
    i = Math.max(i, end - 1);
  }
  return rows;
}

/**
 * `[[same, differs, same], [same, differs, same]]` of two texts, at word boundaries; `[null, null]` where they have
 * too little in common for that to help.
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
  const cut = (list) => tight([list.slice(0, head).join(''), list.slice(head, list.length - tail).join(''), list.slice(list.length - tail).join('')]);
  const was = cut(a);
  const same = was[0].length + was[2].length;
  return same * 3 >= Math.min(before.length, after.length) ? [was, cut(b)] : none;
}

// Spaces at the edges of what differs are only marked where nothing else does.
function tight([before, differs, after]) {
  const word = differs.trim();
  if (word === '') return [before, differs, after];
  const start = differs.indexOf(word);
  return [before + differs.slice(0, start), word, differs.slice(start + word.length) + after];
}

const words = (text) => text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
