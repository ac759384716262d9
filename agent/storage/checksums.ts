/**
 * CRC-32 of images, as virt-handler writes them to the status (KubeVirt pkg/virt-handler/container-disk/mount.go).
 *
 * An image may have many gigabytes, so no pass waits for it: the first one that asks starts the work, and the VMI is
 * looked at once more when it is done. One image is read at a time, in pieces that are small beside what the event
 * loop does otherwise.
 */
import { closeSync, read } from 'node:fs';
import { promisify } from 'node:util';
import { crc32 } from 'node:zlib';
import { Code } from '@connectrpc/connect';
import type { PodRef } from '../api/pod-ref.js';
import type { VmiRef } from '../api/vmi.js';
import type { Clock } from '../clock.js';
import { HelperError } from '../helper/errors.js';
import type { Logger } from '../log/log.js';

const readPiece = promisify(read);

/** About 0.2 ms of the event loop. */
const pieceBytes = 512 << 10;
/** An image that takes longer keeps its checksum to itself: it may be sparse and as big as the kernel allows. */
const longestMs = 30 * 60_000;
/** What failed is tried again by the first pass after this time. */
const retryMs = 60_000;

export interface ImageSource {
  /** What the checksum is asked for by. */
  readonly name: string;
  /** Null: a file of the kernel-boot container. */
  readonly volumeIndex: number | null;
  readonly imagePath: string;
}

export interface ImageChecksumOptions {
  /** Descriptor of an image, open for reading, which is closed here. Throws a HelperError. */
  readonly open: (pod: PodRef, volumeIndex: number | null, imagePath: string) => Promise<number>;
  /** Told when the checksums of a VMI are there. */
  readonly done: (vmi: VmiRef) => void;
  readonly clock: Clock;
  readonly log: Logger;
}

/** Checksums by name; those of images that could not be read are missing. */
export type Checksums = ReadonlyMap<string, number>;

interface Job {
  readonly podUid: string;
  readonly stop: AbortController;
  /** Undefined while it runs. */
  result: { readonly checksums: Checksums; readonly complete: boolean; readonly at: number } | undefined;
}

export class ImageChecksums {
  readonly #options: ImageChecksumOptions;
  readonly #jobs = new Map<string, Job>();
  /** Settles when all jobs so far have ended. */
  #idle: Promise<void> = Promise.resolve();

  constructor(options: ImageChecksumOptions) {
    this.#options = options;
  }

  /** What is known of the images of a VMI. What is not is found out, and `done` is told. */
  of(vmi: VmiRef, pod: PodRef, images: readonly ImageSource[]): Checksums {
    const known = this.#jobs.get(vmi.uid);
    if (known !== undefined && known.podUid === pod.podUid) {
      const { result } = known;
      if (result === undefined) return new Map();
      if (result.complete || this.#options.clock.now() < result.at + retryMs) return result.checksums;
    }
    known?.stop.abort();
    const job: Job = { podUid: pod.podUid, stop: new AbortController(), result: undefined };
    this.#jobs.set(vmi.uid, job);
    this.#idle = this.#idle.then(() => this.#run(job, vmi, pod, images));
    return known?.podUid === pod.podUid ? (known.result?.checksums ?? new Map()) : new Map();
  }

  /** The images are about to go: nothing is read any more, and nothing is remembered. */
  forget(vmiUid: string): void {
    this.#jobs.get(vmiUid)?.stop.abort();
    this.#jobs.delete(vmiUid);
  }

  /** Ends all reading; resolves when nothing is open any more. */
  async stop(): Promise<void> {
    for (const vmiUid of [...this.#jobs.keys()]) this.forget(vmiUid);
    await this.#idle;
  }

  async #run(job: Job, vmi: VmiRef, pod: PodRef, images: readonly ImageSource[]): Promise<void> {
    const checksums = new Map<string, number>();
    for (const image of images) {
      if (job.stop.signal.aborted) return;
      try {
        checksums.set(image.name, await this.#checksum(job, pod, image));
      } catch (error) {
        if (job.stop.signal.aborted) return;
        const log = this.#options.log.object(vmi);
        const gone = error instanceof HelperError && error.code === Code.NotFound;
        if (gone) log.info(`no checksum of ${image.name}: its container is gone`);
        else log.warning(`no checksum of ${image.name}, tried again in ${retryMs / 1000} s`, error);
      }
    }
    const complete = checksums.size === images.length;
    job.result = { checksums, complete, at: this.#options.clock.now() };
    if (checksums.size > 0) this.#options.done(vmi);
  }

  async #checksum(job: Job, pod: PodRef, { name, volumeIndex, imagePath }: ImageSource): Promise<number> {
    const until = this.#options.clock.now() + longestMs;
    const fd = await this.#options.open(pod, volumeIndex, imagePath);
    try {
      const piece = Buffer.allocUnsafe(pieceBytes);
      for (let sum = 0, at = 0; ; ) {
        job.stop.signal.throwIfAborted();
        if (this.#options.clock.now() > until) throw new Error(`reading ${name} took over ${longestMs} ms`);
        const { bytesRead } = await readPiece(fd, piece, 0, pieceBytes, at);
        if (bytesRead === 0) return sum;
        sum = crc32(piece.subarray(0, bytesRead), sum);
        at += bytesRead;
      }
    } finally {
      closeSync(fd);
    }
  }
}
