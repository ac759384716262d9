import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type DescMessage, fromBinary, fromJson, type JsonValue, toJson } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { stringifyJson } from '../../agent/json/lossless.js';
import { CmdClient, vmiRequest } from '../../agent/launcher/cmd-client.js';
import { type Command, commands } from '../../agent/launcher/commands.js';
import { LauncherConnection } from '../../agent/launcher/connection.js';
import { CommandError, commandError } from '../../agent/launcher/errors.js';
import { highestCompatibleVersion } from '../../agent/launcher/versions.js';
import { Cmd, VirtualMachineOptionsSchema } from '../../gen/kubevirt/cmd/v1/cmd_pb.js';
import { eventually, FakeLauncher, type Reply } from '../unit/launcher/peers.js';
import { loadVectors } from './load.js';

type AnyCommand = Command<DescMessage, DescMessage, unknown>;

const owner = { namespace: 'default', name: 'testvmi', uid: 'u1' };
const rpcNames = Object.values(Cmd.method).map((method) => method.name);

function commandOf(rpc: string): AnyCommand {
  const found = Object.values(commands).find(({ method }) => method.name === rpc);
  if (found === undefined) throw new Error(`no command ${rpc}`);
  return found as unknown as AnyCommand;
}

function dialSocket(path: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(path, () => resolve(socket)).once('error', reject);
  });
}

let directory: string;
let path: string;
let launcher: FakeLauncher | undefined;
let connection: LauncherConnection | undefined;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'cmd-'));
  path = join(directory, 'launcher-sock');
});
afterEach(() => {
  vi.useRealTimers();
  connection?.close();
  launcher?.stop();
  connection = undefined;
  launcher = undefined;
  rmSync(directory, { recursive: true, force: true });
});

async function clientOf(reply: Reply): Promise<CmdClient> {
  launcher = new FakeLauncher(rpcNames, reply);
  await launcher.listen(path);
  connection = new LauncherConnection(await dialSocket(path));
  await connection.negotiate();
  return new CmdClient(connection.transport, owner);
}

describe('every RPC of the proto', () => {
  it('has exactly one command', () => {
    expect(
      Object.values(commands)
        .map(({ method }) => method.name)
        .sort(),
    ).toEqual([...rpcNames].sort());
    expect(rpcNames).toHaveLength(36);
  });
});

interface RequestInput {
  readonly rpc: string;
  readonly vmi?: Vmi;
  // biome-ignore lint/suspicious/noExplicitAny: arguments differ with each RPC
  readonly args: any;
}

/** The request that a caller of the command gives for the vector's arguments. */
function requestOf({ rpc, vmi, args }: RequestInput): Record<string, unknown> {
  const bytes = (value: unknown) => Buffer.from(stringifyJson(value));
  const message = vmi === undefined ? {} : { vmi: vmiRequest(vmi).vmi };
  const options = () => fromJson(VirtualMachineOptionsSchema, args.options as JsonValue);
  switch (rpc) {
    case 'Exec':
      return {
        domainName: args.domainName,
        Command: args.command,
        Args: args.args,
        timeoutSeconds: args.timeoutSeconds,
      };
    case 'GuestPing':
      return { domainName: args.domainName, timeoutSeconds: args.timeoutSeconds };
    case 'FreezeVirtualMachine':
      return { ...message, unfreezeTimeoutSeconds: args.unfreezeTimeoutSeconds };
    case 'VirtualMachineMemoryDump':
      return { ...message, dumpPath: args.dumpPath };
    case 'MigrateVirtualMachine':
    case 'InjectLaunchSecret':
    case 'BackupVirtualMachine':
      return { ...message, options: bytes(args.options) };
    case 'RedefineCheckpoint':
      return { ...message, checkpoint: bytes(args.checkpoint) };
    case 'GetScreenshot':
    case 'GetLaunchMeasurement':
      return message;
    case 'GetVMStats':
      if (args.request === 'no category') return {};
      return categories(args.request);
    default:
      if (vmi === undefined) return {};
      if ('options' in args) return args.options === null ? message : { ...message, options: options() };
      return vmiRequest(vmi);
  }
}

/** The one category that `request` names, or all. */
function categories(request: string): Record<string, object> {
  const all = commands.getVMStats.method.input.fields.map((field) => field.localName);
  const wanted = all.includes(request) ? [request] : all;
  return Object.fromEntries(wanted.map((name) => [name, {}]));
}

/** Decoded, with the JSON documents inside decoded too. */
function decoded(command: AnyCommand, bytes: Uint8Array): unknown {
  const json = toJson(command.method.input, fromBinary(command.method.input, bytes));
  return JSON.parse(JSON.stringify(json), (key, value) => {
    const isJson =
      ['vmiJson', 'checkpoint'].includes(key) || (key === 'options' && typeof value === 'string');
    return isJson ? JSON.parse(Buffer.from(value, 'base64').toString('utf8')) : value;
  });
}

describe('cmd_requests', () => {
  type Expected = {
    path: string;
    timeoutSeconds: number;
    requestBase64: string;
    metadata: { authority: string[] };
  };
  const cases = loadVectors<RequestInput, Expected>('wire', 'cmd_requests');
  it.each(cases)('WIRE-004 $name', async ({ input, expected }) => {
    const client = await clientOf(() => Buffer.alloc(0));
    const command = commandOf(input.rpc);
    await client.call(command, requestOf(input)).catch(() => undefined);
    const [call] = launcher?.calls ?? [];
    expect(call?.path).toBe(expected.path);
    expect(call?.deadlineSeconds).toBe(expected.timeoutSeconds);
    expect(decoded(command, call?.request ?? Buffer.alloc(0))).toEqual(
      decoded(command, Buffer.from(expected.requestBase64, 'base64')),
    );
    expect([call?.authority]).toEqual(expected.metadata.authority);
  });
});

interface ResultInput {
  readonly rpc: string;
  readonly responseBase64: string | null;
  readonly grpcStatus: { code: number; message: string } | null;
}
interface ResultExpected {
  readonly error: string | null;
  readonly isDisconnected: boolean;
  readonly isUnimplemented: boolean;
  // biome-ignore lint/suspicious/noExplicitAny: differs with each RPC
  readonly value: any;
}

/** Failed answers that KubeVirt v1.9.0 takes for success; launchers of other releases report failure that way. */
function failsHere({ rpc, responseBase64 }: ResultInput): boolean {
  if (!['Exec', 'GuestPing', 'GetScreenshot'].includes(rpc) || responseBase64 === null) return false;
  const answer = fromBinary(commandOf(rpc).method.output, Buffer.from(responseBase64, 'base64'));
  return (answer as { response?: { success: boolean } }).response?.success === false;
}

describe('cmd_client_results', () => {
  const cases = loadVectors<ResultInput, ResultExpected>('wire', 'cmd_client_results');
  const reply =
    ({ grpcStatus, responseBase64 }: ResultInput): Reply =>
    () =>
      grpcStatus ?? Buffer.from(responseBase64 ?? '', 'base64');

  const plain = (json: unknown) => JSON.parse(stringifyJson(json));
  type Expect = (value: unknown, expected: ResultExpected['value']) => void;
  const items: Expect = (value, expected) => expect(plain(value)).toMatchObject(expected.items ?? []);
  /** What a good answer is worth, by RPC; KubeVirt tells with some whether there is anything. */
  const values: Record<string, Expect> = {
    GetDomain: (value, { exists, domain }) => {
      if (exists === false) expect(value).toBeUndefined();
      else expect(value).toMatchObject({ Spec: { Name: domain.Spec.Name } });
    },
    GetDomainStats: (value, { exists, stats }) => {
      if (exists === false) expect(value).toBeUndefined();
      else expect(plain(value)).toEqual(stats);
    },
    GetGuestInfo: (value, { guestAgentVersion = '', supportedCommands }) =>
      expect(value).toMatchObject({
        guestAgentVersion,
        supportedCommands: (supportedCommands ?? []).map(
          ({ name, enabled = false }: { name: string; enabled?: boolean }) => ({ name, enabled }),
        ),
      }),
    GetUsers: items,
    GetFilesystems: items,
    GetQemuVersion: (value, expected) => expect(value).toBe(expected),
    Exec: (value, expected) => expect(value).toEqual(expected),
    GetDomainDirtyRateStats: (value, expected) => expect(value).toBe(BigInt(expected)),
    GetLaunchMeasurement: (value, expected) => expect(plain(value)).toEqual(expected),
  };

  it.each(cases)('WIRE-005 AFT-029 $name', async ({ input, expected }) => {
    const client = await clientOf(reply(input));
    if (input.rpc === 'RedefineCheckpoint') {
      const vmi = { metadata: owner, spec: { domain: { devices: {} } }, status: {} };
      const outcome = await client.redefineCheckpoint(vmi, Buffer.from('{}'));
      expect(outcome?.message ?? null).toBe(expected.error);
      expect(outcome?.checkpointInvalid ?? false).toBe(expected.value.checkpointInvalid);
      return;
    }
    let value: unknown;
    let failure: unknown;
    try {
      value = await client.call(commandOf(input.rpc), {});
    } catch (error) {
      failure = error;
    }
    if (failsHere(input)) {
      expect(failure).toBeInstanceOf(CommandError);
      return;
    }
    if (expected.error === null) {
      expect(failure).toBeUndefined();
      values[input.rpc]?.(value, expected.value);
      return;
    }
    expect(failure).toBeInstanceOf(Error);
    const error = failure as CommandError;
    // The texts of Go's JSON parser need not be matched.
    if (!/JSON|json:|invalid character/.test(expected.error)) expect(error.message).toBe(expected.error);
    expect(error.disconnected).toBe(expected.isDisconnected);
    expect(error.unimplemented ?? false).toBe(expected.isUnimplemented);
  });

  it('WIRE-005 GetVMStats: statistics that cannot be read are an error', async () => {
    const statistics = (text: string) => [0x12, text.length + 2, 0x12, text.length, ...Buffer.from(text)];
    let text = '{}';
    const client = await clientOf(() => Buffer.from([0x0a, 0x02, 0x08, 0x01, ...statistics(text)]));
    expect((await client.call(commands.getVMStats, {})).domainStats?.domainStats).toBe('{}');
    text = '{';
    await expect(client.call(commands.getVMStats, {})).rejects.toThrow('JSON');
  });

  it.each(rpcNames)(
    'AFT-029 %s fails alike by status and by answer, with or without a message',
    async (rpc) => {
      const command = commandOf(rpc);
      const failed = (message: string) => {
        const inner = Buffer.concat([
          Buffer.from(message === '' ? [] : [0x12, message.length]),
          Buffer.from(message),
        ]);
        const isResponse = command.method.output.typeName === 'kubevirt.cmd.v1.Response';
        return isResponse ? inner : Buffer.concat([Buffer.from([0x0a, inner.length]), inner]);
      };
      let next: ReturnType<Reply>;
      const client = await clientOf(() => next);
      const text = 'EFI OVMF rom missing';
      for (const answer of [{ code: 2, message: text }, failed(text), failed('')]) {
        next = answer;
        if (rpc === 'RedefineCheckpoint') {
          const vmi = { metadata: owner, spec: { domain: { devices: {} } }, status: {} };
          expect(await client.redefineCheckpoint(vmi, Buffer.alloc(0))).toBeDefined();
          continue;
        }
        const error = await client.call(command, {}).then(
          () => undefined,
          (reason: unknown) => reason,
        );
        expect(error).toBeInstanceOf(CommandError);
        if (answer !== undefined && !(Buffer.isBuffer(answer) && answer.equals(failed('')))) {
          expect((error as Error).message).toContain(text);
        }
        expect((error as CommandError).disconnected).toBe(false);
      }
    },
  );
});

interface Classification {
  readonly error: string | null;
  readonly isDisconnected: boolean;
  readonly isUnimplemented: boolean;
}

describe('error_classification', () => {
  type Input = { command: string; error: string; response: { success?: boolean; message?: string } | null };
  const cases = loadVectors<Input, { output: Classification }>('wire', 'error_classification').filter(
    // Errors that are not a gRPC status cannot come out of this agent's transport.
    ({ input }) => input.error === 'nil' || input.error.startsWith('grpc '),
  );
  it.each(cases)('WIRE-005 $name', ({ input, expected }) => {
    const code = Code[input.error.slice('grpc '.length) as keyof typeof Code];
    const transport = input.error === 'nil' ? undefined : new ConnectError('m', code);
    const response =
      input.response === null
        ? undefined
        : { success: input.response.success ?? false, message: input.response.message ?? '' };
    const error = commandError(input.command, transport, response);
    expect(error?.message ?? null).toBe(expected.output.error);
    expect(error?.disconnected ?? false).toBe(expected.output.isDisconnected);
    expect(error?.unimplemented ?? false).toBe(expected.output.isUnimplemented);
  });
});

describe('version_negotiation', () => {
  type Input = { server: number[] | null; client: number[] | null };
  const cases = loadVectors<Input, { error: string | null; version: number }>('wire', 'version_negotiation');
  it.each(cases)('WIRE-003 $name', ({ input, expected }) => {
    const negotiate = () => highestCompatibleVersion(input.server ?? [], input.client ?? []);
    if (expected.error === null) expect(negotiate()).toBe(expected.version);
    else expect(negotiate).toThrow(expected.error);
  });
});

describe('cmd_dead_peer', () => {
  const texts: Readonly<Record<string, string>> = {
    'client-closed': 'rpc error: code = Canceled desc = grpc: the client connection is closing',
    'server-stopped':
      'unknown error encountered sending command Ping: rpc error: code = Unavailable desc = error reading from server: EOF',
    'dial-missing-socket': 'context deadline exceeded',
    'dial-listening-but-not-accepting': 'context deadline exceeded',
  };

  it.each(loadVectors<object, Classification>('wire', 'cmd_dead_peer'))(
    'WIRE-005 $name has the text that is expected below',
    ({ name, expected }) => expect(texts[name]).toBe(expected.error),
  );

  async function failureOf(call: Promise<unknown>): Promise<CommandError> {
    return call.then(
      () => {
        throw new Error('it worked');
      },
      (error: CommandError) => error,
    );
  }

  const called = () => eventually(() => launcher?.calls.length !== 0, 'the call is under way');

  it('WIRE-005 client-closed', async () => {
    const client = await clientOf(() => Buffer.from([0x08, 1]));
    connection?.close();
    const error = await failureOf(client.ping());
    expect(error.message).toBe(texts['client-closed']);
    expect(error.disconnected).toBe(true);
  });

  it('WIRE-005 a call under way when this side closes is Canceled', async () => {
    const client = await clientOf(() => undefined);
    const underWay = failureOf(client.ping());
    await called();
    connection?.close();
    expect(await underWay).toMatchObject({ disconnected: true, code: Code.Canceled });
  });

  it('WIRE-005 server-stopped: a later call and one under way', async () => {
    const client = await clientOf(() => undefined);
    const underWay = failureOf(client.ping());
    await called();
    launcher?.stop();
    for (const error of [await underWay, await failureOf(client.ping())]) {
      expect(error.disconnected).toBe(false);
      expect(error.code).toBe(Code.Unavailable);
    }
    await connection?.closed;
    expect((await failureOf(client.ping())).message).toBe(texts['server-stopped']);
  });

  it('WIRE-002 dial-listening-but-not-accepting', async () => {
    const accepted: Socket[] = [];
    const silent: Server = createServer((socket) => accepted.push(socket));
    await new Promise<void>((resolve) => silent.listen(path, resolve));
    connection = new LauncherConnection(await dialSocket(path));
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    let failed = false;
    const failure = failureOf(connection.negotiate()).finally(() => {
      failed = true;
    });
    await vi.advanceTimersByTimeAsync(1_999);
    expect(failed).toBe(false);
    await vi.advanceTimersByTimeAsync(1);
    expect((await failure).message).toBe(texts['dial-listening-but-not-accepting']);
    // It stays and is waited for again instead of dialling anew.
    expect(connection.alive).toBe(true);
    connection.close();
    for (const socket of accepted) socket.destroy();
    silent.close();
  });
});
