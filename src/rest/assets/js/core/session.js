// Who is signed in. The secret lives in sessionStorage, so that it ends with the tab; tabs of the same origin hand it
// to one another, because they share the cookie that goes with it: a new sign-in or a sign-out in one counts in all.

const KEY = 'countersign.secret';
const ASK_TIMEOUT = 150;

export class Session {
  #channel = null;
  #changed;

  /** `changed(signedIn)` is told when another tab has signed in or out. */
  constructor(changed) {
    this.#changed = changed;
    if (typeof BroadcastChannel === 'undefined') return;
    this.#channel = new BroadcastChannel('countersign');
    this.#channel.onmessage = ({ data }) => {
      if (data?.type === 'ask' && this.secret) this.#channel.postMessage({ type: 'secret', secret: this.secret });
      if (data?.type === 'signed-in' && typeof data.secret === 'string') this.#adopt(data.secret, true);
      if (data?.type === 'signed-out' && this.secret) {
        sessionStorage.removeItem(KEY);
        this.#changed(false);
      }
    };
  }

  get secret() {
    return sessionStorage.getItem(KEY);
  }

  #adopt(secret, tell) {
    if (secret === this.secret) return;
    sessionStorage.setItem(KEY, secret);
    if (tell) this.#changed(true);
  }

  begin(secret) {
    sessionStorage.setItem(KEY, secret);
    this.#channel?.postMessage({ type: 'signed-in', secret });
  }

  /** Forgets the secret here; `everywhere` tells the other tabs that the cookie is gone too. */
  end(everywhere) {
    sessionStorage.removeItem(KEY);
    if (everywhere) this.#channel?.postMessage({ type: 'signed-out' });
  }

  /** Asks other tabs for the secret; false if none has one. */
  async borrow() {
    if (this.secret || !this.#channel) return Boolean(this.secret);
    const channel = new BroadcastChannel('countersign');
    const secret = await new Promise((resolve) => {
      channel.onmessage = ({ data }) => data?.type === 'secret' && typeof data.secret === 'string' && resolve(data.secret);
      channel.postMessage({ type: 'ask' });
      setTimeout(resolve, ASK_TIMEOUT, null);
    });
    channel.close();
    if (secret) this.#adopt(secret, false);
    return Boolean(secret);
  }
}

/** Takes a one-time code out of the address, at once and without leaving it in the tab's history. */
export function takeCode() {
  const match = /^#code=([^&]+)/.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, '', `${location.pathname}${location.search}`);
  try {
    return decodeURIComponent(match[1]);
  } catch {
    return match[1];
  }
}
