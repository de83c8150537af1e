// Tries every shipped recipe for the browser of Playwright with the real server @playwright/mcp and Chromium, on a page with state.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { eventually } from './gateway.mjs';
import { startBehind, tryCalls, tryConcurrentChanges, tryStrangeAnswers } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';
import { VENDORS } from './vendors.mjs';

// One browser, because it starts slowly.
test('every recipe for the browser shows where its tool acts', async t => {
    const behind = await startBehind(t, 'playwright');
    /** Finds the reference to an element in a snapshot, as an agent does. */
    const ref = async name => {
        const snapshot = (await behind.call('browser_snapshot', {})).content[0].text;
        return /\[ref=(\w+)\]/.exec(snapshot.split('\n').find(line => line.includes(name)))[1];
    };
    const on = (name, more = {}) => async () => ({ element: name, target: await ref(name), ...more });
    const onPage = title => ({ Page: [` - Page Title: ${title}`] });
    const withoutState = { isReadBack: false };
    const form = async () => ({
        fields: [
            { name: 'Name', type: 'textbox', target: await ref('textbox "Name"'), value: 'Bob' },
            { name: 'Gift', type: 'checkbox', target: await ref('checkbox "Gift"'), value: 'true' },
            { name: 'Size', type: 'combobox', target: await ref('combobox "Size"'), value: 'Large' }
        ]
    });
    // The first call starts the browser, which may take longer than a preview may.
    await behind.call('browser_snapshot', {});
    const CALLS = [
        ['browser_navigate', s => ({ url: s.url }), { Address: ['-about:blank', `+${behind.fake.state.url}`] }, s => [s.opened, ['/']]],
        ['browser_type', on('textbox "Name"', { text: 'Ann: "7"' }), { 'textbox "Name"': ['+Ann: "7"'], ...onPage('Order') }, s => [s.fields.name, 'Ann: "7"']],
        ['browser_fill_form', form, { Name: ['-Ann: "7"', '+Bob'], Gift: ['-false', '+true'], Size: ['-Small', '+Large'] }, s => [s.fields, { name: 'Bob', size: 'Large', gift: 'on' }]],
        ['browser_select_option', on('combobox "Size"', { values: ['Small'] }), { 'combobox "Size"': ['-Large', '+Small'] }, s => [s.fields.size, 'Small']],
        ['browser_click', on('button "Buy now"'), onPage('Order'), s => [s.orders, [{ name: 'Bob', size: 'Small', gift: 'on' }]], withoutState],
        ['browser_navigate_back', {}, onPage('Thank you'), s => [s.opened.length, 2], withoutState],
        ['browser_type, and submit', on('textbox "Name"', { text: 'Eve', submit: true }), onPage('Order'), s => [s.orders.at(-1).name, 'Eve'], withoutState],
        ['browser_navigate, again', s => ({ url: s.url }), { Address: [`-${behind.fake.state.url}done`] }, s => [s.opened.length, 3]],
        ['browser_type, by a selector', { target: 'input[name=name]', text: 'Joe' }, onPage('Order'), s => [s.fields.name, 'Joe'], withoutState],
        ['browser_drag', async () => ({ startElement: 'Item', startTarget: await ref('Item'), endElement: 'Basket', endTarget: await ref('Basket') }), onPage('Order'), s => [s.basket, ['item']], withoutState],
        ['browser_drop', on('Basket', { data: { 'text/plain': 'book' } }), onPage('Order'), s => [s.basket, ['item', 'book']], withoutState],
        ['browser_evaluate', { function: '() => report("/basket", "pen")' }, onPage('Order'), s => [s.basket.at(-1), 'pen'], withoutState],
        ['browser_run_code_unsafe', { code: 'async page => { await page.getByLabel("Name").fill("Zoe"); }' }, onPage('Order'), s => [s.fields.name, 'Zoe'], withoutState]
    ];
    const how = `The real server ${VENDORS.playwright.package} with Chromium, on a page with state, for an agent that does not answer questions from servers: any other agent has a browser of its own, which approved changes do not see. The annotations of \`browser_snapshot\`, \`browser_take_screenshot\`, \`browser_find\`, \`browser_console_messages\`, \`browser_network_request\` and \`browser_network_requests\` are wrong: they claim that these tools are read-only, but the tools overwrite the file that \`filename\` names.`;
    const tried = new TriedServer({ title: 'Playwright', how });
    await tryCalls(t, behind, CALLS, tried);
    // The key needs a field that has the focus.
    await behind.apply(await behind.propose('browser_type', await on('textbox "Name"', { text: 'Zoe' })()));
    await tryCalls(t, behind, [['browser_press_key', { key: 'Enter' }, { ...onPage('Order'), Focus: [' - textbox "Name" [active] [ref=f4e6]: Zoe'] }, s => [s.orders.length, 3], withoutState]], tried);
    await t.test('the page about the servers tried says so', () => tried.check());

    await behind.apply(await behind.propose('browser_navigate', { url: behind.fake.state.url }));
    const sellOut = async shop => {
        shop.note = 'Sold out';
        await eventually('the page shows it', () => shop.shown === 'Sold out');
    };
    await tryConcurrentChanges(t, behind, [['browser_click', on('button "Buy now"'), sellOut, { 'Content of the page': ['   - paragraph [ref=f6e3]: Sold out'] }]]);
    await tryStrangeAnswers(t, behind, [
        ['browser_type', { target: 'e999', text: 'x' }, 'normal', /keep/],
        ['browser_fill_form', { fields: [] }, 'normal', /empty list/],
        ['browser_select_option', { target: 'e999', values: ['x'] }, 'normal', /keep/]
    ]);
    await behind.apply(await behind.propose('browser_evaluate', { function: '() => setTimeout(() => alert("Sure?"))' }));
    await eventually('a dialog is open', async () => (await behind.call('browser_snapshot', {})).isError === true);
    await tryStrangeAnswers(t, behind, [['browser_press_key', { key: 'Enter' }, 'normal', /dialog with message "Sure\?"/]]);
});
