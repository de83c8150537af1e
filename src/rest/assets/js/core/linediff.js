// Computes the diff of two texts by lines. Pure.

// Larger texts are shown as one removed and one added block.
const MAX_COMPARISONS = 4_000_000;

/** Returns `[{op, text}]` with the ops `equal`, `delete` and `insert`, by the longest common subsequence. */
export function compareLines(before, after) {
  const a = before.split('\n');
  const b = after.split('\n');
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const equal = (text) => ({ op: 'equal', text });
  return [
    ...a.slice(0, head).map(equal),
    ...diffMiddle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...a.slice(a.length - tail).map(equal),
  ];
}

function diffMiddle(a, b) {
  const removed = a.map((text) => ({ op: 'delete', text }));
  const added = b.map((text) => ({ op: 'insert', text }));
  if (!a.length || !b.length || a.length * b.length > MAX_COMPARISONS) return [...removed, ...added];
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const out = [];
  let i = 0;
  let j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      out.push({ op: 'equal', text: a[i] });
      i += 1;
      j += 1;
    } else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) {
      out.push(removed[i]);
      i += 1;
    } else {
      out.push(added[j]);
      j += 1;
    }
  }
  return [...out, ...removed.slice(i), ...added.slice(j)];
}
