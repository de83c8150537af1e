// Shows how to connect an agent, client by client. If the gateway requires keys, it creates one, which is shown only once.

import { agentSetups } from '../core/agentsetup.js';
import { explain } from '../core/api.js';
import { fill, h } from '../core/dom.js';
import { icon } from '../core/icons.js';
import { parts, t } from '../core/locale.js';
import { visibleString } from '../core/text.js';
import { copyButton } from './badges.js';
import { openDialog } from './dialog.js';
import { problemNotice } from './states.js';
import { createTabs } from './tabs.js';

const PLACEHOLDER_KEY = 'csk_…';
const isOnThisMachine = () => ['localhost', '127.0.0.1', '[::1]'].includes(location.hostname);

/** Creates the setup. `steps` is the gateway's answer about the first steps. The new key is kept in this page's memory only. */
export function agentSetup({ api, steps }) {
  let key = steps.needsKey ? PLACEHOLDER_KEY : null;
  const setups = () => agentSetups({ program: steps.program, args: steps.arguments, url: `${location.origin}/mcp`, key });
  const panel = (id) => {
    const { name, where, text, isRemote } = setups().find((setup) => setup.id === id);
    return [
      h('p', null, where),
      h('div', { class: 'snippet' }, h('pre', { tabindex: '0', 'aria-label': t('firststeps.configurationFor', { client: name }) }, text), copyButton(text, t('firststeps.copyConfiguration', { client: name }))),
      !isRemote && !isOnThisMachine() && h('p', { class: 'quiet' }, t('firststeps.otherMachine')),
    ];
  };
  const tabs = createTabs({ label: t('firststeps.client'), tabs: setups(), selected: isOnThisMachine() ? 'claude-desktop' : 'http', render: panel });
  const keyBox = steps.needsKey ? keyForm({ api, steps, created: (secret) => {
    key = secret;
    tabs.paint();
  } }) : null;
  return h('div', { class: 'agent-setup' }, keyBox, tabs.element);
}

/** Opens the setup in a dialog. */
export async function openAgentSetup(api) {
  try {
    const steps = await api.firstSteps();
    openDialog({ title: t('firststeps.agent'), build: () => h('div', { class: 'sheet-body agent-dialog' }, agentSetup({ api, steps })) });
  } catch (error) {
    problemNotice(error);
  }
}

function keyForm({ api, steps, created }) {
  const box = h('div', { class: 'agent-key' });
  if (!steps.mayCreateAgentKeys) return fill(box, h('p', null, parts('firststeps.askForKey', { key: h('code', null, PLACEHOLDER_KEY) })));
  const name = h('input', { id: 'agent-name', autocomplete: 'off', spellcheck: 'false', maxlength: '64', required: true, value: 'my-agent', 'aria-describedby': 'agent-key-fault' });
  const fault = h('p', { class: 'edit-fault', id: 'agent-key-fault', role: 'alert' });
  const button = h('button', { type: 'submit', class: 'primary' }, t('firststeps.createKey'));
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    fill(fault);
    try {
      const { secret } = await api.createKey({ name: name.value.trim() });
      fill(box, h('p', { class: 'key-made', role: 'status', tabindex: '-1' }, icon('check'), h('span', null, t('firststeps.keyCreated'))));
      created(secret);
      box.firstChild.focus();
    } catch (error) {
      fill(fault, icon('alert'), h('span', null, visibleString(explain(error))));
      button.disabled = false;
      name.focus();
    }
  };
  return fill(box, h('form', { onsubmit: submit },
    h('p', null, t('firststeps.needsKey')),
    h('label', { for: 'agent-name' }, t('firststeps.agentName')),
    h('div', { class: 'agent-key-row' }, name, button), fault));
}
