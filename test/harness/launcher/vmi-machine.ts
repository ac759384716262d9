/** The machine that a VMI asks for, as the launcher's converter makes it, for the devices supported here. */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { basename } from 'node:path';
import type { Vmi } from '../../../agent/api/vmi.js';
import { invalidOperation } from './libvirt.js';
import type { MachineConfig, MachineDisk, MachineNic } from './machine.js';

/** Where the launcher finds things in its pod. */
export interface PodPaths {
  /** `/var/run/kubevirt/container-disks` */
  readonly containerDisks: string;
  /** `/var/run/kubevirt/hotplug-disks` */
  readonly hotplugDisks: string;
  /** `/var/run/libvirt/qemu/run` */
  readonly run: string;
  /** `/var/run/kubevirt-private` */
  readonly privateDirectory: string;
  /** `/sys/class/net` */
  readonly links: string;
}

/** Names of the pod's links for one interface of the VMI. */
export interface InterfaceLinks {
  readonly podInterface: string;
  readonly bridge: string;
  readonly tap: string;
}

const unitBytes: Readonly<Record<string, number>> = {
  '': 1,
  k: 1e3,
  M: 1e6,
  G: 1e9,
  Ki: 2 ** 10,
  Mi: 2 ** 20,
  Gi: 2 ** 30,
};

function mebibytes(vmi: Vmi): number {
  const domain = vmi.spec.domain;
  const quantity =
    domain.memory?.guest ?? (domain.resources?.requests as Record<string, string> | undefined)?.['memory'];
  if (quantity === undefined) throw invalidOperation('no memory requested');
  const [, value, unit] = /^(\d+)([kMG]i?|Ki)?$/.exec(String(quantity)) ?? [];
  const bytes = Number(value) * (unitBytes[unit ?? ''] ?? Number.NaN);
  if (!(bytes >= 2 ** 20)) throw invalidOperation(`memory ${String(quantity)} is not usable`);
  return Math.floor(bytes / 2 ** 20);
}

/** The primary network's links are named after eth0; others after a hash of the network's name. */
export function interfaceLinks(vmi: Vmi, networkName: string): InterfaceLinks {
  const network = vmi.spec.networks?.find((each) => each.name === networkName);
  // The published type spells this key `_default`.
  const multus = network?.multus as { default?: boolean } | undefined;
  const primary = network?.pod !== undefined || multus?.default === true;
  if (primary) {
    const podInterface =
      vmi.status.interfaces?.find((each) => each.name === networkName)?.podInterfaceName || 'eth0';
    return { podInterface, bridge: `k6t-${podInterface}`, tap: 'tap0' };
  }
  const hash = createHash('sha256').update(networkName).digest('hex').slice(0, 11);
  return { podInterface: `pod${hash}`, bridge: `k6t-${hash}`, tap: `tap${hash}` };
}

function linkAttribute(paths: PodPaths, link: string, attribute: 'address' | 'mtu'): string {
  try {
    return readFileSync(`${paths.links}/${link}/${attribute}`, 'utf8').trim();
  } catch {
    throw invalidOperation(`link ${link} of the pod does not exist`);
  }
}

/** Those with a tap. */
function interfacesOf(vmi: Vmi) {
  return (vmi.spec.domain.devices.interfaces ?? []).filter(({ sriov }) => sriov == null);
}

/** Networks of SR-IOV interfaces that Multus has plugged. */
export function sriovNetworks(vmi: Vmi): string[] {
  return (vmi.spec.domain.devices.interfaces ?? [])
    .filter(({ name, sriov }) => sriov != null && isPlugged(vmi, name))
    .map(({ name }) => name);
}

function isPlugged(vmi: Vmi, network: string): boolean {
  return (vmi.status.interfaces ?? []).some(
    ({ name, infoSource = '' }) => name === network && infoSource.split(', ').includes('multus-status'),
  );
}

function nicsOf(vmi: Vmi, interfaces: ReturnType<typeof interfacesOf>, paths: PodPaths): MachineNic[] {
  return interfaces
    .filter((each) => each.state !== 'absent')
    .map((each) => {
      const { podInterface, tap } = interfaceLinks(vmi, each.name);
      return {
        network: each.name,
        tap,
        // With the bridge binding this is the dummy that keeps the pod link's address.
        mac: each.macAddress ?? linkAttribute(paths, podInterface, 'address'),
        mtu: Number(linkAttribute(paths, podInterface, 'mtu')),
        model: each.model ?? 'virtio',
        bootOrder: each.bootOrder,
      };
    });
}

/**
 * NICs of a running machine that has `present`: what Multus has plugged comes, what is absent goes if the guest
 * releases it. Throws a LibvirtError when the tap of one that comes is not there.
 */
export function nicsAfterHotplug(
  vmi: Vmi,
  present: readonly MachineNic[],
  releases: (network: string) => boolean,
  paths: PodPaths,
): readonly MachineNic[] {
  const interfaces = interfacesOf(vmi);
  const absent = interfaces.filter((each) => each.state === 'absent').map((each) => each.name);
  const come = nicsOf(
    vmi,
    interfaces.filter(({ name }) => isPlugged(vmi, name) && !present.some(({ network }) => network === name)),
    paths,
  );
  for (const { tap } of come) linkAttribute(paths, tap, 'mtu');
  const stay = present.filter(({ network }) => !absent.includes(network) || !releases(network));
  return come.length === 0 && stay.length === present.length ? present : [...stay, ...come];
}

function disksOf(vmi: Vmi, paths: PodPaths): MachineDisk[] {
  return (vmi.spec.domain.devices.disks ?? []).flatMap((disk) => {
    const index = vmi.spec.volumes?.findIndex((volume) => volume.name === disk.name) ?? -1;
    const volume = vmi.spec.volumes?.[index];
    const hostDisk = volume?.hostDisk;
    if (volume?.containerDisk === undefined && hostDisk === undefined) return [];
    const cdrom = disk.cdrom !== undefined;
    return [
      {
        volume: disk.name,
        path:
          hostDisk === undefined
            ? `${paths.containerDisks}/disk_${index}.img`
            : `${paths.privateDirectory}/vmi-disks/${disk.name}/${basename(hostDisk.path)}`,
        ...(hostDisk === undefined ? {} : { writable: true }),
        device: cdrom ? 'cdrom' : 'disk',
        bus: (cdrom ? disk.cdrom?.bus : disk.disk?.bus) ?? (cdrom ? 'sata' : 'virtio'),
        bootOrder: disk.bootOrder,
      } as const,
    ];
  });
}

/** Disks that a running machine is to have besides: of hot-pluggable volumes that the node agent has put into the pod. */
export function pluggedDisks(vmi: Vmi, paths: PodPaths): MachineDisk[] {
  return (vmi.spec.domain.devices.disks ?? []).flatMap(({ name }): MachineDisk[] => {
    const volume = vmi.spec.volumes?.find((each) => each.name === name);
    const claim = volume?.persistentVolumeClaim ?? volume?.dataVolume;
    const phase = vmi.status.volumeStatus?.find((status) => status.name === name)?.phase;
    if (claim?.hotpluggable !== true || (phase !== 'MountedToPod' && phase !== 'Ready')) return [];
    const base = `${paths.hotplugDisks}/${name}`;
    const disk = { volume: name, device: 'disk', bus: 'scsi' } as const;
    if (statSync(base, { throwIfNoEntry: false })?.isBlockDevice()) {
      return [{ ...disk, path: base, plugged: 'block' }];
    }
    return existsSync(`${base}.img`) ? [{ ...disk, path: `${base}.img`, plugged: 'file' }] : [];
  });
}

export function domainName(vmi: Vmi): string {
  return `${vmi.metadata.namespace}_${vmi.metadata.name}`;
}

/** Throws a LibvirtError when the VMI asks for something impossible. */
export function machineConfig(vmi: Vmi, paths: PodPaths): MachineConfig {
  const cpu = vmi.spec.domain.cpu;
  const disks = disksOf(vmi, paths);
  const nics = nicsOf(vmi, interfacesOf(vmi), paths);
  const ordered = [...disks, ...nics].some((device) => device.bootOrder !== undefined);
  return {
    name: domainName(vmi),
    uuid: vmi.spec.domain.firmware?.uuid ?? uuidOf(vmi.metadata.name),
    memoryMiB: mebibytes(vmi),
    cpus: (cpu?.cores ?? 1) * (cpu?.sockets ?? 1) * (cpu?.threads ?? 1),
    // Any CPU does: the node agent, not libvirt, keeps the threads there.
    ...(cpu?.dedicatedCpuPlacement && cpu.isolateEmulatorThread ? { emulatorPin: '0' } : {}),
    acpi: vmi.spec.domain.features?.acpi?.enabled ?? true,
    // Without any boot order the first disk boots.
    disks: ordered
      ? disks
      : disks.map((disk, index) => ({ ...disk, bootOrder: index === 0 ? 1 : undefined })),
    nics,
    sriovNetworks: sriovNetworks(vmi),
    runDirectory: paths.run,
    consoleDirectory: `${paths.privateDirectory}/${vmi.metadata.uid}`,
  };
}

/** A UUID that a VMI of the same name always gets. */
function uuidOf(name: string): string {
  const hex = createHash('sha1').update(`virt-privsep/${name}`).digest('hex');
  const variant = ((Number.parseInt(hex.slice(16, 18), 16) & 0x3f) | 0x80).toString(16);
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    `5${hex.slice(13, 16)}`,
    variant + hex.slice(18, 20),
    hex.slice(20, 32),
  ].join('-');
}
