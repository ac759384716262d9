import {
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { Code } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { MountRecords } from '../../../privhelper/pods/records.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { podB, refA, vmiA, vmiB } from './fakes.js';

const volume = 'volumes/kubernetes.io~empty-dir/container-disks';
const entry = (podUid: string, index: number) => ({
  targetFile: `/var/lib/kubelet/pods/${podUid}/${volume}/disk_${index}.img`,
  socketFile: `/pods/${podUid}/${volume}/disk_${index}.sock`,
});
const kernelBoot = {
  targetFile: `/var/lib/kubelet/pods/${refA.podUid}/${volume}/kernel-boot`,
  socketFile: `/pods/${refA.podUid}/${volume}/kernel-boot.sock`,
};
const refB = { podUid: podB, vmiUid: vmiA };

describe('mount records', () => {
  let directory: string;
  let records: MountRecords;
  const path = () => join(directory, vmiA);
  const text = () => readFileSync(path(), 'utf8');

  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'records-'));
    records = new MountRecords(directory, '/var/lib/kubelet/pods', createPolicy({ maxMountsPerVmi: 3 }));
  });
  afterEach(() => {
    rmSync(directory, { recursive: true });
  });

  it('STO-015 writes the text that virt-handler writes', () => {
    records.add(refA, [0, 12]);
    records.add(refA, [null]);
    expect(text()).toBe(
      JSON.stringify({
        mountTargetEntries: [entry(refA.podUid, 0), entry(refA.podUid, 12), kernelBoot],
        usesSafePaths: true,
      }),
    );
    expect(statSync(path()).mode & 0o777).toBe(0o600);
    expect(readdirSync(directory)).toEqual([vmiA]);
  });

  it('STO-010 does not grow when disks are added again', () => {
    records.add(refA, [0, 1]);
    const { ino } = statSync(path());
    records.add(refA, [1, 0]);
    expect(statSync(path()).ino).toBe(ino);
    records.add(refA, [0, 2, 1]);
    expect(JSON.parse(text()).mountTargetEntries).toEqual(
      [0, 1, 2].map((index) => entry(refA.podUid, index)),
    );
  });

  it('lists what is recorded', () => {
    records.add(refA, [0]);
    records.add(refA, [1]);
    records.add(refB, [0]);
    writeFileSync(join(directory, vmiB), 'not a record');
    writeFileSync(join(directory, 'stray'), '');
    expect(records.list().sort((a, b) => b.disks - a.disks)).toEqual([
      { vmiUid: vmiA, podUid: refA.podUid, disks: 2 },
      { vmiUid: vmiA, podUid: podB, disks: 1 },
      { vmiUid: vmiB, podUid: '', disks: 0 },
    ]);
  });

  it('knows the pods that a record names and keeps the others when one is removed', () => {
    expect(records.names(refA)).toBe(false);
    expect(records.remove(refA)).toBe(false);
    records.add(refA, [0]);
    records.add(refB, [0]);
    records.add(refA, [1]);
    expect(records.names(refA)).toBe(true);
    expect(records.remove(refA)).toBe(true);
    expect(JSON.parse(text()).mountTargetEntries).toEqual([entry(podB, 0)]);
    expect(records.names(refA)).toBe(false);
    expect(records.remove(refB)).toBe(true);
    expect(readdirSync(directory)).toEqual([]);
  });

  it('bounds the disks of a VMI', () => {
    const tooMany = expect.objectContaining({ code: Code.ResourceExhausted });
    expect(() => records.add(refA, [0, 1, 2, 3])).toThrow(tooMany);
    expect(readdirSync(directory)).toEqual([]);
    records.add(refA, [0, 1, 2]);
    expect(() => records.add(refA, [0, 3])).toThrow(tooMany);
  });

  it.each(['', '{', '[]', 'null', '{"mountTargetEntries":[{"targetFile":1}]}', '{"mountTargetEntries":{}}'])(
    'takes an unreadable record (%j) for one that names the pod, and replaces it',
    (content) => {
      writeFileSync(path(), content);
      expect(records.names(refA)).toBe(true);
      records.add(refA, [5]);
      expect(JSON.parse(text()).mountTargetEntries).toEqual([entry(refA.podUid, 5)]);
      writeFileSync(path(), content);
      expect(records.remove(refA)).toBe(true);
      expect(readdirSync(directory)).toEqual([]);
    },
  );

  it('accepts a record without entries', () => {
    writeFileSync(path(), '{"mountTargetEntries":null,"usesSafePaths":true}');
    expect(records.names(refA)).toBe(false);
    records.add(refA, [0]);
    expect(records.names(refA)).toBe(true);
  });

  it.each([
    `/var/lib/kubelet/pods/${refA.podUid}/../${podB}/${volume}/disk_0.img`,
    `/var/lib/kubelet/pods/${refA.podUid}0/${volume}/disk_0.img`,
    '/etc/passwd',
  ])('does not take %s for a path of the pod', (targetFile) => {
    writeFileSync(path(), JSON.stringify({ mountTargetEntries: [{ targetFile, socketFile: '' }] }));
    expect(records.names(refA)).toBe(false);
  });

  it('does not follow a link in place of a record', () => {
    symlinkSync('/etc/passwd', path());
    expect(() => records.add(refA, [0])).toThrow(/ELOOP/);
  });

  it('STO-015 reads and extends every recorded record of virt-handler', () => {
    const file = new URL('../../vectors/storage/container-disk-records.json.gz', import.meta.url);
    const cases: { expected: { file: { mountTargetEntries: object[] | null } | null }[] }[] = JSON.parse(
      gunzipSync(readFileSync(file)).toString(),
    );
    const recorded = cases.flatMap(({ expected }) => expected.flatMap((step) => step.file ?? []));
    expect(recorded.length).toBeGreaterThan(0);
    const roomy = new MountRecords(directory, '/var/lib/kubelet/pods', createPolicy());
    for (const record of recorded) {
      writeFileSync(path(), JSON.stringify(record));
      expect(roomy.remove(refA)).toBe(false);
      roomy.add(refA, [7]);
      expect(text()).toBe(
        JSON.stringify({
          ...record,
          mountTargetEntries: [...(record.mountTargetEntries ?? []), entry(refA.podUid, 7)],
        }),
      );
    }
  });
});
