/** A pinned launcher: its descriptors, and when they may be closed. */
import type { Launcher, Native } from '../../native/binding.js';

export class Pin {
  private alive = true;
  private released = false;
  private users = 0;
  private namespacesOpen = true;
  private pidfdOpen = true;
  private readonly exitWatch: { cancel(): void };

  constructor(
    private readonly native: Pick<Native, 'close' | 'onProcessExit'>,
    readonly launcher: Launcher,
    readonly vmiUid: string,
    onExit: () => void,
  ) {
    this.exitWatch = native.onProcessExit(launcher.pidfd, () => {
      this.markExited();
      onExit();
    });
  }

  /** The process has not exited, so the VMI UID may not change. */
  get isAlive(): boolean {
    return this.alive;
  }

  /** May be given to an operation. */
  get isUsable(): boolean {
    return this.alive && !this.released;
  }

  /** Keeps the descriptors open while `operation` uses them. */
  async use<T>(operation: (launcher: Launcher) => Promise<T>): Promise<T> {
    this.users += 1;
    try {
      return await operation(this.launcher);
    } finally {
      this.users -= 1;
      this.settle();
    }
  }

  markExited(): void {
    this.alive = false;
    this.settle();
  }

  /** Gives up the namespaces. The pidfd stays, to know how long the binding to the VMI must hold. */
  release(): void {
    this.released = true;
    this.settle();
  }

  /** Closes everything, for a pin that is replaced or when the helper stops. */
  abandon(): void {
    this.exitWatch.cancel();
    this.markExited();
  }

  private settle(): void {
    if (this.users > 0) return;
    if (this.namespacesOpen && !this.isUsable) {
      this.namespacesOpen = false;
      this.native.close(this.launcher.mntns);
      this.native.close(this.launcher.netns);
    }
    if (this.pidfdOpen && !this.alive) {
      this.pidfdOpen = false;
      this.exitWatch.cancel();
      this.native.close(this.launcher.pidfd);
    }
  }
}
