// The English texts. Each area is a file and a line of its own, and its keys begin with its name.

import account from './en/account.js';
import connect from './en/connect.js';
import core from './en/core.js';
import keys from './en/keys.js';
import rules from './en/rules.js';
import sessions from './en/sessions.js';
import shell from './en/shell.js';
import signin from './en/signin.js';
import vocab from './en/vocab.js';
import webhooks from './en/webhooks.js';

// Parts of pages.
import common from './en/common.js';

export default {
  ...account,
  ...connect,
  ...core,
  ...keys,
  ...rules,
  ...sessions,
  ...shell,
  ...signin,
  ...vocab,
  ...webhooks,

  // Parts of pages.
  ...common,
};
