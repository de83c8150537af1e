// Tells whether the gateway can be reached. Actions are disabled while it cannot.

import { notifyAll } from './dom.js';

/** The event that tells an element with the attribute `data-needs-gateway` that this has changed. */
export const REACHABILITY_CHANGED = 'reachability';

let reachable = true;

export const isReachable = () => reachable;

export function setReachable(value) {
  if (value === reachable) return;
  reachable = value;
  notifyAll('[data-needs-gateway]', REACHABILITY_CHANGED);
}

/** Returns the properties of a button that is disabled while the gateway cannot be reached, or while `isDisabled()` is true. */
export const needsGateway = (isDisabled = () => false) => ({
  'data-needs-gateway': true,
  disabled: !reachable || isDisabled(),
  [`on${REACHABILITY_CHANGED}`]: ({ target }) => { target.disabled = !reachable || isDisabled(); },
});
