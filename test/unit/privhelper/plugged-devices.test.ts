import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Code } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { PluggedDevices } from '../../../privhelper/pods/plugged-devices.js';
import { podA, podB } from './fakes.js';

describe('plugged devices', () => {
  let directory: string;
  let plugged: PluggedDevices;
  const path = () => join(directory, podA);
  const disk = { major: 8, minor: 16 };
  const other = { major: 253, minor: 1048575 };

  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'plugged-'));
    plugged = new PluggedDevices(directory, 2);
  });
  afterEach(() => {
    rmSync(directory, { recursive: true });
  });

  it('knows of no device without a record', () => {
    expect(plugged.list(podA)).toEqual([]);
    plugged.forget(podA, 'data');
    plugged.denied(podA);
    expect([plugged.leave(podA, 'data'), plugged.has(podA)]).toEqual([false, false]);
    expect(readdirSync(directory)).toEqual([]);
  });

  it('are known to the next helper, for their pod only', () => {
    plugged.remember(podA, 'data', disk);
    plugged.remember(podA, 'logs', other);
    const next = new PluggedDevices(directory, 2);
    expect(next.list(podA)).toEqual([
      { volume: 'data', ...disk },
      { volume: 'logs', ...other },
    ]);
    expect(next.list(podB)).toEqual([]);
    expect(statSync(path()).mode & 0o777).toBe(0o600);
    expect(readdirSync(directory)).toEqual([podA]);
  });

  it('are not written again when nothing is new', () => {
    plugged.remember(podA, 'data', disk);
    const { ino } = statSync(path());
    plugged.remember(podA, 'data', disk);
    expect(statSync(path()).ino).toBe(ino);
  });

  it('of a volume are one: the latest', () => {
    plugged.remember(podA, 'data', disk);
    plugged.remember(podA, 'data', other);
    expect(plugged.list(podA)).toEqual([{ volume: 'data', ...other }]);
  });

  it('are forgotten one by one, and the record goes with the last', () => {
    plugged.remember(podA, 'data', disk);
    plugged.remember(podA, 'logs', other);
    plugged.forget(podA, 'data');
    expect(plugged.list(podA)).toEqual([{ volume: 'logs', ...other }]);
    plugged.forget(podA, 'logs');
    expect(readdirSync(directory)).toEqual([]);
  });

  it('that are unplugged are allowed no more, and known until they are denied', () => {
    plugged.remember(podA, 'data', disk);
    plugged.remember(podA, 'logs', other);
    expect(plugged.leave(podA, 'data')).toBe(true);
    expect(plugged.leave(podA, 'data')).toBe(false);
    const next = new PluggedDevices(directory, 2);
    expect(next.list(podA)).toEqual([{ volume: 'logs', ...other }]);
    expect(next.find(podA, 'data')).toBeUndefined();
    expect([...next.volumes(podA)]).toEqual(['data', 'logs']);
    next.denied(podA);
    expect([...next.volumes(podA)]).toEqual(['logs']);
    next.leave(podA, 'logs');
    next.denied(podA);
    expect(next.has(podA)).toBe(false);
  });

  it('that are plugged again before they were denied are plugged', () => {
    plugged.remember(podA, 'data', disk);
    plugged.leave(podA, 'data');
    plugged.remember(podA, 'data', disk);
    plugged.denied(podA);
    expect(plugged.list(podA)).toEqual([{ volume: 'data', ...disk }]);
  });

  it('have a bound', () => {
    plugged.remember(podA, 'a', disk);
    plugged.remember(podA, 'b', disk);
    expect(() => plugged.remember(podA, 'c', disk)).toThrow(
      expect.objectContaining({ code: Code.ResourceExhausted }),
    );
    plugged.remember(podA, 'b', other);
    expect(plugged.list(podA).map(({ volume }) => volume)).toEqual(['a', 'b']);
  });

  it.each([
    'not JSON',
    '[]',
    'null',
    '{"devices":{}}',
    '{"devices":[{"volume":"../x","major":8,"minor":0}]}',
    '{"devices":[{"volume":"x","major":4096,"minor":0}]}',
    '{"devices":[{"volume":"x","major":8,"minor":-1}]}',
    '{"devices":[{"volume":"x","major":8,"minor":0.5}]}',
    '{"devices":[{"volume":"x","major":8}]}',
    '{"devices":[{"volume":"x","major":8,"minor":0,"leaving":1}]}',
    `{"devices":[],"x":"${'x'.repeat(1 << 18)}"}`,
  ])('of a record that cannot be read are an error, and plugging begins a new one: %.60s', (text) => {
    writeFileSync(path(), text);
    expect(() => plugged.list(podA)).toThrow(expect.objectContaining({ code: Code.DataLoss }));
    plugged.remember(podA, 'data', disk);
    expect(plugged.list(podA)).toEqual([{ volume: 'data', ...disk }]);
  });

  it('throws when something else is in the place of the record', () => {
    mkdirSync(path());
    expect(() => plugged.list(podA)).toThrow('EISDIR');
    expect(() => plugged.remember(podA, 'data', disk)).toThrow('EISDIR');
  });

  it('go with their pod', () => {
    plugged.remember(podA, 'data', disk);
    plugged.remember(podB, 'data', disk);
    const record = readFileSync(path(), 'utf8');
    plugged.keepOnly(new Set([podA, 'somebody']));
    expect(readdirSync(directory)).toEqual([podA]);
    expect(readFileSync(path(), 'utf8')).toBe(record);
    plugged.drop(podA);
    plugged.drop(podA);
    expect(readdirSync(directory)).toEqual([]);
  });
});
