/** Guest panics, counted once each (KubeVirt pkg/virt-handler/vm.go emitPanicMetricIfNeeded). */
import type { Domain } from '../api/domain.js';

export interface GuestPanic {
  readonly type: string;
  readonly bugcheckCode: string;
}

/** The launcher's panic counter is never reset, so only an increase is a new panic. */
export class PanicCounter {
  readonly #seen = new Map<string, number>();

  /** The panic that is new since the last call for this UID. */
  next(uid: string, domain: Domain | undefined): GuestPanic | undefined {
    const count = Number(domain?.Status.PanicCount ?? 0);
    if (domain === undefined || count <= (this.#seen.get(uid) ?? 0)) return undefined;
    this.#seen.set(uid, count);
    const info = domain.Status.GuestPanicInfo;
    const code = /^\d{1,20}$/.test(info?.Arg1 ?? '') ? BigInt(info?.Arg1 ?? 0) : 0n;
    return {
      type: info === undefined || info.Type === '' ? 'unknown' : info.Type,
      bugcheckCode: code === 0n ? 'unknown' : `0x${code.toString(16)}`,
    };
  }

  /** VMIs that something is remembered of. */
  get size(): number {
    return this.#seen.size;
  }

  forget(uid: string): void {
    this.#seen.delete(uid);
  }
}
