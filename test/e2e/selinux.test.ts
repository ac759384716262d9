import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { System } from '../harness/system/system.js';

let system: System;
let selinuxfs: string;

beforeEach(async () => {
  system = await System.create();
  selinuxfs = join(mkdtempSync(join(tmpdir(), 'selinuxfs-')), 'selinux');
  mkdirSync(selinuxfs);
  writeFileSync(join(selinuxfs, 'enforce'), '1');
});

afterEach(async () => {
  await system.stop();
  rmSync(join(selinuxfs, '..'), { recursive: true });
  expect(await system.node.leftovers()).toEqual([]);
});

// The kernel of the tests gives no process a label, with or without SELinux compiled in.
it('AFT-045 a VM starts on a node whose selinuxfs enforces while nothing has a label', async () => {
  await system.startHelper('--selinuxfs', selinuxfs);
  await system.startAgent();
  const vm = await system.createVm({ name: 'vm', machine: 'fake', containerDisk: true });
  await system.waitForPhase(vm, 'Running');
  expect(system.vmi(vm)?.status).toMatchObject({ selinuxContext: 'none', interfaces: [{ name: 'default' }] });
  expect(system.audit().map(({ method }) => method)).not.toContain('PodService.GetSelinuxContext');
  system.deleteVmi(vm);
  await system.finishDeletion(vm);
});
