/** Random histories, and what one of them leads to. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { ModelAgent, ModelHost } from './agent.js';
import { ModelApi, type PutFault } from './api.js';
import { ModelCluster, type ModelVm } from './cluster.js';
import type { LauncherTraits } from './launcher.js';
import { ModelTime } from './time.js';

const names = ['vm-a', 'vm-b', 'vm-c'] as const;

type VmStep =
  | {
      readonly do: 'delete' | 'force delete' | 'evict' | 'touch' | 'poweroff' | 'panic' | 'pause' | 'resume';
      readonly name: string;
    }
  | { readonly do: 'kill launcher' | 'remove pod'; readonly name: string }
  | { readonly do: 'hang launcher'; readonly name: string; readonly seconds: number };

export type Step =
  | VmStep
  | { readonly do: 'create'; readonly name: string; readonly traits: LauncherTraits }
  | { readonly do: 'restart agent'; readonly seconds: number }
  | { readonly do: 'fail puts'; readonly fault: PutFault; readonly count: number }
  | { readonly do: 'drop watches' | 'compact watches' }
  | { readonly do: 'hold watches' | 'api down'; readonly seconds: number }
  | { readonly do: 'fail host'; readonly what: 'unmount' | 'network' | 'critical network' };

export type History = readonly { readonly step: Step; readonly thenSeconds: number }[];

const name = fc.constantFrom(...names);
const seconds = (max: number) => fc.integer({ min: 1, max });

const traits: fc.Arbitrary<LauncherTraits> = fc.record({
  socketAfter: fc.oneof(
    { weight: 6, arbitrary: fc.constantFrom(0, 0.5, 2) },
    { weight: 1, arbitrary: fc.constantFrom(45, 150, undefined) },
  ),
  qemuStart: fc.constantFrom(0.2, 0.2, 1, 30),
  obeysAcpi: fc.boolean(),
  gracePeriod: fc.constantFrom(0, 5, 30, 60),
  uidLate: fc.boolean(),
  syncFailures: fc.constantFrom(0, 0, 0, 2),
});

const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ do: fc.constant('create' as const), name, traits }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('delete' as const), name }) },
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constantFrom('force delete', 'evict', 'touch', 'poweroff', 'panic', 'pause', 'resume'),
      name,
    }),
  },
  { weight: 3, arbitrary: fc.record({ do: fc.constantFrom('kill launcher', 'remove pod'), name }) },
  {
    weight: 3,
    arbitrary: fc.record({ do: fc.constant('hang launcher' as const), name, seconds: seconds(120) }),
  },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('restart agent' as const), seconds: seconds(120) }) },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('fail puts' as const),
      fault: fc.constantFrom<PutFault>(409, 500, 'lost answer'),
      count: fc.integer({ min: 1, max: 4 }),
    }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constantFrom('drop watches', 'compact watches') }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constantFrom('hold watches', 'api down'), seconds: seconds(60) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('fail host' as const),
      what: fc.constantFrom('unmount', 'network', 'network', 'critical network'),
    }),
  },
);

export const history: fc.Arbitrary<History> = fc.array(
  fc.record({
    step,
    thenSeconds: fc.oneof(fc.constantFrom(0, 0, 0.3, 1), seconds(20), seconds(90)),
  }),
  { minLength: 2, maxLength: 16 },
);

/** A node on which a history happens. */
export class World {
  readonly time = new ModelTime();
  readonly api = new ModelApi(this.time);
  readonly host = new ModelHost();
  readonly cluster: ModelCluster;
  readonly #records = mkdtempSync(join(tmpdir(), 'model-records-'));
  #agent: ModelAgent | undefined;

  constructor() {
    this.cluster = new ModelCluster(this.api, this.time, (podUid) => this.#agent?.podChanged(podUid));
  }

  get agent(): ModelAgent {
    if (this.#agent === undefined) throw new Error('no agent runs');
    return this.#agent;
  }

  async begin(): Promise<void> {
    await this.#startAgent();
    await this.time.pass(1);
  }

  async play(steps: History): Promise<void> {
    for (const { step, thenSeconds } of steps) {
      this.#do(step);
      await this.time.pass(thenSeconds);
    }
  }

  /** Everything that was disturbed works again. */
  async heal(): Promise<void> {
    this.api.putFaults.length = 0;
    this.host.failures.length = 0;
    this.api.down = false;
    this.api.release();
    for (const { launcher } of this.cluster.vms) launcher.wake();
    if (this.#agent === undefined) await this.#startAgent();
  }

  async restartAgent(): Promise<void> {
    this.#killAgent();
    await this.#startAgent();
  }

  recordFiles(): string[] {
    return readdirSync(this.#records);
  }

  end(): void {
    this.#killAgent();
    rmSync(this.#records, { recursive: true, force: true });
  }

  async #startAgent(): Promise<void> {
    this.#agent = new ModelAgent(this.api, this.cluster, this.host, this.time, this.#records);
    await this.#agent.start();
  }

  #killAgent(): void {
    for (const vm of this.cluster.vms) this.cluster.lastWords(vm);
    this.#agent?.kill();
    this.#agent = undefined;
  }

  #do(step: Step): void {
    switch (step.do) {
      case 'create':
        this.cluster.create(step.name, step.traits);
        break;
      case 'restart agent':
        if (this.#agent === undefined) break;
        this.#killAgent();
        this.time.after(step.seconds * 1000, () => {
          if (this.#agent === undefined) void this.#startAgent();
        });
        break;
      case 'fail puts':
        this.api.putFaults.push(...Array<PutFault>(step.count).fill(step.fault));
        break;
      case 'drop watches':
        this.api.dropWatches();
        break;
      case 'compact watches':
        this.api.compact();
        break;
      case 'hold watches':
        this.api.hold();
        this.time.after(step.seconds * 1000, () => this.api.release());
        break;
      case 'api down':
        this.api.down = true;
        this.api.dropWatches();
        this.time.after(step.seconds * 1000, () => {
          this.api.down = false;
        });
        break;
      case 'fail host':
        this.host.failures.push(step.what);
        break;
      default: {
        const vm = this.cluster.current(step.name);
        if (vm !== undefined) this.#doTo(vm, step);
      }
    }
  }

  #doTo(vm: ModelVm, step: VmStep): void {
    const { launcher } = vm;
    switch (step.do) {
      case 'delete':
        this.cluster.delete(vm);
        break;
      case 'force delete':
        this.cluster.forceDelete(vm);
        break;
      case 'evict':
        this.cluster.evict(vm);
        break;
      case 'touch':
        this.cluster.touch(vm);
        break;
      case 'kill launcher':
        launcher.exit('killed from outside');
        break;
      case 'remove pod':
        launcher.removeDirectory();
        break;
      case 'hang launcher':
        launcher.hang();
        this.time.after(step.seconds * 1000, () => launcher.wake());
        break;
      default:
        launcher.guestDoes(step.do);
    }
  }
}
