// The inbox and the history.

export default {
  'changes.bell.on': 'Benachrichtigungen sind an',
  'changes.bell.off': 'Über neue Änderungen benachrichtigen',
  'changes.bell.blocked': 'Der Browser blockiert Benachrichtigungen dieser Seite',
  'changes.countOf': '{shown} von {total}',
  'changes.noHistoryHow': 'Entschiedene Änderungen erscheinen hier mit ihrem Ergebnis.',
  'changes.waitingInInbox': 'Wartende Änderungen sind im Eingang',
  'changes.allClear': 'Alles erledigt',
  'changes.allClearHow': 'Wenn ein Agent eine Änderung vorschlägt, erscheint sie sofort hier.',
  'changes.endpoint': 'Agenten verbinden sich mit',
  'changes.copyEndpoint': 'Adresse für Agenten kopieren',
  'changes.firstSteps': 'Zurück zu den ersten Schritten',
  'changes.openPlan': 'Plan öffnen',
  'changes.reviewTogether': 'Bündel prüfen',
  'changes.blocked': 'Der Browser blockiert Benachrichtigungen dieser Seite. Sie können sie in seinen Einstellungen für diese Website erlauben.',
  'changes.notified': 'Sie werden über neue Änderungen benachrichtigt, während diese Seite im Hintergrund ist.',
  'changes.notNotified': 'Benachrichtigungen sind aus.',
};
