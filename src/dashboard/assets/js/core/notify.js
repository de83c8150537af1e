// Notifications of the browser, for whoever asked for them with a click: something waits while the page is not looked at.

import { choice, choose } from './prefs.js';
import { plural, short, visibleString } from './text.js';

// What comes in a burst is one notification.
const GATHER = 800;
const FOR = 'notifications';
let waiting = [];
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
  if (await Notification.requestPermission() === 'granted') choose(FOR, 'on');
  return notifying();
}

/** A change waits. Nothing is shown while somebody looks at the page; `open(id)` is for a click on it. */
export function tellOf(change, open) {
  if (notifying() !== 'on' || document.hasFocus()) return;
  waiting.push(change);
  timer ??= setTimeout(() => {
    timer = null;
    const all = waiting;
    waiting = [];
    show(all, open);
  }, GATHER);
}

function show(all, open) {
  const [first] = all;
  const text = all.length === 1 ? `${short(first.summary, 160)}\nby ${short(first.proposer?.principal ?? '', 40)}` : `${short(first.summary, 120)}\nand ${plural(all.length - 1, 'more change')}`;
  let shown;
  try {
    shown = new Notification(all.length === 1 ? 'A change waits for review' : `${plural(all.length, 'change')} wait for review`, {
      body: visibleString(text, { block: true }), tag: 'countersign', renotify: true, icon: '/assets/icon-waiting.svg',
    });
  } catch {
    return; // Some browsers offer them to service workers only.
  }
  shown.onclick = () => {
    window.focus();
    open(first.id);
    shown.close();
  };
}
