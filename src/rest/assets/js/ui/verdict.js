// Shows a verdict of the policy.

import { t } from '../core/locale.js';
import { toneBadge } from './badges.js';

const VERDICTS = { allow: ['green', 'check', 'policy.allow'], review: ['amber', 'eye', 'policy.review'], deny: ['red', 'cross', 'policy.deny'] };

/** Returns a badge with the verdict. */
export function verdictBadge(verdict) {
  const [tone, name, key] = VERDICTS[verdict] ?? VERDICTS.review;
  return toneBadge(tone, name, t(key));
}
