/** The options of SyncVirtualMachine (KubeVirt pkg/virt-handler/options.go). Pure. */
import { create } from '@bufbuild/protobuf';
import { type VirtualMachineOptions, VirtualMachineOptionsSchema } from '../../gen/kubevirt/cmd/v1/cmd_pb.js';
import type { Vmi } from '../api/vmi.js';
import { type ClusterConfig, isGateOn } from '../cluster/config.js';
import { domainAttachments } from '../network/domain-attachment.js';
import { vmiInterfaces } from '../network/vmi-network.js';
import type { HostTopology } from './host-topology.js';

export interface OptionsFacts {
  readonly vmi: Vmi;
  /** Names of volumes whose claim is preallocated. */
  readonly preallocatedVolumes: readonly string[];
  readonly config: ClusterConfig;
  readonly topology: HostTopology | undefined;
  /** JSON array of Plugin objects; empty without any. */
  readonly pluginsJson: Uint8Array;
}

export function virtualMachineOptions(facts: OptionsFacts): VirtualMachineOptions {
  const { vmi, config } = facts;
  return create(VirtualMachineOptionsSchema, {
    VirtualMachineSMBios: config.smbios,
    MemBalloonStatsPeriod: config.memBalloonStatsPeriod,
    PreallocatedVolumes: [...facts.preallocatedVolumes],
    topology: topologyMessage(facts.topology),
    clusterConfig: {
      FreePageReportingDisabled: config.freePageReportingDisabled,
      BochsDisplayForEFIGuests: !config.vgaDisplayForEfiGuests,
      SerialConsoleLogDisabled: config.serialConsoleLogDisabled,
      PCINUMAAwareTopologyEnabled: isGateOn(config, 'PCINUMAAwareTopology'),
      VGPULiveMigrationEnabled: isGateOn(config, 'VGPULiveMigration'),
      GraceIOVirtualizationEnabled: isGateOn(config, 'GraceIOVirtualization'),
    },
    interfaceDomainAttachment: domainAttachments(vmiInterfaces(vmi), config.networkBindings),
    pluginsJson: isGateOn(config, 'Plugins') ? facts.pluginsJson : new Uint8Array(),
    GraceHostDeviceAliases: graceAliases(vmi, config),
  });
}

/** From the status as cached: the rewrite of claims to host disks hides what they were. */
export function preallocatedVolumes(vmi: Vmi): string[] {
  return (vmi.status.volumeStatus ?? [])
    .filter(({ persistentVolumeClaimInfo }) => persistentVolumeClaimInfo?.preallocated === true)
    .map(({ name }) => name);
}

function topologyMessage(topology: HostTopology | undefined) {
  return {
    numaCells: (topology?.cells ?? []).map(({ id, memory, pages, distances, cpus }) => ({
      id,
      ...(memory === undefined ? {} : { memory: { amount: memory.amount, unit: memory.unit } }),
      pages: pages.map((page) => ({ ...page })),
      distances: distances.map((distance) => ({ ...distance })),
      cpus: cpus.map((cpu) => ({ id: cpu.id, siblings: [...cpu.siblings] })),
    })),
  };
}

const graceDevices: ReadonlySet<string> = new Set(['10DE:2342', '10DE:2348', '10DE:2941']);

function graceAliases(vmi: Vmi, config: ClusterConfig): string[] {
  if (!isGateOn(config, 'GraceIOVirtualization')) return [];
  const resources = new Set(
    config.permittedHostDevices.pciHostDevices
      .filter(
        ({ resourceName, pciVendorSelector }) => resourceName !== '' && isGraceDevice(pciVendorSelector),
      )
      .map(({ resourceName }) => resourceName),
  );
  const { gpus, hostDevices } = vmi.spec?.domain?.devices ?? {};
  const named = (prefix: string, devices: readonly { name: string; deviceName?: string }[] | undefined) =>
    (devices ?? [])
      .filter(({ deviceName }) => deviceName !== undefined && resources.has(deviceName))
      .map(({ name }) => `${prefix}${name}`);
  const aliases = [...named('gpu-', gpus), ...named('hostdevice-', hostDevices)];
  return aliases.sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
}

function isGraceDevice(selector: string): boolean {
  const parts = selector.trim().split(':');
  if (parts.length !== 2) return false;
  const [vendor, device] = parts.map((part) => part.trim().toUpperCase().replace(/^0X/, ''));
  return graceDevices.has(`${vendor}:${device}`);
}
