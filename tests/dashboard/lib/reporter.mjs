// Ends a run with `N passed` and `N failed`, a line each, beside what the other reporter prints.

export default async function* reporter(source) {
  const sums = { pass: 0, fail: 0, skipped: 0 };
  for await (const { type, data } of source) {
    const match = type === 'test:diagnostic' && /^(pass|fail|skipped) (\d+)$/.exec(data.message);
    if (match) sums[match[1]] = Number(match[2]);
  }
  yield `${sums.pass} passed\n${sums.fail} failed\n${sums.skipped ? `${sums.skipped} skipped\n` : ''}`;
}
