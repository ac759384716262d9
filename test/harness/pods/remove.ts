/** Removing what a test made. */
import { existsSync, rmSync } from 'node:fs';
import { run } from './run.js';

/** Removes a directory with everything in it, append-only audit files too. */
export async function removeTree(directory: string): Promise<void> {
  if (!existsSync(directory)) return;
  try {
    rmSync(directory, { recursive: true, force: true });
  } catch {
    // An append-only file. Sockets and file systems without flags make chattr complain: what matters is whether the
    // directory is gone.
    await run('chattr', ['-R', '-f', '-a', directory]).catch(() => undefined);
    rmSync(directory, { recursive: true, force: true });
  }
}
