/** The kinds that the server knows, as data. */
export interface Kind {
  readonly group: string;
  readonly version: string;
  readonly plural: string;
  readonly singular: string;
  readonly kind: string;
  readonly shortNames: readonly string[];
  readonly namespaced: boolean;
  /** Defined by a CustomResourceDefinition: versions are required on update, no strategic patch. */
  readonly custom: boolean;
  /** Status is written through /status only. */
  readonly statusSubresource: boolean;
  /** Deletion with a grace period leaves the object until somebody deletes it with 0 (pods). */
  readonly graceful: boolean;
  readonly columns: readonly Column[];
}

export interface Column {
  readonly name: string;
  readonly type: 'string' | 'date' | 'integer';
  /** Path of the field, keys separated by dots; `[Type]` picks the status of that condition. */
  readonly path: string;
}

const age: Column = { name: 'Age', type: 'date', path: 'metadata.creationTimestamp' };
const phase: Column = { name: 'Phase', type: 'string', path: 'status.phase' };

function core(plural: string, kind: string, rest: Partial<Kind> = {}): Kind {
  return {
    group: '',
    version: 'v1',
    plural,
    singular: kind.toLowerCase(),
    kind,
    shortNames: [],
    namespaced: true,
    custom: false,
    statusSubresource: false,
    graceful: false,
    columns: [age],
    ...rest,
  };
}

function custom(
  group: string,
  version: string,
  plural: string,
  kind: string,
  rest: Partial<Kind> = {},
): Kind {
  return core(plural, kind, { group, version, custom: true, ...rest });
}

export const kinds: readonly Kind[] = [
  core('namespaces', 'Namespace', { namespaced: false, shortNames: ['ns'], columns: [phase, age] }),
  core('nodes', 'Node', { namespaced: false, shortNames: ['no'], statusSubresource: true }),
  core('pods', 'Pod', {
    shortNames: ['po'],
    statusSubresource: true,
    graceful: true,
    columns: [phase, { name: 'Node', type: 'string', path: 'spec.nodeName' }, age],
  }),
  core('events', 'Event', {
    shortNames: ['ev'],
    columns: [
      { name: 'Last Seen', type: 'date', path: 'lastTimestamp' },
      { name: 'Type', type: 'string', path: 'type' },
      { name: 'Reason', type: 'string', path: 'reason' },
      { name: 'Object', type: 'string', path: 'involvedObject.name' },
      { name: 'Message', type: 'string', path: 'message' },
    ],
  }),
  core('configmaps', 'ConfigMap', { shortNames: ['cm'] }),
  core('secrets', 'Secret'),
  core('serviceaccounts', 'ServiceAccount', { shortNames: ['sa'] }),
  core('persistentvolumeclaims', 'PersistentVolumeClaim', {
    shortNames: ['pvc'],
    statusSubresource: true,
    columns: [phase, age],
  }),
  custom('kubevirt.io', 'v1', 'virtualmachineinstances', 'VirtualMachineInstance', {
    shortNames: ['vmi', 'vmis'],
    columns: [
      age,
      phase,
      { name: 'IP', type: 'string', path: 'status.interfaces.0.ipAddress' },
      { name: 'NodeName', type: 'string', path: 'status.nodeName' },
      { name: 'Ready', type: 'string', path: 'status.conditions.[Ready]' },
    ],
  }),
  custom('kubevirt.io', 'v1', 'virtualmachineinstancemigrations', 'VirtualMachineInstanceMigration', {
    shortNames: ['vmim', 'vmims'],
    statusSubresource: true,
    columns: [phase, { name: 'VMI', type: 'string', path: 'spec.vmiName' }, age],
  }),
  custom('kubevirt.io', 'v1', 'kubevirts', 'KubeVirt', {
    shortNames: ['kv', 'kvs'],
    statusSubresource: true,
    columns: [age, phase],
  }),
  custom('backup.kubevirt.io', 'v1alpha1', 'virtualmachinebackuptrackers', 'VirtualMachineBackupTracker', {
    statusSubresource: true,
  }),
  custom('plugin.kubevirt.io', 'v1alpha1', 'plugins', 'Plugin', { namespaced: false }),
  custom('apiextensions.k8s.io', 'v1', 'customresourcedefinitions', 'CustomResourceDefinition', {
    namespaced: false,
    custom: false,
    shortNames: ['crd', 'crds'],
    statusSubresource: true,
  }),
];

export function groupVersion(kind: Pick<Kind, 'group' | 'version'>): string {
  return kind.group === '' ? kind.version : `${kind.group}/${kind.version}`;
}

/** `virtualmachineinstances.kubevirt.io`, as messages name it. */
export function groupResource(kind: Kind): string {
  return kind.group === '' ? kind.plural : `${kind.plural}.${kind.group}`;
}

export function findKind(group: string, version: string, plural: string): Kind | undefined {
  return kinds.find((kind) => kind.group === group && kind.version === version && kind.plural === plural);
}

/** By plural, for tests. Throws when it is not in the table. */
export function kindOf(plural: string): Kind {
  const found = kinds.find((kind) => kind.plural === plural);
  if (found === undefined) throw new Error(`no kind ${plural}`);
  return found;
}
