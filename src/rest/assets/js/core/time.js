// Shows times relative to the gateway's clock and updates them in place.

import { h } from './dom.js';
import { language, t } from './locale.js';

const absolute = new Intl.DateTimeFormat(language, { dateStyle: 'medium', timeStyle: 'medium' });
const clock = new Intl.DateTimeFormat(language, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });
const day = new Intl.DateTimeFormat(language, { month: 'short', day: 'numeric' });
let skew = 0;

/** Adopts the gateway's time. Offsets of a few seconds come from the network and are ignored. */
export function syncClock(dateHeader) {
  const gatewayTime = Date.parse(dateHeader ?? '');
  if (!Number.isFinite(gatewayTime)) return;
  const difference = gatewayTime - Date.now();
  skew = Math.abs(difference) > 5000 ? difference : 0;
}

export const now = () => Date.now() + skew;

const STEPS = [[60, 1, 's'], [3600, 60, 'min'], [86400, 3600, 'h'], [Infinity, 86400, 'd']];

// Returns a time span in its largest unit. `form` is `amount`, `ago` or `in`.
function span(form, seconds) {
  const [, size, unit] = STEPS.find(([below]) => seconds < below);
  return t(`core.time.${form}.${unit}`, { count: Math.floor(seconds / size) });
}

/** Formats a time as `just now`, `5 min ago` or `in 23 h`. */
export function relative(milliseconds, from = now()) {
  const seconds = Math.round((milliseconds - from) / 1000);
  if (seconds <= 0) return seconds > -10 ? t('core.time.justNow') : span('ago', -seconds);
  return span('in', seconds);
}

/** Formats a past time for narrow lists, as `now`, `5 min`, `3 h` or `Nov 21`. */
function brief(milliseconds) {
  const seconds = Math.round((now() - milliseconds) / 1000);
  if (seconds < 10) return t('core.time.now');
  return seconds < 7 * 86400 ? span('amount', seconds) : day.format(milliseconds);
}

/** Formats a future time to the second, as `in 12 s`. */
const countdown = (ms) => (ms - now() > 0 ? span('in', Math.ceil((ms - now()) / 1000)) : t('core.time.now'));

const FORMS = { relative: (ms) => relative(ms), countdown, brief, clock: (ms) => clock.format(ms), day: (ms) => day.format(ms) };

/** Creates a `<time>` that updates itself. `form` is a key of `FORMS`. */
export function time(iso, form = 'relative') {
  const milliseconds = Date.parse(iso);
  if (!Number.isFinite(milliseconds)) return h('span', null, '—');
  return h('time', { datetime: new Date(milliseconds).toISOString(), title: absolute.format(milliseconds), data: { form } },
    FORMS[form](milliseconds));
}

/** Formats a time as `Nov 21, 2026, 1:47:00 AM`. */
export const exact = (iso) => (Number.isFinite(Date.parse(iso)) ? absolute.format(Date.parse(iso)) : '—');

/** A change that expires within this time is marked. */
export const EXPIRY_WARNING_MS = 3600_000;

/**
 * After the content of a decision changes by itself, presses are ignored for this time, because they were meant for the old
 * content.
 */
export const PRESS_GUARD_MS = 600;

/** Returns the milliseconds until a time, which are negative once it has passed. */
export const until = (iso) => Date.parse(iso) - now();

/** The event of a countdown on the page that has ended. It bubbles. */
export const COUNTDOWN_ENDED = 'countdownended';

export function startClock() {
  setInterval(() => {
    for (const element of document.querySelectorAll('time[data-form]')) {
      const text = FORMS[element.dataset.form](Date.parse(element.dateTime));
      if (element.textContent !== text) element.textContent = text;
      const { soon } = element.dataset;
      if (soon) element.classList.toggle('soon', Date.parse(element.dateTime) - now() < Number(soon));
    }
  }, 5000);
  setInterval(() => {
    for (const element of document.querySelectorAll('time[data-form=countdown]')) {
      const text = countdown(Date.parse(element.dateTime));
      if (element.textContent !== text) element.textContent = text;
      if (until(element.dateTime) <= 0) element.dispatchEvent(new Event(COUNTDOWN_ENDED, { bubbles: true }));
    }
  }, 500);
}
