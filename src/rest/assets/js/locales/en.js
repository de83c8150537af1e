// The English texts. Each area is a file and a line of its own, and its keys begin with its name.

import account from './en/account.js';
import connect from './en/connect.js';
import core from './en/core.js';
import keys from './en/keys.js';
import shell from './en/shell.js';
import signin from './en/signin.js';
import vocab from './en/vocab.js';

// Parts of pages.
import common from './en/common.js';

export default {
  ...account,
  ...connect,
  ...core,
  ...keys,
  ...shell,
  ...signin,
  ...vocab,

  // Parts of pages.
  ...common,
};
