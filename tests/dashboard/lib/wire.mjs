// A TCP proxy between the browser and the gateway, whose connections can be cut.

import { connect, createServer } from 'node:net';

export class Wire {
  #sockets = new Set();
  #connected = true;

  static async to(port) {
    const wire = new Wire();
    wire.server = createServer((socket) => wire.#join(socket, port));
    await new Promise((resolve) => { wire.server.listen(0, '127.0.0.1', resolve); });
    wire.url = `http://127.0.0.1:${wire.server.address().port}`;
    return wire;
  }

  #join(socket, port) {
    if (!this.#connected) return void socket.destroy();
    const other = connect(port, '127.0.0.1');
    for (const [from, to] of [[socket, other], [other, socket]]) {
      this.#sockets.add(from);
      from.pipe(to);
      from.on('error', () => to.destroy());
      from.on('close', () => {
        this.#sockets.delete(from);
        to.destroy();
      });
    }
  }

  cut() {
    this.#connected = false;
    for (const socket of this.#sockets) socket.destroy();
  }

  mend() {
    this.#connected = true;
  }

  async end() {
    this.cut();
    await new Promise((resolve) => { this.server.close(resolve); });
  }
}
