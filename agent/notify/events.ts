import type { Domain } from '../api/domain.js';
import type { VmiRef } from '../api/vmi.js';
import { guarded, parseDomain } from '../domains/domain-json.js';
import { Fields } from '../json/fields.js';
import { parseJson } from '../json/lossless.js';
import type { EventType } from '../reconcile/ports.js';

/** A K8s event as a launcher sends it. */
export interface LauncherEvent {
  readonly involved: VmiRef;
  readonly type: EventType;
  readonly reason: string;
  readonly message: string;
}

const maxBytes = 4 * 1024 * 1024;
const maxReason = 128;
const maxMessage = 1024;

/** Empty bytes are the zero Domain. Throws DomainParseError. */
export function domainOfEvent(bytes: Uint8Array): Domain {
  return parseDomain(bytes.length === 0 ? 'null' : Buffer.from(bytes).toString('utf8'));
}

/** The message of a metav1.Status. Throws DomainParseError for what is none. */
export function statusOfEvent(bytes: Uint8Array): string {
  if (bytes.length === 0) return '';
  return guarded('Status', () =>
    Fields.of(parseJson(Buffer.from(bytes).toString('utf8'), maxBytes), 'Status').string('message'),
  );
}

/** Reason and message are cut at what the API server takes. Throws DomainParseError. */
export function parseLauncherEvent(bytes: Uint8Array): LauncherEvent {
  return guarded('Event', () => {
    const event = Fields.of(parseJson(Buffer.from(bytes).toString('utf8'), maxBytes), 'Event');
    const involved = event.struct('involvedObject');
    return {
      involved: {
        namespace: involved.string('namespace'),
        name: involved.string('name'),
        uid: involved.string('uid'),
      },
      type: event.string('type') === 'Warning' ? 'Warning' : 'Normal',
      reason: event.string('reason').slice(0, maxReason),
      message: event.string('message').slice(0, maxMessage),
    };
  });
}

/** What of the event contradicts the VMI that the connection belongs to; undefined when nothing does. */
export function domainMismatch(domain: Domain, owner: VmiRef): string | undefined {
  const { namespace, name, uid } = domain.ObjectMeta;
  // An empty UID is "not yet known": a launcher sends it while its first sync defines the domain.
  const uids = [uid, domain.Spec.Metadata.KubeVirt.UID].filter((given) => given !== '');
  if (namespace === owner.namespace && name === owner.name && uids.every((given) => given === owner.uid)) {
    return undefined;
  }
  return `domain ${namespace}/${name} (${uids.join(', ')})`;
}

export function eventMismatch({ involved }: LauncherEvent, owner: VmiRef): string | undefined {
  if (involved.namespace === owner.namespace && involved.name === owner.name && involved.uid === owner.uid) {
    return undefined;
  }
  return `event on ${involved.namespace}/${involved.name} (${involved.uid})`;
}
