/** KubeVirt 1.9's feature gates (KubeVirt pkg/virt-config/featuregate). */

export type GateState = 'GA' | 'Beta' | 'Alpha' | 'Deprecated' | 'Discontinued';

const gatesByState: Readonly<Record<GateState, readonly string[]>> = {
  GA: [
    'LiveMigration',
    'SRIOVLiveMigration',
    'NonRoot',
    'PSA',
    'CPUNodeDiscovery',
    'NUMA',
    'CommonInstancetypesDeploymentGate',
    'GPU',
    'HotplugNICs',
    'BochsDisplayForEFIGuests',
    'VMLiveUpdateFeatures',
    'NetworkBindingPlugins',
    'DynamicPodInterfaceNaming',
    'VolumesUpdateStrategy',
    'VolumeMigration',
    'DisableCustomSELinuxPolicy',
    'AutoResourceLimitsGate',
    'ClusterProfiler',
    'VMPersistentState',
    'VMExport',
    'PersistentReservation',
    'InstancetypeReferencePolicy',
    'EnableVirtioFsConfigVolumes',
    'ExpandDisks',
    'PanicDevices',
    'LiveUpdateNADRef',
    'VideoConfig',
    'SecureExecution',
    'MigrationPriorityQueue',
  ],
  Beta: [
    'LibvirtHooksServerAndClient',
    'ImageVolume',
    'Snapshot',
    'WorkloadEncryptionSEV',
    'KubevirtSeccompProfile',
    'NodeRestriction',
    'GPUsWithDRA',
    'HostDevicesWithDRA',
    'DeclarativeHotplugVolumes',
    'PasstBinding',
    'PodSecondaryInterfaceNamingUpgrade',
    'ExternalNetResourceInjection',
    'RebootPolicy',
    'Template',
    'VmiMemoryOverheadReport',
    'OptOutRoleAggregation',
  ],
  Alpha: [
    'CPUManager',
    'ExperimentalIgnitionSupport',
    'HypervStrictCheck',
    'Sidecar',
    'HostDevices',
    'HostDisk',
    'DownwardMetrics',
    'Root',
    'WorkloadEncryptionTDX',
    'VSOCK',
    'AlignCPUs',
    'EnableVirtioFsStorageVolumes',
    'PCINUMAAwareTopology',
    'NetworkDevicesWithDRA',
    'DecentralizedLiveMigration',
    'ObjectGraph',
    'UtilityVolumes',
    'ConfigurableHypervisor',
    'IncrementalBackup',
    'ContainerPathVolumes',
    'ReservedOverheadMemlock',
    'VGPULiveMigration',
    'VMStatsCollector',
    'OCIExport',
    'Plugins',
    'GraceIOVirtualization',
    'IOMMUFD',
    'FirmwareAutoSelection',
    'MigrationStallDetection',
    'CrossArchitectureVirtualization',
    'PortRangesSpec',
  ],
  Deprecated: [
    'DockerSELinuxMCSWorkaround',
    'MultiArchitecture',
    'DisableMDEVConfiguration',
    'HotplugVolumes',
  ],
  Discontinued: ['ExperimentalVirtiofsSupport', 'Passt', 'Macvtap', 'PasstIPStackMigration'],
};

export const gateStates: ReadonlyMap<string, GateState> = new Map(
  (Object.entries(gatesByState) as [GateState, readonly string[]][]).flatMap(([state, gates]) =>
    gates.map((gate) => [gate, state] as const),
  ),
);

export interface FeatureGates {
  readonly enabled: ReadonlySet<string>;
  readonly disabled: ReadonlySet<string>;
}

/** GA gates are on; naming a gate wins over disabling it; of the others only Beta gates are on by themselves. */
export function isFeatureGateOn(gates: FeatureGates, name: string): boolean {
  const state = gateStates.get(name);
  if (state === undefined) return false;
  if (state === 'GA' || gates.enabled.has(name)) return true;
  return state === 'Beta' && !gates.disabled.has(name);
}
