// The page that connects a server.

export default {
  'connect.heading': 'Connect a server',
  'connect.nothing': 'Nothing to connect',
  'connect.needsNone': '{server} needs no account.',
  'connect.allServers': 'All servers',
  'connect.noServer': 'No such server',
  'connect.noServerNamed': 'This gateway has no server {server}.',
  'connect.sharedAccount': 'the gateway’s, for everybody who uses it',
  'connect.ownAccount': 'yours, {name}',
  'connect.again': 'Connect again',
  'connect.connect': 'Connect',
  'connect.title': 'Connect {server}',
  'connect.aboutShared': 'The server’s own page will ask you to sign in there and to agree, and then leads you back here. Countersign keeps the access encrypted and uses it only for this server, when agents of this gateway call it.',
  'connect.aboutOwn': 'The server’s own page will ask you to sign in there and to agree, and then leads you back here. Countersign keeps the access encrypted and uses it only for this server, when agents that act for you call it.',
  'connect.server': 'Server',
  'connect.account': 'Account',
  'connect.byItself': 'The gateway connects it by itself.',
  'connect.notNow': 'Not now',
  'connect.note': 'Only go on if you, or an agent of yours, wanted to use this server. You can disconnect it at any time.',
  'connect.badAddress': 'The address of the server’s sign-in page cannot be opened.',
};
