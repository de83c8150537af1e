// What a person has chosen on this browser: small, and never anything secret. Without storage it holds until the page is
// loaded again.

const PREFIX = 'countersign.';
const held = new Map();

/** The chosen one of `options`; the first where nothing was chosen. */
export function choice(name, options) {
  let value = held.get(name);
  if (value === undefined) {
    try {
      value = localStorage.getItem(PREFIX + name);
    } catch {
      // No storage.
    }
  }
  return options.includes(value) ? value : options[0];
}

export function choose(name, value) {
  held.set(name, value);
  try {
    localStorage.setItem(PREFIX + name, value);
  } catch {
    // No storage.
  }
}
