/** Binding of an interface; the first of the fields set decides (KubeVirt netpod/discover.go). */
import type { VmiInterface } from './vmi-network.js';

export type Binding = 'bridge' | 'masquerade' | 'plugin' | 'passt' | 'sriov' | 'undefined';

/** A binding plugin of the cluster configuration (`network.binding.<name>`). */
export interface BindingPlugin {
  readonly domainAttachmentType?: string;
  readonly migration?: { readonly method?: string };
}
export type BindingPlugins = Readonly<Record<string, BindingPlugin>>;

export function bindingOf(iface: VmiInterface): Binding {
  if (iface.bridge) return 'bridge';
  if (iface.masquerade) return 'masquerade';
  if (iface.binding) return 'plugin';
  if (iface.passtBinding) return 'passt';
  if (iface.sriov) return 'sriov';
  return 'undefined';
}

/** A plugin whose guest is connected by a tap that the node makes (`domainAttachmentType: managedTap`). */
export function hasManagedTap(iface: VmiInterface, plugins: BindingPlugins): boolean {
  return bindingOf(iface) === 'plugin' && pluginOf(iface, plugins)?.domainAttachmentType === 'managedTap';
}

export function pluginOf(iface: VmiInterface, plugins: BindingPlugins): BindingPlugin | undefined {
  const name = iface.binding?.name;
  return name !== undefined && Object.hasOwn(plugins, name) ? plugins[name] : undefined;
}
