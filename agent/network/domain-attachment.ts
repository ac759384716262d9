/** A map for the launcher's options, by interface name (KubeVirt pkg/network/domainspec). */
import { type BindingPlugins, bindingOf, pluginOf } from './bindings.js';
import type { VmiInterface } from './vmi-network.js';

/** How the domain attaches each interface: `tap`, or what its plugin says. */
export function domainAttachments(
  interfaces: readonly VmiInterface[],
  plugins: BindingPlugins,
): Record<string, string> {
  const attachments: Record<string, string> = {};
  for (const iface of interfaces) {
    const binding = bindingOf(iface);
    const type =
      binding === 'bridge' || binding === 'masquerade'
        ? 'tap'
        : pluginOf(iface, plugins)?.domainAttachmentType;
    if (type) attachments[iface.name] = type === 'managedTap' ? 'tap' : type;
  }
  return attachments;
}
