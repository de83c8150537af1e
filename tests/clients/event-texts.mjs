// Collects what a gateway says of events, on its feed and by a webhook.
import { randomBytes } from 'node:crypto';
import { createServer } from 'node:http';

import { nodesOf } from './gateway.mjs';

/** Collects events: `texts` maps the feed of each node and the webhook to all that they sent. */
export class EventTexts {
    static async start() {
        const events = Object.assign(new EventTexts(), { texts: { webhook: '' }, abort: new AbortController() });
        events.receiver = createServer((request, response) => {
            request.setEncoding('utf8').on('data', part => (events.texts.webhook += part)).on('end', () => response.end());
        });
        await new Promise((resolve, reject) => events.receiver.once('error', reject).listen(0, '127.0.0.1', resolve));
        events.env = { WEBHOOK_SECRET: `whsec_${randomBytes(32).toString('base64')}` };
        events.webhooks = { hook: { url: `http://127.0.0.1:${events.receiver.address().port}/`, secret: '${WEBHOOK_SECRET}', events: ['change.*', 'rule.*', 'provider.*', 'config.*'] } };
        return events;
    }

    /** Reads the feed of each node, also after it was restarted. */
    follow(gateway) {
        for (const node of nodesOf(gateway)) this.#read(`${node.url}/api/events?since=0`, gateway.key);
    }

    async #read(url, key) {
        this.texts[url] = '';
        while (!this.abort.signal.aborted) {
            try {
                const response = await fetch(url, { headers: { authorization: `Bearer ${key}` }, signal: this.abort.signal });
                for await (const part of response.body.pipeThrough(new TextDecoderStream())) this.texts[url] += part;
            } catch {
                await new Promise(resolve => setTimeout(resolve, 100));
            }
        }
    }

    stop() {
        this.abort.abort();
        this.receiver.closeAllConnections();
        this.receiver.close();
    }
}
