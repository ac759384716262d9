/** Whether the pod network lets a VMI migrate (KubeVirt vmispec VerifyVMIMigratable). */
import type { Vmi } from '../../api/vmi.js';
import { type BindingPlugins, pluginOf } from '../../network/bindings.js';

const allowPodBridge = 'kubevirt.io/allow-pod-bridge-network-live-migration';

/** Undefined: nothing is in the way. Secondary networks never are. */
export function networkObstacle(vmi: Vmi, plugins: BindingPlugins): string | undefined {
  const interfaces = vmi.spec.domain?.devices?.interfaces ?? [];
  const podNetwork = (vmi.spec.networks ?? []).find((network) => network.pod);
  if (interfaces.length === 0 || podNetwork === undefined) return undefined;
  const iface = interfaces.find((candidate) => candidate.name === podNetwork.name);
  if (iface === undefined) return `no primary interface found for network ${podNetwork.name}`;
  if (iface.masquerade || iface.passtBinding) return undefined;
  const movable = iface.bridge
    ? vmi.metadata.annotations?.[allowPodBridge] !== undefined
    : pluginOf(iface, plugins)?.migration != null;
  if (movable) return undefined;
  return 'cannot migrate VMI which does not use masquerade or a migratable plugin to connect to the pod network';
}
