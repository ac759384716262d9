/** Finding what still belongs to a pod or node of the harness. */
import { join } from 'node:path';
import { parentOf, readdirIfThere, readIfThere, readlinkIfThere, startTime } from './proc.js';

/** Namespaces (`net:[4026532]`) of something, and when that ended (seconds since boot). */
export interface NamespaceOwner {
  readonly namespaces: ReadonlySet<string>;
  readonly endedAt: number | undefined;
}

export const runVariable = 'VIRT_PRIVSEP_HARNESS';

/**
 * Processes of the run, and processes that this one has started which hold a namespace of `owners`, be it by
 * being in it or by a descriptor. The kernel gives the number of a namespace that is gone to a new one, so
 * strangers do not count, nor do processes that started after the owner had ended.
 */
export function heldByProcesses(
  runId: string,
  owners: Iterable<NamespaceOwner>,
  except: ReadonlySet<number>,
): string[] {
  const list = [...owners];
  const found: string[] = [];
  for (const pid of readdirIfThere('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)) {
    if (except.has(pid)) continue;
    const command = readIfThere(`/proc/${pid}/cmdline`).replaceAll('\0', ' ').trim();
    const ofRun = readIfThere(`/proc/${pid}/environ`).split('\0').includes(`${runVariable}=${runId}`);
    if (ofRun) found.push(`process ${pid} ${command}`);
    if (!ofRun && !isDescendant(pid)) continue;
    for (const link of namespacesHeldBy(pid)) {
      const held = list.some(
        ({ namespaces, endedAt }) =>
          namespaces.has(link) && (endedAt === undefined || (startTime(pid) ?? endedAt) < endedAt),
      );
      if (held) found.push(`namespace ${link} held by process ${pid} ${command}`);
    }
  }
  return found;
}

/** True for this process and what it has started, as far as nobody was adopted. */
function isDescendant(pid: number): boolean {
  for (let each = pid, generations = 0; each > 1 && generations < 64; generations += 1) {
    if (each === process.pid) return true;
    each = parentOf(each);
  }
  return false;
}

function namespacesHeldBy(pid: number): Set<string> {
  const links = new Set<string>();
  for (const directory of [`/proc/${pid}/ns`, `/proc/${pid}/fd`]) {
    for (const name of readdirIfThere(directory)) {
      const link = readlinkIfThere(join(directory, name));
      if (link !== undefined && /^[a-z]+:\[\d+\]$/.test(link)) links.add(link);
    }
  }
  return links;
}
