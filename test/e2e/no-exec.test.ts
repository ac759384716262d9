import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { signal, start, waitFor } from '../harness/pods/run.js';
import { ProcessTrace } from '../harness/system/process-trace.js';
import { agentUser, System } from '../harness/system/system.js';

let system: System;

beforeAll(async () => {
  system = await System.create();
  await system.startProduct();
});

afterAll(async () => {
  await system.stop();
  expect(await system.node.leftovers()).toEqual([]);
});

/** A process under the agent's own system call filter that tries to run a program when it gets a line. */
async function startOffender() {
  const binding = pathToFileURL(join(system.node.root, 'product/dist/native/binding.js')).href;
  const script = `
    import { spawnSync } from 'node:child_process';
    import { loadNative } from '${binding}';
    loadNative().lockDown({ privileged: false });
    process.stdin.once('data', () => {
      const { error } = spawnSync('/bin/true');
      console.log(error.code);
      process.exit();
    });
    console.log('locked');`;
  const offender = start(process.execPath, ['--input-type=module', '-e', script], {
    cwd: '/',
    uid: agentUser,
    gid: agentUser,
    stdio: ['pipe', 'pipe', 'inherit'],
    env: {},
  });
  let output = '';
  offender.child.stdout?.on('data', (data) => {
    output += String(data);
  });
  await waitFor('the offender to be locked down', 20_000, () => output.includes('locked'));
  return {
    pid: offender.pid,
    offend: async (): Promise<string> => {
      offender.child.stdin?.write('now\n');
      await offender.exited;
      return output.trim().split('\n').at(-1) ?? '';
    },
    end: async () => {
      signal(offender.pid, 'SIGKILL');
      await offender.exited;
    },
  };
}

describe('programs', () => {
  it('neither agent nor helper tries to execute one while a VM starts, runs and ends', async () => {
    const agent = system.agent?.pid ?? 0;
    const helper = system.helper?.pid ?? 0;
    const trace = await ProcessTrace.attach([agent, helper], system.node.root);
    const vm = await system.createVm({ name: 'vm', machine: 'fake', containerDisk: true });
    await system.waitForPhase(vm, 'Running');
    system.deleteVmi(vm);
    await system.finishDeletion(vm);
    await waitFor('the state of the VM to go', 20_000, () => system.state().length === 0);
    expect(trace.complete).toBe(true);
    expect(await trace.stop()).toEqual([]);
  });

  it('an attempt would be seen: the same filter, the same trace', async () => {
    const offender = await startOffender();
    try {
      const trace = await ProcessTrace.attach([offender.pid], system.node.root);
      expect(await offender.offend()).toBe('EPERM');
      expect((await trace.stop()).join('\n')).toMatch(/(fork|clone|exec)\w*\(.*EPERM/);
    } finally {
      await offender.end();
    }
  });
});
