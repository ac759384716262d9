/** privctl's connection to the helper's operators' socket. */
import { statSync } from 'node:fs';
import { connect as connectSocket, type Socket } from 'node:net';
import { join } from 'node:path';
import type { DescService } from '@bufbuild/protobuf';
import { type Client, Code, ConnectError, createClient, type Transport } from '@connectrpc/connect';
import { createConnectTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { FailureSchema } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { longestDeadlineMs } from '../declarations.js';
import { errnoOf } from '../failure.js';
import { CommandError, exitCodes } from './output.js';

const connectMs = 5000;
/** Beyond the longest deadline of a method, within which the helper itself gives up and says so. */
const marginMs = 5000;
export const callMs = longestDeadlineMs() + marginMs;

export class HelperConnection {
  private constructor(
    readonly transport: Transport,
    private readonly sessions: Http2SessionManager,
  ) {}

  /** Throws a CommandError that says why there is no connection. */
  static async open(socketDir: string): Promise<HelperConnection> {
    const path = join(socketDir, 'ctl.sock');
    assertAdmitted(path);
    const first = await connected(path);
    const sockets = [first];
    const sessions = new Http2SessionManager('http://helper', undefined, {
      createConnection: () => sockets.pop() ?? connectSocket(path),
    });
    const transport = createConnectTransport({
      baseUrl: 'http://helper',
      httpVersion: '2',
      sessionManager: sessions,
      defaultTimeoutMs: callMs,
    });
    return new HelperConnection(transport, sessions);
  }

  client<S extends DescService>(service: S): Client<S> {
    return createClient(service, this.transport);
  }

  close(): void {
    this.sessions.abort();
  }
}

/** The helper admits root and processes whose group is the socket's. */
function assertAdmitted(path: string): void {
  if (process.geteuid?.() === 0) return;
  let group: number | undefined;
  try {
    group = statSync(path).gid;
  } catch {
    // Its directory may be closed to this user; the attempt to connect tells what is wrong.
    return;
  }
  if (process.getegid?.() === group) return;
  const member = process.getgroups?.().includes(group) === true;
  throw new CommandError(
    exitCodes.refused,
    `privctl needs root or the operators' group (gid ${group})`,
    member ? `You are a member: start it with sg, which makes ${group} your group.` : 'Try sudo privctl.',
  );
}

async function connected(path: string): Promise<Socket> {
  const socket = connectSocket(path);
  try {
    await new Promise<void>((resolve, reject) => {
      socket.setTimeout(connectMs, () => reject(Object.assign(new Error('timeout'), { code: 'ETIMEDOUT' })));
      socket.once('connect', resolve).once('error', reject);
    });
  } catch (error) {
    socket.destroy();
    throw unreachable(path, errnoOf(error));
  }
  socket.setTimeout(0);
  return socket;
}

function unreachable(path: string, errno: string): CommandError {
  switch (errno) {
    case 'EACCES':
    case 'EPERM':
      return new CommandError(
        exitCodes.refused,
        `privctl needs root or the operators' group to use ${path}`,
        'Try sudo privctl.',
      );
    case 'ENOENT':
    case 'ECONNREFUSED':
      return new CommandError(
        exitCodes.failed,
        `the helper is not running here: connect ${path}: ${errno}`,
        'describe, policy, audit and doctor work without it. Is --socket-dir right?',
      );
    default:
      return new CommandError(exitCodes.failed, `the helper does not answer: connect ${path}: ${errno}`);
  }
}

/** What a failed call tells, with the exit code that goes with it. */
export function callError(error: unknown): CommandError {
  if (error instanceof CommandError) return error;
  if (!(error instanceof ConnectError)) return new CommandError(exitCodes.failed, String(error));
  const [failure] = error.findDetails(FailureSchema);
  if (failure === undefined) {
    // Nothing of the helper's: the connection ended, or time did.
    const what = error.code === Code.DeadlineExceeded ? 'the helper did not answer in time' : 'no answer';
    return new CommandError(exitCodes.failed, `${what}: ${error.rawMessage}`);
  }
  if (failure.refused) return new CommandError(exitCodes.refused, `refused: ${error.rawMessage}`);
  const hint = failure.unchanged ? undefined : 'Something in the pod may have been changed before it failed.';
  return new CommandError(exitCodes.failed, `failed: ${error.rawMessage}`, hint);
}
