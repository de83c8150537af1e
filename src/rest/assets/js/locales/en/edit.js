// The texts of the form that edits the arguments of a change.

export default {
  'edit.title': 'Edit the arguments',
  'edit.help': 'The gateway validates your arguments against the tool’s schema and computes a new diff. Existing approvals are cleared; you decide afterwards.',
  'edit.how': 'How to edit',
  'edit.fields': 'Fields',
  'edit.arguments': 'Arguments',
  'edit.save': 'Save and preview',
  'edit.saving': 'Saving…',
  'edit.noFields': 'These arguments cannot be shown as fields.',
  'edit.notAccepted': 'The gateway did not accept these arguments.',
  'edit.sendField': 'Send {field}',
  'edit.required': 'required',
  'edit.send': 'send',
  'edit.unknownField': 'The tool’s schema does not define this argument.',
  'edit.invisible': 'Contains invisible characters: {names}.',
};
