/** The launcher's gRPC services CmdInfo and Cmd. RPCs that are not here answer `Unimplemented`. */
import type { Server } from '@grpc/grpc-js';
import type { Vmi } from '../../../agent/api/vmi.js';
import { CmdInfo } from '../../../gen/kubevirt/cmd/info/info_pb.js';
import { Cmd, type VMI, type VMIRequest } from '../../../gen/kubevirt/cmd/v1/cmd_pb.js';
import type { DomainManager } from './domain-manager.js';
import type { Faults } from './faults.js';
import { addService, type Handlers } from './grpc.js';

export interface CmdServerOptions {
  readonly manager: DomainManager;
  readonly faults: Faults;
  /** SignalTargetPodCleanup named this pod. */
  readonly onTargetPodCleanup: (vmi: Vmi) => void;
  /** Told the name of every command when it arrives. */
  readonly onCommand: (method: string) => void;
}

interface Outcome {
  readonly success: boolean;
  readonly message: string;
}

const noVmi = 'No valid vmi object present in command server request';

function failure(error: unknown): Outcome {
  return { success: false, message: (error as Error).message };
}

async function outcome(work: () => Promise<void>): Promise<Outcome> {
  try {
    await work();
    return { success: true, message: '' };
  } catch (error) {
    return failure(error);
  }
}

function parseVmi(vmi: VMI | undefined): Vmi {
  let parsed: unknown;
  try {
    parsed = JSON.parse(Buffer.from(vmi?.vmiJson ?? []).toString('utf8'));
  } catch {
    throw new Error(noVmi);
  }
  if (typeof parsed !== 'object' || parsed === null) throw new Error(noVmi);
  const given = parsed as Partial<Vmi>;
  // The fields that Go's zero values stand for.
  return {
    ...given,
    metadata: { name: '', namespace: '', uid: '', ...given.metadata },
    spec: given.spec ?? { domain: { devices: {} } },
    status: given.status ?? {},
  } as Vmi;
}

export function addCmdServices(server: Server, options: CmdServerOptions): void {
  const { manager, faults } = options;
  const serialized = createLock();
  let hostDeviceFailures = 0;
  const onVmi = (work: (vmi: Vmi, request: VMIRequest) => Promise<void>) => async (request: VMIRequest) =>
    outcome(async () => work(parseVmi(request.vmi), request));
  const onVmiSerialized = (work: (vmi: Vmi, request: VMIRequest) => Promise<void>) =>
    onVmi((vmi, request) => serialized(() => work(vmi, request)));

  addService(server, CmdInfo, {
    info: async () => ({ supportedCmdVersions: [...faults.cmdVersions] }),
  });
  const handlers: Handlers<typeof Cmd> = {
    ping: async () => ({ success: true, message: '' }),
    syncVirtualMachine: onVmiSerialized(async (vmi, request) => {
      checkPlugins(request);
      if (faults.slowSyncMs > 0) await new Promise((resolve) => setTimeout(resolve, faults.slowSyncMs));
      await manager.sync(vmi, request.options);
    }),
    pauseVirtualMachine: onVmiSerialized((vmi) => manager.pause(vmi)),
    unpauseVirtualMachine: onVmiSerialized((vmi) => manager.unpause(vmi)),
    shutdownVirtualMachine: onVmiSerialized((vmi) => manager.shutdown(vmi)),
    killVirtualMachine: onVmi((vmi) => manager.kill(vmi)),
    deleteVirtualMachine: onVmi((vmi) => manager.delete(vmi)),
    resetVirtualMachine: onVmi((vmi) => manager.reset(vmi)),
    softRebootVirtualMachine: onVmi((vmi) => manager.softReboot(vmi)),
    hotplugHostDevices: onVmiSerialized(async (vmi) => {
      if (hostDeviceFailures++ < faults.hostDeviceFailures) throw new Error('the device is not there yet');
      await manager.hotplugHostDevices(vmi);
    }),
    signalTargetPodCleanup: onVmi(async (vmi) => options.onTargetPodCleanup(vmi)),
    getDomain: () => answer('domain', async () => (await manager.domains())[0]),
    getDomainStats: () => answer('domainStats', () => manager.stats()),
    getGuestInfo: () => answer('guestInfoResponse', () => manager.guestInfo()),
    getUsers: () => answer('guestUserListResponse', () => manager.users()),
    getFilesystems: () => answer('guestFilesystemsResponse', () => manager.filesystems()),
    getQemuVersion: async () => {
      try {
        return { response: { success: true }, version: await manager.qemuVersion() };
      } catch (error) {
        return { response: failure(error) };
      }
    },
  };
  addService(server, Cmd, telling(faults.hang ? hanging(handlers) : handlers, options.onCommand));
}

function checkPlugins(request: VMIRequest): void {
  const bytes = request.options?.pluginsJson;
  if (bytes === undefined || bytes.length === 0) return;
  try {
    JSON.parse(Buffer.from(bytes).toString('utf8'));
  } catch {
    throw new Error('failed to deserialize plugins from options: unexpected end of JSON input');
  }
}

/** A response with JSON text in `field`; absent when there is nothing to say. */
async function answer<F extends string>(field: F, work: () => Promise<unknown>) {
  try {
    const value = await work();
    const text = value === undefined ? '' : JSON.stringify(value);
    return { response: { success: true }, [field]: text } as { response: { success: boolean } } & Record<
      F,
      string
    >;
  } catch (error) {
    return { response: failure(error) } as { response: Outcome } & Partial<Record<F, string>>;
  }
}

function hanging(handlers: Handlers<typeof Cmd>): Handlers<typeof Cmd> {
  const never = () => new Promise<never>(() => {});
  return Object.fromEntries(Object.keys(handlers).map((name) => [name, never]));
}

function telling(handlers: Handlers<typeof Cmd>, onCommand: (method: string) => void): Handlers<typeof Cmd> {
  return Object.fromEntries(
    Object.entries(handlers as Record<string, (request: never) => unknown>).map(([name, handler]) => [
      name,
      (request: never) => {
        onCommand(name);
        return handler(request);
      },
    ]),
  );
}

/** One at a time, in order of arrival. */
function createLock(): <T>(work: () => Promise<T>) => Promise<T> {
  let tail: Promise<unknown> = Promise.resolve();
  return (work) => {
    const result = tail.then(work);
    tail = result.catch(() => undefined);
    return result;
  };
}
