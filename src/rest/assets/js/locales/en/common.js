// Words that several pages share.

export default {
  'common.cancel': 'Cancel',
  'common.done': 'Done',
  'common.loadOlder': 'Load older',
  'common.loadOlderFailed': 'Load older ({problem})',
  'common.open': 'Open',
};
