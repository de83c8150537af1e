// Words that several pages share.

export default {
  'common.cancel': 'Abbrechen',
  'common.open': 'Öffnen',
};
