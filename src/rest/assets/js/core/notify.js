// Notifications of the browser, for whoever asked for them with a click: something waits while the page is not looked at.

import { choice, choose } from './prefs.js';
import { plural, short, visibleString } from './text.js';

// What comes in a burst is one notification.
const GATHER = 800;
const FOR = 'notifications';
let first = null;
let waiting = 0;
let timer = null;

export const canNotify = () => typeof Notification !== 'undefined' && isSecureContext;

/** `on`, `off`, `blocked` (by the browser) or `none` (it has none to give). */
export function notifying() {
  if (!canNotify()) return 'none';
  if (Notification.permission === 'denied') return 'blocked';
  return Notification.permission === 'granted' && choice(FOR, ['off', 'on']) === 'on' ? 'on' : 'off';
}

/** On a click: asks the browser, or turns them off again. Resolves to how it stands then. */
export async function toggleNotifying() {
  if (notifying() === 'on') {
    choose(FOR, 'off');
    return 'off';
  }
  if (!canNotify()) return 'none';
  if (await Notification.requestPermission() === 'granted') {
    // What came before nobody asked to hear of.
    clearTimeout(timer);
    [timer, first, waiting] = [null, null, 0];
    choose(FOR, 'on');
  }
  return notifying();
}

/** A change waits. Nothing is shown while somebody looks at the page; `open(id)` is for a click on it. */
export function tellOf(change, open) {
  first ??= change;
  waiting += 1;
  // Asked once for all of a burst: what the browser allows it answers from another process.
  timer ??= setTimeout(() => {
    timer = null;
    const [told, n] = [first, waiting];
    first = null;
    waiting = 0;
    if (notifying() === 'on' && !document.hasFocus()) show(told, n, open);
  }, GATHER);
}

function show(change, n, open) {
  const text = n === 1 ? `${short(change.summary, 160)}\nby ${short(change.proposer?.principal ?? '', 40)}` : `${short(change.summary, 120)}\nand ${plural(n - 1, 'more change')}`;
  let shown;
  try {
    shown = new Notification(n === 1 ? 'A change is waiting for review' : `${plural(n, 'change')} are waiting for review`, {
      body: visibleString(text, { block: true }), tag: 'countersign', renotify: true, icon: '/assets/icon-waiting.svg',
    });
  } catch {
    return; // Some browsers offer them to service workers only.
  }
  shown.onclick = () => {
    window.focus();
    open(change.id);
    shown.close();
  };
}
