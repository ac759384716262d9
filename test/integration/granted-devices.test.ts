/** Block volumes of attachment pods on cgroup v2: programs say what such a pod was given. */
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { PlugKind, PlugOutcome } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { deviceProgram } from '../../privhelper/devices/program.js';
import { any, type DeviceRule } from '../../privhelper/devices/rules.js';
import { attachProgram } from '../harness/devices/program.js';
import { cgroupHierarchies } from '../harness/pods/cgroup.js';
import { run } from '../harness/pods/run.js';
import { PluggingNode, refused } from './hotplug-fixture.js';
import { failureOf } from './privhelper-fixture.js';

const unified = cgroupHierarchies().find(({ controllers }) => controllers.length === 0)?.mountPoint;
/** Numbers of a RAM disk: nothing of the host is behind them. */
const device = { major: 1, minor: 15 };
/** What every container may: make nodes, and use none of them. */
const make: DeviceRule = { type: 'b', major: any, minor: any, permissions: 'm' };
const use: DeviceRule = { type: 'b', ...device, permissions: 'rwm' };
/** Of no use for anything but to be unlike what runtimes write: a call of bpf_ktime_get_ns, then yes. */
const strange = Buffer.from('8500000005000000b4000000010000009500000000000000', 'hex');

describe.runIf(process.getuid?.() === 0 && unified !== undefined)('block volumes on cgroup v2', () => {
  let at: PluggingNode;
  let policies: string;
  let cgroup: string;

  const plug = () =>
    at.client().plugBlock({ pod: at.ref(), attachmentPodUid: at.attachment.uid, volume: 'block' });
  const denied = {
    ...refused,
    errnoName: 'EACCES',
    field: 'volume',
    message: expect.stringMatching(/^block device 1:15 is none that pod \S+ may open$/),
  };
  const ended = async () => {
    const lines = at.helper.audit().filter(({ event }) => event === 'end');
    return lines.filter(({ method }) => method === 'HotplugService.PlugBlock').at(-1);
  };

  beforeAll(async () => {
    policies = mkdtempSync(join(tmpdir(), 'vp-policy-'));
    const policy = join(policies, 'policy.yaml');
    writeFileSync(policy, `version: 1\npaths:\n  cgroupRoot: ${unified}\n`);
    at = await PluggingNode.start({ flags: { '--policy': policy } });
  });
  afterAll(async () => {
    await at?.stop();
    rmSync(policies, { recursive: true });
  });
  beforeEach(async () => {
    await at.createPods();
    const directory = join(at.attachment.emptyDir('hotplug-disks'), 'block');
    mkdirSync(directory);
    await run('mknod', [join(directory, 'device'), 'b', `${device.major}`, `${device.minor}`]);
    const cgroups = [...at.attachment.containers.values()].flatMap((container) => container.cgroups);
    cgroup = cgroups.find((path) => path.startsWith(`${unified}/`)) ?? '';
  });
  afterEach(async () => {
    expect(await at.destroyPods()).toEqual([]);
  });

  it('are refused unless every program allows them, those of cgroups above included', async () => {
    attachProgram(cgroup, deviceProgram([make]));
    expect(await failureOf(plug())).toMatchObject(denied);
    expect(existsSync(at.hostPath('block'))).toBe(false);
    expect(existsSync(at.record())).toBe(false);
    expect(await ended()).toMatchObject({ decision: 'refused', errno: 'EACCES', field: 'volume' });
    attachProgram(cgroup, deviceProgram([make, use]));
    attachProgram(dirname(cgroup), deviceProgram([make]), 'beside');
    expect(await failureOf(plug())).toMatchObject(denied);
    attachProgram(cgroup, deviceProgram([make]));
    expect(await failureOf(plug())).toMatchObject(denied);
    expect(await at.list()).toEqual([]);
  });

  it('are plugged when they were given to the pod', async () => {
    attachProgram(cgroup, deviceProgram([make, { ...use, permissions: 'rm' }]));
    expect(await failureOf(plug())).toMatchObject(denied);
    attachProgram(cgroup, deviceProgram([make, use]));
    expect(await plug()).toMatchObject({ outcome: PlugOutcome.CHANGED });
    expect(await ended()).toMatchObject({ decision: 'allowed' });
    expect(await ended()).not.toHaveProperty('message');
    expect(await at.unplug('block', PlugKind.BLOCK)).toBe(true);
  });

  it('are plugged when it cannot be told, which is written down, unless another program denies them', async () => {
    attachProgram(cgroup, strange);
    expect(await plug()).toMatchObject({ outcome: PlugOutcome.CHANGED });
    expect(await ended()).toMatchObject({
      decision: 'allowed',
      message: `whether pod ${at.attachment.uid} may open block device 1:15 cannot be told`,
    });
    expect(await at.unplug('block', PlugKind.BLOCK)).toBe(true);
    attachProgram(dirname(cgroup), deviceProgram([make]), 'beside');
    expect(await failureOf(plug())).toMatchObject(denied);
  });
});
