// The selection of several changes.

export default {
  'selection.several': 'Mehrere auswählen',
  'selection.severalKey': 'Mehrere auswählen (x)',
  'selection.this': 'Diese Änderung auswählen',
  'selection.selectKey': 'Auswählen (x)',
  'selection.selected': { one: 'Ausgewählt, insgesamt {count} Änderung.', other: 'Ausgewählt, insgesamt {count} Änderungen.' },
  'selection.notSelected': 'Nicht mehr ausgewählt.',
  'selection.dropped': { one: '{count} ausgewählte Änderung wurde inzwischen geändert und ist nicht mehr ausgewählt.', other: '{count} ausgewählte Änderungen wurden inzwischen geändert und sind nicht mehr ausgewählt.' },
};
