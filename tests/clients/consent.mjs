// A person's browser that connects a server which requires OAuth: it presses Connect, visits the authorization server and comes
// back to the gateway.

/** The prefix of the gateway's redirect URI. */
const CALLBACK = '/api/servers/callback';

/** Follows redirects from an authorization endpoint that asks nothing. Returns the URL of the gateway's callback. */
export async function followRedirects(url) {
    for (let next = new URL(url), step = 0; step < 10; step += 1) {
        if (next.pathname === CALLBACK) return next;
        const response = await fetch(next, { redirect: 'manual' });
        const location = response.headers.get('location');
        if (!location) throw new Error(`the authorization server says: ${response.status} ${await response.text()}`);
        next = new URL(location, next);
    }
    throw new Error('the authorization server redirects in circles');
}

/** Presses Connect. Returns `{ url, cookie }`, or `{ problem }` if the gateway refuses. */
export async function beginConsent(gateway, server, key = gateway.key) {
    const response = await fetch(`${gateway.url}/api/servers/${server}/connect`, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        body: '{}'
    });
    const text = await response.text();
    if (!response.ok) return { problem: `${response.status} ${text}` };
    return { url: JSON.parse(text).url, cookie: response.headers.getSetCookie().map(cookie => cookie.split(';')[0]).join('; ') };
}

/** Comes back to the gateway from the authorization server. Returns the page to which it sends the browser. */
export async function finishConsent(gateway, back, cookie) {
    const response = await fetch(gateway.url + back.pathname + back.search, { redirect: 'manual', headers: { cookie } });
    return response.headers.get('location') ?? `${response.status} ${await response.text()}`;
}

/**
 * Connects a server as the person of that key. `visit` takes the person from the authorization server's page to the URL at which
 * they come back. Returns the page of the gateway at the end, or the reason of a refusal.
 */
export async function connectServer(gateway, server, { key = gateway.key, visit = followRedirects } = {}) {
    const { problem, url, cookie } = await beginConsent(gateway, server, key);
    if (problem) return problem;
    return finishConsent(gateway, await visit(url), cookie);
}

/** Returns true if the page at the end of a consent says that the server is connected. */
export const isConnected = page => page.includes('?connected');

