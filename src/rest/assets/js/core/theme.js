// Switches between the light theme, the dark one and the preference of the system.

const KEY = 'countersign.theme';
const ORDER = ['system', 'light', 'dark'];

export function theme() {
  return document.documentElement.dataset.theme ?? 'system';
}

export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  if (next === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === 'system') localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // Without storage the theme lasts until the page is reloaded.
  }
  return next;
}
