import { mkdirSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Containers, type ContainersOptions } from '../harness/deploy/containers.js';
import { Image } from '../harness/deploy/image.js';
import { daemonSet, type KubeObject, type PodSpec, render } from '../harness/deploy/manifest.js';
import { startPeer } from '../harness/guest/peer.js';
import { mountsBelow } from '../harness/pods/mounts.js';
import { run, waitFor } from '../harness/pods/run.js';
import { capabilityNames, threadsOf } from '../harness/system/processes.js';
import { System, type Vm } from '../harness/system/system.js';

const lifeMs = 180_000;
const phaseMs = 60_000;
let image: Image;

beforeAll(async () => {
  image = await Image.create();
}, lifeMs);

afterAll(() => {
  image?.destroy();
});

async function podSpec(directory: string, name = 'virt-handler'): Promise<PodSpec> {
  return daemonSet(await render(directory), name).spec.template.spec;
}

/** A node on which the product runs from its manifests. */
async function withSystem(
  options: Omit<ContainersOptions, 'image'>,
  use: (system: System, containers: Containers) => Promise<void>,
): Promise<void> {
  let containers: Containers | undefined;
  const system = await System.create(async (node) => {
    containers = await Containers.create(node, { image, ...options });
    return containers;
  });
  try {
    await use(system, containers as Containers);
  } finally {
    await system.stop();
  }
  expect(await system.node.leftovers()).toEqual([]);
}

async function onePod(directory: string): Promise<Omit<ContainersOptions, 'image'>> {
  const spec = await podSpec(directory);
  return { helperPod: spec, agentPod: spec };
}

async function end(system: System, vm: Vm): Promise<void> {
  system.deleteVmi(vm);
  await system.finishDeletion(vm);
  expect(system.vmi(vm)).toBeUndefined();
  await waitFor('the state of the VM to go', phaseMs, () => system.state().length === 0);
}

/** From Scheduled to Running and back to gone, without a guest. */
async function shortLife(system: System): Promise<void> {
  const vm = await system.createVm({ name: 'vm', machine: 'fake', containerDisk: true });
  await system.waitForPhase(vm, 'Running', phaseMs);
  await end(system, vm);
}

const pidOf = (system: System, which: 'helper' | 'agent') => system[which]?.pid ?? 0;
const status = (pid: number, field: string) =>
  new RegExp(`^${field}:\\s*(.*)$`, 'm').exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? '';
/** What a container's root shows. */
const inside = (pid: number, path: string) => join(`/proc/${pid}/root`, path);

/** Mounts of the machine, without those that other tests on it may make meanwhile. */
function mountsOfNode({ node }: System): string[] {
  const others = (point: string) => /^\/(tmp|run\/netns)\//.test(point) && !point.startsWith(node.root);
  return mountsBelow('').filter((point) => !others(point));
}

/** The capability sets that the threads of the helper may raise, and how many threads may raise each. */
function helperSets(system: System): Record<string, number> {
  const sets: Record<string, number> = {};
  for (const { permitted, uid, noNewPrivs } of threadsOf(pidOf(system, 'helper'))) {
    expect(uid).toBe(65530);
    expect(noNewPrivs).toBe(true);
    const name = capabilityNames(permitted);
    sets[name] = (sets[name] ?? 0) + 1;
  }
  delete sets['none'];
  return sets;
}

describe('the DaemonSet as two containers', () => {
  it(
    'a VM boots, answers over its network and ends',
    async () => {
      await withSystem(await onePod('base'), async (system) => {
        await system.startProduct();
        const peer = await startPeer(system.node, { '/boot.ipxe': '#!ipxe\n:idle\nsleep 1\ngoto idle\n' });
        try {
          const vm = await system.createVm({ name: 'vm', bootUrl: `${peer.url}/boot.ipxe` });
          await system.waitForPhase(vm, 'Running', phaseMs);
          const request = await peer.request('/boot.ipxe', 60_000);
          expect(request.from).toContain(vm.pod.podIP);
          await waitFor('the guest to answer', 10_000, () => system.node.ping(vm.pod.podIP));
          await end(system, vm);
        } finally {
          await peer.stop();
        }
      });
    },
    lifeMs,
  );

  it(
    'each container sees what is its own',
    async () => {
      await withSystem(await onePod('base'), async (system) => {
        await system.startProduct();
        const agent = pidOf(system, 'agent');
        const helper = pidOf(system, 'helper');
        for (const thread of threadsOf(agent)) {
          expect(thread).toMatchObject({ uid: 65531, permitted: 0n, effective: 0n, noNewPrivs: true });
        }
        expect(status(agent, 'CapBnd')).toBe('0000000000000000');
        expect(Object.keys(helperSets(system))).toHaveLength(1);

        const token = '/run/secrets/kubernetes.io/serviceaccount/token';
        expect(readFileSync(inside(agent, token), 'utf8')).toBe(system.api.token);
        expect(() => readFileSync(inside(helper, token))).toThrow('ENOENT');
        expect(() => readdirSync(inside(agent, '/var/lib/kubelet'))).toThrow('ENOENT');
        expect(() => readdirSync(inside(agent, '/var/log/virt-privsep'))).toThrow('ENOENT');
        expect(() => mkdirSync(inside(agent, '/opt/x'))).toThrow('EROFS');
        expect(() => mkdirSync(inside(agent, '/run/virt-privsep/x'))).toThrow('EROFS');
        expect(() => mkdirSync(inside(helper, '/opt/x'))).toThrow('EROFS');
        // The helper's is open for sysctls of networks, and for nothing else of the kernel's settings.
        const mounts = readFileSync(`/proc/${helper}/mountinfo`, 'utf8').split('\n');
        const options = (point: string) =>
          mounts
            .findLast((line) => line.split(' ')[4] === point)
            ?.split(' ')[5]
            ?.split(',')[0];
        expect(options('/proc/sys')).toBe('ro');
        expect(options('/proc/sys/net')).toBe('rw');
      });
    },
    lifeMs,
  );

  it(
    'privctl works in the container of the helper',
    async () => {
      await withSystem(await onePod('base'), async (system, containers) => {
        const helper = await system.startHelper();
        const methods = await containers.exec(helper, 'privctl', 'describe', '--output', 'json');
        expect(methods).toContain('NetworkService.Apply');
        expect(await containers.exec(helper, 'privctl', 'pods')).not.toBe('');
      });
    },
    lifeMs,
  );

  it(
    'AFT-039 restarts leave the mounts of the node as they are',
    async () => {
      await withSystem(await onePod('base'), async (system) => {
        await system.startProduct();
        const vm = await system.createVm({ name: 'vm', machine: 'fake', containerDisk: true });
        await system.waitForPhase(vm, 'Running', phaseMs);
        const before = mountsOfNode(system);
        for (let i = 0; i < 5; i++) {
          await system.restart('helper');
          await system.restart('agent');
        }
        expect(mountsOfNode(system)).toEqual(before);
        expect(system.vmi(vm)?.status.phase).toBe('Running');
        await end(system, vm);
      });
    },
    2 * lifeMs,
  );

  it(
    'a container disk that virt-handler had mounted on the node is gone with the VM',
    async () => {
      await withSystem(await onePod('base'), async (system) => {
        const disk = join(system.node.root, 'predecessor.img');
        writeFileSync(disk, 'image');
        let target = '';
        let launch: () => void = () => undefined;
        const launched = new Promise<void>((resolve) => {
          launch = resolve;
        });
        const creating = system.createVm({
          name: 'vm',
          machine: 'fake',
          containerDisk: true,
          beforeLauncher: launched,
        });
        const [podUid = ''] = await waitFor('directory of the pod', 20_000, () => {
          const found = readdirSync(system.node.podsDir).filter((uid) =>
            readdirSync(join(system.node.podsDir, uid)).includes('volumes'),
          );
          return found.length > 0 && found;
        });
        const volume = join(system.node.podsDir, podUid, 'volumes/kubernetes.io~empty-dir/container-disks');
        await waitFor('container disk', 20_000, () => readdirSync(volume).includes('disk_0.sock'));
        target = join(volume, 'disk_0.img');
        writeFileSync(target, '');
        await run('mount', ['--bind', '-o', 'ro', disk, target]);
        launch();
        const vm = await creating;
        const record = {
          mountTargetEntries: [
            {
              targetFile: `/var/lib/kubelet/pods/${podUid}/volumes/kubernetes.io~empty-dir/container-disks/disk_0.img`,
              socketFile: `/pods/${podUid}/volumes/kubernetes.io~empty-dir/container-disks/disk_0.sock`,
            },
          ],
          usesSafePaths: true,
        };
        mkdirSync(system.mountRecordDir, { recursive: true });
        writeFileSync(join(system.mountRecordDir, vm.uid), JSON.stringify(record));

        await system.startProduct();
        await system.waitForPhase(vm, 'Running', phaseMs);
        expect(mountsBelow(volume)).toEqual([target]);
        system.deleteVmi(vm);
        await waitFor('the mount to go', phaseMs, () => mountsBelow(volume).length === 0);
        await system.finishDeletion(vm);
      });
    },
    lifeMs,
  );

  it(
    'every request of the agent is granted by its role, and every grant is used',
    async () => {
      const objects = await render('base');
      interface Role extends KubeObject {
        readonly rules: readonly { readonly resources: string[]; readonly verbs: string[] }[];
      }
      const roles = objects.filter(({ kind }) => kind === 'ClusterRole' || kind === 'Role') as Role[];
      const granted = roles
        .flatMap(({ rules }) => rules)
        .flatMap(({ resources, verbs }) =>
          resources.flatMap((resource) => verbs.map((verb) => `${verb} ${resource}`)),
        );
      await withSystem(await onePod('base'), async (system) => {
        await system.startProduct();
        await shortLife(system);
        await system.terminate('agent');
        const used = new Set(system.api.requests.map(({ verb, plural }) => `${verb} ${plural}`));
        // A second event of a kind is a patch of the first; one short life has none.
        used.add('patch events');
        expect([...used].sort()).toEqual(granted.sort());
      });
    },
    lifeMs,
  );
});

describe('the variants', () => {
  it(
    'a privileged helper restricts itself to the same set, and needs no grant of devices',
    async () => {
      let named: Record<string, number> = {};
      await withSystem(await onePod('base'), async (system) => {
        await system.startHelper();
        named = helperSets(system);
      });
      await withSystem({ ...(await onePod('overlays/privileged')), grantedDevices: [] }, async (system) => {
        await system.startProduct();
        expect(helperSets(system)).toEqual(named);
        await shortLife(system);
      });
    },
    lifeMs,
  );

  it(
    'REC-050 two DaemonSets: the agent works without seeing the processes of the host',
    async () => {
      const directory = 'overlays/two-daemonsets';
      const pods = {
        agentPod: await podSpec(directory),
        helperPod: await podSpec(directory, 'virt-privhelper'),
      };
      await withSystem(pods, async (system) => {
        await system.startProduct();
        expect(status(pidOf(system, 'agent'), 'NSpid').split('\t')).toHaveLength(2);
        expect(readlinkSync(`/proc/${pidOf(system, 'helper')}/ns/pid`)).toBe(
          readlinkSync('/proc/self/ns/pid'),
        );
        const net = (which: 'helper' | 'agent') => readlinkSync(`/proc/${pidOf(system, which)}/ns/net`);
        expect(net('agent')).not.toBe(net('helper'));
        await shortLife(system);
      });
    },
    lifeMs,
  );

  it(
    'the seccomp profiles let both programs work',
    async () => {
      await withSystem(await onePod('overlays/seccomp'), async (system) => {
        await system.startProduct();
        for (const which of ['helper', 'agent'] as const) {
          expect(Number(status(pidOf(system, which), 'Seccomp_filters'))).toBe(2);
        }
        await shortLife(system);
      });
    },
    lifeMs,
  );
});
