// Words that several pages share.

export default {
  'common.cancel': 'Abbrechen',
  'common.done': 'Fertig',
  'common.open': 'Öffnen',
};
