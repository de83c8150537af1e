// A minimal WebSocket transport, because the SDK has none since v2.

export class WebSocketTransport {
    constructor(url) {
        this.url = url;
    }

    start() {
        this.socket = new WebSocket(this.url, 'mcp');
        this.socket.onmessage = event => this.onmessage?.(JSON.parse(event.data));
        this.socket.onclose = () => this.onclose?.();
        return new Promise((resolve, reject) => {
            this.socket.onopen = () => resolve();
            this.socket.onerror = event => reject(new Error(event.message ?? 'WebSocket error'));
        });
    }

    async send(message) {
        this.socket.send(JSON.stringify(message));
    }

    async close() {
        this.socket.close();
    }
}
