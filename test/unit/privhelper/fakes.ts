/** Stand-ins for the addon and for what surrounds an operation. */
import { Code } from '@connectrpc/connect';
import { expect } from 'vitest';
import type { InotifyEvent, Launcher, Native, NativeError, PodState } from '../../../native/binding.js';
import { CallFailure } from '../../../privhelper/failure.js';
import { Invocation } from '../../../privhelper/invocation.js';
import type { PodRef } from '../../../privhelper/policy/check.js';

export const podA = '11111111-1111-4111-8111-111111111111';
export const podB = '22222222-2222-4222-8222-222222222222';
export const vmiA = 'aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa';
export const vmiB = 'bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb';
export const refA: PodRef = { podUid: podA, vmiUid: vmiA };
export const agent = { pid: 4242, uid: 65531, gid: 65531 };

export function nativeError(code: string, more: Partial<NativeError> = {}): NativeError {
  const facts = { code, errno: 1, operation: 'fake operation', refused: false, unchanged: true, ...more };
  return Object.assign(new Error(code), facts);
}

/** The field that a check refuses; undefined when it passes. */
export function refusedField(check: () => unknown): string | undefined {
  try {
    check();
    return undefined;
  } catch (error) {
    expect(error).toBeInstanceOf(CallFailure);
    const failure = error as CallFailure;
    expect(failure.code).toBe(Code.InvalidArgument);
    expect(failure.refused).toBe(true);
    expect(failure.unchanged).toBe(true);
    expect(failure.message).toContain(failure.field);
    return failure.field;
  }
}

export const emptyState: PodState = {
  directory: true,
  launcherSocket: 'absent',
  unresponsiveMarker: false,
  containerDisks: [],
  kernelBoot: false,
  containerDiskBinary: false,
};

/** Every method fails unless a test gives one. */
export function fakeNative(methods: Partial<Native>): Native {
  return new Proxy(methods as Native, {
    get(target, name: string) {
      const method: unknown = Reflect.get(target, name);
      if (method === undefined) throw new Error(`unexpected call of ${name}`);
      return method;
    },
  });
}

/** Launchers that can exit, and a count of what was closed. */
export class FakeLaunchers {
  readonly closed: number[] = [];
  readonly checked: string[] = [];
  readonly pins: string[] = [];
  uid = 107;
  check: () => Promise<void> = async () => undefined;
  pin: (() => Promise<void>) | undefined;
  private next = 100;
  private readonly exits = new Map<number, () => void>();

  readonly methods: Partial<Native> = {
    pinLauncher: async (_call, _dir, podUid) => {
      this.pins.push(podUid);
      await this.pin?.();
      return this.launcher();
    },
    checkLauncher: async (_call, _launcher, podUid) => {
      this.checked.push(podUid);
      await this.check();
    },
    close: (fd) => void this.closed.push(fd),
    onProcessExit: (pidfd, callback) => {
      this.exits.set(pidfd, callback);
      return { cancel: () => void this.exits.delete(pidfd) };
    },
  };

  launcher(): Launcher {
    const base = this.next;
    this.next += 10;
    return {
      pidfd: base,
      mntns: base + 1,
      netns: base + 2,
      pid: base,
      uid: this.uid,
      gid: 107,
    };
  }

  exit(pidfd: number): void {
    this.exits.get(pidfd)?.();
  }
}

export function invocation(more: { caps?: bigint; deadline?: number; now?: () => number } = {}): Invocation {
  return new Invocation({
    id: 'test-1',
    peer: agent,
    caps: more.caps ?? 0n,
    deadline: more.deadline ?? 1000,
    now: more.now ?? (() => 0),
    signal: new AbortController().signal,
  });
}

/** Directories by path below the pods directory, and inotify events on demand. */
export class FakeTree {
  readonly directories = new Set<string>();
  readonly states = new Map<string, PodState>();
  readonly removed: number[] = [];
  looks = 0;
  private readonly wds = new Map<string, number>();
  private onEvents: (events: InotifyEvent[]) => void = () => undefined;

  readonly methods: Partial<Native> = {
    createInotify: (onEvents) => {
      this.onEvents = onEvents;
      return { fd: 9, close: () => undefined };
    },
    watchDirectory: async (_call, _inotify, _dir, components) => {
      const path = components.join('/');
      if (path !== '' && !this.directories.has(path)) throw nativeError('ENOENT');
      const wd = this.wds.get(path) ?? this.wds.size + 1;
      this.wds.set(path, wd);
      return wd;
    },
    removeWatch: (_inotify, wd) => void this.removed.push(wd),
    listDirectory: async () => [...this.directories].filter((path) => !path.includes('/')),
    podState: async (_call, _dir, podUid) => {
      this.looks += 1;
      const state = this.states.get(podUid);
      if (state === undefined) throw nativeError('ENOENT');
      return state;
    },
  };

  /** Makes a directory and all above it, with an event where the parent is watched. */
  mkdir(path: string): void {
    const parts = path.split('/');
    for (let i = 1; i <= parts.length; i += 1) {
      const directory = parts.slice(0, i).join('/');
      if (this.directories.has(directory)) continue;
      this.directories.add(directory);
      this.event(parts.slice(0, i - 1).join('/'), parts[i - 1] ?? '', 0x100);
    }
  }

  /** Removes a directory and all below it. */
  rmdir(path: string): void {
    for (const directory of [...this.directories]) {
      if (directory !== path && !directory.startsWith(`${path}/`)) continue;
      this.directories.delete(directory);
      const wd = this.wds.get(directory);
      if (wd !== undefined) this.onEvents([{ wd, mask: 0x8000, name: '' }]);
      this.wds.delete(directory);
    }
    const parts = path.split('/');
    this.event(parts.slice(0, -1).join('/'), parts.at(-1) ?? '', 0x200);
  }

  event(directory: string, name: string, mask: number): void {
    const wd = this.wds.get(directory);
    if (wd !== undefined) this.onEvents([{ wd, mask, name }]);
  }

  overflow(): void {
    this.onEvents([{ wd: -1, mask: 0x4000, name: '' }]);
  }
}
