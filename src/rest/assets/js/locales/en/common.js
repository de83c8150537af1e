// Words that several pages share.

export default {
  'common.cancel': 'Cancel',
  'common.done': 'Done',
  'common.open': 'Open',
};
