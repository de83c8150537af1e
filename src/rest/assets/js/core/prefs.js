// Remembers small, non-secret preferences in this browser. Without storage they last until the page is reloaded.

const PREFIX = 'countersign.';
const chosen = new Map();

/** Returns the chosen one of `options`, or the first if none was chosen. */
export function preference(name, options) {
  let value = chosen.get(name);
  if (value === undefined) {
    try {
      value = localStorage.getItem(PREFIX + name);
    } catch {
      // No storage.
    }
  }
  return options.includes(value) ? value : options[0];
}

export function setPreference(name, value) {
  chosen.set(name, value);
  try {
    localStorage.setItem(PREFIX + name, value);
  } catch {
    // No storage.
  }
}
