// The selection of several changes.

export default {
  'selection.several': 'Select several',
  'selection.severalKey': 'Select several (x)',
  'selection.this': 'Select this change',
  'selection.selectKey': 'Select (x)',
  'selection.selected': { one: 'Selected, {count} change in all.', other: 'Selected, {count} changes in all.' },
  'selection.notSelected': 'No longer selected.',
  'selection.dropped': { one: '{count} selected change has changed since and is no longer selected.', other: '{count} selected changes have changed since and are no longer selected.' },
};
