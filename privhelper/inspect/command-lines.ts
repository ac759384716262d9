import { setTimeout as sleep } from 'node:timers/promises';

/** Milliseconds. */
const readMs = 500;
/** Reads beyond their time, in all. Each keeps one of the few threads with which Node.js reads files. */
const maxLate = 2;

/**
 * Reads command lines of launchers, proc_pid_cmdline(5). They are in the memory of the process, which can make the
 * read last for ever, as by a mapping of a file whose server does not answer; nothing calls such a read off.
 */
export class CommandLines {
  /** Processes whose read is under way beyond its time. */
  private readonly late = new Set<number>();

  constructor(private readonly read: (pid: number) => Promise<string>) {}

  /** Words end with NUL. Empty when the process does not let it be read in time, or not long ago did not. */
  async of(pid: number): Promise<string> {
    if (this.late.has(pid) || this.late.size >= maxLate) return '';
    const cancel = new AbortController();
    let read = false;
    const text = this.read(pid)
      .catch(() => '')
      .finally(() => {
        read = true;
        this.late.delete(pid);
      });
    const over = sleep(readMs, undefined, { signal: cancel.signal }).catch(() => '');
    const first = await Promise.race([text, over]);
    cancel.abort();
    if (first === undefined && !read) this.late.add(pid);
    return first ?? '';
  }
}
