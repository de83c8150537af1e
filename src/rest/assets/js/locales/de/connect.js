// The page that connects a server.

export default {
  'connect.heading': 'Einen Server verbinden',
  'connect.nothing': 'Nichts zu verbinden',
  'connect.needsNone': '{server} braucht kein Konto.',
  'connect.allServers': 'Alle Server',
  'connect.noServer': 'Kein solcher Server',
  'connect.noServerNamed': 'Dieses Gateway hat keinen Server {server}.',
  'connect.sharedAccount': 'das des Gateways, für alle, die es nutzen',
  'connect.ownAccount': 'Ihres, {name}',
  'connect.again': 'Erneut verbinden',
  'connect.connect': 'Verbinden',
  'connect.title': '{server} verbinden',
  'connect.aboutShared': 'Auf der Seite des Servers melden Sie sich an und stimmen zu; danach kommen Sie hierher zurück. Countersign speichert den Zugriff verschlüsselt und nutzt ihn nur für diesen Server, wenn Agenten dieses Gateways ihn aufrufen.',
  'connect.aboutOwn': 'Auf der Seite des Servers melden Sie sich an und stimmen zu; danach kommen Sie hierher zurück. Countersign speichert den Zugriff verschlüsselt und nutzt ihn nur für diesen Server, wenn Agenten, die für Sie handeln, ihn aufrufen.',
  'connect.server': 'Server',
  'connect.account': 'Konto',
  'connect.byItself': 'Das Gateway verbindet ihn selbst.',
  'connect.notNow': 'Nicht jetzt',
  'connect.note': 'Fahren Sie nur fort, wenn Sie oder einer Ihrer Agenten diesen Server nutzen wollten. Sie können ihn jederzeit wieder trennen.',
  'connect.badAddress': 'Die Adresse der Anmeldeseite des Servers lässt sich nicht öffnen.',
};
