/** Checks of requests that have no file of their own. */
import type { PodRef as PodRefMessage } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import {
  type ClaimRequest,
  Device,
  type SetPolicyRequest,
} from '../../gen/virtprivsep/privhelper/v1/device_pb.js';
import type { ExplainRequest } from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import type { ClaimableDevice } from '../../native/binding.js';
import { malformed, refusal } from '../failure.js';
import type { Check, Named, PodRef } from './check.js';
import { dnsLabelField, listField, Unique, uuidField } from './fields.js';

const nothing = () => ({});

export function parsePodRef(pod: PodRefMessage | undefined): PodRef {
  if (pod === undefined) throw malformed('pod', 'missing');
  return {
    podUid: uuidField('pod.pod_uid', pod.podUid),
    vmiUid: uuidField('pod.vmi_uid', pod.vmiUid),
  };
}

export const podRefWords = ['pod_uid and vmi_uid are canonical UUIDs'] as const;

/** Requests without fields. */
export const empty: Check<unknown, Named> = { words: [], parse: nothing, audited: nothing };

/** Requests without fields that look at every launcher. */
export const everyLauncher: Check<unknown, Named> = {
  ...empty,
  words: ['each launcher is checked as if it were named; one that fails is listed with the reason'],
};

/** Requests with a pod and nothing else. */
export const podOnly: Check<{ pod?: PodRefMessage | undefined }, PodRef> = {
  words: podRefWords,
  parse: (_policy, request) => parsePodRef(request.pod),
  audited: nothing,
};

/** Requests with a pod UID and nothing else. */
export const podUid: Check<{ podUid: string }, { readonly podUid: string }> = {
  words: ['pod_uid is a canonical UUID'],
  parse: (_policy, request) => ({ podUid: uuidField('pod_uid', request.podUid) }),
  audited: nothing,
};

const deviceNames: ReadonlyMap<Device, ClaimableDevice> = new Map([
  [Device.KVM, 'kvm'],
  [Device.TUN, 'tun'],
  [Device.VHOST_NET, 'vhost-net'],
  [Device.VHOST_VSOCK, 'vhost-vsock'],
]);

export interface DeviceClaim extends PodRef {
  readonly requested: readonly Device[];
  readonly devices: readonly ClaimableDevice[];
}

export const claim: Check<ClaimRequest, DeviceClaim> = {
  words: [
    ...podRefWords,
    'at most 16 devices, each one that policy lists, none twice; path and numbers are constants',
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
    return { ...pod, requested, devices };
  },
  audited: ({ devices }) => ({ devices }),
};

export interface DevicePolicyRequest extends PodRef {
  readonly blockVolumes: readonly string[];
}

export const setPolicy: Check<SetPolicyRequest, DevicePolicyRequest> = {
  words: [
    ...podRefWords,
    'at most 256 block volumes, DNS labels, none twice',
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

export interface ExplainedCall extends Named {
  readonly method: string;
  readonly request: Uint8Array;
}

export const explain: Check<ExplainRequest, ExplainedCall> = {
  words: ['method is a method of the helper; the request is decoded and checked, never carried out'],
  parse(_policy, { method, request }) {
    if (!/^[A-Za-z]{1,64}\.[A-Za-z]{1,64}$/.test(method)) throw malformed('method', 'not Service.Method');
    return { method, request };
  },
  audited: ({ method }) => ({ method }),
};
