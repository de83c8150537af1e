// Times relative to the gateway's clock, kept current on the page without rendering anything again.

import { h } from './dom.js';

const absolute = new Intl.DateTimeFormat('en', { dateStyle: 'medium', timeStyle: 'medium' });
const clock = new Intl.DateTimeFormat('en', { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });
const day = new Intl.DateTimeFormat('en', { month: 'short', day: 'numeric' });
let skew = 0;

/** The gateway said what time it is; offsets of a few seconds are the network and are ignored. */
export function learnClock(dateHeader) {
  const theirs = Date.parse(dateHeader ?? '');
  if (!Number.isFinite(theirs)) return;
  const difference = theirs - Date.now();
  skew = Math.abs(difference) > 5000 ? difference : 0;
}

export const now = () => Date.now() + skew;

const STEPS = [[60, 1, 's'], [3600, 60, 'min'], [86400, 3600, 'h'], [Infinity, 86400, 'd']];

function amount(seconds) {
  for (const [below, unit, name] of STEPS) {
    if (seconds < below) return `${Math.floor(seconds / unit)} ${name}`;
  }
  return '';
}

/** `just now`, `5 min ago`, `in 23 h`. */
export function relative(milliseconds, from = now()) {
  const seconds = Math.round((milliseconds - from) / 1000);
  if (seconds <= 0) return seconds > -10 ? 'just now' : `${amount(-seconds)} ago`;
  return `in ${amount(seconds)}`;
}

/** As `relative`, in the width of a list: `now`, `5 min`, `3 h`, `Nov 21`. */
function brief(milliseconds) {
  const seconds = Math.round((now() - milliseconds) / 1000);
  if (seconds < 10) return 'now';
  return seconds < 7 * 86400 ? amount(seconds) : day.format(milliseconds);
}

/** `in 12 s`, to the second. */
const countdown = (ms) => (ms - now() > 0 ? `in ${amount(Math.ceil((ms - now()) / 1000))}` : 'now');

const FORMS = { relative: (ms) => relative(ms), countdown, brief, clock: (ms) => clock.format(ms), day: (ms) => day.format(ms) };

/** A `<time>` that keeps itself current. `form` is `relative`, `brief`, `clock` or `day`. */
export function time(iso, form = 'relative') {
  const milliseconds = Date.parse(iso);
  if (!Number.isFinite(milliseconds)) return h('span', null, '—');
  return h('time', { datetime: new Date(milliseconds).toISOString(), title: absolute.format(milliseconds), data: { form } },
    FORMS[form](milliseconds));
}

/** `Nov 21, 2026, 1:47:00 AM`. */
export const exact = (iso) => (Number.isFinite(Date.parse(iso)) ? absolute.format(Date.parse(iso)) : '—');

/** Milliseconds until then; below zero once it has passed. */
export const until = (iso) => Date.parse(iso) - now();

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
    }
  }, 500);
}
