// Texts that several pages share.

export default {
  'common.cancel': 'Cancel',
  'common.clearFilter': 'Clear the filter',
  'common.done': 'Done',
  'common.loadOlder': 'Load older',
  'common.loadOlderFailed': 'Load older ({problem})',
  'common.noMatch': 'Nothing matches',
  'common.nothingYet': 'Nothing here yet',
  'common.open': 'Open',
  'common.fileLines': 'Lines for the file',
  'common.back': 'Back',
  'common.writeFile': 'Write the file',
  'common.fileChanged': 'The file has changed since this form was opened. Close it and open it again.',
  'common.notEdited': 'The file is not edited here; you see the lines to write.',
  'common.waitsForConsent': { one: '{count} setting will wait for a reviewer’s consent.', other: '{count} settings will wait for a reviewer’s consent.' },
  'common.onlyReviewer': 'Only a reviewer can decide on this.',
  'common.paste.on': 'Only an admin edits the file here. Write these lines into the configuration file:',
  'common.paste.off': 'The file is not edited here, because dashboard.edit is off. Write these lines into it:',
  'common.paste.shared_store': 'Several gateways may share this store, each with a file of its own. Write these lines into the file of each:',
  'common.paste.no_file': 'The gateway reads no configuration file. Write these lines into one:',
};
