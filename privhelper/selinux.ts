/** Whether SELinux labels anything on this node, and what a label may look like. */
import { closeSync, constants, openSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { CallFailure } from './failure.js';

export type SelinuxMode = 'disabled' | 'permissive' | 'enforcing';

/** Largest label that is looked at, bytes; the kernel's own bound is one page. */
const maxContextBytes = 4096;

/** user:role:type, and the level of policies that have levels: a range of sensitivities with categories. */
const context = /^[A-Za-z0-9_.-]+:[A-Za-z0-9_.-]+:[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.,:-]+)?$/;

/**
 * selinuxfs may be there on a kernel that labels nothing, and AppArmor answers for the own label, too: SELinux is
 * active only where there is a selinuxfs and the own label is one of SELinux's.
 *
 * @param enforce text of selinuxfs's file `enforce`; undefined where there is none
 * @param label text of proc_pid_attr(5) `current`; undefined where reading it fails
 */
export function selinuxMode(enforce: string | undefined, label: string | undefined): SelinuxMode {
  if (enforce === undefined || label === undefined) return 'disabled';
  if (!context.test(label.replace(/[\0\n]+$/, ''))) return 'disabled';
  return enforce.trim() === '1' ? 'enforcing' : 'permissive';
}

/** The label in the value of `security.selinux`, xattr(7); empty for none. Throws a CallFailure for anything else. */
export function parseContext(value: Uint8Array): string {
  const text = Buffer.from(value).toString('latin1').replace(/\0$/, '');
  if (value.length === 0 || context.test(text)) return text;
  throw new CallFailure({
    code: Code.FailedPrecondition,
    operation: 'parse security.selinux',
    message: "security.selinux of the launcher's root directory is no SELinux label",
  });
}

/** Reads the mode anew each time: setenforce(8) changes it while programs run. */
export class SelinuxReader {
  private constructor(
    private readonly enforceFd: number | undefined,
    private readonly label: string | undefined,
  ) {}

  /**
   * At start, as root: the host's selinuxfs is not in the helper's container, and the way to it leads through a
   * process of root's. The own label does not change.
   *
   * @param selinuxfs where selinuxfs may be mounted; the first place with a file `enforce` counts
   */
  static open(selinuxfs: readonly string[], labelFile: string): SelinuxReader {
    let enforce: number | undefined;
    for (const directory of selinuxfs) enforce ??= openIfAny(join(directory, 'enforce'));
    const label = openIfAny(labelFile);
    const reader = new SelinuxReader(enforce, readIfAny(label));
    if (label !== undefined) closeSync(label);
    return reader;
  }

  mode(): SelinuxMode {
    return selinuxMode(readIfAny(this.enforceFd), this.label);
  }
}

function openIfAny(path: string): number | undefined {
  try {
    return openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch {
    // Not there, or out of reach: either way nothing here is known to be labelled.
    return undefined;
  }
}

function readIfAny(fd: number | undefined): string | undefined {
  if (fd === undefined) return undefined;
  const buffer = Buffer.alloc(maxContextBytes);
  try {
    return buffer.toString('latin1', 0, readSync(fd, buffer, 0, buffer.length, 0));
  } catch {
    // EINVAL or EOPNOTSUPP: a kernel with SELinux that is not active.
    return undefined;
  }
}
