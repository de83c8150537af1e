// The German texts, with the areas of `en.js`. They address the reader formally. Terms:
//
//   change = Änderung, pending change = offene Änderung, approve = freigeben, reject = ablehnen, withdraw = zurückziehen,
//   reviewer = Prüfer, proposer = Antragsteller, agent = Agent, server = Server, tool = Tool, rule = Regel,
//   standing rule = Dauerregel, policy = Richtlinie, key = Schlüssel, audit trail = Audit-Protokoll, plan = Plan,
//   bundle = Bündel, inbox = Eingang, history = Verlauf, overview = Übersicht, escalation = Eskalation, preview = Vorschau,
//   stale = veraltet, diff = Diff, apply = ausführen, outcome = Ergebnis, undo = rückgängig machen, expire = ablaufen,
//   settle = klären, revoke = widerrufen, accept (a definition) = annehmen, definition = Definition, recipe = Rezept,
//   allow = erlauben, deny = verweigern, viewer = Betrachter, version = Version,
//   configuration = Konfiguration, account = Konto, sign in = anmelden, gateway = Gateway (das)

import account from './de/account.js';
import audit from './de/audit.js';
import bundle from './de/bundle.js';
import changes from './de/changes.js';
import connect from './de/connect.js';
import core from './de/core.js';
import keys from './de/keys.js';
import overview from './de/overview.js';
import plan from './de/plan.js';
import rules from './de/rules.js';
import selection from './de/selection.js';
import servers from './de/servers.js';
import sessions from './de/sessions.js';
import shell from './de/shell.js';
import signin from './de/signin.js';
import vocab from './de/vocab.js';
import webhooks from './de/webhooks.js';

// Parts of pages.
import absence from './de/absence.js';
import common from './de/common.js';
import controls from './de/controls.js';
import decision from './de/decision.js';
import detail from './de/detail.js';
import diff from './de/diff.js';
import edit from './de/edit.js';
import filter from './de/filter.js';
import firststeps from './de/firststeps.js';
import list from './de/list.js';
import rule from './de/rule.js';
import serverform from './de/serverform.js';
import tools from './de/tools.js';
import policy from './de/policy.js';
import suggestions from './de/suggestions.js';

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
