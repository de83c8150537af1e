// Shows images of the call itself as thumbnails. An image from an address is never loaded.

import { dataImage, fill, h } from '../core/dom.js';
import { MAX_IMAGE_BYTES } from '../core/images.js';
import { language, t } from '../core/locale.js';

const NAMES = { png: 'PNG', jpeg: 'JPEG', gif: 'GIF', webp: 'WebP' };
const SIDES = { before: 'diff.before', after: 'diff.after' };

/** Shows `[{side, image}]` beside each other. */
export function imageView(sides, isArgument) {
  return h('div', { class: 'images' }, sides.map(({ side, image }) => thumbnail(image, isArgument ? null : t(SIDES[side]))));
}

function thumbnail({ kind, bytes, url }, label) {
  const caption = h('figcaption');
  const describe = (size) => fill(caption, label && h('strong', null, label, ' '), [NAMES[kind], size, sizeOf(bytes)].filter(Boolean).join(' · '));
  describe(null);
  const figure = h('figure', { class: 'thumbnail' }, caption);
  if (url === null) {
    figure.prepend(h('p', { class: 'quiet' }, t('diff.imageTooLarge', { size: sizeOf(MAX_IMAGE_BYTES) })));
    return figure;
  }
  const picture = dataImage(url, `${label ? `${label}: ` : ''}${t('diff.imageAlt', { kind: NAMES[kind], size: sizeOf(bytes) })}`);
  picture.addEventListener('load', () => describe(t('diff.pixels', { width: picture.naturalWidth, height: picture.naturalHeight })));
  picture.addEventListener('error', () => picture.replaceWith(h('p', { class: 'quiet' }, t('diff.imageDamaged'))));
  figure.prepend(picture);
  return figure;
}

function sizeOf(bytes) {
  if (bytes < 1024) return t('diff.bytes', { count: bytes });
  if (bytes < 1 << 20) return t('diff.kilobytes', { count: Math.round(bytes / 1024) });
  return t('diff.megabytes', { count: new Intl.NumberFormat(language, { minimumFractionDigits: 1, maximumFractionDigits: 1 }).format(bytes / (1 << 20)) });
}
