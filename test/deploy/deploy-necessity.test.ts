/** Takes each capability and each mount away in turn: what is left does not work. */
import { chownSync, mkdirSync, readFileSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { Containers, tunDevice } from '../harness/deploy/containers.js';
import { Image } from '../harness/deploy/image.js';
import {
  container,
  daemonSet,
  type PodSpec,
  render,
  withContainer,
  withoutCapability,
  withoutMount,
} from '../harness/deploy/manifest.js';
import { run, waitFor } from '../harness/pods/run.js';
import { System } from '../harness/system/system.js';

const startMs = 120_000;
const spec = daemonSet(await render('base'), 'virt-handler').spec.template.spec;
const capabilities = (name: string) => container(spec, name).securityContext.capabilities?.add ?? [];
const mounts = (name: string) => container(spec, name).volumeMounts.map((mount) => mount.name);

let image: Image;
let containers: Containers;
let system: System;

beforeAll(async () => {
  image = await Image.create();
  system = await System.create(async (node) => {
    containers = await Containers.create(node, { image, helperPod: spec, agentPod: spec });
    return containers;
  });
}, startMs);

afterEach(async () => {
  await system.kill('agent');
  await system.kill('helper');
  use(spec);
});

afterAll(async () => {
  await system?.stop();
  image?.destroy();
  expect(await system?.node.leftovers()).toEqual([]);
}, startMs);

function use(changed: PodSpec, grantedDevices: readonly string[] = [tunDevice]): void {
  containers.use({ helperPod: changed, agentPod: changed, grantedDevices });
}

/** Resolves when the log has a new line with the text; rejects with the log when the deadline passes. */
async function logged(which: 'helper' | 'agent', text: string, before: string): Promise<void> {
  await waitFor(`"${text}" in the log of the ${which}`, startMs, () =>
    system.log(which).slice(before.length).includes(text),
  ).catch((error: Error) => {
    throw new Error(`${error.message}\n${system.tail()}`);
  });
}

/** The program ends at its start, and says why. */
async function startFails(which: 'helper' | 'agent', message: RegExp): Promise<void> {
  const before = system.log(which);
  const starting = which === 'helper' ? system.startHelper() : system.startAgent();
  await expect(starting).rejects.toThrow(`the ${which} ended`);
  expect(system.log(which).slice(before.length)).toMatch(message);
}

/** The agent waits for what it cannot get, and says what. */
async function neverReady(text: string): Promise<void> {
  const before = system.log('agent');
  const starting = system.startAgent().catch((error: Error) => error);
  await logged('agent', text, before);
  await system.kill('agent');
  expect(await starting).toBeInstanceOf(Error);
}

/** Starts a VM and waits for the helper to refuse or fail a method with a message that matches. */
async function methodFails(name: string, method: string, message: RegExp): Promise<void> {
  const vm = await system.createVm({ name, machine: 'fake', containerDisk: true });
  try {
    await waitFor(`${method} to fail`, startMs, () =>
      system
        .audit()
        .find((line) => String(line['method']).endsWith(method) && message.test(JSON.stringify(line))),
    ).catch((error: Error) => {
      throw new Error(`${error.message}\n${system.tail()}`);
    });
    expect(system.vmi(vm)?.status.phase).not.toBe('Running');
  } finally {
    await system.kill('agent');
    system.deleteVmi(vm);
    await vm.launcher.terminate();
    await system.finishDeletion(vm);
  }
}

describe('the helper', () => {
  it.each(capabilities('virt-privhelper').filter((name) => name !== 'SYS_RESOURCE'))(
    'does not start without %s',
    async (capability) => {
      use(withoutCapability(spec, 'virt-privhelper', capability));
      await startFails('helper', /EPERM|EACCES/);
    },
    startMs,
  );

  it(
    'starts without SYS_RESOURCE, and says what cannot be done then',
    async () => {
      use(withoutCapability(spec, 'virt-privhelper', 'SYS_RESOURCE'));
      const before = system.log('helper');
      await system.startHelper();
      expect(system.log('helper').slice(before.length)).toContain('CAP_SYS_RESOURCE is not given');
    },
    startMs,
  );

  it.each(mounts('virt-privhelper').filter((name) => name !== 'tun'))(
    'does not start without the mount %s',
    async (name) => {
      use(withoutMount(spec, 'virt-privhelper', name));
      await startFails('helper', /ENOENT|EROFS|not the root of the host's cgroups/);
    },
    startMs,
  );

  it(
    'makes no network without the mount tun',
    async () => {
      use(withoutMount(spec, 'virt-privhelper', 'tun'));
      await system.startProduct();
      await methodFails('no-tun', 'NetworkService.Apply', /open \/dev\/net\/tun.*ENOENT/);
    },
    2 * startMs,
  );

  it(
    'makes no network where the runtime does not grant /dev/net/tun',
    async () => {
      use(spec, []);
      await system.startProduct();
      await methodFails('no-grant', 'NetworkService.Apply', /open \/dev\/net\/tun.*EPERM/);
    },
    2 * startMs,
  );
});

describe('the pod', () => {
  it(
    'of the helper does not know launchers without hostPID',
    async () => {
      use({ ...spec, hostPID: false });
      await system.startHelper(
        '--host-netns',
        '/proc/self/ns/net',
        '--host-cgroupns',
        '/proc/self/ns/cgroup',
      );
      await system.startAgent();
      await methodFails('no-host-pid', 'SocketService.Listen', /in another pid namespace/);
    },
    2 * startMs,
  );

  it.each([
    ['HostToContainer', 0],
    ['None', 1],
  ] as const)(
    'with mountPropagation %s holds %i volumes that kubelet has unmounted',
    async (mountPropagation, held) => {
      const volume = join(system.node.podsDir, `volume-${mountPropagation}`);
      mkdirSync(volume);
      await run('mount', ['-t', 'tmpfs', 'tmpfs', volume]);
      use(
        withContainer(spec, 'virt-privhelper', (one) => ({
          ...one,
          volumeMounts: one.volumeMounts.map((mount) =>
            mount.name === 'kubelet-pods' ? { ...mount, mountPropagation } : mount,
          ),
        })),
      );
      const { pid } = await system.startHelper();
      await run('umount', [volume]);
      const mountinfo = readFileSync(`/proc/${pid}/mountinfo`, 'utf8').split('\n');
      rmdirSync(volume);
      expect(mountinfo.filter((line) => line.includes(` /var/lib/kubelet/pods/volume-`))).toHaveLength(held);
    },
    startMs,
  );
});

describe('the agent', () => {
  it(
    'has no access to the API without the mount api-access',
    async () => {
      use(withoutMount(spec, 'virt-handler', 'api-access'));
      await system.startHelper();
      await neverReady('reading the credentials for the API server failed');
    },
    startMs,
  );

  it(
    'does not find the helper without the mount helper-sockets',
    async () => {
      use(withoutMount(spec, 'virt-handler', 'helper-sockets'));
      await system.startHelper();
      await neverReady('connect ENOENT /run/virt-privsep/helper.sock');
    },
    startMs,
  );

  it(
    'cannot be asked without the mount agent-socket',
    async () => {
      use(withoutMount(spec, 'virt-handler', 'agent-socket'));
      await system.startHelper();
      const before = system.log('agent');
      await system.startAgent();
      await logged('agent', 'nobody can ask this agent', before);
    },
    startMs,
  );

  it.each(['ghost-records', 'network-info-cache'])(
    'starts no VM without the mount %s',
    async (name) => {
      use(withoutMount(spec, 'virt-handler', name));
      await system.startProduct();
      const before = system.log('agent');
      const vm = await system.createVm({ name, machine: 'fake', containerDisk: true });
      try {
        // The root file system is read-only, and the directory above is not the agent's.
        const denied = new RegExp(`EACCES: permission denied, \\w+ '/var/run/kubevirt-private/${name}/`);
        await waitFor('the agent to say so', startMs, () =>
          denied.test(system.log('agent').slice(before.length)),
        );
        expect(system.vmi(vm)?.status.phase).not.toBe('Running');
      } finally {
        await system.kill('agent');
        system.deleteVmi(vm);
        await vm.launcher.terminate();
        await system.finishDeletion(vm);
      }
    },
    2 * startMs,
  );
});

describe('the init container, with state of a virt-handler before', () => {
  const uid = '3b241101-e2bb-4255-8caf-4136c566a962';

  /** Owned by `owner`, closed to others, as virt-handler makes them. */
  function leave(owner: number): void {
    for (const name of ['ghost-records', 'network-info-cache']) {
      const directory = join(system.privateDir, name);
      mkdirSync(join(directory, uid), { recursive: true, mode: 0o750 });
      for (const path of [directory, join(directory, uid)]) chownSync(path, owner, owner);
    }
  }

  it.each([
    ['CHOWN', 0],
    ['DAC_READ_SEARCH', 65531],
  ])(
    'cannot prepare the directories without %s',
    async (capability, owner) => {
      expect(capabilities('state')).toContain(capability);
      leave(owner);
      use(withoutCapability(spec, 'state', capability));
      await expect(system.startAgent()).rejects.toThrow('init container state ended with 1');
    },
    startMs,
  );

  it.each(mounts('state'))(
    'finds nothing without the mount %s',
    async (name) => {
      use(withoutMount(spec, 'state', name));
      await expect(system.startAgent()).rejects.toThrow('init container state ended with 1');
    },
    startMs,
  );
});
