/** The policy of one run: defaults, the file's values over them, the command line's over both. */
import { readPolicyFile } from './file.js';
import {
  createPolicy,
  type DescribedSetting,
  describePolicy,
  type Overrides,
  type Policy,
} from './policy.js';

export interface Choice {
  readonly policyFile: string | undefined;
  readonly overrides: Overrides;
  /** User that the helper becomes. */
  readonly uid: number;
}

export interface ChosenPolicy {
  readonly policy: Policy;
  readonly described: readonly DescribedSetting[];
}

/** Throws when the file is not to be used or a value is not allowed. */
export function choosePolicy({ policyFile, overrides, uid }: Choice): ChosenPolicy {
  const file = policyFile === undefined ? {} : readPolicyFile(policyFile);
  const flags = Object.fromEntries(Object.entries(overrides).filter(([, value]) => value !== undefined));
  const policy = createPolicy({ ...file, ...flags });
  // Processes of one user may signal and trace each other.
  if (new Set([uid, policy.agentUid, policy.qemuUid]).size < 3) {
    throw new Error('the users of helper, agent and launchers (--uid, --agent-uid, --qemu-uid) must differ');
  }
  return { policy, described: describePolicy(policy, file, overrides) };
}
