// The texts of the form that edits the arguments of a change.

export default {
  'edit.title': 'Argumente bearbeiten',
  'edit.help': 'Das Gateway prüft Ihre Argumente gegen das Schema des Tools und berechnet einen neuen Diff. Bisherige Freigaben entfallen; Sie entscheiden danach.',
  'edit.how': 'Art der Bearbeitung',
  'edit.fields': 'Felder',
  'edit.arguments': 'Argumente',
  'edit.save': 'Speichern mit Vorschau',
  'edit.saving': 'Wird gespeichert …',
  'edit.noFields': 'Diese Argumente lassen sich nicht als Felder zeigen.',
  'edit.notAccepted': 'Das Gateway hat diese Argumente nicht angenommen.',
  'edit.sendField': '{field} senden',
  'edit.required': 'erforderlich',
  'edit.send': 'senden',
  'edit.unknownField': 'Das Schema des Tools kennt dieses Argument nicht.',
  'edit.invisible': 'Enthält unsichtbare Zeichen: {names}.',
};
