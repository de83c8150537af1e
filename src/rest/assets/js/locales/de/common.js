// Words that several pages share.

export default {
  'common.cancel': 'Abbrechen',
  'common.done': 'Fertig',
  'common.loadOlder': 'Ältere laden',
  'common.loadOlderFailed': 'Ältere laden ({problem})',
  'common.open': 'Öffnen',
};
