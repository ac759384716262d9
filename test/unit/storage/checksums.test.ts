import { closeSync, fstatSync, mkdtempSync, openSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { Code } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { HelperError } from '../../../agent/helper/errors.js';
import { ImageChecksums, type ImageSource } from '../../../agent/storage/checksums.js';
import { loadVectors } from '../../vectors/load.js';
import { eventually } from '../launcher/peers.js';
import { silentLog } from '../status/fakes.js';

const pod = { podUid: 'p1', vmiUid: 'u1' };
const vmi = { namespace: 'ns', name: 'vm', uid: 'u1' };
const image = (name: string): ImageSource => ({ name, volumeIndex: 0, imagePath: name });

let directory: string;
let opened: { readonly path: string; readonly fd: number }[];
let done: string[];
let lines: string[];
let now: number;
let failure: Error | undefined;
let beforeOpen: Promise<void>;
let checksums: ImageChecksums;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'checksums-'));
  opened = [];
  done = [];
  lines = [];
  now = 0;
  failure = undefined;
  beforeOpen = Promise.resolve();
  checksums = new ImageChecksums({
    open: async (_pod, _index, path) => {
      await beforeOpen;
      if (failure !== undefined) throw failure;
      const fd = openSync(join(directory, path), 'r');
      opened.push({ path, fd });
      return fd;
    },
    done: ({ uid }) => done.push(uid),
    clock: { now: () => now },
    log: silentLog(lines),
  });
});
afterEach(async () => {
  await checksums.stop();
  rmSync(directory, { recursive: true });
});

/** Resolves when `done` was told so many times. */
async function told(times: number): Promise<void> {
  await eventually(() => done.length >= times, `${times} VMIs are told`);
}

interface Digest {
  op: string;
  base64?: string;
  repeat?: string;
  count?: number;
}
const digests = loadVectors<Digest, { crc32: number }>('storage', 'container-disk').filter(
  ({ input }) => input.op === 'digest',
);

describe('checksums of images', () => {
  it.each(digests)('STO-014 equal CRC-32 IEEE: $name', async ({ input, expected }) => {
    const { base64 = '', repeat, count = 0 } = input;
    writeFileSync(join(directory, 'disk'), repeat?.repeat(count) ?? Buffer.from(base64, 'base64'));
    expect(checksums.of(vmi, pod, [image('disk')])).toEqual(new Map());
    await told(1);
    expect(checksums.of(vmi, pod, [image('disk')])).toEqual(new Map([['disk', expected.crc32]]));
  });

  it('STO-014 are read once, in pieces, and the descriptor is closed', async () => {
    const content = Buffer.alloc((1 << 20) + 12_345, 'abc');
    writeFileSync(join(directory, 'disk'), content);
    for (let i = 0; i < 3; i++) checksums.of(vmi, pod, [image('disk')]);
    await told(1);
    expect(checksums.of(vmi, pod, [image('disk')]).get('disk')).toBe(crc32(content));
    expect(opened).toHaveLength(1);
    expect(() => fstatSync(opened[0]?.fd ?? 0)).toThrow('EBADF');
    expect(done).toEqual(['u1']);
  });

  it('are found out anew in another pod', async () => {
    writeFileSync(join(directory, 'disk'), 'one');
    checksums.of(vmi, pod, [image('disk')]);
    await told(1);
    writeFileSync(join(directory, 'disk'), 'two');
    const other = { ...pod, podUid: 'p2' };
    expect(checksums.of(vmi, other, [image('disk')])).toEqual(new Map());
    await told(2);
    expect(checksums.of(vmi, other, [image('disk')]).get('disk')).toBe(crc32('two'));
  });

  it('of a container that is gone are left out without an error, and tried again later', async () => {
    writeFileSync(join(directory, 'disk'), 'x');
    failure = new HelperError('StorageService.OpenContainerDisk', Code.NotFound, 'ENOENT', undefined);
    checksums.of(vmi, pod, [image('disk')]);
    await checksums.of(vmi, pod, []).size;
    await eventually(() => lines.length > 0, 'the failure is told');
    expect(lines[0]).toContain('its container is gone');
    failure = undefined;
    expect(checksums.of(vmi, pod, [image('disk')])).toEqual(new Map());
    expect(opened).toEqual([]);
    now += 60_000;
    checksums.of(vmi, pod, [image('disk')]);
    await told(1);
    expect(checksums.of(vmi, pod, [image('disk')]).get('disk')).toBe(crc32('x'));
  });

  it('that could be read are told although another could not', async () => {
    writeFileSync(join(directory, 'good'), 'good');
    checksums.of(vmi, pod, [image('missing'), image('good')]);
    await told(1);
    expect(checksums.of(vmi, pod, [image('missing'), image('good')])).toEqual(
      new Map([['good', crc32('good')]]),
    );
    expect(lines.some((line) => line.includes('no checksum of missing'))).toBe(true);
  });

  it('are given up when the VM goes, and nothing stays open', async () => {
    // Nobody reads it to its end.
    writeFileSync(join(directory, 'huge'), '');
    truncateSync(join(directory, 'huge'), 2 ** 42);
    writeFileSync(join(directory, 'small'), 'small');
    const second = { ...vmi, uid: 'u2' };
    checksums.of(vmi, pod, [image('huge')]);
    checksums.of(second, { ...pod, vmiUid: 'u2' }, [image('small')]);
    await eventually(() => opened.length > 0, 'the image is opened');
    // One image at a time.
    expect(opened.map(({ path }) => path)).toEqual(['huge']);
    checksums.forget('u1');
    await told(1);
    expect(done).toEqual(['u2']);
    for (const { fd } of opened) expect(() => fstatSync(fd)).toThrow('EBADF');
    expect(lines).toEqual([]);
  });

  it('take a bounded time each', async () => {
    writeFileSync(join(directory, 'huge'), '');
    truncateSync(join(directory, 'huge'), 2 ** 42);
    writeFileSync(join(directory, 'small'), 'small');
    checksums.of(vmi, pod, [image('huge'), image('small')]);
    await eventually(() => opened.length > 0, 'the image is opened');
    now += 30 * 60_000 + 1;
    await told(1);
    expect(checksums.of(vmi, pod, []).get('small')).toBe(crc32('small'));
    expect(lines.some((line) => line.includes('no checksum of huge'))).toBe(true);
  });

  it('are not begun for what was forgotten before its turn', async () => {
    let open = () => {};
    beforeOpen = new Promise((resolve) => {
      open = resolve;
    });
    writeFileSync(join(directory, 'disk'), '');
    checksums.of(vmi, pod, [image('disk'), image('disk')]);
    checksums.of({ ...vmi, uid: 'u2' }, { ...pod, vmiUid: 'u2' }, [image('disk')]);
    checksums.forget('u2');
    open();
    await checksums.stop();
    expect(opened.length).toBeLessThanOrEqual(1);
    for (const { fd } of opened) expect(() => closeSync(fd)).toThrow('EBADF');
  });
});
