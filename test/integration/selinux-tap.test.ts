import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, it } from 'vitest';
import { repositoryRoot } from '../harness/pods/bundle.js';
import { masquerade, NetworkNode, planOf } from './network-fixture.js';

// The kernel of the tests labels nobody, so one that enforces a policy runs in QEMU. What is tried there, with what
// refuses it as a control: native/test/selinux_test.cc.
it('NET-014 QEMU attaches to the tap of its launcher where SELinux enforces', async () => {
  const machine = spawn(join(repositoryRoot(), 'native/test/selinux_vm.sh'), {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, NET_VM_TIMEOUT: '150' },
  });
  const [output] = await Promise.all([text(machine.stdout), once(machine, 'close')]);
  expect(output).toMatch(/^3 passed, 0 failed$/m);
});

// As on a node where SELinux is active, but for the labels: reading that of the launcher fails.
it('AFT-054 a label that cannot be had keeps a tap from being made only where SELinux enforces', async () => {
  const node = await NetworkNode.create({ selinux: true });
  try {
    const pod = await node.createPod();
    const links = await pod.shell('ip -o link');
    expect(await pod.failure(planOf(masquerade), [], true)).toMatchObject({
      code: 'EINVAL',
      operation: expect.stringMatching(/^read \/proc\/\d+\/attr\/current$/),
      unchanged: true,
    });
    expect(await pod.shell('ip -o link')).toBe(links);
    expect(await pod.apply(planOf(masquerade))).toBe(true);
    expect(await pod.shell('ip -d -o link show tap0')).toContain('user 107 group 107');
    // What is removed needs no label.
    const detachments = [{ podInterface: 'eth0', primary: true }];
    expect(await pod.apply({ ...planOf(), detachments })).toBe(true);
  } finally {
    await node.destroy();
  }
});
