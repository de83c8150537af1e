// Holds the secret of the sign-in in sessionStorage, so that it ends with the tab. Tabs of the same origin share the
// cookie that belongs to it, so they also share the secret, and a sign-in or sign-out in one tab applies to all.

const KEY = 'countersign.secret';
const ROUTE_KEY = 'countersign.route';
const ASK_TIMEOUT = 150;

export class Session {
  #channel = null;
  #changed;
  #hasAsked = false;
  // Ends the wait for the answer of another tab.
  #borrowed = null;

  /** `changed(signedIn)` is called after another tab has signed in or out. */
  constructor(changed) {
    this.#changed = changed;
    if (typeof BroadcastChannel === 'undefined') return;
    this.#channel = new BroadcastChannel('countersign');
    this.#channel.onmessage = ({ data }) => {
      if (data?.type === 'ask' && this.secret) this.#channel.postMessage({ type: 'secret', secret: this.secret });
      // A tab that is busy may answer after this one has stopped waiting, but not after a sign-in or a sign-out.
      const isWanted = data?.type === 'signed-in' || (data?.type === 'secret' && this.#hasAsked);
      if (isWanted && typeof data.secret === 'string') this.#adopt(data.secret);
      if (data?.type === 'signed-out') {
        this.#hasAsked = false;
        if (this.secret) {
          sessionStorage.removeItem(KEY);
          this.#changed(false);
        }
      }
    };
  }

  get secret() {
    return sessionStorage.getItem(KEY);
  }

  #adopt(secret) {
    this.#hasAsked = false;
    if (secret === this.secret) return;
    sessionStorage.setItem(KEY, secret);
    if (this.#borrowed) this.#borrowed();
    else this.#changed(true);
  }

  begin(secret) {
    this.#hasAsked = false;
    sessionStorage.setItem(KEY, secret);
    this.#channel?.postMessage({ type: 'signed-in', secret });
  }

  /** Forgets the secret. `everywhere` makes the other tabs forget it too, because the cookie is gone. */
  end(everywhere) {
    sessionStorage.removeItem(KEY);
    if (everywhere) this.#channel?.postMessage({ type: 'signed-out' });
  }

  /** Asks other tabs for the secret. Resolves to false if none has answered yet. */
  async borrow() {
    if (!this.secret && this.#channel) {
      await new Promise((resolve) => {
        this.#hasAsked = true;
        this.#borrowed = resolve;
        this.#channel.postMessage({ type: 'ask' });
        setTimeout(resolve, ASK_TIMEOUT);
      });
      this.#borrowed = null;
    }
    return Boolean(this.secret);
  }
}

/** Returns the one-time code of the address and removes it from there and from the tab's history. */
export const takeCode = () => takeFromAddress(/^#code=([^&]+)/);

/** Returns the name of the problem with which a sign-in at the identity provider ended, and removes it from the address. */
export const takeProblem = () => takeFromAddress(/^#sign-in-problem=([^&]+)/);

/**
 * Leaves for the identity provider, which asks the user to authenticate again if they are to decide on the change with that id.
 * `url` begins the sign-in on the host to which the browser comes back. `restoreRoute` shows the view that was open.
 */
export function leaveForProvider(url, changeId = null) {
  sessionStorage.setItem(ROUTE_KEY, location.hash);
  location.assign(changeId ? `${url}?change=${encodeURIComponent(changeId)}` : url);
}

/** Returns to the view that was open before the sign-in at the identity provider, unless the address names another one. */
export function restoreRoute() {
  const route = sessionStorage.getItem(ROUTE_KEY);
  sessionStorage.removeItem(ROUTE_KEY);
  if (route?.startsWith('#/') && !location.hash) history.replaceState(null, '', route);
}

function takeFromAddress(pattern) {
  const match = pattern.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, '', `${location.pathname}${location.search}`);
  try {
    return decodeURIComponent(match[1]);
  } catch {
    return match[1];
  }
}
