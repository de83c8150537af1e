// Words that several pages share.

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
};
