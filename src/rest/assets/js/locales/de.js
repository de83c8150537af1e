// The German texts, with the areas of `en.js`. They address the reader formally. Terms:
//
//   change = Änderung, pending change = offene Änderung, approve = freigeben, reject = ablehnen, withdraw = zurückziehen,
//   reviewer = Prüfer, proposer = Antragsteller, agent = Agent, server = Server, tool = Tool, rule = Regel,
//   standing rule = Dauerregel, policy = Richtlinie, key = Schlüssel, audit trail = Audit-Protokoll, plan = Plan,
//   bundle = Bündel, inbox = Eingang, history = Verlauf, overview = Übersicht, escalation = Eskalation, preview = Vorschau,
//   stale = veraltet

import shell from './de/shell.js';

// Parts of pages.
import common from './de/common.js';

export default {
  ...shell,

  // Parts of pages.
  ...common,
};
