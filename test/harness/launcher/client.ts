/** A client of the launcher's command socket, for tests that stand where the node agent will stand. */
import { Client, credentials } from '@grpc/grpc-js';
import type { Vmi } from '../../../agent/api/vmi.js';
import { CmdInfo } from '../../../gen/kubevirt/cmd/info/info_pb.js';
import { Cmd } from '../../../gen/kubevirt/cmd/v1/cmd_pb.js';
import { callUnary } from './grpc.js';

const timeoutMs = 20_000;
type VmiMethod = {
  [M in keyof typeof Cmd.method]: (typeof Cmd.method)[M]['input'] extends typeof Cmd.method.syncVirtualMachine.input
    ? (typeof Cmd.method)[M]['output'] extends typeof Cmd.method.syncVirtualMachine.output
      ? M
      : never
    : never;
}[keyof typeof Cmd.method];

export class LauncherTestClient {
  readonly #client: Client;

  constructor(socketPath: string) {
    this.#client = new Client(`unix:${socketPath}`, credentials.createInsecure(), {
      'grpc.use_local_subchannel_pool': 1,
    });
  }

  async versions(): Promise<number[]> {
    return (await callUnary(this.#client, CmdInfo.method.info, {}, timeoutMs)).supportedCmdVersions;
  }

  /** A command on a VMI. Rejects when the launcher answers that it failed. */
  async command(method: VmiMethod, vmi: Vmi): Promise<void> {
    const request = { vmi: { vmiJson: Buffer.from(JSON.stringify(vmi)) } };
    const response = await callUnary(this.#client, Cmd.method[method], request, timeoutMs);
    if (!response.success) throw new Error(`${method} failed: ${response.message}`);
  }

  /** Rejects with a ServiceError when there is no answer in time. */
  async ping(deadlineMs: number): Promise<void> {
    await callUnary(this.#client, Cmd.method.ping, {}, deadlineMs);
  }

  async domain(): Promise<Record<string, unknown> | undefined> {
    const { domain } = await callUnary(this.#client, Cmd.method.getDomain, {}, timeoutMs);
    return domain === '' ? undefined : (JSON.parse(domain) as Record<string, unknown>);
  }

  close(): void {
    this.#client.close();
  }
}
