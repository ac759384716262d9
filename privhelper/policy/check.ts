/** A check turns a request into the only form in which operations see it. */
import type { Policy } from './policy.js';

/** The pod that a call is about, and the VMI that it runs. */
export interface PodRef {
  readonly podUid: string;
  readonly vmiUid: string;
}

/** Pods and VMI that a checked request may name: what `explain` looks up, and the audit log records the first two. */
export interface Named {
  readonly podUid?: string;
  readonly vmiUid?: string;
  readonly attachmentPodUid?: string;
}

export interface Check<Request, Checked extends Named> {
  /** What is checked under a policy, in order, in words. */
  words(policy: Policy): readonly string[];
  /** Pure. Throws a CallFailure that names the field at fault. */
  parse(policy: Policy, request: Request): Checked;
  /** The arguments that the audit log records, besides pod and VMI. */
  audited(checked: Checked): Readonly<Record<string, unknown>>;
}
