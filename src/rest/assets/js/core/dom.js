// Builds DOM nodes. Strings become text nodes, never markup: this module accepts no HTML.

const SVG = 'http://www.w3.org/2000/svg';

/**
 * Creates an element: `h('a', { class: 'x', onclick: f, 'aria-label': 'y' }, child, 'text')`.
 * A property that is null, undefined or false is omitted; true sets an empty attribute.
 */
export function h(tag, props = null, ...children) {
  const element = document.createElement(tag);
  if (props) for (const [key, value] of Object.entries(props)) set(element, key, value);
  add(element, children);
  return element;
}

/** Creates an SVG element. It is meant for the dashboard's own icons only. */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  add(element, children);
  return element;
}

const SHOWN_IMAGE = /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}$/;

/** Creates an image from a `data:` URL. Nothing is loaded from an address. */
export function dataImage(url, alt) {
  if (!SHOWN_IMAGE.test(url)) throw new TypeError('only images in the page itself are shown');
  const image = h('img', { alt });
  image.src = url;
  return image;
}

function set(element, key, value) {
  if (value === null || value === undefined || value === false) return;
  if (typeof value === 'function') {
    if (!key.startsWith('on')) throw new TypeError(`${key} takes no function`);
    element.addEventListener(key.slice(2), value);
  } else if (key === 'class') {
    element.className = value;
  } else if (key === 'data') {
    Object.assign(element.dataset, value);
  } else if (key === 'href') {
    // Only routes of this page are linked, so that no text of an agent becomes a link target.
    if (!String(value).startsWith('#')) throw new TypeError('only routes of this page are linked');
    element.setAttribute('href', value);
  } else if (key === 'style' || key === 'srcdoc' || key === 'src') {
    throw new TypeError(`${key} is not set from here`);
  } else {
    element.setAttribute(key, value === true ? '' : String(value));
  }
}

function add(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(parent, child);
    else parent.append(child);
  }
}

/** Replaces everything inside `parent`. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  add(parent, children);
  return parent;
}

/**
 * Replaces everything inside `parent` by its next state. The focus stays on the element with the same `data-key`, or else the same
 * address or text, and folds stay open or closed.
 */
export function refill(parent, ...children) {
  const active = parent.contains(document.activeElement) ? document.activeElement : null;
  const nameOf = (element) => element.dataset.key ?? element.getAttribute('href') ?? element.textContent;
  const alike = () => [...parent.querySelectorAll(active.tagName)].filter((element) => nameOf(element) === nameOf(active));
  const position = active === null ? -1 : alike().indexOf(active);
  const folds = [...parent.querySelectorAll('details')];
  fill(parent, ...children);
  const newFolds = parent.querySelectorAll('details');
  if (newFolds.length === folds.length) newFolds.forEach((fold, n) => { fold.open = folds[n].open; });
  if (active !== null) alike()[position]?.focus({ preventScroll: true });
  return parent;
}

/**
 * Sends an event to the elements of the page that match the selector. Elements listen to it themselves, because a listener of the
 * document would keep them after they have left the page.
 */
export function notifyAll(selector, type) {
  for (const element of document.querySelectorAll(selector)) element.dispatchEvent(new Event(type));
}

/** Returns nodes with a separator between them. */
export const separated = (nodes, separator = ', ') => nodes.map((node, n) => [n > 0 && separator, node]);

/** Returns true if keys typed now go into a field. */
export function isTyping(target) {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches('textarea, select, input:not([type=checkbox], [type=radio])'));
}
