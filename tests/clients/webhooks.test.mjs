// Verifies webhook deliveries with the reference library of Standard Webhooks.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import http from 'node:http';
import { once } from 'node:events';
import { test } from 'node:test';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { Webhook, WebhookVerificationError } from 'standardwebhooks';

import { eventually, startGateway } from './gateway.mjs';

test('the reference library accepts deliveries with the new and the old secret', async t => {
    const [secret, previous, other] = [1, 2, 3].map(() => `whsec_${randomBytes(32).toString('base64')}`);
    const hits = [];
    const receiver = http.createServer((request, response) => {
        let body = '';
        request.setEncoding('utf8').on('data', part => (body += part));
        // The first attempt is refused, so that the delivery is repeated with another time.
        request.on('end', () => {
            const isRepeated = hits.some(hit => hit.headers['webhook-id'] === request.headers['webhook-id']);
            hits.push({ headers: request.headers, body });
            response.writeHead(isRepeated ? 204 : 503).end();
        });
    });
    await once(receiver.listen(0, '127.0.0.1'), 'listening');
    t.after(() => receiver.close());
    const url = `http://127.0.0.1:${receiver.address().port}/`;
    const gateway = await startGateway({
        env: { SECRET: secret, PREVIOUS: previous },
        config: { webhooks: { hook: { url, secret: '${SECRET}', previous_secret: '${PREVIOUS}', events: ['change.created'] } } }
    });
    t.after(() => gateway.stop());
    const client = new Client({ name: 'webhooks', version: '1.0.0' });
    await client.connect(new StreamableHTTPClientTransport(gateway.mcp));
    t.after(() => client.close());
    const { structuredContent: listed } = await client.callTool({ name: 'list_projects', arguments: {} });
    const title = 'Größe 🎉 "quoted"';
    await client.callTool({ name: 'create_issue', arguments: { projectId: listed.projects[0].id, title, type: 'Story' } });
    await eventually('it was delivered twice', () => hits.length === 2);

    for (const { headers, body } of hits) {
        for (const accepted of [secret, previous]) {
            const event = new Webhook(accepted).verify(body, headers);
            assert.equal(event.type, 'change.created');
            assert.ok(event.change.summary.includes('Größe'), event.change.summary);
            assert.ok(event.link.endsWith(`/#/inbox/${event.change.id}`), event.link);
        }
        assert.throws(() => new Webhook(other).verify(body, headers), WebhookVerificationError);
        assert.throws(() => new Webhook(secret).verify(body.replace('ö', 'o'), headers), WebhookVerificationError);
        const altered = { ...headers, 'webhook-timestamp': String(Number(headers['webhook-timestamp']) + 1) };
        assert.throws(() => new Webhook(secret).verify(body, altered), WebhookVerificationError);
    }
    assert.equal(hits[0].headers['webhook-id'], hits[1].headers['webhook-id']);
    await eventually('the delivery is recorded', async () => (await gateway.api('GET', '/webhooks')).body.webhooks[0].waiting === 0);
});
