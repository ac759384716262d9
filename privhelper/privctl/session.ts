/** One run of privctl: what it was told, where it writes, and the helper if it needs it. */

import type { DescService } from '@bufbuild/protobuf';
import { type DescMessage, type MessageShape, toJson } from '@bufbuild/protobuf';
import type { Client } from '@connectrpc/connect';
import { InspectService } from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { isUuid } from '../policy/fields.js';
import { HelperConnection } from './helper.js';
import { CommandError, exitCodes } from './output.js';

export interface Options {
  readonly output: 'table' | 'json';
  /** Nothing is shortened. */
  readonly full: boolean;
  readonly quiet: boolean;
  readonly socketDir: string;
  readonly auditFile: string;
  readonly stateDir: string;
  readonly hotplugStateDir: string;
  readonly kubeletPodsDir: string | undefined;
  readonly policyFile: string | undefined;
  readonly follow: boolean;
  readonly refused: boolean;
  readonly pod: string | undefined;
  readonly since: string | undefined;
  readonly limit: number;
}

export class Session {
  private connection: HelperConnection | undefined;

  constructor(
    readonly options: Options,
    readonly args: readonly string[],
    private readonly write: (text: string) => void,
  ) {}

  get json(): boolean {
    return this.options.output === 'json';
  }

  lines(lines: readonly string[]): void {
    this.write(`${lines.join('\n')}\n`);
  }

  /** One JSON document on one line. */
  value(value: unknown): void {
    this.write(`${JSON.stringify(value)}\n`);
  }

  message<D extends DescMessage>(schema: D, message: MessageShape<D>): void {
    this.value(toJson(schema, message, { alwaysEmitImplicit: true }));
  }

  /** Connects at the first use. */
  async helper(): Promise<HelperConnection> {
    this.connection ??= await HelperConnection.open(this.options.socketDir);
    return this.connection;
  }

  async client<S extends DescService>(service: S): Promise<Client<S>> {
    return (await this.helper()).client(service);
  }

  close(): void {
    this.connection?.close();
  }

  /**
   * The pod UID that a person means: a pod or VMI UID, the beginning of one, or the VMI's name, with or
   * without its namespace, as launchers state it.
   */
  async pod(): Promise<string> {
    const [text = ''] = this.args;
    if (isUuid(text)) {
      const { pod } = await (await this.client(PodService)).stat({ podUid: text });
      if (pod?.directory) return text;
    }
    const { pods } = await (await this.client(InspectService)).listPods({});
    const found = pods.filter(({ state, vmiUid, launcher }) => {
      const name = launcher?.claimedName ?? '';
      return (
        (text.length >= 4 && (state?.podUid.startsWith(text) || vmiUid.startsWith(text))) ||
        (name !== '' && (text === name || text === `${launcher?.claimedNamespace}/${name}`))
      );
    });
    const [only] = found;
    if (found.length === 1 && only?.state !== undefined) return only.state.podUid;
    if (found.length === 0) {
      throw new CommandError(
        exitCodes.failed,
        `no launcher pod on this node matches ${text}`,
        'privctl pods shows them; four characters of a UID are enough.',
      );
    }
    const candidates = found.map(({ state }) => state?.podUid).join(', ');
    throw new CommandError(exitCodes.usage, `${text} matches more than one pod: ${candidates}`);
  }
}
