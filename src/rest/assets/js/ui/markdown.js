// Shows parsed Markdown. Links show their address and lead nowhere, images are named but not loaded, and HTML is text.

import { h } from '../core/dom.js';
import { t } from '../core/locale.js';
import { parseMarkdown } from '../core/markdown.js';
import { visible } from '../core/text.js';
import { tokenize } from '../core/tokens.js';
import { fillPaged } from './paged.js';

const FIRST_BLOCKS = 60;
const STEP_BLOCKS = 200;
const ALIASES = { js: 'javascript', ts: 'typescript', py: 'python', rs: 'rust', sh: 'shell', bash: 'shell', yml: 'yaml' };

/** Shows a text as it would be rendered. Blocks with lines in `added` are marked. */
export function markdownView(text, added) {
  const blocks = parseMarkdown(text);
  const view = h('div', { class: 'markdown', role: 'group', 'aria-label': t('diff.rendered'), tabindex: '0', dir: 'auto' });
  fillPaged(view, blocks, (block) => createBlock(block, added), { first: FIRST_BLOCKS, step: STEP_BLOCKS, label: (n) => t('diff.showParts', { count: n }) });
  if (!blocks.length) view.append(h('p', { class: 'quiet' }, t('diff.nothingRendered')));
  return view;
}

const shownText = (text) => visible(text, { block: true });

function isAdded({ from, to }, added) {
  for (let no = from; no <= to; no += 1) if (added.has(no)) return true;
  return false;
}

// Containers are not marked, because what they contain is.
const CONTAINERS = ['list', 'quote'];

function createBlock(block, added) {
  const element = BLOCKS[block.type](block, added);
  if (!CONTAINERS.includes(block.type) && isAdded(block, added)) element.classList.add('changed');
  return element;
}

const createBlocks = (blocks, added) => blocks.map((block) => createBlock(block, added));

const BLOCKS = {
  heading: ({ level, inline }) => h('p', { class: `md-heading md-h${level}`, role: 'heading', 'aria-level': String(Math.min(level + 4, 9)) }, createInline(inline)),
  paragraph: ({ inline }) => h('p', null, createInline(inline)),
  text: ({ text }) => h('pre', null, shownText(text)),
  code: ({ text, info }) => h('pre', null, info && h('span', { class: 'md-info' }, shownText(info)), h('code', null, codeOf(text, info.split(/\s/)[0]))),
  rule: () => h('div', { class: 'md-rule', role: 'separator' }),
  quote: ({ blocks }, added) => h('blockquote', null, createBlocks(blocks, added)),
  list: ({ ordered, start, items }, added) => h(ordered ? 'ol' : 'ul', ordered && start !== 1 ? { start: String(start) } : null, items.map(({ blocks, done }) => h('li', done === null ? null : { class: 'task' },
    done !== null && h('span', { class: 'md-task', role: 'img', 'aria-label': t(done ? 'diff.done' : 'diff.notDone') }, done ? '☑' : '☐'), h('div', null, createBlocks(blocks, added))))),
  table: ({ head, rows }) => h('div', { class: 'md-table' }, h('table', null, h('thead', null, h('tr', null, head.map((cell) => h('th', { scope: 'col' }, createInline(cell))))),
    h('tbody', null, rows.map((cells) => h('tr', null, cells.map((cell) => h('td', null, createInline(cell)))))))),
};

function codeOf(text, name) {
  const language = ALIASES[name] ?? name;
  let state = null;
  return text.split('\n').map((line, n) => {
    const split = tokenize(line, language, state);
    ({ state } = split);
    return [n > 0 && '\n', split.tokens.map((token) => (token.kind ? h('span', { class: `t-${token.kind}` }, shownText(token.text)) : shownText(token.text)))];
  });
}

const createInline = (parts) => parts.map((part) => INLINE[part.type](part));

const address = ({ address: text, title }) => h('span', { class: 'md-address' }, ' (', shownText(text), title !== undefined && [' “', shownText(title), '”'], ')');

const INLINE = {
  text: ({ text }) => shownText(text),
  code: ({ text }) => h('code', null, shownText(text)),
  strong: ({ parts }) => h('strong', null, createInline(parts)),
  emphasis: ({ parts }) => h('em', null, createInline(parts)),
  deleted: ({ parts }) => h('s', null, createInline(parts)),
  link: (link) => h('span', { class: 'md-link' }, createInline(link.parts), !(link.title === undefined && link.parts.length === 1 && link.parts[0].text === link.address) && address(link)),
  image: (image) => h('span', { class: 'md-link' }, h('span', { class: 'md-image' }, t('diff.image')), shownText(image.text), address(image)),
};
