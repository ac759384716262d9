/** Claims that become host disks, beyond the vectors. */
import { describe, expect, it } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import { replacePvcByHostDisk } from '../../../agent/reconcile/pvc-hostdisk.js';
import { aVmi } from './objects.js';

const claim = (persistentVolumeClaimInfo: object) => ({ name: 'v', target: '', persistentVolumeClaimInfo });

function capacityOf(
  ...volumeStatus: NonNullable<Vmi['status']['volumeStatus']>[number][]
): string | undefined {
  const vmi = aVmi({
    spec: { domain: { devices: {} }, volumes: [{ name: 'v', persistentVolumeClaim: { claimName: 'c' } }] },
    status: { volumeStatus },
  });
  return replacePvcByHostDisk(vmi).spec.volumes?.[0]?.hostDisk?.capacity;
}

describe('claims', () => {
  it.each([
    [{ requests: { storage: '1000Mi' } }, '1048576e3'],
    [{ requests: { storage: '1Gi' } }, '1073741824'],
    [{ capacity: { storage: '1048576e3' } }, '1048576e3'],
    [{ capacity: { storage: '1048576k' } }, '1048576k'],
    [{ capacity: { storage: '2000Mi' }, requests: { storage: '1000Mi' } }, '1000Mi'],
  ])('STO-025 of %j have the capacity in its notation: %s', (info, capacity) =>
    expect(capacityOf(claim(info))).toBe(capacity),
  );

  it('STO-025 take the last entry of the status that tells of a claim, and none that any entry calls plugged', () => {
    const one = claim({ capacity: { storage: '1Gi' } });
    const two = claim({ capacity: { storage: '2Gi' } });
    expect(capacityOf(one, two, { name: 'v', target: '' })).toBe('2Gi');
    expect(capacityOf({ name: 'v', target: '', hotplugVolume: {} }, one)).toBeUndefined();
  });
});
