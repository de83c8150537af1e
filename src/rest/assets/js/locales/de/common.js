// Words that several pages share.

export default {
  'common.cancel': 'Abbrechen',
  'common.clearFilter': 'Filter löschen',
  'common.done': 'Fertig',
  'common.loadOlder': 'Ältere laden',
  'common.loadOlderFailed': 'Ältere laden ({problem})',
  'common.noMatch': 'Keine Treffer',
  'common.nothingYet': 'Noch nichts hier',
  'common.open': 'Öffnen',
  'common.fileLines': 'Zeilen für die Datei',
};
