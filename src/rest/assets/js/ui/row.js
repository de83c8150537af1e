// Creates the rows of a list: changes and headings of groups. Both reuse an old element and update only what differs.

import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { count, quote, visibleString } from '../core/text.js';
import { EXPIRY_WARNING_MS, time, until } from '../core/time.js';
import { operationGlyph, proposerLine, stateBadge } from './badges.js';

// The parts of each element, with keys for their content.
const contents = new WeakMap();

/** Fills a part if its `key`, which covers everything it depends on, has changed. */
function part(element, name, key, build) {
  const { keys, parts } = contents.get(element);
  if (keys[name] === key) return;
  keys[name] = key;
  fill(parts[name], build());
}

/** Creates a link to the change at `href`. The state `quietState` gets no badge. */
export function changeRow(change, href, quietState, old = null) {
  const link = old ?? blankRow();
  if (link.getAttribute('href') !== href) link.setAttribute('href', href);
  if (link.dataset.id !== change.id) link.dataset.id = change.id;
  if (link.dataset.state !== change.state) link.dataset.state = change.state;
  const waits = change.state === 'pending' || change.state === 'stale';
  const soon = waits && until(change.expiresAt) < EXPIRY_WARNING_MS;
  const voting = change.state === 'pending' && change.quorum > 1;
  const failed = waits && change.previewFailed;
  part(link, 'glyph', `${change.operation}\n${change.summary}`, () => operationGlyph(change.operation, change.summary));
  part(link, 'title', change.summary, () => quote(change.summary, 240));
  part(link, 'marks', [change.state, quietState, voting && `${change.approvals}/${change.quorum}`, change.duplicateOf && 1, change.edited, failed, change.plan?.index, change.waitsFor, change.differs, soon && change.expiresAt].join(), () => [
    change.state !== quietState && stateBadge(change.state),
    voting && badge('accent', 'check', `${change.approvals}/${change.quorum}`, 'list.approvals'),
    change.plan && badge('grey', 'stack', t('list.stepMark', { number: change.plan.index + 1 }), 'list.step', { plan: visibleString(change.plan.title) }),
    change.duplicateOf && badge('accent', 'duplicate', t('list.duplicateMark'), 'list.duplicate'),
    change.edited && badge('grey', 'pencil', t('list.editedMark'), change.plan ? 'list.editedStep' : 'list.edited'),
    change.waitsFor && badge('grey', 'clock', t('list.waitsMark'), 'list.waits', { change: change.waitsFor }),
    change.differs && badge('red', 'alert', t('list.differsMark'), 'list.differs'),
    failed && badge('red', 'alert', t('list.noPreviewMark'), 'list.noPreview'),
    soon && h('span', { class: 'expiring' }, icon('clock'), parts('list.expires', { time: time(change.expiresAt) }))]);
  part(link, 'who', `${change.proposer.principal}\n${change.proposer.clientName ?? ''}`, () => proposerLine(change.proposer));
  part(link, 'time', change.createdAt, () => time(change.createdAt, 'brief'));
  return link;
}

function blankRow() {
  const span = (name) => h('span', { class: name });
  const parts = { glyph: span('row-glyph'), title: span('row-title'), marks: span('row-marks'), who: span('row-who'), time: span('row-time') };
  const link = h('a', { class: 'row' }, parts.glyph, h('span', { class: 'row-body' }, parts.title, h('span', { class: 'row-meta' }, parts.marks, parts.who, parts.time)));
  contents.set(link, { parts, keys: {} });
  return link;
}

// Shows the words `mark` of the text of `key`. The rest of the text is read aloud and stands in the tooltip.
function badge(tone, name, mark, key, values = {}) {
  const shown = document.createTextNode(mark);
  return h('span', { class: `badge tone-${tone}`, title: t(key, { ...values, mark }) }, icon(name),
    parts(key, { ...values, mark: shown }).map((node) => (node === shown ? node : h('span', { class: 'sr-only' }, node))));
}

/** Creates the heading of a group, a button that opens and closes it with `toggle(id)`. */
export function groupRow({ id, plan, bundle, rows, open }, toggle, old = null) {
  const button = old ?? blankHeading(toggle);
  contents.get(button).id = id;
  button.setAttribute('aria-expanded', String(open));
  const [first] = rows;
  const duplicates = rows.reduce((n, r) => n + (r.duplicateOf ? 1 : 0), 0);
  part(button, 'count', rows.length, () => count(rows.length));
  const tool = (first.toolTitle || first.tool) + (first.toolOperation ? ` / ${first.toolOperation}` : '');
  const tools = new Set(rows.map((row) => `${row.provider}\n${row.tool}\n${row.toolOperation}`)).size;
  part(button, 'title', plan ? `plan ${plan.title}` : `${tools} ${tool}\n${first.provider}`, () => (plan ? [h('span', { class: 'quiet' }, t('list.plan')), ' ', quote(plan.title, 80)] : tools > 1 ? bundleTitle(bundle, tools) : [quote(tool, 80), h('span', { class: 'quiet' }, ' · ', quote(first.provider, 40))]));
  part(button, 'who', `${first.proposer.principal}\n${first.proposer.clientName ?? ''}`, () => proposerLine(first.proposer));
  part(button, 'marks', duplicates, () => duplicates > 0 && badge('accent', 'duplicate', t('list.duplicatesMark', { count: duplicates }), 'list.duplicates'));
  part(button, 'time', first.createdAt, () => time(first.createdAt, 'brief'));
  return button;
}

const bundleTitle = ({ servers }, tools) => [t('list.tools', { count: tools }), h('span', { class: 'quiet' }, ' · ', servers.length === 1 ? quote(servers[0], 40) : t('list.servers', { count: servers.length }))];

function blankHeading(toggle) {
  const span = (name) => h('span', { class: name });
  const parts = { count: span('group-count'), title: span('group-title'), who: span('row-who'), marks: span('row-marks'), time: span('row-time') };
  const button = h('button', { type: 'button', class: 'group-row', title: t('list.toggleGroup'), onclick: () => toggle(contents.get(button).id) },
    h('span', { class: 'toggle' }, icon('chevron')), parts.count,
    h('span', { class: 'row-body' }, parts.title, h('span', { class: 'row-meta' }, parts.who, parts.marks, parts.time)));
  contents.set(button, { parts, keys: {}, id: null });
  return button;
}
