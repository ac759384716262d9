import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { HotplugRecords } from '../../../privhelper/pods/hotplug-records.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { podA, podB, refA, vmiA, vmiB } from './fakes.js';

const podsDir = '/var/lib/kubelet/pods';
const volume = 'volumes/kubernetes.io~empty-dir/hotplug-disks';
const entry = (podUid: string, name: string) => ({ targetFile: `${podsDir}/${podUid}/${volume}/${name}` });
const refB = { podUid: podB, vmiUid: vmiA };

describe('records of hot-plugged volumes', () => {
  let directory: string;
  let records: HotplugRecords;
  const path = () => join(directory, vmiA);
  const text = () => readFileSync(path(), 'utf8');

  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'records-'));
    records = new HotplugRecords(directory, podsDir, createPolicy({ maxMountsPerVmi: 3 }));
  });
  afterEach(() => {
    rmSync(directory, { recursive: true });
  });

  it('STO-015 are the text that virt-handler writes, and grow by new entries only', () => {
    expect(records.add(refA, 'data.img')).toBe(true);
    expect(records.add(refA, 'dump')).toBe(true);
    expect(records.add(refA, 'dump')).toBe(false);
    expect(text()).toBe(
      JSON.stringify({
        mountTargetEntries: [entry(podA, 'data.img'), entry(podA, 'dump')],
        usesSafePaths: true,
      }),
    );
    expect(records.entries(refA)).toEqual(['data.img', 'dump']);
    expect(records.list()).toEqual([{ vmiUid: vmiA, podUid: podA, disks: 2 }]);
  });

  it('STO-023 lose one entry at a time, and go with the last', () => {
    for (const name of ['a.img', 'b']) records.add(refA, name);
    expect(records.remove(refA, 'a.img')).toBe(true);
    expect(records.remove(refA, 'a.img')).toBe(false);
    expect(records.entries(refA)).toEqual(['b']);
    expect(records.remove(refA, 'b')).toBe(true);
    expect(readdirSync(directory)).toEqual([]);
    expect(records.names(refA)).toBe(false);
  });

  it('keep what is in other pods of the VMI', () => {
    records.add(refA, 'data.img');
    records.add(refB, 'data.img');
    expect(records.entries(refB)).toEqual(['data.img']);
    expect(records.removePod(refA)).toBe(true);
    expect(JSON.parse(text()).mountTargetEntries).toEqual([entry(podB, 'data.img')]);
    expect(records.removePod(refB)).toBe(true);
    expect(records.removePod(refB)).toBe(false);
    expect(readdirSync(directory)).toEqual([]);
  });

  it('STO-015 of an older virt-handler, and such without entries, are read', () => {
    writeFileSync(path(), JSON.stringify({ mountTargetEntries: [entry(podA, 'data.img')] }));
    expect(records.entries(refA)).toEqual(['data.img']);
    writeFileSync(path(), '{"mountTargetEntries":null,"usesSafePaths":true}');
    expect(records.entries(refA)).toEqual([]);
    expect(records.add(refA, 'b')).toBe(true);
  });

  it.each([
    `${podsDir}/${podA}/../${podB}/${volume}/data.img`,
    `${podsDir}/${podA}/${volume}/../../../etc`,
    `${podsDir}/${podA}/${volume}/data/../data.img`,
    `${podsDir}/${podA}/${volume}/sub/data.img`,
    `${podsDir}/${podA}/${volume}/`,
    `${podsDir}/${podA}/${volume}`,
    `${podsDir}/${podA}/${volume}/..`,
    `${podsDir}/${podA}/${volume}/.img`,
    `${podsDir}/${podA}/${volume}/hp.sock`,
    `${podsDir}/${podA}/volumes/kubernetes.io~empty-dir/private/data`,
    `${podsDir}/x/${volume}/data.img`,
    '/etc/passwd',
    'data.img',
    '',
  ])('use no path but an entry of the pod’s own hotplug-disks: %j', (targetFile) => {
    writeFileSync(path(), JSON.stringify({ mountTargetEntries: [{ targetFile }, entry(podA, 'b')] }));
    expect(records.entries(refA)).toEqual(['b']);
    expect(records.remove(refA, 'b')).toBe(true);
    expect(JSON.parse(text()).mountTargetEntries).toEqual([{ targetFile }]);
    expect(records.removePod(refA)).toBe(true);
    expect(readdirSync(directory)).toEqual([]);
  });

  it.each(['', '{', '{"mountTargetEntries":3}', '{"mountTargetEntries":[{"targetFile":1}]}'])(
    'that cannot be parsed (%j) name the pod, and are written anew from what is plugged',
    (content) => {
      writeFileSync(path(), content);
      expect(records.entries(refA)).toBeUndefined();
      expect(records.names(refA)).toBe(true);
      expect(records.remove(refA, 'a')).toBe(false);
      records.rebuild(refA, ['a', 'b.img']);
      expect(records.entries(refA)).toEqual(['a', 'b.img']);
      writeFileSync(path(), content);
      expect(records.removePod(refA)).toBe(true);
      expect(readdirSync(directory)).toEqual([]);
    },
  );

  it('are bounded', () => {
    for (const name of ['a', 'b', 'c']) records.add(refA, name);
    expect(() => records.add(refA, 'd')).toThrow(expect.objectContaining({ code: Code.ResourceExhausted }));
    expect(records.add({ podUid: podA, vmiUid: vmiB }, 'd')).toBe(true);
  });
});
