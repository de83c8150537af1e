// Words that several pages share.

export default {
  'common.cancel': 'Cancel',
  'common.open': 'Open',
};
