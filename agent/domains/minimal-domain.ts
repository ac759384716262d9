import type { Domain, DomainLifecycle } from '../api/domain.js';
import type { VmiRef } from '../api/vmi.js';
import { readDomain } from './domain-json.js';

/** Stands for a domain that could not be asked for (KubeVirt api.NewMinimalDomainWithNS). */
function minimalDomain(vmi: VmiRef, status: DomainLifecycle, metadataUid: string): Domain {
  const domain = readDomain({});
  domain.ObjectMeta = { name: vmi.name, namespace: vmi.namespace, uid: vmi.uid };
  domain.Spec.Name = `${vmi.namespace}_${vmi.name}`;
  domain.Spec.Metadata.KubeVirt.UID = metadataUid;
  domain.Status.Status = status;
  return domain;
}

/** A launcher is there but does not answer: nothing is known, least of all that the domain is gone. */
export function unknownDomain(vmi: VmiRef): Domain {
  return minimalDomain(vmi, 'Unknown', vmi.uid);
}

/** The launcher is dead. `now`: milliseconds since the epoch; whole seconds are kept, as Kubernetes writes times. */
export function deadDomain(vmi: VmiRef, now: number): Domain {
  return markedDeleted(minimalDomain(vmi, '', vmi.uid), now);
}

/** The launcher's socket is missing at the first look. */
export function missingDomain(vmi: VmiRef, now: number): Domain {
  return markedDeleted(minimalDomain(vmi, '', ''), now);
}

function markedDeleted(domain: Domain, now: number): Domain {
  domain.ObjectMeta.deletionTimestamp = `${new Date(now).toISOString().slice(0, 19)}Z`;
  return domain;
}
