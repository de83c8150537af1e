// Compares the change that a reviewer was reading with its current version. Pure.

import { compareLines } from './linediff.js';
import { t } from './locale.js';
import { stateOf } from './vocab.js';

/** Returns `[{label, was, now}]`, which is empty if a reviewer would see the same. Texts may be null. */
export function differences(old, current) {
  const out = [];
  const compare = (label, was, now) => {
    if (was !== now) out.push({ label, was, now });
  };
  compare(t('core.compare.state'), stateOf(old.change.state).label, stateOf(current.change.state).label);
  compare(t('core.compare.target'), old.change.target.label, current.change.target.label);
  compare(t('core.compare.summary'), old.change.summary, current.change.summary);
  for (const { label, before, after, lines } of pairs(old.change.diff.fields, current.change.diff.fields)) {
    compare(t('core.compare.before', { label }), before[0], before[1]);
    compare(t('core.compare.after', { label }), after[0], after[1]);
    // A field without values is compared by its lines.
    if (lines[0] !== lines[1]) compare(label, ...['delete', 'insert'].map((op) => compareLines(...lines).filter((l) => l.op === op).map((l) => l.text).join('\n') || null));
  }
  compare(t('core.compare.arguments'), old.source, current.source);
  return out;
}

function pairs(oldFields, newFields) {
  const byName = new Map(oldFields.map((f) => [f.field, f]));
  const out = [];
  for (const field of newFields) {
    const was = byName.get(field.field);
    byName.delete(field.field);
    out.push({ label: field.label, before: [was?.before ?? null, field.before], after: [was?.after ?? null, field.after], lines: [lineText(was), lineText(field)] });
  }
  for (const removedField of byName.values()) {
    out.push({ label: removedField.label, before: [removedField.before, null], after: [removedField.after, null], lines: [lineText(removedField), ''] });
  }
  return out;
}

const SIGNS = { insert: '+ ', delete: '− ', skip: '⋯ ' };

// Returns the lines of a field without values, such as a diff that the server computed.
function lineText(field) {
  if (!field?.lines?.length || field.before !== null || field.after !== null) return '';
  return field.lines.map(({ op, text }) => `${SIGNS[op] ?? ''}${text}`).join('\n');
}
