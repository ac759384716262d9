/** `privctl pods`, `net`, `mounts`, `devices` and `cgroup`: what the host shows of launcher pods. */
import { Device } from '../../../gen/virtprivsep/privhelper/v1/device_pb.js';
import {
  type CgroupValue,
  DeviceNodeState,
  GetCgroupResponseSchema,
  type GetNetworkResponse,
  GetNetworkResponseSchema,
  InspectService,
  ListDevicesResponseSchema,
  ListMountsResponseSchema,
  ListPodsResponseSchema,
} from '../../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { age, bytes, type Column, section, shortUid, table } from '../output.js';
import type { Session } from '../session.js';

const columns = (...titles: string[]): Column[] =>
  titles.map((title) => (title.startsWith('>') ? { title: title.slice(1), align: 'right' } : { title }));

export async function pods(session: Session): Promise<void> {
  const answer = await (await session.client(InspectService)).listPods({});
  const { full, quiet } = session.options;
  if (session.json) return session.message(ListPodsResponseSchema, answer);
  if (quiet) {
    if (answer.pods.length > 0) session.lines(answer.pods.map(({ state }) => state?.podUid ?? ''));
    return;
  }
  if (answer.pods.length === 0) return session.lines(['There is no launcher pod on this node.']);
  const rows = answer.pods.map(({ state, vmiUid, pinned, launcher, links, mountedDisks, problem }) => [
    shortUid(state?.podUid ?? '', full),
    shortUid(vmiUid, full),
    launcher?.claimedName ? `${launcher.claimedNamespace}/${launcher.claimedName}` : '',
    launcher === undefined ? '' : `${launcher.pid}`,
    launcher === undefined ? '' : `${launcher.uid}`,
    launcher === undefined ? '' : `${launcher.networkNamespace}`,
    launcher === undefined ? '' : `${launcher.mountNamespace}`,
    launcher === undefined ? '' : `${links}`,
    mountedDisks.map((index) => `disk_${index}`).join(','),
    launcher === undefined ? '' : age(Number(launcher.ageMs)),
    pinned ? 'yes' : 'no',
    [problem, state?.unresponsiveMarker ? 'marked unresponsive' : ''].filter(Boolean).join('; '),
  ]);
  const titles = [
    'POD',
    'VMI',
    'NAME',
    '>PID',
    '>UID',
    'NETNS',
    'MNTNS',
    '>LINKS',
    'DISKS',
    '>AGE',
    'PINNED',
  ];
  session.lines(table(columns(...titles, 'PROBLEM'), rows));
}

export async function net(session: Session): Promise<void> {
  const podUid = await session.pod();
  const answer = await (await session.client(InspectService)).getNetwork({ podUid });
  if (session.json) return session.message(GetNetworkResponseSchema, answer);
  session.lines([
    `Pod ${podUid}`,
    ...section('LINKS', linkTable(answer)),
    ...section('ROUTES', routeTable(answer)),
    ...section('SYSCTLS', sysctlTable(answer)),
    ...section('NAT (tables ip nat and ip6 nat)', natTable(answer)),
    ...section('SET UP BY THE HELPER', setUp(answer)),
    ...section('DIFFERENCE TO THAT', difference(answer)),
  ]);
}

function linkTable({ links }: GetNetworkResponse): string[] {
  const names = new Map(links.map(({ index, name }) => [index, name]));
  const rows = links.map((link) => [
    `${link.index}`,
    link.name,
    link.kind,
    link.up ? link.operstate : `off (${link.operstate})`,
    link.mac,
    `${link.mtu}`,
    link.controller === 0 ? '' : (names.get(link.controller) ?? `${link.controller}`),
    link.addresses.map(({ ip, prefixLength }) => `${ip}/${prefixLength}`).join(' '),
  ]);
  return table(columns('>INDEX', 'NAME', 'KIND', 'STATE', 'MAC', '>MTU', 'BRIDGE', 'ADDRESSES'), rows);
}

function routeTable({ routes, links }: GetNetworkResponse): string[] {
  if (routes.length === 0) return ['none'];
  const names = new Map(links.map(({ index, name }) => [index, name]));
  const rows = routes.map(({ destination, gateway, linkIndex, metric }) => [
    destination,
    gateway,
    names.get(linkIndex) ?? '',
    `${metric}`,
  ]);
  return table(columns('DESTINATION', 'GATEWAY', 'LINK', '>METRIC'), rows);
}

function sysctlTable({ sysctls, links }: GetNetworkResponse): string[] {
  const localnet = links.filter(({ routeLocalnet }) => routeLocalnet).map(({ name }) => name);
  return table(columns('NAME', 'VALUE'), [
    ['net.ipv4.ip_forward', sysctls?.ipv4Forwarding ? '1' : '0'],
    ['net.ipv6.conf.all.forwarding', sysctls?.ipv6Forwarding ? '1' : '0'],
    ['net.ipv4.conf.all.arp_ignore', `${sysctls?.ipv4ArpIgnore ?? 0}`],
    ['net.ipv4.conf.*.route_localnet', localnet.length === 0 ? '0' : `1 on ${localnet.join(', ')}`],
  ]);
}

function natTable({ nat, natProblem }: GetNetworkResponse): string[] {
  if (natProblem !== '') return [`not shown: ${natProblem}`];
  if (nat.length === 0) return ['none'];
  const rows = nat.map(({ family, name, hook, priority, rules }) => [
    family,
    name,
    hook === '' ? '' : `${hook} ${priority}`,
    `${rules}`,
  ]);
  return table(columns('FAMILY', 'CHAIN', 'HOOK', '>RULES'), rows);
}

function setUp({ applied }: GetNetworkResponse): string[] {
  if (applied === undefined) return ['nothing since the helper started'];
  const rows = applied.attachments.map(({ podInterface, binding, primary, queues }) => [
    podInterface,
    binding,
    primary ? 'yes' : 'no',
    `${Math.max(1, queues)}`,
  ]);
  return [
    ...table(columns('POD LINK', 'BINDING', 'PRIMARY', '>QUEUES'), rows),
    ...(applied.passt ? ["for passt: pings of the launcher's user, all ports"] : []),
    `at ${new Date(Number(applied.atMs)).toISOString()}`,
  ];
}

function difference({ applied }: GetNetworkResponse): string[] {
  if (applied === undefined) return ['unknown: there is nothing to compare with'];
  if (applied.problem !== '') return [`it cannot be set up again: ${applied.problem}`];
  if (applied.pending.length === 0)
    return ['none: links, addresses, sysctls and NAT are as they were set up'];
  return ['setting it up again would', ...applied.pending.map((operation) => `  ${operation}`)];
}

/** File systems that every container has and that say nothing about a VM. */
const ordinary = new Set(['proc', 'sysfs', 'cgroup', 'cgroup2', 'mqueue', 'devpts']);

const headings = ['DISK', 'MOUNT POINT', 'TYPE', 'ROOT', 'OPTIONS', 'PROPAGATION'];

export async function mounts(session: Session): Promise<void> {
  const podUid = await session.pod();
  const answer = await (await session.client(InspectService)).listMounts({ podUid });
  if (session.json) return session.message(ListMountsResponseSchema, answer);
  const shown = answer.mounts.filter(
    ({ filesystem, mountPoint }) =>
      session.options.full || (!ordinary.has(filesystem) && !/^\/(?:proc|sys|dev)\//.test(mountPoint)),
  );
  const rows = shown.map((mount) => [
    mount.containerDisk === undefined ? '' : `disk_${mount.containerDisk}`,
    mount.mountPoint,
    mount.filesystem,
    session.options.full ? mount.root : mount.root.replace(/^.*\/kubernetes\.io~([^/]+)\//, '$1 '),
    mount.options,
    mount.propagation,
    ...(session.options.full ? [mount.nodePath] : []),
  ]);
  const left = answer.mounts.length - shown.length;
  session.lines([
    `Pod ${podUid}`,
    '',
    ...table(columns(...headings, ...(session.options.full ? ['ON THE NODE'] : [])), rows),
    ...(left === 0
      ? []
      : ['', `${left} mounts of proc, sys, dev and cgroups are left out; --full shows them.`]),
  ]);
}

const deviceStates: Readonly<Record<DeviceNodeState, string>> = {
  [DeviceNodeState.UNSPECIFIED]: 'unknown',
  [DeviceNodeState.MISSING]: 'missing',
  [DeviceNodeState.PRESENT]: 'present',
  [DeviceNodeState.OTHER]: 'not this device',
  [DeviceNodeState.HOST]: "the host's node",
};

export function deviceName(device: Device): string {
  return (Device[device] ?? '').toLowerCase().replaceAll('_', '-');
}

export async function devices(session: Session): Promise<void> {
  const podUid = await session.pod();
  const answer = await (await session.client(InspectService)).listDevices({ podUid });
  if (session.json) return session.message(ListDevicesResponseSchema, answer);
  const rows = answer.devices.map(({ device, state, uid, gid, mode, allowed, claimed }) => {
    const there = state !== DeviceNodeState.MISSING;
    return [
      deviceName(device),
      deviceStates[state],
      there ? `${uid}:${gid}` : '',
      there ? mode.toString(8).padStart(4, '0') : '',
      claimed ? 'yes' : 'no',
      allowed ? 'yes' : 'no',
    ];
  });
  session.lines([
    `Pod ${podUid}`,
    '',
    ...table(columns('DEVICE', 'NODE', 'OWNER', 'MODE', 'CLAIMED', 'POLICY ALLOWS'), rows),
    ...section('The container may open', [
      ...answer.allowedDevices,
      ...(answer.allowedNote === '' ? [] : [answer.allowedNote]),
    ]),
  ]);
}

export async function cgroup(session: Session): Promise<void> {
  const podUid = await session.pod();
  const answer = await (await session.client(InspectService)).getCgroup({ podUid });
  if (session.json) return session.message(GetCgroupResponseSchema, answer);
  const informative = answer.hierarchies.filter(({ values }) => session.options.full || values.length > 0);
  const lines = informative.flatMap(({ controllers, path, values, problem }) =>
    section(`${controllers === '' ? 'cgroup v2' : controllers}  ${path}`, [
      ...table(columns('FILE', 'VALUE'), values.flatMap(valueRows)),
      ...(problem === '' ? [] : [problem]),
    ]),
  );
  const hidden = answer.hierarchies.length - informative.length;
  session.lines([
    `Pod ${podUid}`,
    ...lines,
    ...(hidden === 0 ? [] : ['', `${hidden} hierarchies without limits are left out; --full shows them.`]),
  ]);
}

function valueRows({ file, value }: CgroupValue): string[][] {
  const size = file.startsWith('memory.');
  return value.split('\n').map((line, i) => [i === 0 ? file : ' ', size ? bytes(line) : line]);
}
