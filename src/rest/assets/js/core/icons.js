// The dashboard's own icons, 16 × 16, drawn with strokes in the colour of the surrounding text.

import { svg } from './dom.js';

const PATHS = {
  plus: ['M8 3.5v9M3.5 8h9'],
  pencil: ['M10.8 3.2l2 2L6 12l-2.7.7L4 10z', 'M9.3 4.7l2 2'],
  trash: ['M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5M6.8 7v3.5M9.2 7v3.5'],
  check: ['M3.2 8.6l3 3L12.8 5'],
  cross: ['M4.2 4.2l7.6 7.6M11.8 4.2l-7.6 7.6'],
  clock: ['M8 2.2a5.8 5.8 0 100 11.6A5.8 5.8 0 008 2.2z', 'M8 5v3.3l2.2 1.3'],
  refresh: ['M13 7A5.1 5.1 0 003.9 5.2L3 6.4M3 3.4v3h3', 'M3 9a5.1 5.1 0 009.1 1.8l.9-1.2M13 12.6v-3h-3'],
  play: ['M5.2 3.6l7 4.4-7 4.4z'],
  question: ['M8 2.2a5.8 5.8 0 100 11.6A5.8 5.8 0 008 2.2z', 'M6.3 6.4a1.8 1.8 0 013.4.7c0 1.2-1.7 1.4-1.7 2.4', 'M8 11.3v.1'],
  alert: ['M8 2.6l6 10.6H2z', 'M8 6.6v3M8 11.4v.1'],
  info: ['M8 2.2a5.8 5.8 0 100 11.6A5.8 5.8 0 008 2.2z', 'M8 7.4v3.4M8 5.2v.1'],
  undo: ['M3 6.2h6.2a3.3 3.3 0 010 6.6H6', 'M5.6 3.4L2.8 6.2 5.6 9'],
  inbox: ['M2.5 9.2l1.8-5.7h7.4l1.8 5.7v3.3h-11z', 'M2.5 9.2h3.3l.9 1.6h2.6l.9-1.6h3.3'],
  history: ['M2.6 8A5.4 5.4 0 108 2.6 5.6 5.6 0 004 4.3L2.6 5.7M2.6 2.9v2.8h2.8', 'M8 5.2V8l2 1.2'],
  key: ['M10.2 2.6a3.2 3.2 0 100 6.4 3.2 3.2 0 000-6.4z', 'M7.8 8.2l-5 5M4.6 11.4l1.6 1.6'],
  overview: ['M2.8 13.2V8.6M6.3 13.2V3.4M9.7 13.2V6.6M13.2 13.2V10'],
  audit: ['M6.6 9.4l2.8-2.8', 'M7.4 4.9l1.1-1.1a2.6 2.6 0 013.7 3.7l-1.1 1.1', 'M8.6 11.1l-1.1 1.1a2.6 2.6 0 01-3.7-3.7l1.1-1.1'],
  sessions: ['M2.5 3.5h11v7.4h-11z', 'M6 13.3h4M8 10.9v2.4'],
  servers: ['M8 2.4l5.4 2.8L8 8 2.6 5.2z', 'M2.6 8L8 10.8 13.4 8', 'M2.6 10.8L8 13.6l5.4-2.8'],
  search: ['M7 2.8a4.2 4.2 0 100 8.4 4.2 4.2 0 000-8.4z', 'M10.2 10.2l3 3'],
  copy: ['M5.6 5.6h7.2v7.2H5.6z', 'M10.4 5.6V3.2H3.2v7.2h2.4'],
  back: ['M9.8 3.4L5.2 8l4.6 4.6'],
  chevron: ['M6 3.6L10.4 8 6 12.4'],
  system: ['M8 2.4a5.6 5.6 0 100 11.2z', 'M8 2.4a5.6 5.6 0 010 11.2'],
  light: ['M8 5.4a2.6 2.6 0 100 5.2 2.6 2.6 0 000-5.2z', 'M8 1.6v1.2M8 13.2v1.2M1.6 8h1.2M13.2 8h1.2M3.5 3.5l.8.8M11.7 11.7l.8.8M12.5 3.5l-.8.8M4.3 11.7l-.8.8'],
  dark: ['M13 9.4A5.4 5.4 0 016.6 3a5.4 5.4 0 106.4 6.4z'],
  keyboard: ['M1.8 4.2h12.4v7.6H1.8z', 'M4.2 6.6h.1M6.7 6.6h.1M9.2 6.6h.1M11.7 6.6h.1M5 9.4h6'],
  leave: ['M6.4 13H3V3h3.4M10 5l3 3-3 3M13 8H6.4'],
  person: ['M8 2.8a2.5 2.5 0 100 5 2.5 2.5 0 000-5z', 'M3.2 13.2a4.8 4.8 0 019.6 0'],
  eye: ['M1.6 8S4 3.8 8 3.8 14.4 8 14.4 8 12 12.2 8 12.2 1.6 8 1.6 8z', 'M8 6.2a1.8 1.8 0 100 3.6 1.8 1.8 0 000-3.6z'],
  hidden: ['M2 2l12 12', 'M4.6 4.7C2.7 5.9 1.6 8 1.6 8S4 12.2 8 12.2a6 6 0 003-.8M7 3.9A5.7 5.7 0 018 3.8c4 0 6.4 4.2 6.4 4.2a9.6 9.6 0 01-1.7 2.1'],
  bell: ['M4 11.2V7a4 4 0 018 0v4.2l1.2 1.3H2.8z', 'M6.8 13.8h2.4'],
  belloff: ['M2 2l12 12', 'M4 11.2V7a4 4 0 01.7-2.2M6.3 3.4A4 4 0 0112 7v2.5M2.8 12.5L4 11.2h7.2', 'M6.8 13.8h2.4'],
  filter: ['M2.5 4h11M4.5 8h7M6.5 12h3'],
  print: ['M4.5 6V2.8h7V6', 'M4.5 11.5H2.6V6h10.8v5.5h-1.9', 'M4.5 9.5h7v3.7h-7z'],
  rule: ['M3 3.5h10M3 8h6M3 12.5h4', 'M10.5 11.5l1.5 1.5 2.5-3.5'],
  download: ['M8 2.6v7.2M4.8 6.9L8 10l3.2-3.1', 'M2.8 13.2h10.4'],
  call: ['M3 4.6L6.4 8 3 11.4', 'M8.4 11.4h4.8'],
  language: ['M8 2.2a5.8 5.8 0 100 11.6A5.8 5.8 0 008 2.2z', 'M2.4 8h11.2M8 2.2c-3.2 3.4-3.2 8.2 0 11.6M8 2.2c3.2 3.4 3.2 8.2 0 11.6'],
  more: ['M3.4 8h.1M8 8h.1M12.5 8h.1'],
  rows: ['M2.5 3.4h11v3.4h-11z', 'M2.5 9.2h11v3.4h-11z'],
  compact: ['M2.5 3.2h11M2.5 6.4h11M2.5 9.6h11M2.5 12.8h11'],
  webhooks: ['M2.6 8.2l10.6-5-3.6 10-2.3-4.1z', 'M7.3 9.1l5.9-5.9'],
  duplicate: ['M5.6 3h7.4v7.4H5.6z', 'M3 5.6V13h7.4'],
  stack: ['M2.5 5.5h11v7.5h-11z', 'M4 3.2h8'],
  unplugged: ['M2 2l12 12', 'M4 9.8a5.8 5.8 0 012-1.4M12 9.8a6 6 0 00-2.4-1.6M2.2 6.8A8.6 8.6 0 014.6 5M13.8 6.8A8.8 8.8 0 006.9 4', 'M8 12.4v.1'],
};

/** Creates an icon that is hidden from screen readers, because text or a label always stands beside it. */
export function icon(name) {
  return svg('svg', { viewBox: '0 0 16 16', class: 'icon', 'aria-hidden': 'true', focusable: 'false' },
    ...(PATHS[name] ?? PATHS.question).map((d) => svg('path', { d })));
}

/** Creates the brand: a check mark above a signature line. */
export function brand() {
  return svg('svg', { viewBox: '0 0 32 32', class: 'brand-mark', 'aria-hidden': 'true', focusable: 'false' },
    svg('rect', { width: '32', height: '32', rx: '8', class: 'brand-ground' }),
    svg('path', { d: 'M9 14.5l4.8 4.8L23.5 8', class: 'brand-check' }),
    svg('path', { d: 'M8.5 24.5h15', class: 'brand-line' }));
}
