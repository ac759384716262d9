/** Block volumes plugged by a helper in the device cgroup that systemd makes of its unit. */
import { mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PlugOutcome } from '../../gen/virtprivsep/privhelper/v1/hotplug_pb.js';
import { cgroupHierarchies, makeCgroup, removeCgroup } from '../harness/pods/cgroup.js';
import { run } from '../harness/pods/run.js';
import { PluggingNode } from './hotplug-fixture.js';

const name = 'virt-privhelper.service';
const unit = new URL(`../../deploy/systemd/${name}`, import.meta.url);
const hierarchy = cgroupHierarchies().find(({ controllers }) => controllers.includes('devices'));
/** DevicePolicy=closed (systemd.resource-control(5)). */
const closed = [
  ...['1:3', '1:5', '1:7', '1:8', '1:9', '5:0', '5:2'].map((numbers) => `c ${numbers} rwm`),
  'c 136:* rw',
];
const numbersOf: Readonly<Record<string, string>> = {
  '/dev/net/tun': 'c 10:200',
  '/dev/vhost-vsock': 'c 10:241',
  'block-*': 'b *:*',
};
const device = { major: 1, minor: 15 };

describe.runIf(process.getuid?.() === 0 && hierarchy !== undefined)('under the unit of systemd', () => {
  let at: PluggingNode;

  beforeAll(async () => {
    const cgroup = makeCgroup(name).find((path) => path.startsWith(hierarchy?.mountPoint ?? '')) ?? '';
    const allowed = [...readFileSync(unit, 'utf8').matchAll(/^DeviceAllow=(\S+) (\S+)$/gm)];
    writeFileSync(join(cgroup, 'devices.deny'), 'a');
    for (const rule of [...closed, ...allowed.map(([, what = '', how]) => `${numbersOf[what]} ${how}`)]) {
      writeFileSync(join(cgroup, 'devices.allow'), rule);
    }
    const enter = `echo $$ >${cgroup}/cgroup.procs && exec "$@"`;
    at = await PluggingNode.start({ prefix: ['sh', '-c', enter, 'sh'] });
    await at.createPods([device]);
  });
  afterAll(async () => {
    await at?.destroyPods();
    await at?.stop();
    await removeCgroup(name, 20_000);
  });

  it('the node of a block volume is made', async () => {
    const directory = join(at.attachment.emptyDir('hotplug-disks'), 'block');
    mkdirSync(directory);
    await run('mknod', [join(directory, 'device'), 'b', `${device.major}`, `${device.minor}`]);
    const plug = { pod: at.ref(), attachmentPodUid: at.attachment.uid, volume: 'block' };
    expect(await at.client().plugBlock(plug)).toMatchObject({ outcome: PlugOutcome.CHANGED });
    expect(statSync(at.seen('block')).isBlockDevice()).toBe(true);
  });
});
