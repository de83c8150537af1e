// The texts of suggested standing rules.

export default {
  'suggestions.title': 'Suggested standing rules',
  'suggestions.note': 'from the last 30 days',
  'suggestions.help': 'Reviewers have approved such calls of this agent at least five times and rejected none. The narrowest rule comes first.',
  'suggestions.incomplete': 'Only the newest changes of the tool were compared.',
  'suggestions.effectAny': 'Calls to {tool} by {agent} with any arguments would run without review.',
  'suggestions.effect': 'Calls to {tool} by {agent} with {conditions} would run without review.',
  'suggestions.allowsFor': 'For {duration}, calls to {tool} by {agent} with {conditions} run without review.',
  'suggestions.allows': 'Calls by {principal} with {conditions} run without review.',
  'suggestions.allowsAny': 'Calls by any agent with {conditions} run without review.',
  'suggestions.approved': { one: 'Approved once, never rejected.', other: 'Approved {count} times, never rejected.' },
  'suggestions.matched': { one: 'It would have matched {count} change', other: 'It would have matched {count} changes' },
  'suggestions.unmatched': { one: 'It would not have matched {count} other change of this tool', other: 'It would not have matched {count} other changes of this tool' },
  'suggestions.older': { one: 'and {count} older one', other: 'and {count} older ones' },
  'suggestions.fillIn': 'Fill in this rule…',
  'suggestions.and': ' and ',
  'suggestions.equalTo': '{argument} equal to {value}',
  'suggestions.within': '{argument} within {folder}',
};
