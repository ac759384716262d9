import { statfsSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  auditCaps,
  declaredBy,
  permittedCaps,
  services,
  withheldCaps,
} from '../../privhelper/declarations.js';
import { readThreads } from '../../privhelper/privileges.js';
import { waitFor } from '../harness/pods/run.js';
import { capabilityNames, descriptorsOf, threadsOf } from '../harness/system/processes.js';
import { atStep } from '../harness/system/steps.js';
import { agentUser, helperUser, System } from '../harness/system/system.js';

const declared = services.flatMap(({ methods }) => methods.map(declaredBy));
const [{ permitted: own } = { permitted: 0n }] = readThreads();
const cgroupsAreUnified = statfsSync('/sys/fs/cgroup').type === 0x63677270;
const given = ~withheldCaps({ permitted: own, cgroupsAreUnified });
const masks = [auditCaps, ...declared.map(({ caps }) => caps & given)];
const union = permittedCaps(declared) & given;

/** Reads /proc over and over while a VM lives. What is not as it must be is kept, once each. */
class Observer {
  readonly violations = new Set<string>();
  /** Steps of the timeline during which something was read. */
  readonly during = new Set<string>();
  readonly descriptors = new Set<string>();
  #running = true;

  constructor(
    private readonly agent: number,
    private readonly helper: number,
    /** What the agent was started with. */
    private readonly given: readonly string[],
    private readonly step: () => string,
  ) {}

  async run(): Promise<void> {
    while (this.#running) {
      const step = this.step();
      this.#lookAtAgent(step);
      this.#lookAtHelper(step);
      this.during.add(step);
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  stop(): void {
    this.#running = false;
  }

  #lookAtAgent(step: string): void {
    for (const thread of threadsOf(this.agent)) {
      const powers = thread.permitted | thread.effective | thread.inheritable | thread.ambient;
      if (thread.uid !== agentUser)
        this.violations.add(`${step}: a thread of the agent has uid ${thread.uid}`);
      if (powers !== 0n) this.violations.add(`${step}: the agent has ${capabilityNames(powers)}`);
      if (!thread.noNewPrivs) this.violations.add(`${step}: the agent may gain privileges`);
      if (thread.seccomp !== 2) this.violations.add(`${step}: a thread of the agent has no filter`);
    }
    for (const { link, uid } of descriptorsOf(this.agent)) {
      if (this.given.includes(link)) continue;
      const kind = link.replace(/\[\d+\]$/, '');
      this.descriptors.add(kind);
      // One inode of the kernel stands for all of these, and it belongs to nobody's file.
      if (uid === 0 && !kind.startsWith('anon_inode:'))
        this.violations.add(`${step}: the agent has root's ${link}`);
    }
  }

  #lookAtHelper(step: string): void {
    for (const { uid, permitted, effective, inheritable, ambient, noNewPrivs, seccomp } of threadsOf(
      this.helper,
    )) {
      if (uid !== helperUser) this.violations.add(`${step}: a thread of the helper has uid ${uid}`);
      if (inheritable !== 0n || ambient !== 0n)
        this.violations.add(`${step}: the helper passes capabilities on`);
      if (!noNewPrivs || seccomp !== 2)
        this.violations.add(`${step}: a thread of the helper is not locked down`);
      if (permitted !== 0n && permitted !== union)
        this.violations.add(`${step}: a thread of the helper may raise ${capabilityNames(permitted)}`);
      // During a call exactly what a method declares, for the audit file its flag's, and nothing at other times.
      if (effective !== 0n && !masks.includes(effective))
        this.violations.add(`${step}: a thread of the helper has raised ${capabilityNames(effective)}`);
    }
  }
}

let system: System;

beforeAll(async () => {
  system = await System.create();
  await system.startProduct();
});

afterAll(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

/** No thread keeps a raised capability once its call is over. */
async function expectLowered(): Promise<void> {
  const helper = system.helper?.pid ?? 0;
  await waitFor('the privileged threads to have nothing raised', 10_000, () => {
    const threads = threadsOf(helper);
    return (
      threads.some(({ permitted }) => permitted !== 0n) && threads.every(({ effective }) => effective === 0n)
    );
  });
}

describe('privileges', () => {
  it('are nowhere but in the privileged threads, and raised there only by calls, during a whole VM life', async () => {
    const uid = '6f4b7c1e-0d5a-4b52-9a53-3a7a3c1f9f11';
    // Standard input and outputs, and what whoever started the harness left open in all its children.
    const inherited = descriptorsOf(process.pid).filter(({ link }) => link.startsWith('pipe:'));
    const given = ['/dev/null', system.logPath('agent'), ...inherited.map(({ link }) => link)];
    const observer = new Observer(
      system.agent?.pid ?? 0,
      system.helper?.pid ?? 0,
      given,
      () => system.timeline(uid).at(-1)?.step ?? 'started',
    );
    const sampled = (step: string) =>
      waitFor(`a look at step "${step}"`, 30_000, () => observer.during.has(step));
    const running = observer.run();
    try {
      await sampled('started');
      await expectLowered();

      const vm = await system.createVm({
        name: 'vm',
        uid,
        machine: 'fake',
        obeysAcpi: false,
        terminationGracePeriodSeconds: 1,
        containerDisk: true,
        faults: { slowSyncSeconds: 1 },
        beforeLauncher: sampled('seen').then(() => undefined),
        beforeContainerDisk: sampled('connected').then(() => undefined),
      });
      await sampled('sync sent');
      await system.waitForPhase(vm, 'Running');
      await sampled('Running written');
      await expectLowered();

      system.deleteVmi(vm);
      await sampled('shutdown signalled');
      await atStep(system, uid, 'cleaned', () => {});
      await sampled('cleaned');
      await system.finishDeletion(vm);
      await expectLowered();
    } finally {
      observer.stop();
      await running;
    }
    expect([...observer.violations]).toEqual([]);
    // Of files only those of its own state directory; else sockets, pipes and the kernel's event objects.
    const kinds = [...observer.descriptors].filter((kind) => !kind.startsWith(`${system.privateDir}/`));
    expect(kinds.sort()).toEqual(['anon_inode:[eventfd]', 'anon_inode:[eventpoll]', 'pipe:', 'socket:']);
  });
});
