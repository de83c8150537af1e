// The texts of suggested standing rules.

export default {
  'suggestions.title': 'Vorgeschlagene Dauerregeln',
  'suggestions.note': 'aus den letzten 30 Tagen',
  'suggestions.help': 'Prüfer haben solche Aufrufe dieses Agenten mindestens fünfmal freigegeben und keinen abgelehnt. Die engste Regel steht zuerst.',
  'suggestions.incomplete': 'Nur die neuesten Änderungen des Tools wurden verglichen.',
  'suggestions.effectAny': 'Aufrufe von {tool} durch {agent} mit beliebigen Argumenten würden ohne Prüfung laufen.',
  'suggestions.effect': 'Aufrufe von {tool} durch {agent} mit {conditions} würden ohne Prüfung laufen.',
  'suggestions.allowsFor': 'Aufrufe von {tool} durch {agent} mit {conditions} laufen für {duration} ohne Prüfung.',
  'suggestions.allows': 'Aufrufe durch {principal} mit {conditions} laufen ohne Prüfung.',
  'suggestions.allowsAny': 'Aufrufe durch jeden Agenten mit {conditions} laufen ohne Prüfung.',
  'suggestions.approved': { one: 'Einmal freigegeben, nie abgelehnt.', other: '{count}-mal freigegeben, nie abgelehnt.' },
  'suggestions.matched': { one: 'Sie hätte auf {count} Änderung zugetroffen', other: 'Sie hätte auf {count} Änderungen zugetroffen' },
  'suggestions.unmatched': { one: 'Auf {count} andere Änderung dieses Tools hätte sie nicht zugetroffen', other: 'Auf {count} andere Änderungen dieses Tools hätte sie nicht zugetroffen' },
  'suggestions.older': { one: 'und {count} ältere', other: 'und {count} ältere' },
  'suggestions.fillIn': 'Diese Regel ausfüllen …',
  'suggestions.and': ' und ',
  'suggestions.equalTo': '{argument} gleich {value}',
  'suggestions.within': '{argument} in {folder}',
};
