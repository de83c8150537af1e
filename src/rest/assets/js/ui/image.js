// Shows images of the call itself as thumbnails. An image from an address is never loaded.

import { dataImage, fill, h } from '../core/dom.js';
import { MAX_IMAGE_BYTES } from '../core/images.js';
import { count } from '../core/text.js';

const NAMES = { png: 'PNG', jpeg: 'JPEG', gif: 'GIF', webp: 'WebP' };
const SIDES = { before: 'Before', after: 'After' };

/** Shows `[{side, image}]` beside each other. */
export function imageView(sides, isArgument) {
  return h('div', { class: 'images' }, sides.map(({ side, image }) => thumbnail(image, isArgument ? null : SIDES[side])));
}

function thumbnail({ kind, bytes, url }, label) {
  const caption = h('figcaption');
  const describe = (size) => fill(caption, label && h('strong', null, label, ' '), [NAMES[kind], size, sizeOf(bytes)].filter(Boolean).join(' · '));
  describe(null);
  const figure = h('figure', { class: 'thumbnail' }, caption);
  if (url === null) {
    figure.prepend(h('p', { class: 'quiet' }, `Images over ${sizeOf(MAX_IMAGE_BYTES)} are not shown.`));
    return figure;
  }
  const picture = dataImage(url, `${label ? `${label}: ` : ''}${NAMES[kind]} image of ${sizeOf(bytes)}`);
  picture.addEventListener('load', () => describe(`${count(picture.naturalWidth)} × ${count(picture.naturalHeight)} pixels`));
  picture.addEventListener('error', () => picture.replaceWith(h('p', { class: 'quiet' }, 'This image is damaged and cannot be shown.')));
  figure.prepend(picture);
  return figure;
}

function sizeOf(bytes) {
  if (bytes < 1024) return `${count(bytes)} bytes`;
  return bytes < 1 << 20 ? `${count(Math.round(bytes / 1024))} KB` : `${(bytes / (1 << 20)).toFixed(1)} MB`;
}
