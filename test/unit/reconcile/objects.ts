/** VMIs and domains for the tests of the loop. */
import type { Domain } from '../../../agent/api/domain.js';
import type { Phase, Vmi } from '../../../agent/api/vmi.js';
import { domainOf, host, vmiOf } from './world.js';

export const uid = 'uid-1';

interface VmiParts {
  phase?: Phase;
  metadata?: object;
  spec?: object;
  status?: object;
}

/** A VMI of this node. */
export function aVmi({ phase = 'Running', metadata, spec, status }: VmiParts = {}): Vmi {
  const vmi = vmiOf({
    metadata: {
      namespace: 'default',
      name: 'testvmi',
      uid,
      labels: { 'kubevirt.io/nodeName': host },
      creationTimestamp: '1999-12-31T23:00:00Z',
      ...metadata,
    },
    spec: { ...spec },
    status: { nodeName: host, phase, ...status },
  });
  if (vmi === undefined) throw new Error('no VMI');
  return vmi;
}

export const deleting = { deletionTimestamp: '2000-01-01T00:00:00Z' };

export function aDomain(
  status: string,
  reason = 'Unknown',
  kubevirt: object = {},
  other: object = {},
): Domain {
  const domain = domainOf({
    ObjectMeta: { namespace: 'default', name: 'testvmi', uid },
    Spec: {
      Metadata: { KubeVirt: { UID: uid, GracePeriod: { DeletionGracePeriodSeconds: 30 }, ...kubevirt } },
    },
    Status: { Status: status, Reason: reason },
    ...other,
  });
  if (domain === undefined) throw new Error('no domain');
  return domain;
}

export function gone(domain: Domain): Domain {
  return { ...domain, ObjectMeta: { ...domain.ObjectMeta, deletionTimestamp: '2000-01-01T00:00:00Z' } };
}
