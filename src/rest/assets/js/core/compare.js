// What differs between the change that somebody was looking at and the change as it is now. Pure.

import { lineDiff } from './linediff.js';
import { stateOf } from './vocab.js';

/** `[{label, was, now}]`; empty if a reviewer would see the same. Texts may be null. */
export function differences(old, current) {
  const out = [];
  const note = (label, was, now) => {
    if (was !== now) out.push({ label, was, now });
  };
  note('State', stateOf(old.change.state).label, stateOf(current.change.state).label);
  note('Target', old.change.target.label, current.change.target.label);
  note('Summary', old.change.summary, current.change.summary);
  for (const { label, before, after, told } of pairs(old.change.diff.fields, current.change.diff.fields)) {
    note(`${label}, before`, before[0], before[1]);
    note(`${label}, after`, after[0], after[1]);
    // Where there is nothing but lines, those that came and went.
    if (told[0] !== told[1]) note(label, ...['delete', 'insert'].map((op) => lineDiff(...told).filter((l) => l.op === op).map((l) => l.text).join('\n') || null));
  }
  note('Arguments', old.source, current.source);
  return out;
}

/** Whether the decision on `old` would be one on something else by now. */
export function sameContent(old, current) {
  return old.change.digest === current.change.digest && old.change.version === current.change.version;
}

function pairs(oldFields, newFields) {
  const byName = new Map(oldFields.map((f) => [f.field, f]));
  const out = [];
  for (const field of newFields) {
    const was = byName.get(field.field);
    byName.delete(field.field);
    out.push({ label: field.label, before: [was?.before ?? null, field.before], after: [was?.after ?? null, field.after], told: [told(was), told(field)] });
  }
  for (const gone of byName.values()) {
    out.push({ label: gone.label, before: [gone.before, null], after: [gone.after, null], told: [told(gone), ''] });
  }
  return out;
}

const SIGNS = { insert: '+ ', delete: '− ', skip: '⋯ ' };

// The lines of a field that has no values: a diff that the server made, or what it says is there.
function told(field) {
  if (!field?.lines?.length || field.before !== null || field.after !== null) return '';
  return field.lines.map(({ op, text }) => `${SIGNS[op] ?? ''}${text}`).join('\n');
}
