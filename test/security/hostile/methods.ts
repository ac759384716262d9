/**
 * Every method of the helper as the hostile tests need it: a request that works, the entries of the pod that
 * the method uses, and what is wrong for a field beyond what is wrong for every field of its type
 * (variations.ts). A method of the dispatch tables that has no line here fails the suite.
 */
import { create, toBinary } from '@bufbuild/protobuf';
import { Device, DeviceService } from '../../../gen/virtprivsep/privhelper/v1/device_pb.js';
import { HelperService } from '../../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { InspectService } from '../../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { IdentifyRequestSchema, PodService } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { PodProcess, ResourceService } from '../../../gen/virtprivsep/privhelper/v1/resource_pb.js';
import { PodListener, PodSocket, SocketService } from '../../../gen/virtprivsep/privhelper/v1/socket_pb.js';
import { methodName } from '../../../privhelper/declarations.js';
import { type Entry, inspection, type Subject, table } from '../../../privhelper/dispatch.js';
import { type Line, launcher, line, pod, type Target, type Use } from './line.js';
import { networkLines } from './network-lines.js';
import { diskSocket, storageLines } from './storage-lines.js';

export interface HostileMethod extends Line {
  readonly name: string;
  readonly subject: Subject;
  readonly kind: Entry['kind'];
  /** The socket on which it is served to whom it is meant for. */
  readonly socket: 'helper.sock' | 'ctl.sock';
}

const nothing = () => ({});
const podUid = ({ podUid }: Target) => ({ podUid });

const command: Use = { entry: 'sockets/launcher-sock', how: 'connect' };
const seen: Use = { entry: 'sockets/launcher-sock', how: 'look' };
const marker: Use = { entry: 'sockets/launcher-unresponsive', how: 'make' };
const notify: Use = { entry: 'public/domain-notify-pipe.sock', how: 'make' };
const virtiofs: Use = { entry: 'virtiofs-containers/fs.sock', how: 'make' };

const lines: readonly Line[] = [
  line(HelperService.method.health, nothing),
  line(HelperService.method.describe, nothing),

  line(PodService.method.watch, nothing, { uses: [seen, diskSocket] }),
  line(PodService.method.stat, podUid, { uses: [seen, marker, diskSocket] }),
  line(PodService.method.identify, pod, { uses: [launcher] }),
  line(PodService.method.getSelinuxContext, pod, { uses: [launcher] }),
  line(PodService.method.markUnresponsive, pod, { uses: [seen, marker] }),
  line(PodService.method.release, pod, { uses: [notify] }),

  line(SocketService.method.connect, (target) => ({ ...pod(target), socket: PodSocket.LAUNCHER_COMMAND }), {
    uses: [command],
    wrong: [
      [
        'index',
        (request) => {
          request.index = 1;
        },
      ],
      [
        'source_vmi_uid',
        (request) => {
          request.sourceVmiUid = '99999999-9999-4999-8999-999999999999';
        },
      ],
    ],
  }),
  line(
    SocketService.method.connectAttachment,
    (target) => ({ ...pod(target), attachmentPodUid: target.attachmentPodUid }),
    {
      uses: [launcher],
      wrong: [
        [
          'attachment_pod_uid',
          (request) => {
            request.attachmentPodUid = request.pod?.podUid ?? '';
          },
        ],
      ],
    },
  ),
  line(SocketService.method.listen, (target) => ({ ...pod(target), listener: PodListener.NOTIFY }), {
    uses: [launcher, notify],
  }),
  line(SocketService.method.claimVirtiofs, (target) => ({ ...pod(target), filesystem: 'fs' }), {
    uses: [launcher, virtiofs],
  }),
  line(SocketService.method.closeListener, (target) => ({ ...pod(target), listener: PodListener.NOTIFY }), {
    uses: [notify],
  }),
  line(SocketService.method.listenVsock, nothing),

  ...networkLines,

  ...storageLines,

  line(
    DeviceService.method.claim,
    (target) => ({
      ...pod(target),
      devices: [Device.TUN, Device.VHOST_VSOCK],
      blockVolumes: ['blk', 'none'],
    }),
    {
      uses: [launcher],
      wrong: [
        [
          'block_volumes[1]',
          (request) => {
            request.blockVolumes[1] = 'blk';
          },
        ],
        [
          'devices[1]',
          (request) => {
            request.devices[1] = Device.TUN;
          },
        ],
      ],
    },
  ),
  line(DeviceService.method.setPolicy, (target) => ({ ...pod(target), blockVolumes: ['data', 'logs'] }), {
    uses: [launcher],
    wrong: [
      [
        'block_volumes[1]',
        (request) => {
          request.blockVolumes[1] = 'data';
        },
      ],
    ],
  }),

  line(ResourceService.method.setMemlock, (target) => ({ ...pod(target), process: PodProcess.VIRTQEMUD }), {
    uses: [launcher],
  }),
  line(ResourceService.method.isolateEmulator, (target) => ({ ...pod(target), cpus: [0] }), {
    uses: [launcher],
    wrong: [
      [
        'cpus[1]',
        (request) => {
          request.cpus.push(0);
        },
      ],
      [
        'cpus[0]',
        (request) => {
          request.cpus = [8192];
        },
      ],
      [
        'cpus',
        (request) => {
          request.cpus = Array.from({ length: 102 }, (_, i) => i);
        },
      ],
    ],
  }),
  line(ResourceService.method.scheduleVcpus, (target) => ({ ...pod(target), vcpus: [0] }), {
    wantsQemu: true,
    uses: [launcher],
    wrong: [
      [
        'vcpus[1]',
        (request) => {
          request.vcpus.push(0);
        },
      ],
      [
        'vcpus[0]',
        (request) => {
          request.vcpus = [1024];
        },
      ],
    ],
  }),
  line(ResourceService.method.affinePit, (target) => ({ ...pod(target), realtime: true }), {
    wantsQemu: true,
    uses: [launcher],
  }),

  line(InspectService.method.getHelper, nothing),
  line(InspectService.method.listPods, nothing, { uses: [seen] }),
  line(InspectService.method.getNetwork, podUid, { uses: [launcher] }),
  line(InspectService.method.listMounts, podUid, { uses: [launcher] }),
  line(InspectService.method.listDevices, podUid, { uses: [launcher] }),
  line(InspectService.method.getCgroup, podUid, { uses: [launcher] }),
  line(
    InspectService.method.explain,
    (target) => ({
      method: 'PodService.Identify',
      request: toBinary(IdentifyRequestSchema, create(IdentifyRequestSchema, pod(target))),
    }),
    {
      uses: [seen],
      wrong: [
        [
          'method',
          (request) => {
            request.method = 'PodService.Exec';
          },
        ],
      ],
    },
  ),
];

const named = new Map(lines.map((each) => [methodName(each.method), each]));

/** Methods of the dispatch tables that have no line here, and lines without a method. */
export function uncovered(): string[] {
  const names = [...table, ...inspection].map(({ method }) => methodName(method));
  const missing = names.filter((name) => !named.has(name));
  const foreign = [...named.keys()].filter((name) => !names.includes(name));
  return [...missing, ...foreign];
}

function hostile(socket: HostileMethod['socket']) {
  return ({ method, subject, kind }: Entry): HostileMethod[] => {
    const name = methodName(method);
    const found = named.get(name);
    return found === undefined ? [] : [{ ...found, name, subject, kind, socket }];
  };
}

/** In the order of the dispatch tables. */
export const methods: readonly HostileMethod[] = [
  ...table.flatMap(hostile('helper.sock')),
  ...inspection.flatMap(hostile('ctl.sock')),
];

export function methodNamed(name: string): HostileMethod {
  const found = methods.find((each) => each.name === name);
  if (found === undefined) throw new Error(`no method ${name}`);
  return found;
}
