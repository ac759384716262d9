/** Networks and interfaces of a VMI, with the fields that 1.9 has and the published types lack. */
import type {
  V1Interface,
  V1MultusNetwork,
  V1Network,
  V1VirtualMachineInstanceNetworkInterface,
} from '@kubevirt-ui-ext/kubevirt-api/kubevirt';
import type { Vmi } from '../api/vmi.js';

export interface PortRange {
  readonly protocol?: string;
  readonly start: number;
  readonly end: number;
}

export type VmiInterface = V1Interface & { readonly portRanges?: readonly PortRange[] };
export type VmiNetwork = Omit<V1Network, 'multus'> & {
  readonly multus?: V1MultusNetwork & { readonly default?: boolean };
};
export type InterfaceStatus = V1VirtualMachineInstanceNetworkInterface;

export function vmiInterfaces(vmi: Vmi): VmiInterface[] {
  return vmi.spec.domain?.devices?.interfaces ?? [];
}

export function vmiNetworks(vmi: Vmi): VmiNetwork[] {
  return vmi.spec.networks ?? [];
}

export function interfaceStatuses(vmi: Vmi): InterfaceStatus[] {
  return vmi.status.interfaces ?? [];
}

export function isAbsent(iface: VmiInterface): boolean {
  return iface.state === 'absent';
}
