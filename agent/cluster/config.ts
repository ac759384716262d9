/**
 * The parts of the KubeVirt custom resource that the agent uses, with KubeVirt's defaults
 * (pkg/virt-config/configuration.go). Zero values of plain fields mean "default", as there.
 */
import { Fields, JsonShapeError } from '../json/fields.js';
import type { JsonValue } from '../json/lossless.js';
import type { BindingPlugins } from '../network/bindings.js';
import { type FeatureGates, isFeatureGateOn } from './feature-gates.js';

/** A KubeVirt object that KubeVirt would refuse as well. The message names the field. */
export class ClusterConfigError extends Error {
  override readonly name = 'ClusterConfigError';
}

export interface SmBios {
  readonly manufacturer: string;
  readonly product: string;
  readonly version: string;
  readonly sku: string;
  readonly family: string;
}

/** `hyperv-direct`: QEMU on /dev/mshv. */
export type HypervisorName = 'kvm' | 'hyperv-direct';

export interface PermittedHostDevices {
  readonly pciHostDevices: readonly { readonly pciVendorSelector: string; readonly resourceName: string }[];
  readonly mediatedDevices: readonly { readonly mdevNameSelector: string; readonly resourceName: string }[];
}

export interface ClusterConfig {
  readonly featureGates: FeatureGates;
  /** Guests may run without /dev/kvm. */
  readonly useEmulation: boolean;
  readonly hypervisor: HypervisorName;
  readonly pvcTolerateLessSpaceUpToPercent: number;
  readonly minimumReservePvcBytes: number;
  readonly evictionStrategy: string;
  /** Text of a number; undefined: not configured. */
  readonly additionalGuestMemoryOverheadRatio: string | undefined;
  /** Regular expressions, not anchored. */
  readonly supportedGuestAgentVersions: readonly string[];
  /** Seconds; 0: off. */
  readonly memBalloonStatsPeriod: number;
  readonly smbios: SmBios;
  readonly permittedHostDevices: PermittedHostDevices;
  readonly networkBindings: BindingPlugins;
  readonly freePageReportingDisabled: boolean;
  readonly serialConsoleLogDisabled: boolean;
  /** EFI guests get a VGA display instead of bochs. */
  readonly vgaDisplayForEfiGuests: boolean;
  /** Log verbosity of virt-handler as a node's own setting or the general one; undefined: not configured. */
  readonly logVerbosity: {
    readonly nodes: ReadonlyMap<string, number>;
    readonly virtHandler: number | undefined;
  };
  /** Requests to the API server; undefined where not configured. */
  readonly apiRateLimit: { readonly qps: number | undefined; readonly burst: number | undefined };
  readonly migrations: {
    /** Name of the dedicated network; undefined: the pod network. */
    readonly network: string | undefined;
    readonly disableTls: boolean;
  };
}

export function isGateOn(config: ClusterConfig, gate: string): boolean {
  return isFeatureGateOn(config.featureGates, gate);
}

const vgaDisplayAnnotation = 'kubevirt.io/vga-display-efi-x86';
const maxEntries = 4096;
const maxUint32 = 0xffffffff;
const defaultGuestAgentVersions = ['2.*', '3.*', '4.*', '5.*'];

/**
 * `kubevirt` is the KubeVirt object; undefined: there is none yet, the defaults hold. Throws
 * ClusterConfigError; the configuration before stays valid then.
 */
export function parseClusterConfig(kubevirt: unknown): ClusterConfig {
  try {
    return readClusterConfig(Fields.of(kubevirt as JsonValue | undefined, 'KubeVirt'));
  } catch (error) {
    if (error instanceof JsonShapeError) throw new ClusterConfigError(error.message, { cause: error });
    throw error;
  }
}

function readClusterConfig(object: Fields): ClusterConfig {
  const configuration = object.struct('spec').struct('configuration');
  const developer = configuration.struct('developerConfiguration');
  const migrations = configuration.struct('migrations');
  const options = configuration.struct('virtualMachineOptions');
  const guestAgentVersions = configuration.strings('supportedGuestAgentVersions', maxEntries);
  validateUnused(configuration, developer);
  const featureGates = {
    enabled: new Set(developer.strings('featureGates', maxEntries)),
    disabled: new Set(developer.strings('disabledFeatureGates', maxEntries)),
  };
  return {
    featureGates,
    useEmulation: developer.boolean('useEmulation'),
    hypervisor: hypervisor(configuration, featureGates),
    pvcTolerateLessSpaceUpToPercent: within(developer, 'pvcTolerateLessSpaceUpToPercent', 100) || 10,
    minimumReservePvcBytes: within(developer, 'minimumReservePVCBytes', Number.MAX_SAFE_INTEGER) || 131072,
    evictionStrategy: configuration.string('evictionStrategy') || 'None',
    additionalGuestMemoryOverheadRatio: configuration.has('additionalGuestMemoryOverheadRatio')
      ? configuration.string('additionalGuestMemoryOverheadRatio')
      : undefined,
    supportedGuestAgentVersions:
      guestAgentVersions.length === 0 ? defaultGuestAgentVersions : guestAgentVersions,
    memBalloonStatsPeriod: configuration.has('memBalloonStatsPeriod')
      ? within(configuration, 'memBalloonStatsPeriod', maxUint32)
      : 10,
    smbios: smbios(configuration.struct('smbios')),
    permittedHostDevices: permittedHostDevices(configuration.struct('permittedHostDevices')),
    networkBindings: configuration.struct('network').map('binding', maxEntries, bindingPlugin),
    freePageReportingDisabled: options.has('disableFreePageReporting'),
    serialConsoleLogDisabled: options.has('disableSerialConsoleLog'),
    vgaDisplayForEfiGuests: object.struct('metadata').struct('annotations').has(vgaDisplayAnnotation),
    logVerbosity: logVerbosity(developer.struct('logVerbosity')),
    apiRateLimit: apiRateLimit(configuration.struct('handlerConfiguration')),
    migrations: {
      network: migrations.string('network') || undefined,
      disableTls: migrations.boolean('disableTLS'),
    },
  };
}

/** Zero stands for "not configured", here and below. */
function logVerbosity(fields: Fields): ClusterConfig['logVerbosity'] {
  const nodes = fields.struct('nodeVerbosity');
  return {
    nodes: new Map(nodes.keys(maxEntries).map((node) => [node, nodes.integer(node)])),
    virtHandler: fields.integer('virtHandler') || undefined,
  };
}

function apiRateLimit(fields: Fields): ClusterConfig['apiRateLimit'] {
  const bucket = fields.struct('restClient').struct('rateLimiter').struct('tokenBucketRateLimiter');
  const positive = (value: number) => (value > 0 ? value : undefined);
  return { qps: positive(bucket.number('qps')), burst: positive(bucket.integer('burst')) };
}

/** The first of the list counts, and only with its gate. */
function hypervisor(configuration: Fields, gates: FeatureGates): HypervisorName {
  const [name] = configuration.list('hypervisors', maxEntries, (entry) => entry.string('name'));
  return name === 'hyperv-direct' && isFeatureGateOn(gates, 'ConfigurableHypervisor') ? name : 'kvm';
}

/** What KubeVirt checks although this agent does not use it: a refused object is refused whole. */
function validateUnused(configuration: Fields, developer: Fields): void {
  within(developer, 'memoryOvercommit', Number.MAX_SAFE_INTEGER);
  within(developer, 'cpuAllocationRatio', Number.MAX_SAFE_INTEGER);
  oneOf(configuration, 'imagePullPolicy', ['Always', 'Never', 'IfNotPresent']);
  oneOf(configuration.struct('network'), 'defaultNetworkInterface', ['bridge', 'slirp', 'masquerade']);
}

/** An integer from 0 to `maximum`. */
function within(fields: Fields, key: string, maximum: number): number {
  const value = fields.integer(key);
  if (value < 0 || value > maximum) throw new ClusterConfigError(`${key} must be between 0 and ${maximum}`);
  return value;
}

function oneOf(fields: Fields, key: string, allowed: readonly string[]): void {
  const value = fields.string(key);
  if (value !== '' && !allowed.includes(value)) {
    throw new ClusterConfigError(`${key} must be one of ${allowed.join(', ')}`);
  }
}

function smbios(fields: Fields): SmBios {
  return {
    manufacturer: fields.string('manufacturer') || 'KubeVirt',
    product: fields.string('product') || 'None',
    version: fields.string('version'),
    sku: fields.string('sku'),
    family: fields.string('family') || 'KubeVirt',
  };
}

function permittedHostDevices(fields: Fields): PermittedHostDevices {
  return {
    pciHostDevices: fields.list('pciHostDevices', maxEntries, (device) => ({
      pciVendorSelector: device.string('pciVendorSelector'),
      resourceName: device.string('resourceName'),
    })),
    mediatedDevices: fields.list('mediatedDevices', maxEntries, (device) => ({
      mdevNameSelector: device.string('mdevNameSelector'),
      resourceName: device.string('resourceName'),
    })),
  };
}

function bindingPlugin(fields: Fields): BindingPlugins[string] {
  const domainAttachmentType = fields.string('domainAttachmentType');
  const migration = fields.optional('migration', (inner) => {
    const method = inner.string('method');
    return method === '' ? {} : { method };
  });
  return {
    ...(domainAttachmentType === '' ? {} : { domainAttachmentType }),
    ...(migration === undefined ? {} : { migration }),
  };
}
