/** The device policy of a VM that has block volumes plugged. */
import type { Vmi } from '../../api/vmi.js';
import type { ControllerDeps } from '../deps.js';

/** In every pass; before the first block volume is plugged the policy is the runtime's. */
export async function keepDevicePolicy(
  { devicePolicy }: Pick<ControllerDeps, 'devicePolicy'>,
  vmi: Vmi,
): Promise<void> {
  if (hasPluggedBlockVolume(vmi)) await devicePolicy.apply(vmi);
}

/** One that has been in the launcher at the last status write. */
export function hasPluggedBlockVolume(vmi: Vmi): boolean {
  return (vmi.status.volumeStatus ?? []).some(
    ({ hotplugVolume, persistentVolumeClaimInfo, phase }) =>
      hotplugVolume != null &&
      persistentVolumeClaimInfo?.volumeMode === 'Block' &&
      (phase === 'MountedToPod' || phase === 'Ready'),
  );
}
