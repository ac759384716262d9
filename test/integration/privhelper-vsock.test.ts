/** The listening socket of the VSOCK service, as the helper hands it out or says why it cannot. */
import { readdirSync, readlinkSync } from 'node:fs';
import { Code } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SocketService } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { waitFor } from '../harness/pods/run.js';
import { failureOf, HelperProcess } from './privhelper-fixture.js';

describe.runIf(process.getuid?.() === 0)('ListenVsock', () => {
  let helper: HelperProcess;
  beforeAll(async () => {
    helper = new HelperProcess();
    await helper.start();
  });
  afterAll(async () => {
    await helper?.destroy();
  });

  const listen = () => helper.client(SocketService).listenVsock({});
  const sockets = () => {
    const directory = `/proc/${helper.pid}/fd`;
    return readdirSync(directory).filter((fd) => readlinkSync(`${directory}/${fd}`).startsWith('socket:'))
      .length;
  };

  it('NET-030 gives the agent the only copy of the socket, or says what is missing and keeps nothing', async () => {
    const first = await listen().catch(() => undefined);
    const held = sockets();
    if (first === undefined) {
      process.stderr.write('the host has no vsock address here: only the failure is tried\n');
      expect(await failureOf(listen())).toMatchObject({
        code: Code.FailedPrecondition,
        operation: expect.stringMatching(/^(bind vsock 2:1|socket AF_VSOCK)/),
        errnoName: expect.stringMatching(/^(EADDRNOTAVAIL|EAFNOSUPPORT)$/),
        refused: false,
        unchanged: true,
      });
      const { call } = await helper.audited(
        'the call',
        ({ method }) => method === 'SocketService.ListenVsock',
      );
      const lines = helper.audit().filter((line) => line['call'] === call);
      expect(lines).toMatchObject([
        { event: 'begin', arguments: { listener: 'vsock 2:1' } },
        { event: 'end', decision: 'failed', errno: expect.stringMatching(/^E[A-Z]+$/) },
      ]);
      expect(sockets()).toBe(held);
      return;
    }
    const fd = await helper.claim(first.ticket?.value ?? new Uint8Array());
    await waitFor('the helper to let go of the socket', 20_000, () => sockets() === held - 1);
    expect(await failureOf(listen())).toMatchObject({ errnoName: 'EADDRINUSE', unchanged: true });
    helper.native.close(fd);
    const { ticket } = await listen();
    helper.native.close(await helper.claim(ticket?.value ?? new Uint8Array()));
  });
});
