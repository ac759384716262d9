/**
 * The VirtualMachineInstance as the agent sees it. The object is kept exactly as it came from the API
 * server (lossless numbers, unknown fields included), because it is sent back whole; these types only
 * name the parts that the agent reads or writes.
 */
import type {
  V1VirtualMachineInstance,
  V1VirtualMachineInstanceSpec,
  V1VirtualMachineInstanceStatus,
} from '@kubevirt-ui-ext/kubevirt-api/kubevirt';

export type Phase =
  | ''
  | 'Pending'
  | 'Scheduling'
  | 'Scheduled'
  | 'Running'
  | 'Succeeded'
  | 'Failed'
  | 'WaitingForSync'
  | 'Unknown';

export interface ObjectMeta {
  name: string;
  namespace: string;
  uid: string;
  resourceVersion?: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  [other: string]: unknown;
}

export type VmiSpec = V1VirtualMachineInstanceSpec;
/** Status with the fields that 1.9 has and the published types lack. */
export type VmiStatus = Omit<V1VirtualMachineInstanceStatus, 'phase'> & { phase?: Phase };

export interface Vmi extends Omit<V1VirtualMachineInstance, 'metadata' | 'spec' | 'status'> {
  metadata: ObjectMeta;
  spec: VmiSpec;
  status: VmiStatus;
}

/** Names a VMI where the object itself may be gone. */
export interface VmiRef {
  readonly namespace: string;
  readonly name: string;
  /** Empty when unknown. */
  readonly uid: string;
}

export function vmiKey(object: { namespace: string; name: string }): string {
  return `${object.namespace}/${object.name}`;
}
