/** Checks of DeviceService. */
import {
  type ClaimRequest,
  Device,
  type SetPolicyRequest,
} from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import type { ClaimableDevice } from '../../native/binding.js';
import { malformed, refusal } from '../failure.js';
import type { Check, PodRef } from './check.js';
import { dnsLabelField, listField, Unique } from './fields.js';
import { parsePodRef, podRefWords } from './requests.js';

/** Each device of the protocol and its name in policy and addon. */
export const deviceNames: ReadonlyMap<Device, ClaimableDevice> = new Map([
  [Device.KVM, 'kvm'],
  [Device.MSHV, 'mshv'],
  [Device.TUN, 'tun'],
  [Device.VHOST_NET, 'vhost-net'],
  [Device.VHOST_VSOCK, 'vhost-vsock'],
  [Device.SEV, 'sev'],
  [Device.VFIO, 'vfio'],
]);

export interface DeviceClaim extends PodRef {
  readonly requested: readonly Device[];
  readonly devices: readonly ClaimableDevice[];
  readonly blockVolumes: readonly string[];
}

export const claim: Check<ClaimRequest, DeviceClaim> = {
  words: ({ maxDevices, maxBlockVolumes }) => [
    ...podRefWords,
    `at most ${maxDevices} devices, each one that policy lists, none twice; path and numbers are constants or the kernel's`,
    `at most ${maxBlockVolumes} block volumes, DNS labels, none twice`,
    "nodes are of the launcher's own /dev, never of the host's",
  ],
  parse(policy, request) {
    const pod = parsePodRef(request.pod);
    const requested = listField('devices', request.devices, policy.maxDevices);
    const unique = new Unique();
    const devices = requested.map((device, i) => {
      const name = deviceNames.get(device);
      if (name === undefined) throw malformed(`devices[${i}]`, 'not a known device');
      unique.add(`devices[${i}]`, name);
      if (!policy.devices.includes(name)) {
        throw refusal('check policy', `policy does not allow device ${name}`, `devices[${i}]`);
      }
      return name;
    });
    const volumes = new Unique();
    const blockVolumes = listField('block_volumes', request.blockVolumes, policy.maxBlockVolumes);
    for (const [i, volume] of blockVolumes.entries()) {
      volumes.add(`block_volumes[${i}]`, dnsLabelField(`block_volumes[${i}]`, volume));
    }
    return { ...pod, requested, devices, blockVolumes };
  },
  audited: ({ devices, blockVolumes }) => ({ devices, blockVolumes }),
};

export interface DevicePolicyRequest extends PodRef {
  readonly blockVolumes: readonly string[];
}

export const setPolicy: Check<SetPolicyRequest, DevicePolicyRequest> = {
  words: ({ maxBlockVolumes }) => [
    ...podRefWords,
    `at most ${maxBlockVolumes} block volumes, DNS labels, none twice`,
    "rules come from what the launcher's /dev shows and the helper has plugged, never from the request",
    'character devices of listed classes only; no block device that the host has mounted or swaps to',
  ],
  parse(policy, request) {
    const pod = parsePodRef(request.pod);
    const unique = new Unique();
    const blockVolumes = listField('block_volumes', request.blockVolumes, policy.maxBlockVolumes).map(
      (volume, i) => {
        const field = `block_volumes[${i}]`;
        unique.add(field, volume);
        return dnsLabelField(field, volume);
      },
    );
    return { ...pod, blockVolumes };
  },
  audited: ({ blockVolumes }) => ({ blockVolumes }),
};
