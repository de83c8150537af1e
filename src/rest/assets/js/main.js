// Starts the page. A code in the address signs in, a stored secret resumes, otherwise the sign-in page is shown.

import { clearNotices, mountAnnouncer, notice } from './core/announce.js';
import { Api, explain, otherPerson } from './core/api.js';
import { fill } from './core/dom.js';
import { Keys } from './core/keys.js';
import { t } from './core/locale.js';
import { leaveForProvider, restoreRoute, Session, takeCode, takeProblem } from './core/session.js';
import { startClock } from './core/time.js';
import { App } from './app.js';
import { applyDensity } from './ui/density.js';
import { askToReplace, providerProblem, SignInView, signInProblem } from './views/signin.js';

// Runs first, so that the code leaves the address at once.
let code = takeCode();
const failedSignIn = takeProblem();

const root = document.getElementById('app');
const keys = new Keys();
let app = null;
// The dialog that asks whether a link may sign in somebody else.
let replaceDialog = null;

const session = new Session((signedIn) => {
  if (signedIn) resume('');
  else showSignIn(t('shell.signedOutElsewhere'));
});
const api = new Api(() => session.secret, () => endSession(t('shell.signInAgain')));

function endSession(message) {
  session.end(false);
  showSignIn(message);
}

// Removes all that the user so far could see.
function closeApp() {
  app?.stop();
  app = null;
  clearNotices();
  replaceDialog?.close();
}

function showSignIn(message, busy = false) {
  closeApp();
  document.title = t('shell.signInTitle');
  const view = new SignInView({ submit: signIn, message, busy });
  fill(root, view.element);
  if (busy) return;
  view.focus();
  // Without an answer, the page offers keys only.
  api.signInOptions().then(({ provider, signInUrl }) => provider && view.offerProvider(() => leaveForProvider(signInUrl)), () => {});
}

function showApp(me) {
  closeApp();
  app = new App({ api, me, keys, signOut, signedOut: endSession });
  fill(root, app.element);
  app.start();
}

async function signIn(credential, options) {
  const { secret } = await api.signIn(credential, options);
  session.begin(secret);
  restoreRoute();
  showApp(await api.me());
}

async function signOut() {
  let providerUrl;
  try {
    providerUrl = await api.signOut();
  } catch {
    // The secret is forgotten here in any case, and the cookie is useless without it.
  }
  session.end(true);
  if (providerUrl) return location.assign(providerUrl);
  history.replaceState(null, '', location.pathname);
  showSignIn('');
}

async function resume(message, isRetry = false) {
  try {
    showApp(await api.me());
  } catch (error) {
    if (error.status === 401 || error.status === 403) {
      session.end(false);
      showSignIn(message || t('shell.signInAgain'));
    } else {
      // The gateway cannot be reached and the secret may still be valid, so try again.
      if (!isRetry) showSignIn(t('shell.stillSignedIn', { problem: explain(error) }));
      setTimeout(() => session.secret && !app && resume(message, true), 2000);
    }
  }
}

async function signInByCode() {
  const oneTimeCode = code;
  code = null;
  // With the secret of a sign-in in another tab, the gateway refuses a code of somebody else.
  await session.borrow();
  showSignIn('', true);
  try {
    await signIn({ code: oneTimeCode });
  } catch (error) {
    // An old link does not end an existing sign-in, and one of somebody else does so only if the user agrees.
    const problem = signInProblem(error, true);
    if (!session.secret) return showSignIn(problem);
    await resume(problem);
    if (!app) return;
    const people = otherPerson(error);
    if (people) replaceDialog = askToReplace(people, () => signIn({ code: oneTimeCode }, { withSecret: false }));
    else notice(problem, { tone: 'amber', iconName: 'alert' });
  }
}

async function boot() {
  mountAnnouncer(document.body);
  startClock();
  applyDensity();
  addEventListener('hashchange', () => {
    const newCode = takeCode();
    if (!newCode) return;
    code = newCode;
    signInByCode();
  });
  const message = failedSignIn ? providerProblem(failedSignIn) : '';
  if (code) await signInByCode();
  else if (session.secret || (await session.borrow())) {
    // A failed sign-in does not end an existing one.
    if (message) restoreRoute();
    await resume(message);
    if (app && message) notice(message, { tone: 'amber', iconName: 'alert' });
  }
  else showSignIn(message);
}

boot();
