// The English texts. Each area is a file and a line of its own, and its keys begin with its name.

import account from './en/account.js';
import audit from './en/audit.js';
import bundle from './en/bundle.js';
import changes from './en/changes.js';
import connect from './en/connect.js';
import core from './en/core.js';
import keys from './en/keys.js';
import overview from './en/overview.js';
import plan from './en/plan.js';
import rules from './en/rules.js';
import selection from './en/selection.js';
import servers from './en/servers.js';
import sessions from './en/sessions.js';
import shell from './en/shell.js';
import signin from './en/signin.js';
import vocab from './en/vocab.js';
import webhooks from './en/webhooks.js';

// Parts of pages.
import absence from './en/absence.js';
import common from './en/common.js';
import controls from './en/controls.js';
import decision from './en/decision.js';
import detail from './en/detail.js';
import diff from './en/diff.js';
import edit from './en/edit.js';
import filter from './en/filter.js';
import firststeps from './en/firststeps.js';
import list from './en/list.js';
import rule from './en/rule.js';
import serverform from './en/serverform.js';
import tools from './en/tools.js';
import policy from './en/policy.js';
import suggestions from './en/suggestions.js';

export default {
  ...account,
  ...audit,
  ...bundle,
  ...changes,
  ...connect,
  ...core,
  ...keys,
  ...overview,
  ...plan,
  ...rules,
  ...selection,
  ...servers,
  ...sessions,
  ...shell,
  ...signin,
  ...vocab,
  ...webhooks,

  // Parts of pages.
  ...absence,
  ...common,
  ...controls,
  ...decision,
  ...detail,
  ...diff,
  ...edit,
  ...filter,
  ...firststeps,
  ...list,
  ...rule,
  ...serverform,
  ...tools,
  ...policy,
  ...suggestions,
};
