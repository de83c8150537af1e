// The inbox and the history.

export default {
  'changes.bell.on': 'Notifications are on',
  'changes.bell.off': 'Notify me of new changes',
  'changes.bell.blocked': 'The browser blocks notifications from this page',
  'changes.countOf': '{shown} of {total}',
  'changes.noHistoryHow': 'Decided changes appear here with their outcome.',
  'changes.waitingInInbox': 'Waiting changes are in the inbox',
  'changes.allClear': 'You\'re all caught up',
  'changes.allClearHow': 'When an agent proposes a change, it appears here right away.',
  'changes.endpoint': 'Agents connect to',
  'changes.copyEndpoint': 'Copy the address for agents',
  'changes.firstSteps': 'Back to the first steps',
  'changes.openPlan': 'Open plan',
  'changes.reviewTogether': 'Review together',
  'changes.blocked': 'The browser blocks notifications from this page. You can allow them in its settings for this site.',
  'changes.notified': 'You will be notified of new changes while this page is in the background.',
  'changes.notNotified': 'Notifications are off.',
};
