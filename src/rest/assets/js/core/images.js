// Recognizes images in Base64. Pure.

import { members } from './rawjson.js';

/** The largest image that is shown, in bytes. */
export const MAX_IMAGE_BYTES = 1 << 20;

const DATA_URL = /^data:image\/[a-z.+-]{1,20};base64,/;
const KINDS = [['iVBORw0KGgo', 'png'], ['/9j/', 'jpeg'], ['R0lGODdh', 'gif'], ['R0lGODlh', 'gif'], ['UklGR', 'webp']];

/**
 * Returns `{kind, bytes, url}` of an image, or null for another text. The kind follows from the first bytes only; `url` is
 * null if the image is too large to be shown.
 */
export function imageOf(text) {
  const encoded = text.trim().replace(DATA_URL, '');
  const kind = KINDS.find(([start]) => encoded.startsWith(start))?.[1];
  if (!kind || !/^[A-Za-z0-9+/]+={0,2}$/.test(encoded)) return null;
  const bytes = Math.floor((encoded.replace(/=+$/, '').length * 3) / 4);
  return { kind, bytes, url: bytes <= MAX_IMAGE_BYTES ? `data:image/${kind};base64,${encoded}` : null };
}

/** Returns the text of an argument of the call, or null if it is no text or there are several of this name. */
export function argumentText(name, source) {
  const found = (members(source ?? '{}') ?? []).filter(({ key }) => key === name);
  return found.length === 1 && found[0].source.startsWith('"') ? JSON.parse(found[0].source) : null;
}

/** Returns the whole text of a value that was cut, if an argument of the call begins with it, or else the value. */
export function wholeValue(text, source) {
  if (!text?.endsWith('…')) return text;
  const texts = (members(source ?? '{}') ?? []).filter((member) => member.source.startsWith('"')).map((member) => JSON.parse(member.source));
  return texts.find((value) => value.length > text.length && value.startsWith(text.slice(0, -1))) ?? text;
}
