/** HTTP/2 frames (RFC 9113) made by hand, to say what no client library says. */
import type { Socket } from 'node:net';

const preface = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');

export const frameType = {
  headers: 1,
  reset: 3,
  settings: 4,
  ping: 6,
  windowUpdate: 8,
  continuation: 9,
} as const;

export function frame(
  type: number,
  flags: number,
  stream: number,
  payload: Buffer = Buffer.alloc(0),
): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head.writeUInt8(type, 3);
  head.writeUInt8(flags, 4);
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

/** What a connection begins with. */
export const opening = Buffer.concat([preface, frame(frameType.settings, 0, 0)]);

/** A header field, not indexed, name and value literal and short. */
export function field(name: string, value: string): Buffer {
  return Buffer.concat([
    Buffer.from([0, name.length]),
    Buffer.from(name),
    Buffer.from([value.length]),
    Buffer.from(value),
  ]);
}

/**
 * Sends a chunk again and again, reading nothing, until the other end has closed or `times` were sent. Resolves
 * to whether the other end closed.
 */
export async function pour(socket: Socket, chunk: (i: number) => Buffer, times: number): Promise<boolean> {
  let closed = false;
  const end = new Promise<void>((resolve) => {
    socket.on('close', () => {
      closed = true;
      resolve();
    });
  });
  for (let i = 0; i < times && !closed; i++) {
    if (socket.write(chunk(i))) continue;
    await Promise.race([end, new Promise((resolve) => socket.once('drain', resolve))]);
  }
  return closed;
}
