// Light, dark, or whatever the system prefers.

const KEY = 'countersign.theme';
const ORDER = ['system', 'light', 'dark'];

export function theme() {
  return document.documentElement.dataset.theme ?? 'system';
}

/** The next one in turn; returns its name. */
export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  if (next === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === 'system') localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // Without storage it holds until the page is loaded again.
  }
  return next;
}
