// Tries every shipped recipe for Stripe's hosted server on a stand-in with state: each is for one operation of stripe_api_write.
import { test } from 'node:test';

import { ACCOUNT } from '../fixtures/stand-ins/stripe.mjs';
import { startBehind, tryCalls, tryConcurrentChanges, trySilentWrites, tryStrangeAnswers, tryUnnamedArguments } from './recipe-suite.mjs';
import { TriedServer } from './servers-tried.mjs';

const write = (stripe_api_operation_id, parameters) => ({ stripe_api_operation_id, parameters, stripe_context: ACCOUNT, livemode: true });
const newest = objects => Object.values(objects).at(-1);

/** As in `tryCalls`, with the parameters in place of the arguments. */
const CALLS = [
    ['stripe_api_write/PostCustomers', { name: 'Cleo', email: 'ada@example.com' }, { name: ['+Cleo'], 'Customers with this address': ['   "cus_Ada Ada Lovelace"'] }, s => [newest(s.customers).email, 'ada@example.com']],
    ['stripe_api_write/PostCustomersCustomer', { customer: 'cus_Ada', email: 'lovelace@example.com', metadata: { since: '2026' } }, { email: ['-ada@example.com', '+lovelace@example.com'], 'metadata.since': ['+2026'] }, s => [s.customers.cus_Ada.metadata, { tier: 'gold', since: '2026' }]],
    ['stripe_api_write/PostProducts', { name: 'Map' }, { name: ['+Map'] }, s => [newest(s.products).name, 'Map']],
    ['stripe_api_write/PostProductsId', { id: 'prod_Book', description: 'Printed' }, { description: ['+Printed'] }, s => [s.products.prod_Book.description, 'Printed']],
    ['stripe_api_write/DeleteProductsId', { id: 'prod_Old' }, { name: ['-Old edition'] }, s => [s.products.prod_Old.deleted, true]],
    ['stripe_api_write/PostPrices', { product: 'prod_Book', unit_amount: 2700, currency: 'chf' }, { unit_amount: ['+2700'], Product: ['   "name": "Book"'] }, s => [newest(s.prices).unit_amount, 2700]],
    ['stripe_api_write/PostPricesPrice', { price: 'price_Book', active: false }, { active: ['-true', '+false'] }, s => [s.prices.price_Book.active, false]],
    ['stripe_api_write/PostCoupons', { id: 'AUTUMN', percent_off: 20, duration: 'once' }, { percent_off: ['+20'] }, s => [s.coupons.AUTUMN.percent_off, 20]],
    ['stripe_api_write/PostCouponsCoupon', { coupon: 'SPRING', name: 'Spring sale' }, { name: ['-Spring', '+Spring sale'] }, s => [s.coupons.SPRING.name, 'Spring sale']],
    ['stripe_api_write/DeleteCouponsCoupon', { coupon: 'SPRING' }, { name: ['-Spring sale'] }, s => [s.coupons.SPRING.deleted, true]],
    ['stripe_api_write/PostInvoices', { customer: 'cus_Bob', description: 'Map' }, { description: ['+Map'], Customer: ['   "name": "Bob Ross"'] }, s => [newest(s.invoices).customer, 'cus_Bob']],
    ['stripe_api_write/PostInvoicesInvoice', { invoice: 'in_Draft', description: 'Thank you' }, { description: ['+Thank you'] }, s => [s.invoices.in_Draft.description, 'Thank you']],
    ['stripe_api_write/PostInvoiceitems', { customer: 'cus_Ada', invoice: 'in_Draft', amount: 500, currency: 'chf', description: 'Shipping' }, { amount: ['+500'], Invoice: ['   "status": "draft",'] }, s => [newest(s.invoiceitems).amount, 500]],
    ['stripe_api_write/PostInvoiceitemsInvoiceitem', { invoiceitem: 'ii_Book', amount: 2400 }, { amount: ['-2500', '+2400'] }, s => [s.invoiceitems.ii_Book.amount, 2400]],
    ['stripe_api_write/DeleteInvoiceitemsInvoiceitem', { invoiceitem: 'ii_Book' }, { amount: ['-2400'] }, s => [s.invoiceitems.ii_Book.deleted, true]],
    ['stripe_api_write/PostInvoicesInvoiceFinalize', { invoice: 'in_Draft' }, { status: ['-draft', '+open'] }, s => [s.invoices.in_Draft.status, 'open']],
    ['stripe_api_write/PostInvoicesInvoiceVoid', { invoice: 'in_Open' }, { status: ['-open', '+void'] }, s => [s.invoices.in_Open.status, 'void']],
    ['stripe_api_write/PostInvoicesInvoiceSend', s => ({ invoice: newest(s.invoices).id }), { status: ['-draft', '+open'] }, s => [newest(s.invoices).status, 'open']],
    ['stripe_api_write/DeleteInvoicesInvoice', { invoice: 'in_Spare' }, { description: ['-Twice'] }, s => [s.invoices.in_Spare.deleted, true]],
    ['stripe_api_write/PostSubscriptions', { customer: 'cus_Bob', items: [{ price: 'price_Club' }] }, { customer: ['+cus_Bob'], price_Club: ['   "unit_amount": 900'] }, s => [newest(s.subscriptions).items.data[0].price.id, 'price_Club']],
    ['stripe_api_write/PostSubscriptionsSubscriptionExposedId', { subscription_exposed_id: 'sub_Club', cancel_at_period_end: true }, { cancel_at_period_end: ['-false', '+true'] }, s => [s.subscriptions.sub_Club.cancel_at_period_end, true]],
    ['stripe_api_write/DeleteSubscriptionsSubscriptionExposedId', { subscription_exposed_id: 'sub_Club' }, { status: ['-active', '+canceled'] }, s => [s.subscriptions.sub_Club.status, 'canceled']],
    ['stripe_api_write/PostPaymentLinks', { line_items: [{ price: 'price_Book', quantity: 1 }] }, { price_Book: ['   "unit_amount": 2500'] }, s => [newest(s.payment_links).line_items[0].price, 'price_Book']],
    ['stripe_api_write/PostPaymentLinksPaymentLink', { payment_link: 'plink_Book', active: false }, { active: ['-true', '+false'] }, s => [s.payment_links.plink_Book.active, false]],
    ['stripe_api_write/PostRefunds', { charge: 'ch_Books', amount: 1500, reason: 'requested_by_customer' }, { refunded: ['-0', '+1500'] }, s => [s.charges.ch_Books.amount_refunded, 1500]],
    ['stripe_api_write/PostRefunds, payment', { payment_intent: 'pi_Books' }, { refunded: ['-1500', '+5000'] }, s => [s.charges.ch_Books.refunded, true]],
    ['stripe_api_write/PostPaymentIntentsIntentCapture', { intent: 'pi_Held', amount_to_capture: 1000 }, { received: ['-0', '+1000'], status: ['+succeeded'] }, s => [s.payment_intents.pi_Held.amount_received, 1000]],
    ['stripe_api_write/PostPaymentIntentsIntentCancel', s => ((s.payment_intents.pi_Held.status = 'requires_capture'), { intent: 'pi_Held' }), { status: ['-requires_capture', '+canceled'] }, s => [s.payment_intents.pi_Held.status, 'canceled']],
    ['stripe_api_write/PostDisputesDispute', { dispute: 'du_1', evidence: { customer_name: 'Ada Lovelace' } }, { 'evidence.customer_name': ['+Ada Lovelace'] }, s => [s.disputes.du_1.evidence.customer_name, 'Ada Lovelace']],
    ['stripe_api_write/PostDisputesDisputeClose', { dispute: 'du_1' }, { status: ['-needs_response', '+lost'] }, s => [s.disputes.du_1.status, 'lost']],
    ['stripe_api_write/DeleteCustomersCustomer', { customer: 'cus_Ada' }, { name: ['-Ada Lovelace'], Subscriptions: ['   "sub_Club canceled"'] }, s => [s.customers.cus_Ada.deleted, true]]
];

const toArguments = (name, parameters) => {
    const operation = name.split(/[,/]/)[1];
    return typeof parameters === 'function' ? state => write(operation, parameters(state)) : write(operation, parameters);
};

test('every recipe for Stripe shows what its operation does', async t => {
    const behind = await startBehind(t, 'stripe');
    const how = 'A stateful stand-in with the names and arguments recorded from mcp.stripe.com in September 2026, because this server exists only as a hosted service. Each operation of `stripe_api_write` counts as a tool, as for policy.';
    const tried = new TriedServer({ title: 'Stripe', how });
    await tryCalls(t, behind, CALLS.map(([name, parameters, ...rest]) => [name, toArguments(name, parameters), ...rest]), tried);
    await t.test('the page about the servers tried says so', () => tried.check());
});

test('changes at Stripe meanwhile make a change stale', async t => {
    const behind = await startBehind(t, 'stripe');
    await tryConcurrentChanges(t, behind, [
        ['stripe_api_write', write('PostRefunds', { charge: 'ch_Books', amount: 1500 }), s => (s.charges.ch_Books.amount_refunded = 4000), { refunded: ['-4000', '+5500'] }],
        ['stripe_api_write', write('PostCustomersCustomer', { customer: 'cus_Ada', name: 'Ada' }), s => (s.customers.cus_Ada.name = 'Countess Ada'), { name: ['-Countess Ada', '+Ada'] }],
        ['stripe_api_write', write('PostInvoicesInvoiceFinalize', { invoice: 'in_Draft' }), s => (s.invoices.in_Draft.total = 99_000), { status: ['-draft', '+open'] }]
    ]);
});

test('what a recipe for Stripe does not expect gives no preview, and nothing is written', async t => {
    const behind = await startBehind(t, 'stripe');
    behind.fake.state.customers.cus_Ada.description = 'x'.repeat(6 << 20);
    await tryStrangeAnswers(t, behind, [
        ['stripe_api_write', write('PostRefunds', { charge: 'ch_Books' }), 'nonsense', /JSON/],
        ['stripe_api_write', write('PostRefunds', { charge: 'ch_Books' }), 'odd', /customer/],
        ['stripe_api_write', write('PostRefunds', { charge: 'ch_None' }), 'normal', /No such charge/],
        ['stripe_api_write', write('PostRefunds', {}), 'normal', /no variant/],
        ['stripe_api_write', write('PostCustomersCustomer', { name: 'Ada' }), 'normal', /customer/],
        ['stripe_api_write', write('PostCustomersCustomer', { customer: 'cus_Ada', name: 'Ada' }), 'normal', /larger|large|long|many/],
        ['stripe_api_write', write('PostPayouts', { amount: 100 }), 'normal', /does not know the operation/]
    ]);
});

test('parameters that the state at Stripe does not have are shown beside it', async t => {
    const behind = await startBehind(t, 'stripe');
    await tryUnnamedArguments(t, behind, [
        ['stripe_api_write', write('PostRefunds', { charge: 'ch_Books', amount: 1500, reverse_transfer: true, metadata: { by: 'Ada' } }), { refunded: ['-0', '+1500'], 'parameters.reverse_transfer': ['+true'], 'parameters.metadata': ['+{"by":"Ada"}'] }],
        ['stripe_api_write', write('DeleteSubscriptionsSubscriptionExposedId', { subscription_exposed_id: 'sub_Club', invoice_now: true }), { status: ['+canceled'], 'parameters.invoice_now': ['+true'] }],
        ['stripe_api_write', write('PostSubscriptions', { customer: 'cus_Bob', trial_period_days: 30, items: [{ price: 'price_Club', discounts: [{ coupon: 'SPRING' }] }] }), { trial_period_days: ['+30'], 'parameters.items[0].discounts': ['+[{"coupon":"SPRING"}]'] }],
        // The comparison leaves out the fields of an object that change by themselves.
        ['stripe_api_write', write('PostPaymentLinksPaymentLink', { payment_link: 'plink_Book', active: false, line_items: [{ id: 'li_1', quantity: 2 }] }), { active: ['+false'], 'parameters.line_items': ['+[{"id":"li_1","quantity":2}]'] }],
        ['stripe_api_write', { ...write('PostDisputesDisputeClose', { dispute: 'du_1' }), human_confirmation: { approval_token: 't' } }, { status: ['+lost'], human_confirmation: ['+{"approval_token":"t"}'] }]
    ]);
});

test('a call that Stripe accepts without doing anything is noticed', async t => {
    const behind = await startBehind(t, 'stripe');
    await trySilentWrites(t, behind, [
        ['stripe_api_write', write('PostRefunds', { charge: 'ch_Books', amount: 1500 })],
        ['stripe_api_write', write('PostCustomersCustomer', { customer: 'cus_Ada', name: 'Ada' })],
        ['stripe_api_write', write('DeleteCouponsCoupon', { coupon: 'SPRING' })]
    ]);
});
