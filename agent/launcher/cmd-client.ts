import { create, type DescMessage, type MessageInitShape } from '@bufbuild/protobuf';
import { ConnectError, type Transport } from '@connectrpc/connect';
import type { VirtualMachineOptions } from '../../gen/kubevirt/cmd/v1/cmd_pb.js';
import type { Domain } from '../api/domain.js';
import type { Vmi, VmiRef } from '../api/vmi.js';
import { stringifyJson } from '../json/lossless.js';
import { type GuestAgentInfo, type LauncherClient, LauncherError } from '../reconcile/ports.js';
import { type Command, commands } from './commands.js';
import { CommandError, commandError, type InnerResponse, statusText } from './errors.js';

/** The command service of one launcher. */
export class CmdClient implements LauncherClient {
  constructor(
    private readonly transport: Transport,
    /** Whose launcher this is; what it says of another VMI's domain is refused. */
    private readonly owner: VmiRef,
  ) {}

  /**
   * Calls one RPC. Throws a CommandError both for a gRPC status and for an answer that says success=false:
   * launchers report a failure in either way. An answer that cannot be read gives a LauncherError.
   */
  async call<I extends DescMessage, O extends DescMessage, R>(
    command: Command<I, O, R>,
    request: MessageInitShape<I>,
  ): Promise<R> {
    const { message } = await this.send(command, request);
    const failure = commandError(command.word, undefined, inner(message));
    if (failure !== undefined) throw failure;
    try {
      return command.decode(message);
    } catch (error) {
      throw new LauncherError((error as Error).message, false, { cause: error });
    }
  }

  async ping(): Promise<void> {
    await this.call(commands.ping, {});
  }

  /** Undefined when the launcher has no domain yet. */
  async getDomain(): Promise<Domain | undefined> {
    const domain = await this.call(commands.getDomain, {});
    if (domain !== undefined) this.requireOwn(domain);
    return domain;
  }

  getGuestInfo(): Promise<GuestAgentInfo> {
    return this.call(commands.getGuestInfo, {});
  }

  async syncVirtualMachine(vmi: Vmi, options: VirtualMachineOptions): Promise<void> {
    await this.call(commands.syncVirtualMachine, { vmi: vmiMessage(vmi), options });
  }

  async shutdownVirtualMachine(vmi: Vmi | VmiRef): Promise<void> {
    await this.call(commands.shutdownVirtualMachine, vmiRequest(vmi));
  }

  async killVirtualMachine(vmi: Vmi | VmiRef): Promise<void> {
    await this.call(commands.killVirtualMachine, vmiRequest(vmi));
  }

  async deleteVirtualMachine(vmi: Vmi | VmiRef): Promise<void> {
    await this.call(commands.deleteVirtualMachine, vmiRequest(vmi));
  }

  async hotplugHostDevices(vmi: Vmi): Promise<void> {
    await this.call(commands.hotplugHostDevices, vmiRequest(vmi));
  }

  async virtualMachineMemoryDump(vmi: Vmi, dumpPath: string): Promise<void> {
    await this.call(commands.virtualMachineMemoryDump, { vmi: vmiMessage(vmi), dumpPath });
  }

  /**
   * Undefined when the checkpoint was redefined, else why not and whether the checkpoint is invalid. The
   * answer carries that flag also when it says success=false.
   */
  async redefineCheckpoint(
    vmi: Vmi,
    checkpoint: Uint8Array,
  ): Promise<{ readonly message: string; readonly checkpointInvalid: boolean } | undefined> {
    try {
      const request = { vmi: vmiMessage(vmi), checkpoint };
      const { message } = await this.send(commands.redefineCheckpoint, request);
      const response = message.response;
      if (response === undefined || response.success) return undefined;
      return {
        message: `RedefineCheckpoint failed: ${response.message}`,
        checkpointInvalid: message.checkpointInvalid,
      };
    } catch (error) {
      return {
        message: `RedefineCheckpoint call failed: ${(error as Error).message}`,
        checkpointInvalid: false,
      };
    }
  }

  private async send<I extends DescMessage, O extends DescMessage, R>(
    command: Command<I, O, R>,
    init: MessageInitShape<I>,
  ) {
    const request = create(command.method.input, init);
    try {
      return await this.transport.unary(
        command.method,
        undefined,
        command.deadlineMs(request),
        undefined,
        request,
      );
    } catch (reason) {
      const failure = commandError(command.word, ConnectError.from(reason), undefined);
      throw failure ?? new CommandError(statusText(ConnectError.from(reason)), false, undefined);
    }
  }

  private requireOwn(domain: Domain): void {
    const { namespace, name, uid } = domain.ObjectMeta;
    const uids = [uid, domain.Spec.Metadata.KubeVirt.UID].filter((given) => given !== '');
    if (
      namespace === this.owner.namespace &&
      name === this.owner.name &&
      uids.every((given) => this.owner.uid === '' || given === this.owner.uid)
    ) {
      return;
    }
    throw new LauncherError(
      `launcher of ${this.owner.namespace}/${this.owner.name} (${this.owner.uid}) answered with the domain of ` +
        `${namespace}/${name} (${uids.join(', ')})`,
      false,
    );
  }
}

function inner(message: object): InnerResponse | undefined {
  if ('success' in message && 'message' in message) return message as InnerResponse;
  return 'response' in message ? (message.response as InnerResponse | undefined) : undefined;
}

/** The VMI as the agent holds it, with all fields that it does not know. */
function vmiMessage(vmi: Vmi): { vmiJson: Uint8Array } {
  return { vmiJson: Buffer.from(stringifyJson(vmi)) };
}

/** `options` present but empty, as KubeVirt's client sends it. */
export function vmiRequest(vmi: Vmi | VmiRef): {
  vmi: { vmiJson: Uint8Array };
  options: Record<string, never>;
} {
  return { vmi: vmiMessage('metadata' in vmi ? vmi : bareVmi(vmi)), options: {} };
}

/** Enough of a VMI that is gone from the API for its launcher to find the domain. */
function bareVmi({ namespace, name, uid }: VmiRef): Vmi {
  return {
    kind: 'VirtualMachineInstance',
    apiVersion: 'kubevirt.io/v1',
    metadata: { name, namespace, uid },
    spec: { domain: { devices: {} } },
    status: {},
  };
}
