// Keeps routes in the fragment, which the gateway never sees: `#/inbox/chg_…`, `#/history?state=applied`.

/** Returns `{view, id, part, query}` of a fragment; `part` is the segment after the id. */
export function parseRoute(hash) {
  const [path, search = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  const [view = '', ...rest] = path.split('/');
  let id = null;
  try {
    id = rest.length && rest[0] ? decodeURIComponent(rest[0]) : null;
  } catch {
    id = null;
  }
  return { view: view || 'inbox', id, part: rest[1] ?? null, query: new URLSearchParams(search) };
}

export function routeTo(view, id = null, query = null) {
  const search = query ? new URLSearchParams(Object.entries(query).filter(([, v]) => v)).toString() : '';
  return `#/${view}${id ? `/${encodeURIComponent(id)}` : ''}${search ? `?${search}` : ''}`;
}

/** Goes to a route without a new history entry, for steps such as j and k. */
export function replaceRoute(hash) {
  if (hash === location.hash) return;
  history.replaceState(null, '', hash);
  dispatchEvent(new Event('hashchange'));
}

export function go(hash) {
  if (hash === location.hash) return;
  history.pushState(null, '', hash);
  dispatchEvent(new Event('hashchange'));
}
