// Texts that several pages share.

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
  'common.back': 'Zurück',
  'common.writeFile': 'Datei schreiben',
  'common.fileChanged': 'Die Datei hat sich geändert, seit dieses Formular geöffnet wurde. Schließen Sie es und öffnen Sie es erneut.',
  'common.notEdited': 'Die Datei wird hier nicht bearbeitet; Sie sehen die Zeilen, die hineingehören.',
  'common.waitsForConsent': { one: '{count} Einstellung wird auf die Zustimmung eines Prüfers warten.', other: '{count} Einstellungen werden auf die Zustimmung eines Prüfers warten.' },
  'common.onlyReviewer': 'Nur ein Prüfer kann darüber entscheiden.',
  'common.paste.on': 'Nur ein Administrator bearbeitet die Datei hier. Schreiben Sie diese Zeilen in die Konfigurationsdatei:',
  'common.paste.off': 'Die Datei wird hier nicht bearbeitet, weil dashboard.edit ausgeschaltet ist. Schreiben Sie diese Zeilen hinein:',
  'common.paste.shared_store': 'Mehrere Gateways können diesen Speicher teilen, jedes mit einer eigenen Datei. Schreiben Sie diese Zeilen in jede der Dateien:',
  'common.paste.no_file': 'Das Gateway liest keine Konfigurationsdatei. Schreiben Sie diese Zeilen in eine:',
};
