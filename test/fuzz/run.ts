/** Carries out the calls of a fuzz run, many at a time, and notes what came of each. */
import { closeSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { fromBinary } from '@bufbuild/protobuf';
import { ConnectResponseSchema } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import {
  StorageService,
  UnmountContainerDisksRequestSchema,
  UnmountContainerDisksResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/storage_pb.js';
import { methodName } from '../../privhelper/declarations.js';
import { agentUser, asUser, type HelperProcess } from '../integration/privhelper-fixture.js';
import { type Call, Calls, type Claim, type RpcCall } from './calls.js';
import { Connection, sendRaw } from './connection.js';
import type { Targets } from './values.js';
import { judge, judgeStray } from './verdict.js';

/** The longest deadline of a method is 20 s; whatever takes longer hangs. */
const answerMs = 30_000;
/** For a connection with broken frames to be ended. */
const rawMs = 60_000;
const claimMs = 5000;
const agentConnections = 3;
/** Calls under way on one connection. */
const lanesPerConnection = 10;
/** Connections with broken frames at a time; policy allows 64 altogether. */
const maxRaw = 32;
const restoreEvery = 1000;
const maxProblems = 20;
const maxTickets = 64;

/** The pods of a run. What calls have taken from them is given back, so that later calls find as much to do. */
export interface Pods {
  readonly targets: Targets;
  /** After a pod's container disks were unmounted. */
  restoreDisks(podUid: string): Promise<void>;
  /** Now and then. */
  restoreLinks(): Promise<void>;
}

export class FuzzRun {
  /** Outcomes of each method and kind of call, with their numbers. */
  readonly outcomes = new Map<string, Map<string, number>>();
  /** Each with the number and the bytes of its call. */
  readonly problems: string[] = [];
  private readonly calls: Calls;
  private readonly agents: readonly Connection[];
  private readonly operator: Connection;
  private readonly fresh: Uint8Array[] = [];
  private readonly used: Uint8Array[] = [];
  private readonly raw = new Set<Promise<void>>();
  private next = 0;

  constructor(
    private readonly helper: HelperProcess,
    private readonly seed: number,
    private readonly pods: Pods,
  ) {
    this.calls = new Calls(seed, pods.targets);
    const agent = () => this.dialAgent();
    this.agents = Array.from({ length: agentConnections }, () => new Connection(agent));
    this.operator = new Connection(() => connect(join(helper.socketDir, 'ctl.sock')));
  }

  /** Makes the calls 0..count-1. Stops early when many went wrong. */
  async run(count: number): Promise<void> {
    const lanes = this.agents.flatMap((agent) =>
      Array.from({ length: lanesPerConnection }, () => this.lane(agent, count)),
    );
    await Promise.all(lanes);
    await Promise.all(this.raw);
    for (const connection of [...this.agents, this.operator]) {
      if (connection.ended > 0) this.problems.push(`the helper ended a session ${connection.ended} times`);
    }
  }

  close(): void {
    for (const connection of [...this.agents, this.operator]) connection.close();
  }

  private async lane(agent: Connection, count: number): Promise<void> {
    while (this.next < count && this.problems.length < maxProblems) {
      const number = this.next;
      this.next += 1;
      const call = this.calls.make(number);
      try {
        if (number % restoreEvery === 0) await this.pods.restoreLinks();
        await this.carryOut(call, agent, number);
      } catch (error) {
        this.problem(number, call, (error as Error).message);
      }
    }
  }

  private async carryOut(call: Call, agent: Connection, number: number): Promise<void> {
    switch (call.kind) {
      case 'rpc': {
        const connection = call.socket === 'agent' ? agent : this.operator;
        const answer = await connection.request(call.request, answerMs);
        const { outcome, problem } = judge(call, answer);
        this.count(methodName(call.method), outcome);
        if (problem !== undefined) this.problem(number, call, `${problem}: ${answer.body.subarray(0, 300)}`);
        if (outcome === 'ok') await this.follow(call, answer.body);
        return;
      }
      case 'stray': {
        const answer = await agent.request(call.request, answerMs);
        const { outcome, problem } = judgeStray(call, answer);
        this.count('(stray request)', outcome);
        if (problem !== undefined) this.problem(number, call, problem);
        return;
      }
      case 'raw': {
        // The helper may wait a while before it ends such a connection; other calls go on.
        while (this.raw.size >= maxRaw) await Promise.race(this.raw);
        const ended = sendRaw(this.dialAgent(), call.bytes, rawMs)
          .then(() => this.count('(raw bytes)', 'closed'))
          .catch((error: Error) => this.problem(number, call, error.message))
          .finally(() => this.raw.delete(ended));
        this.raw.add(ended);
        return;
      }
      case 'claim':
        this.count('(claim)', await this.claim(call));
    }
  }

  private async follow({ method, message, socket, request }: RpcCall, body: Buffer): Promise<void> {
    if (request.cutAt !== undefined) return;
    if (
      method === StorageService.method.unmountContainerDisks &&
      fromBinary(UnmountContainerDisksResponseSchema, body).changed
    ) {
      const { pod } = fromBinary(UnmountContainerDisksRequestSchema, message);
      await this.pods.restoreDisks(pod?.podUid ?? '');
    }
    // The agent may redeem what was made for it only.
    if (socket === 'agent' && method.output.field['ticket'] !== undefined) {
      const { ticket } = fromBinary(ConnectResponseSchema, body);
      if (ticket !== undefined) this.fresh.push(ticket.value);
      if (this.fresh.length > maxTickets) this.fresh.shift();
    }
  }

  private async claim({ ticket }: Claim): Promise<string> {
    const bytes = ticket === 'newest' ? this.fresh.pop() : ticket === 'used' ? this.used.at(-1) : ticket;
    if (bytes === undefined) return 'nothing to claim';
    if (ticket === 'newest') {
      this.used.push(bytes);
      if (this.used.length > maxTickets) this.used.shift();
    }
    const path = join(this.helper.socketDir, 'fd.sock');
    // The peer is who has called connect, which happens at once.
    const claimed = asUser(agentUser, () => this.helper.native.claimDescriptor(path, bytes, claimMs));
    return claimed.then(
      (fd) => {
        closeSync(fd);
        if (ticket !== 'newest') throw new Error('a descriptor for a ticket that was used or is none');
        return 'descriptor';
      },
      (error: NodeJS.ErrnoException) => {
        if (error.code === 'ETIMEDOUT') throw error;
        return error.code ?? error.message;
      },
    );
  }

  private dialAgent(): Socket {
    return asUser(agentUser, () => connect(join(this.helper.socketDir, 'helper.sock')));
  }

  private count(name: string, outcome: string): void {
    const outcomes = this.outcomes.get(name) ?? new Map<string, number>();
    this.outcomes.set(name, outcomes);
    outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
  }

  private problem(number: number, call: Call, what: string): void {
    this.problems.push(`call ${number} of seed ${this.seed}: ${what}\n${describe(call)}`);
  }
}

/** A call as text, bytes in hexadecimal. */
function describe(call: Call): string {
  const hex = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex');
  switch (call.kind) {
    case 'rpc':
      return `  ${call.socket} ${methodName(call.method)} ${JSON.stringify(call.request.headers)} ${hex(call.message)}`;
    case 'stray':
      return `  stray ${JSON.stringify(call.request.headers)} ${hex(call.request.body.subarray(0, 4096))}`;
    case 'raw':
      return `  raw ${hex(call.bytes)}`;
    case 'claim':
      return `  claim ${typeof call.ticket === 'string' ? call.ticket : hex(call.ticket)}`;
  }
}
