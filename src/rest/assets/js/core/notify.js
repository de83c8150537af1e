// Shows browser notifications of new changes while the page is in the background, if the user turned them on.

import { t } from './locale.js';
import { preference, setPreference } from './prefs.js';
import { short, visibleString } from './text.js';
import { proposerName } from './vocab.js';

// Changes that arrive within this time share one notification.
const BURST_MS = 800;
const PREFERENCE = 'notifications';
let first = null;
let waiting = 0;
let timer = null;

const canNotify = () => typeof Notification !== 'undefined' && isSecureContext;

/** Returns `on`, `off`, `blocked` (by the browser) or `none` (not supported). */
export function notificationState() {
  if (!canNotify()) return 'none';
  if (Notification.permission === 'denied') return 'blocked';
  return Notification.permission === 'granted' && preference(PREFERENCE, ['off', 'on']) === 'on' ? 'on' : 'off';
}

/** Turns notifications on, after asking the browser, or off. Resolves to the new state. */
export async function toggleNotifications() {
  if (notificationState() === 'on') {
    setPreference(PREFERENCE, 'off');
    return 'off';
  }
  if (!canNotify()) return 'none';
  if (await Notification.requestPermission() === 'granted') {
    // Changes from before are not announced.
    clearTimeout(timer);
    [timer, first, waiting] = [null, null, 0];
    setPreference(PREFERENCE, 'on');
  }
  return notificationState();
}

/** Queues a notification of a waiting change. None is shown while the page has focus. A click calls `open(id)`. */
export function queueNotification(change, open) {
  first ??= change;
  waiting += 1;
  // The permission is read once per burst, because the browser answers from another process.
  timer ??= setTimeout(() => {
    timer = null;
    const [oldest, n] = [first, waiting];
    first = null;
    waiting = 0;
    if (notificationState() === 'on' && !document.hasFocus()) show(oldest, n, open);
  }, BURST_MS);
}

function show(change, n, open) {
  const text = n === 1 ? `${short(change.summary, 160)}\n${t('core.notify.by', { name: short(proposerName(change.proposer ?? {}) ?? '', 40) })}` : `${short(change.summary, 120)}\n${t('core.notify.more', { count: n - 1 })}`;
  let notification;
  try {
    notification = new Notification(t('core.notify.waiting', { count: n }), {
      body: visibleString(text, { block: true }), tag: 'countersign', renotify: true, icon: '/assets/icon-waiting.svg',
    });
  } catch {
    return; // Some browsers allow notifications only from service workers.
  }
  notification.onclick = () => {
    window.focus();
    open(change.id);
    notification.close();
  };
}
