// The English texts. Each area is a file and a line of its own, and its keys begin with its name.

import shell from './en/shell.js';

// Parts of pages.
import common from './en/common.js';

export default {
  ...shell,

  // Parts of pages.
  ...common,
};
