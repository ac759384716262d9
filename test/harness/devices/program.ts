/** Device programs of cgroup v2, attached as a runtime does it. */
import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const script = fileURLToPath(new URL('attach-program.py', import.meta.url));

/** @param how in the place of the cgroup's own, or so that those of cgroups below decide, too */
export function attachProgram(cgroup: string, program: Uint8Array, how: 'alone' | 'beside' = 'alone'): void {
  execFileSync('/usr/bin/python3', [script, cgroup, how], { input: program });
}
