/** Which volumes are ISO images of the launcher's making (KubeVirt IsoGuestVolumePath). */
import type { VmiSpec } from '../../api/vmi.js';

type Volume = NonNullable<VmiSpec['volumes']>[number];

/** An ISO image by what it is made of; the values name VMI or volume. */
export type Iso =
  | {
      readonly case: 'cloudInitNoCloud' | 'cloudInitConfigDrive';
      readonly value: { readonly namespace: string; readonly vmiName: string };
    }
  | {
      readonly case: 'configMapVolume' | 'downwardApiVolume' | 'secretVolume' | 'sysprepVolume';
      readonly value: string;
    }
  | { readonly case: 'serviceAccount'; readonly value: Record<string, never> };

/** Undefined for a volume that is no ISO of the launcher's making. */
export function isoOf(namespace: string, vmiName: string, volume: Volume): Iso | undefined {
  const vmi = { namespace, vmiName };
  if (volume.cloudInitNoCloud) return { case: 'cloudInitNoCloud', value: vmi };
  if (volume.cloudInitConfigDrive) return { case: 'cloudInitConfigDrive', value: vmi };
  if (volume.configMap) return { case: 'configMapVolume', value: volume.name };
  if (volume.downwardAPI) return { case: 'downwardApiVolume', value: volume.name };
  if (volume.secret) return { case: 'secretVolume', value: volume.name };
  if (volume.serviceAccount) return { case: 'serviceAccount', value: {} };
  if (volume.sysprep) return { case: 'sysprepVolume', value: volume.name };
  return undefined;
}
