/** What is kept of the VMIs that have nothing to do with this node. */
import { createMigrationTargetAnnotation, migrationTargetNodeLabel, nodeNameLabel } from '../api/names.js';
import type { Vmi } from '../api/vmi.js';

const migrationFields = [
  'migrationUid',
  'sourceNode',
  'targetNode',
  'startTimestamp',
  'endTimestamp',
  'completed',
  'failed',
];
const migrationSideFields = ['node', 'syncAddress', 'nodeAddress'];
const keptLabels = [nodeNameLabel, migrationTargetNodeLabel];
const keptAnnotations = [createMigrationTargetAnnotation];

/** Present on a VMI of which only a part was kept. Survives copying, unlike a symbol. */
const slimMark = 'slim';

export function isSlim(vmi: Vmi): boolean {
  return slimMark in vmi;
}

/**
 * Transform for the cache of all VMIs of the cluster: a VMI that runs on `node` or migrates from or to it
 * stays whole; of any other only what tells whether it exists, who it is, where it is and how its
 * migration stands.
 */
export function slimVmi(node: string): (vmi: Vmi) => Vmi {
  return (vmi) => (concerns(vmi, node) ? vmi : slim(vmi));
}

function concerns(vmi: Vmi, node: string): boolean {
  const migration = vmi.status.migrationState;
  return (
    keptLabels.some((label) => vmi.metadata.labels?.[label] === node) ||
    vmi.status.nodeName === node ||
    migration?.sourceNode === node ||
    migration?.targetNode === node
  );
}

function slim(vmi: Vmi): Vmi {
  const { namespace, name, uid, resourceVersion, deletionTimestamp, labels, annotations } = vmi.metadata;
  const { phase, nodeName, activePods, migrationState } = vmi.status;
  return {
    [slimMark]: true,
    metadata: {
      namespace,
      name,
      uid,
      resourceVersion,
      deletionTimestamp,
      labels: pick(labels, keptLabels),
      annotations: pick(annotations, keptAnnotations),
    },
    spec: { domain: { devices: {} } },
    status: { phase, nodeName, activePods, migrationState: slimMigration(migrationState) },
  } as unknown as Vmi;
}

function slimMigration(state: Vmi['status']['migrationState']): object | undefined {
  if (state === undefined || state === null) return undefined;
  return {
    ...pick(state, migrationFields),
    sourceState: pick(state.sourceState, migrationSideFields),
    targetState: pick(state.targetState, migrationSideFields),
  };
}

function pick<T extends object>(from: T | undefined | null, keys: readonly string[]): object | undefined {
  if (from === undefined || from === null) return undefined;
  return Object.fromEntries(Object.entries(from).filter(([key]) => keys.includes(key)));
}
