/** Which device nodes a VMI needs in its launcher (KubeVirt pkg/virt-handler/non-root.go). */
import type { Vmi } from '../api/vmi.js';

export function requiresVhostNet(vmi: Vmi, useEmulation: boolean): boolean {
  const interfaces = vmi.spec.domain?.devices?.interfaces ?? [];
  return !useEmulation && interfaces.some((iface) => !iface.model || iface.model === 'virtio');
}

export function requiresTun(vmi: Vmi): boolean {
  const devices = vmi.spec.domain?.devices;
  return (devices?.interfaces ?? []).length > 0 || devices?.autoattachPodInterface !== false;
}
