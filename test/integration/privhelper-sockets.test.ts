/** Connections that the helper hands out, with real processes in real pod cgroups. */
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { PodSocket, SocketService } from '../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { waitFor } from '../harness/pods/run.js';
import {
  echo,
  failureOf,
  HelperProcess,
  type LauncherProcess,
  qemuUser,
  TestPod,
} from './privhelper-fixture.js';

const launcherVolumes = [
  'sockets',
  'public',
  'private',
  'container-disks',
  'libvirt-runtime',
  'hotplug-disks',
] as const;
const source = '99999999-9999-4999-8999-999999999999';
const refused = { code: Code.PermissionDenied, refused: true, unchanged: true };

interface Socket {
  readonly name: string;
  readonly request: { socket: PodSocket; index?: number; sourceVmiUid?: string };
  /** Where a pod of the VMI has it below its volumes. */
  readonly place: (vmiUid: string) => string;
  /** What says that no link may be passed on the way to it. */
  readonly rule?: string;
}

/** Each socket but the launcher's own. */
const sockets: Socket[] = [
  {
    name: 'the serial console',
    request: { socket: PodSocket.SERIAL_CONSOLE },
    place: (vmiUid) => `private/${vmiUid}/virt-serial0`,
    rule: 'CVE-2026-7374',
  },
  {
    name: 'VNC',
    request: { socket: PodSocket.VNC },
    place: (vmiUid) => `private/${vmiUid}/virt-vnc`,
    rule: 'CVE-2026-7374',
  },
  {
    name: 'USB redirection',
    request: { socket: PodSocket.USB_REDIRECTION, index: 3 },
    place: (vmiUid) => `private/${vmiUid}/virt-usbredir-3`,
    rule: 'CVE-2026-7374',
  },
  {
    name: 'virtqemud',
    request: { socket: PodSocket.VIRTQEMUD },
    place: () => 'libvirt-runtime/virtqemud-sock',
    rule: 'AFT-004',
  },
  {
    name: 'the memory of a migration',
    request: { socket: PodSocket.MIGRATION_MEMORY },
    place: (vmiUid) => `public/migrationproxy/${vmiUid}-49152-source.sock`,
    rule: 'AFT-004',
  },
  {
    name: 'the disks of a migration',
    request: { socket: PodSocket.MIGRATION_BLOCK },
    place: (vmiUid) => `public/migrationproxy/${vmiUid}-49153-source.sock`,
    rule: 'AFT-004',
  },
  {
    name: 'the memory of a decentralised migration',
    request: { socket: PodSocket.MIGRATION_MEMORY, sourceVmiUid: source },
    place: () => `public/migrationproxy/${source}-49152-source.sock`,
    rule: 'AFT-004',
  },
  {
    name: 'downward metrics',
    request: { socket: PodSocket.DOWNWARD_METRICS },
    place: () => 'private/downwardmetrics-channel/downwardmetrics.sock',
  },
  {
    name: 'a container disk',
    request: { socket: PodSocket.CONTAINER_DISK, index: 12 },
    place: () => 'container-disks/disk_12.sock',
  },
  {
    name: 'kernel boot',
    request: { socket: PodSocket.KERNEL_BOOT },
    place: () => 'container-disks/kernel-boot.sock',
  },
];

describe.runIf(process.getuid?.() === 0)('sockets of a pod', () => {
  let helper: HelperProcess;
  /** Outside of every pod: nothing here may be contacted or changed. */
  let outside: string;
  const pods: TestPod[] = [];
  const client = () => helper.client(SocketService);

  function pod(volumes: readonly string[] = launcherVolumes): TestPod {
    const made = new TestPod(helper, [...volumes]);
    pods.push(made);
    return made;
  }

  async function launcherPod(): Promise<[TestPod, LauncherProcess]> {
    const made = pod();
    return [made, await made.launcher()];
  }

  /** A directory of the pod's user below its volumes, with those above it. */
  function mkdir(a: TestPod, path: string): string {
    const directory = a.volume(path);
    mkdirSync(directory, { recursive: true });
    if (path.includes('/')) chownSync(directory, qemuUser, qemuUser);
    return directory;
  }

  /** The path of a socket on which `process` listens. */
  async function listening(a: TestPod, process: LauncherProcess, path: string): Promise<string> {
    mkdir(a, dirname(path));
    await process.tell('listen', path);
    return a.volume(path);
  }

  /** A server of no pod, which must see no connection. */
  async function withCanary(body: (path: string) => Promise<void>): Promise<void> {
    let connections = 0;
    const path = join(outside, 'canary.sock');
    const server = createServer((socket) => {
      connections += 1;
      socket.destroy();
    });
    await new Promise<void>((resolve) => server.listen(path, resolve));
    chmodSync(path, 0o777);
    try {
      await body(path);
    } finally {
      await new Promise((resolve) => server.close(resolve));
    }
    expect(connections).toBe(0);
  }

  beforeAll(async () => {
    helper = new HelperProcess();
    outside = mkdtempSync(join(tmpdir(), 'canary-'));
    await helper.start();
  });
  afterEach(async () => {
    await Promise.all(pods.splice(0).map((each) => each.destroy()));
    helper.disconnect();
  });
  afterAll(async () => {
    await helper.destroy();
    rmSync(outside, { recursive: true });
  });

  describe('connections', () => {
    it.each(sockets)('reach a process of the pod: $name', async ({ request, place }) => {
      const [a] = await launcherPod();
      await listening(a, await a.process(), place(a.vmiUid));
      const { ticket } = await client().connect({ pod: a.ref, ...request });
      expect(await echo(await helper.claim(ticket?.value ?? new Uint8Array()), 'hello')).toBe('hello');
      await helper.audited(
        'socket',
        (line) =>
          line['pod'] === a.podUid &&
          (line['arguments'] as { socket?: string } | undefined)?.socket === place(a.vmiUid),
      );
    });

    it.each(sockets)(
      'STO-003 reach no process of another pod, and none of no pod: $name',
      async ({ request, place }) => {
        const [a] = await launcherPod();
        const other = pod();
        for (const cgroupOf of [other.podUid, null]) {
          const path = await listening(a, await a.process({ cgroupOf }), place(a.vmiUid));
          expect(await failureOf(client().connect({ pod: a.ref, ...request }))).toMatchObject({
            ...refused,
            operation: expect.stringMatching(/^cgroup of listener of /),
          });
          unlinkSync(path);
        }
        await helper.auditedRefusal(a, 'Connect', place(a.vmiUid));
      },
    );

    const titled = sockets.map((each): [string, Socket] => [
      `${each.rule ?? ''} pass no link on the way to ${each.name}`.trim(),
      each,
    ]);
    it.each(titled)('%s', async (_title, { request, place }) => {
      const [a] = await launcherPod();
      const path = place(a.vmiUid);
      const parts = path.split('/');
      await withCanary(async (canary) => {
        // A directory outside that has what is looked for.
        const decoy = join(outside, a.podUid);
        mkdirSync(join(decoy, dirname(path)), { recursive: true });
        symlinkSync(canary, join(decoy, path));
        const target = (depth: number) =>
          depth === parts.length ? canary : join(decoy, ...parts.slice(0, depth));
        for (let depth = parts.length; depth > 0; depth -= 1) {
          const component = parts.slice(0, depth).join('/');
          if (depth > 1) mkdir(a, dirname(component));
          const link = a.volume(component);
          const aside = join(a.directory, 'aside');
          if (existsSync(link)) renameSync(link, aside);
          symlinkSync(target(depth), link);
          const failure = await failureOf(client().connect({ pod: a.ref, ...request }));
          expect([component, failure]).toMatchObject([component, refused]);
          unlinkSync(link);
          if (existsSync(aside)) renameSync(aside, link);
        }
      });
      await helper.auditedRefusal(a, 'Connect', path);
    });

    it('reach sockets only', async () => {
      const [a] = await launcherPod();
      const request = { pod: a.ref, socket: PodSocket.VNC };
      expect(await failureOf(client().connect(request))).toMatchObject({
        code: Code.NotFound,
        refused: false,
      });
      writeFileSync(join(mkdir(a, `private/${a.vmiUid}`), 'virt-vnc'), '');
      expect(await failureOf(client().connect(request))).toMatchObject({ ...refused, errnoName: 'ENOTSOCK' });
      rmSync(a.volume(`private/${a.vmiUid}`), { recursive: true });
      writeFileSync(a.volume(`private/${a.vmiUid}`), '');
      expect(await failureOf(client().connect(request))).toMatchObject({ ...refused, errnoName: 'ENOTDIR' });
    });

    it('end with the process: a socket of nobody is not connected to', async () => {
      const [a] = await launcherPod();
      const qemu = await a.process();
      await listening(a, qemu, `private/${a.vmiUid}/virt-vnc`);
      await qemu.kill();
      expect(await failureOf(client().connect({ pod: a.ref, socket: PodSocket.VNC }))).toMatchObject({
        code: Code.FailedPrecondition,
        errnoName: 'ECONNREFUSED',
      });
    });
  });

  describe('attachment pods', () => {
    /** A pod of its own with a process that listens on hp.sock. */
    async function attachmentPod(cgroupOf?: string): Promise<TestPod> {
      const made = pod(['hotplug-disks']);
      const options = cgroupOf === undefined ? {} : { cgroupOf };
      await listening(made, await made.process(options), 'hotplug-disks/hp.sock');
      return made;
    }
    const request = (a: TestPod, { podUid }: TestPod) => ({ pod: a.ref, attachmentPodUid: podUid });

    it('are connected to, each for one launcher pod while that lives', async () => {
      const [a, launcher] = await launcherPod();
      const [b] = await launcherPod();
      const attachment = await attachmentPod();
      const { ticket } = await client().connectAttachment(request(a, attachment));
      expect(await echo(await helper.claim(ticket?.value ?? new Uint8Array()), 'hello')).toBe('hello');
      const foreign = { ...refused, field: 'attachment_pod_uid' };
      expect(await failureOf(client().connectAttachment(request(b, attachment)))).toMatchObject(foreign);
      await helper.auditedRefusal(b, 'ConnectAttachment', attachment.podUid);
      // Releasing the pod in between does not help.
      await helper.client(PodService).release({ pod: a.ref });
      expect(await failureOf(client().connectAttachment(request(b, attachment)))).toMatchObject(foreign);
      await launcher.kill();
      await waitFor('helper to learn of the exit', 10_000, () =>
        client()
          .connectAttachment(request(b, attachment))
          .then(
            () => true,
            () => false,
          ),
      );
    });

    it('are no launcher pods', async () => {
      const [a] = await launcherPod();
      // A launcher pod has a volume hotplug-disks too.
      const [b, launcher] = await launcherPod();
      await listening(b, launcher, 'hotplug-disks/hp.sock');
      expect(await failureOf(client().connectAttachment(request(a, b)))).toMatchObject({
        ...refused,
        operation: 'pod with a volume sockets is a launcher pod',
      });
      // Known as one by now, it is not even looked at.
      await helper.client(PodService).identify({ pod: b.ref });
      expect(await failureOf(client().connectAttachment(request(a, b)))).toMatchObject({
        ...refused,
        field: 'attachment_pod_uid',
      });
      await helper.auditedRefusal(a, 'ConnectAttachment', b.podUid);
    });

    it('answer from their own cgroup and by no link', async () => {
      const [a] = await launcherPod();
      const foreign = await attachmentPod(a.podUid);
      expect(await failureOf(client().connectAttachment(request(a, foreign)))).toMatchObject({
        ...refused,
        operation: 'cgroup of listener of hp.sock',
      });
      await withCanary(async (canary) => {
        const linked = pod(['hotplug-disks']);
        expect(await failureOf(client().connectAttachment(request(a, linked)))).toMatchObject({
          code: Code.NotFound,
        });
        symlinkSync(canary, linked.volume('hotplug-disks/hp.sock'));
        expect(await failureOf(client().connectAttachment(request(a, linked)))).toMatchObject({
          ...refused,
          errnoName: 'ELOOP',
        });
      });
    });
  });
});
