/** What a launcher tells the node agent about one event (KubeVirt pkg/virt-launcher/notify-client). */
import {
  domainDocument,
  emptySpec,
  type JsonObject,
  type MetadataDocument,
  type PanicDocument,
} from './domain-document.js';
import {
  type DomainState,
  Lifecycle,
  type LifecycleEvent,
  PausedReason,
  reasonName,
  State,
  sameEvent,
  stateName,
} from './libvirt.js';

export interface DomainName {
  readonly namespace: string;
  readonly name: string;
}

/** Why the launcher looks at the domain. Both absent: metadata, the guest agent or a reconnect. */
export interface Trigger {
  readonly lifecycle?: LifecycleEvent | undefined;
  /** libvirt's operation number of a completed job. */
  readonly jobOperation?: number | undefined;
}

export interface DiskError {
  readonly volume: string;
  /** 1: unspecified, 2: no space. */
  readonly code: number;
}

export type Failed = 'not found' | 'failed';

/** What the launcher finds when it looks. */
export interface Observation {
  readonly state: DomainState | Failed;
  /** Builds the Spec around the metadata. */
  readonly spec: ((metadata: MetadataDocument) => JsonObject) | Failed;
  readonly diskErrors: readonly DiskError[];
}

/** The launcher's memory of guest panics. */
export interface PanicState {
  readonly count: number;
  readonly info: PanicDocument | null;
}

export interface DomainEvent {
  readonly type: 'ADDED' | 'MODIFIED';
  readonly domain: JsonObject;
}

export interface K8sEvent {
  readonly type: 'Warning';
  readonly reason: 'IOerror' | 'GuestPanicked';
  readonly message: string;
}

export interface Notification {
  readonly domainEvent?: DomainEvent;
  readonly k8sEvents: readonly K8sEvent[];
  /** Type of what the launcher's own main loop is told: a new domain, or the final deletion. */
  readonly signal?: 'ADDED' | 'MODIFIED';
  readonly panic: PanicState;
}

const unknownPanic: PanicDocument = { Type: 'unknown', Arg1: 0, Arg2: 0, Arg3: 0, Arg4: 0, Arg5: 0 };
/** VIR_DOMAIN_JOB_OPERATION_BACKUP. */
const backupJob = 9;
const ioErrorTexts: Readonly<Record<number, string>> = {
  1: 'VM Paused due to IO error at the volume: ',
  2: 'VM Paused due to not enough space on volume: ',
};

/** The panic memory after an event: the first panic counts, and every crash that loads a crash kernel. */
function afterPanic(panic: PanicState, event: LifecycleEvent | undefined): PanicState {
  const counts =
    sameEvent(event, Lifecycle.crashedCrashloaded) ||
    (sameEvent(event, Lifecycle.crashedPanicked) && panic.count === 0);
  return counts ? { count: panic.count + 1, info: unknownPanic } : panic;
}

/**
 * The notification for one trigger. `metadata` is the launcher's metadata now, `uid` the VMI UID it was
 * started for (known even before the first sync), `deletionTimestamp` the present time.
 */
export function notify(
  name: DomainName,
  uid: string,
  trigger: Trigger,
  observed: Observation,
  metadata: MetadataDocument,
  before: PanicState,
  deletionTimestamp: string,
): Notification {
  const panic = afterPanic(before, trigger.lifecycle);
  const k8sEvents: K8sEvent[] = [];
  if (panic.count > before.count) {
    k8sEvents.push({
      type: 'Warning',
      reason: 'GuestPanicked',
      message: 'GuestPanicked (details unavailable)',
    });
  }
  const type =
    sameEvent(trigger.lifecycle, Lifecycle.definedAdded) ||
    sameEvent(trigger.lifecycle, Lifecycle.startedMigrated) ||
    trigger.jobOperation === backupJob
      ? 'ADDED'
      : 'MODIFIED';
  const { state, spec } = observed;
  if (state === 'not found') {
    const domain = domainDocument(
      { ...name, uid, deletionTimestamp },
      emptySpec({ UID: uid, GracePeriod: null }),
      { Status: 'NoState', Reason: 'NonExistent', GuestPanicInfo: panic.info, PanicCount: panic.count },
    );
    return { domainEvent: { type, domain }, k8sEvents, signal: type, panic };
  }
  if (state === 'failed' || spec === 'failed') return { k8sEvents: [], panic };

  if (state.state === State.paused && state.reason === PausedReason.ioError) {
    for (const { volume, code } of observed.diskErrors) {
      const text = ioErrorTexts[code];
      if (text !== undefined) k8sEvents.push({ type: 'Warning', reason: 'IOerror', message: text + volume });
    }
  }
  const gone = spec === 'not found';
  const domain = domainDocument(
    { ...name, uid: gone ? uid : metadata.UID },
    gone ? emptySpec({ UID: uid, GracePeriod: null }) : spec(metadata),
    {
      Status: stateName(state.state),
      Reason: reasonName(state),
      GuestPanicInfo: panic.info,
      PanicCount: panic.count,
    },
  );
  const event = { domainEvent: { type, domain }, k8sEvents, panic } as const;
  return type === 'ADDED' ? { ...event, signal: type } : event;
}
