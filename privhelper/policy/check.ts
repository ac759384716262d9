/** A check turns a request into the only form in which operations see it. */
import type { Policy } from './policy.js';

/** The pod that a call is about, and the VMI that it runs. */
export interface PodRef {
  readonly podUid: string;
  readonly vmiUid: string;
}

/** What every checked request may name; the audit log records it. */
export interface Named {
  readonly podUid?: string;
  readonly vmiUid?: string;
}

export interface Check<Request, Checked extends Named> {
  /** What is checked, in order, in words. */
  readonly words: readonly string[];
  /** Pure. Throws a CallFailure that names the field at fault. */
  parse(policy: Policy, request: Request): Checked;
  /** The arguments that the audit log records, besides pod and VMI. */
  audited(checked: Checked): Readonly<Record<string, unknown>>;
}
