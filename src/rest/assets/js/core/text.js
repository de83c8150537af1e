// Makes text of agents safe to read. Invisible characters (controls, bidirectional overrides, zero-width and blank ones)
// become visible marks such as ‹U+202E›.

import { language, t } from './locale.js';

/** The maximum characters of a comment. The gateway accepts 4,096 bytes. */
export const MAX_COMMENT = 2000;

// The first and last character of each range, as in `HIDDEN_RANGES` of src/domain/src/changes/visible.rs; a test compares them.
const HIDDEN_RANGES = [
  [0x0, 0x1f], [0x7f, 0x9f], [0xad, 0xad], [0x34f, 0x34f], [0x600, 0x605], [0x61c, 0x61c], [0x6dd, 0x6dd],
  [0x70f, 0x70f], [0x890, 0x891], [0x8e2, 0x8e2], [0x115f, 0x1160], [0x17b4, 0x17b5], [0x180b, 0x180f],
  [0x200b, 0x200f], [0x2028, 0x202e], [0x2060, 0x206f], [0x2800, 0x2800], [0x3164, 0x3164], [0xe000, 0xf8ff],
  [0xfdd0, 0xfdef], [0xfe00, 0xfe0f], [0xfeff, 0xfeff], [0xffa0, 0xffa0], [0xfff0, 0xfffb], [0xfffe, 0xffff],
  [0x110bd, 0x110bd], [0x110cd, 0x110cd], [0x13430, 0x1343f], [0x1bca0, 0x1bca3], [0x1d173, 0x1d17a],
  [0x1fffe, 0x1ffff], [0x2fffe, 0x2ffff], [0x3fffe, 0x3ffff], [0x4fffe, 0x4ffff], [0x5fffe, 0x5ffff],
  [0x6fffe, 0x6ffff], [0x7fffe, 0x7ffff], [0x8fffe, 0x8ffff], [0x9fffe, 0x9ffff], [0xafffe, 0xaffff],
  [0xbfffe, 0xbffff], [0xcfffe, 0xcffff], [0xdfffe, 0xe0fff], [0xefffe, 0x10ffff],
];
// Most texts match this pattern, which is faster than the full one.
const PRINTABLE_ASCII = /^[\x20-\x7e]+$/;
const point = (code) => `\\u{${code.toString(16)}}`;
// Lone surrogates are added, which strings in Rust cannot contain.
const HIDDEN = new RegExp(`[\\p{Cs}${HIDDEN_RANGES.map(([first, last]) => `${point(first)}-${point(last)}`).join('')}]`, 'u');
const PICTURE_BEFORE = /[\p{Extended_Pictographic}\p{Emoji_Modifier}]\uFE0F?$/u;
const PICTURE_AFTER = /^\p{Extended_Pictographic}/u;
const KEYCAP_BEFORE = /[0-9#*]$/;

// The characters that have a name of their own.
const NAMED = new Set([
  0x00, 0x07, 0x08, 0x09, 0x0a, 0x0d, 0x1b, 0x7f, 0xad, 0x61c, 0x115f, 0x180e, 0x200b, 0x200c, 0x200d, 0x200e, 0x200f, 0x2028, 0x2029, 0x202a,
  0x202b, 0x202c, 0x202d, 0x202e, 0x2060, 0x2066, 0x2067, 0x2068, 0x2069, 0x2800, 0x3164, 0xfe0f, 0xfeff, 0xffa0,
]);

/** Splits text into `{text}` and `{code, count, name}`. `block` keeps line feeds and tabs, `tabs` only tabs. */
export function segments(text, { block = false, tabs = block } = {}) {
  const out = [];
  if (PRINTABLE_ASCII.test(text)) return [{ text }];
  if (!HIDDEN.test(text)) return text === '' ? out : [{ text }];
  let plain = '';
  let index = 0;
  for (const char of text) {
    const start = index;
    index += char.length;
    const code = char.codePointAt(0);
    if (!HIDDEN.test(char) || (block && code === 0x0a) || (tabs && code === 0x09) || joinsPicture(code, text, start, index)) {
      plain += char;
      continue;
    }
    if (plain) out.push({ text: plain });
    plain = '';
    const last = out.at(-1);
    if (last && last.code === code) last.count += 1;
    else out.push({ code, count: 1, name: nameOf(code) });
  }
  if (plain) out.push({ text: plain });
  return out;
}

// Emoji contain variation selectors and joiners, which hide nothing there.
function joinsPicture(code, text, start, end) {
  if (code !== 0xfe0f && code !== 0x200d) return false;
  const before = text.slice(Math.max(0, start - 4), start);
  if (code === 0xfe0f) return PICTURE_BEFORE.test(before) || (KEYCAP_BEFORE.test(before) && text[end] === '\u20e3');
  return PICTURE_BEFORE.test(before) && PICTURE_AFTER.test(text.slice(end, end + 4));
}

function nameOf(code) {
  if (NAMED.has(code)) return t(`core.character.${code.toString(16)}`);
  if (code < 0x20 || (code >= 0x80 && code < 0xa0)) return t('core.character.control');
  if (code >= 0xd800 && code <= 0xdfff) return t('core.character.surrogate');
  if (code >= 0xe0000 && code <= 0xe007f) return t('core.character.tag');
  if ((code >= 0xe000 && code <= 0xf8ff) || code >= 0xf0000) return t('core.character.private');
  return t('core.character.invisible');
}

function codePointMark({ code, count }) {
  const hex = code.toString(16).toUpperCase().padStart(4, '0');
  return count > 1 ? `‹U+${hex} ×${count}›` : `‹U+${hex}›`;
}

/** Returns a string for attributes and titles, with marks in place of invisible characters. */
export function visibleString(text, options) {
  return segments(String(text), options).map((s) => s.text ?? codePointMark(s)).join('');
}

/** Returns JSON text with invisible characters in strings as escapes; line feeds and tabs between values stay. */
export function escapeHidden(json) {
  return segments(json, { block: true }).map((s) => s.text ?? escapes(String.fromCodePoint(s.code)).repeat(s.count)).join('');
}

const escapes = (char) => Array.from({ length: char.length }, (_, i) => `\\u${char.charCodeAt(i).toString(16).padStart(4, '0')}`).join('');

/** Returns nodes for the page, with marks in place of invisible characters. */
export function visible(text, options) {
  const fragment = document.createDocumentFragment();
  for (const segment of segments(String(text), options)) {
    if (segment.text !== undefined) {
      fragment.append(segment.text);
    } else {
      const chip = document.createElement('span');
      chip.className = 'hidden-char';
      chip.title = segment.name;
      chip.textContent = codePointMark(segment);
      fragment.append(chip);
    }
  }
  return fragment;
}

/** Returns at most the first `limit` UTF-16 units, without splitting a character. */
export function cut(text, limit) {
  if (text.length <= limit) return text;
  const code = text.charCodeAt(limit - 1);
  return text.slice(0, code >= 0xd800 && code <= 0xdbff ? limit - 1 : limit);
}

/** Returns the lines of a text; a final line break does not start another line. */
export const linesOf = (text) => (text.endsWith('\n') ? text.slice(0, -1) : text).split('\n');

/** Returns at most `limit` characters, for lists, titles and announcements. */
export function short(text, limit) {
  const string = String(text);
  return string.length <= limit ? string : `${cut(string, limit)}…`;
}

/** Returns at most `limit` characters of the beginning and the end, which tells commands and paths apart. */
export function shortMiddle(text, limit) {
  const string = String(text);
  if (string.length <= limit) return string;
  const start = cut(string, Math.floor(limit / 3));
  const end = string.slice(start.length - limit);
  return `${start}…${end.replace(/^[\udc00-\udfff]/, '')}`;
}

/** Returns a span with one line of an agent's text, isolated so that its direction does not affect its surroundings. */
export function quote(text, limit = 300) {
  const span = document.createElement('span');
  span.className = 'quote';
  span.dir = 'auto';
  span.append(visible(short(text, limit)));
  return span;
}

const number = new Intl.NumberFormat(language);
export const count = (n) => number.format(n);
