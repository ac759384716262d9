import { describe, expect, it } from 'vitest';
import { isGranted } from '../../../privhelper/devices/granted.js';
import { deviceProgram } from '../../../privhelper/devices/program.js';
import { answerOf } from '../../../privhelper/devices/program-run.js';
import { any, type DeviceRule } from '../../../privhelper/devices/rules.js';

const device = { major: 8, minor: 16 };
const make: DeviceRule = { type: 'b', major: any, minor: any, permissions: 'm' };
const rule = (permissions: DeviceRule['permissions'], other: Partial<DeviceRule> = {}): DeviceRule => ({
  ...{ type: 'b', ...device, permissions },
  ...other,
});
const question = { type: 'b', access: 'rw', ...device } as const;

/** struct bpf_insn: code, registers (source and destination), offset, immediate. */
function program(...instructions: (readonly [number, number, number, number])[]): Buffer {
  return Buffer.concat(
    instructions.map(([code, registers, offset, immediate]) => {
      const bytes = Buffer.alloc(8);
      bytes.writeUInt8(code, 0);
      bytes.writeUInt8(registers, 1);
      bytes.writeInt16LE(offset, 2);
      bytes.writeInt32LE(immediate, 4);
      return bytes;
    }),
  );
}
const exit = [0x95, 0, 0, 0] as const;
const yes = [0xb4, 0, 0, 1] as const;
const no = [0xb4, 0, 0, 0] as const;

describe('a device list', () => {
  it.each([
    ['b 8:16 rwm\n', true],
    ['b 8:16 rw\n', true],
    ['b 8:* rw\n', true],
    ['b *:* rwm\n', true],
    ['a *:* rwm\n', true],
    ['', false],
    ['b *:* m\nc 1:3 rwm\n', false],
    ['b *:* m\nb 8:16 r\n', false],
    ['b 8:16 r\nb 8:* w\n', false],
    ['b 8:17 rwm\nb 9:16 rwm\nc 8:16 rwm\n', false],
  ])('%j grants the device: %s', (list, granted) => {
    expect(isGranted({ list }, device)).toBe(granted);
  });
});

describe('device programs', () => {
  const decided = (...programs: Uint8Array[]) =>
    isGranted({ programs: programs.map((instructions, id) => ({ id, instructions })) }, device);
  const strange = program([0x85, 0, 0, 5], yes, exit);

  it('grant what all of them allow', () => {
    const grants = deviceProgram([make, rule('rwm')]);
    expect(decided()).toBe(true);
    expect(decided(grants)).toBe(true);
    expect(decided(grants, deviceProgram([rule('rw', { minor: any })]))).toBe(true);
    expect(decided(grants, deviceProgram([make]))).toBe(false);
    for (const rules of [[], [make], [rule('r')], [rule('rw', { type: 'c' })], [rule('rw', { minor: 17 })]]) {
      expect(decided(deviceProgram(rules))).toBe(false);
    }
  });

  it('cannot be told when they do more than compare, unless another one denies', () => {
    expect(decided(strange)).toBeUndefined();
    expect(decided(strange, deviceProgram([rule('rw')]))).toBeUndefined();
    expect(decided(strange, deviceProgram([make]))).toBe(false);
    // Hidden by the kernel.
    expect(decided(Buffer.alloc(0))).toBeUndefined();
  });

  it('are carried out as the kernel does', () => {
    // As systemd writes them: a jump over the rest, 32-bit loads of type and access.
    const systemd = (minor: number) =>
      program(
        [0x61, 0x12, 0, 0],
        [0x54, 2, 0, 0xffff],
        [0x61, 0x13, 0, 0],
        [0x74, 3, 0, 16],
        [0x61, 0x14, 4, 0],
        [0x61, 0x15, 8, 0],
        [0x55, 2, 4, 1],
        [0x55, 4, 3, 8],
        [0x55, 5, 2, minor],
        [0xb4, 0, 0, 1],
        [0x05, 0, 1, 0],
        [0xb4, 0, 0, 0],
        exit,
      );
    expect([answerOf(systemd(16), question), answerOf(systemd(17), question)]).toEqual([true, false]);
    // Halves of the first word; 64-bit comparison with what is not negative; 32-bit jumps.
    const halves = program([0x69, 0x12, 0, 0], [0x69, 0x13, 2, 0], [0x1d, 0x32, 2, 0], yes, exit, no, exit);
    expect(answerOf(halves, { ...question, access: 'm' })).toBe(false);
    expect(answerOf(halves, question)).toBe(true);
    expect(answerOf(program([0xb4, 2, 0, -1], [0x55, 2, 2, -1], yes, exit, no, exit), question)).toBe(false);
    expect(answerOf(program([0xb4, 2, 0, -1], [0x56, 2, 2, -1], yes, exit, no, exit), question)).toBe(true);
  });

  it.each([
    ['no answer', program(exit)],
    ['no end', program(yes)],
    ['a jump back', program(yes, [0x05, 0, -2, 0], exit)],
    ['a jump out', program(yes, [0x05, 0, 9, 0], exit)],
    ['the address of the context as the answer', program([0xbf, 0x10, 0, 0], exit)],
    ['a register without a value', program([0x55, 7, 0, 1], yes, exit)],
    ['a load beyond the context', program([0x61, 0x12, 12, 0], yes, exit)],
    ['a load from elsewhere', program([0x61, 0xa2, 0, 0], yes, exit)],
    ['a map', program([0x18, 0x11, 0, 3], [0, 0, 0, 0], yes, exit)],
    ['half an instruction', program(yes, exit).subarray(0, 12)],
  ])('cannot be told: %s', (_, instructions) => {
    expect(answerOf(instructions, question)).toBeUndefined();
  });
});
