// Starts the page: a code in the address signs in, a secret from before goes on, everything else sees the sign-in page.

import { mountAnnouncer, notice } from './core/announce.js';
import { Api, explain } from './core/api.js';
import { fill } from './core/dom.js';
import { Keys } from './core/keys.js';
import { Session, takeCode } from './core/session.js';
import { startClock } from './core/time.js';
import { App } from './app.js';
import { applyDensity } from './ui/density.js';
import { SignInView, signInProblem } from './views/signin.js';

// Before anything else, so that the code is not in the address for longer than it takes to read it.
let code = takeCode();

const root = document.getElementById('app');
const keys = new Keys();
let app = null;

const session = new Session((signedIn) => {
  if (signedIn) resume('');
  else showSignIn('You have signed out in another tab.');
});
const api = new Api(() => session.secret, () => ended('Your sign-in has ended. Sign in again.'));

function ended(message) {
  session.end(false);
  showSignIn(message);
}

function showSignIn(message, busy = false) {
  app?.stop();
  app = null;
  document.title = 'Sign in · Countersign';
  const view = new SignInView({ submit: signIn, message, busy });
  fill(root, view.element);
  if (!busy) view.focus();
}

function showApp(me) {
  app?.stop();
  app = new App({ api, me, keys, signOut });
  app.signedOut = ended;
  fill(root, app.element);
  app.start();
}

async function signIn(credential) {
  const { secret } = await api.signIn(credential);
  session.begin(secret);
  showApp(await api.me());
}

async function signOut() {
  try {
    await api.signOut();
  } catch {
    // The secret is forgotten here in any case, and without it the cookie is worth nothing.
  }
  session.end(true);
  history.replaceState(null, '', location.pathname);
  showSignIn('');
}

async function resume(message, again = false) {
  try {
    showApp(await api.me());
  } catch (error) {
    if (error.status === 401 || error.status === 403) {
      session.end(false);
      showSignIn(message || 'Your sign-in has ended. Sign in again.');
    } else {
      // The gateway is away, and the secret may still be good: try again when it is back.
      if (!again) showSignIn(`${explain(error)} You stay signed in.`);
      setTimeout(() => session.secret && !app && resume(message, true), 2000);
    }
  }
}

async function signInByCode() {
  const taken = code;
  code = null;
  showSignIn('', true);
  try {
    await signIn({ code: taken });
  } catch (error) {
    // Who is signed in already stays so when an old link is opened.
    const problem = signInProblem(error, true);
    if (!session.secret) return showSignIn(problem);
    await resume(problem);
    if (app) notice(problem, { tone: 'amber', iconName: 'alert' });
  }
}

async function boot() {
  mountAnnouncer(document.body);
  startClock();
  applyDensity();
  addEventListener('hashchange', () => {
    const late = takeCode();
    if (!late) return;
    code = late;
    signInByCode();
  });
  if (code) await signInByCode();
  else if (session.secret || (await session.borrow())) await resume('');
  else showSignIn('');
}

boot();
