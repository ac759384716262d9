import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { parseContext, SelinuxReader, selinuxMode } from '../../../privhelper/selinux.js';

const helperLabel = 'system_u:system_r:spc_t:s0';
const launcherLabel = 'system_u:object_r:container_file_t:s0:c12,c345';

describe('the mode of SELinux', () => {
  it.each([
    ['disabled', undefined, undefined],
    ['disabled', undefined, `${helperLabel}\0`],
    ['permissive', '0', `${helperLabel}\0`],
    ['permissive', '', helperLabel],
    ['enforcing', '1', `${helperLabel}\0`],
    ['enforcing', '1\n', 'u:r:t'],
  ] as const)('STO-032 is %s where enforce says %j and the own label is %j', (mode, enforce, label) => {
    expect(selinuxMode(enforce, label)).toBe(mode);
  });

  it.each([undefined, '', '\0', 'unconfined\n', 'cri-containerd.apparmor.d (enforce)\n'])(
    'AFT-045 is disabled where selinuxfs enforces but the own label is %j',
    (label) => {
      expect(selinuxMode('1', label)).toBe('disabled');
    },
  );
});

describe('reading it', () => {
  let base: string;
  const selinuxfs = () => join(base, 'selinux');
  const label = () => join(base, 'current');

  beforeEach(() => {
    base = mkdtempSync(join(tmpdir(), 'selinux-'));
    mkdirSync(selinuxfs());
  });
  afterEach(() => rmSync(base, { recursive: true }));

  it('notices setenforce, in the first place that has a selinuxfs', () => {
    writeFileSync(join(selinuxfs(), 'enforce'), '1');
    writeFileSync(label(), `${helperLabel}\0`);
    const reader = SelinuxReader.open([join(base, 'absent'), selinuxfs()], label());
    expect(reader.mode()).toBe('enforcing');
    writeFileSync(join(selinuxfs(), 'enforce'), '0');
    expect(reader.mode()).toBe('permissive');
  });

  it("AFT-045 finds it disabled on this kernel's answers where nothing has a label", () => {
    writeFileSync(join(selinuxfs(), 'enforce'), '1');
    for (const file of [label(), base]) {
      expect(SelinuxReader.open([selinuxfs()], file).mode()).toBe('disabled');
    }
    writeFileSync(label(), helperLabel);
    expect(SelinuxReader.open([join(base, 'absent')], label()).mode()).toBe('disabled');
  });
});

describe('a label', () => {
  it('STO-032 loses its last NUL and nothing else', () => {
    expect(parseContext(Buffer.from(`${launcherLabel}\0`))).toBe(launcherLabel);
    expect(parseContext(Buffer.from(launcherLabel))).toBe(launcherLabel);
    expect(parseContext(Buffer.from('u:r:t:s0-s0:c0.c1023\0'))).toBe('u:r:t:s0-s0:c0.c1023');
  });

  it.each(['\0', 'u:r', 'u:r:t\0\0', 'u:r:t\0x', 'u:r:t:s0 ', 'u:r:t:s0\n', ':r:t', 'ü:r:t', '{"a":1}'])(
    'is none when it is %j',
    (text) => {
      expect(() => parseContext(Buffer.from(text))).toThrow('no SELinux label');
    },
  );
});
