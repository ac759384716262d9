/**
 * The program for cgroup v2 that allows what the rules allow (linux/bpf.h, bpf_cgroup_dev_ctx): the same instructions
 * that container runtimes make of the same rules.
 */
import { any, type DeviceRule, type Permissions, permissions } from './rules.js';

/** Offsets in bpf_cgroup_dev_ctx; the first word holds the access above, the type below. */
const accessTypeOffset = 0;
const majorOffset = 4;
const minorOffset = 8;

/** Registers: r1 is the context on entry, r0 the answer. */
const [r0, r1, r2, r3, r4, r5] = [0, 1, 2, 3, 4, 5] as const;
const [type, access, major, minor] = [r2, r3, r4, r5];

/** Opcodes. */
const loadWord = 0x61;
const andImmediate = 0x54;
const shiftRight = 0x74;
const moveRegister = 0xbc;
const moveImmediate = 0xb4;
const jumpIfOther = 0x55;
const jumpIfOtherRegister = 0x5d;
const exit = 0x95;

/** BPF_DEVCG_DEV_*, BPF_DEVCG_ACC_* */
export const types = { b: 1, c: 2 } as const;
export const accessBits: Readonly<Record<string, number>> = { m: 1, r: 2, w: 4 };

type Instruction = (wordsToNextRule: number) => Buffer;

/** @param rules one for each device, in order */
export function deviceProgram(rules: readonly DeviceRule[]): Uint8Array {
  return Buffer.concat([
    instruction(loadWord, type, { source: r1, offset: accessTypeOffset }),
    instruction(andImmediate, type, { immediate: 0xffff }),
    instruction(loadWord, access, { source: r1, offset: accessTypeOffset }),
    instruction(shiftRight, access, { immediate: 16 }),
    instruction(loadWord, major, { source: r1, offset: majorOffset }),
    instruction(loadWord, minor, { source: r1, offset: minorOffset }),
    ...rules.map(block),
    ...answer(0),
  ]);
}

/** Answers yes if the rule allows it, else goes on behind the block. */
function block(rule: DeviceRule): Buffer {
  const otherwise =
    (register: number, immediate: number): Instruction =>
    (offset) =>
      instruction(jumpIfOther, register, { immediate, offset });
  const checks: Instruction[] = [otherwise(type, types[rule.type])];
  if (rule.permissions !== 'rwm') {
    // What is asked for, cut to what is allowed, is what is asked for. The context is not needed any more.
    checks.push(
      () => instruction(moveRegister, r1, { source: access }),
      () => instruction(andImmediate, r1, { immediate: bitsOf(rule.permissions) }),
      (offset) => instruction(jumpIfOtherRegister, r1, { source: access, offset }),
    );
  }
  if (rule.major !== any) checks.push(otherwise(major, rule.major));
  if (rule.minor !== any) checks.push(otherwise(minor, rule.minor));
  const yes = answer(1);
  return Buffer.concat([...checks.map((check, i) => check(checks.length - i - 1 + yes.length)), ...yes]);
}

function answer(value: 0 | 1): Buffer[] {
  return [instruction(moveImmediate, r0, { immediate: value }), instruction(exit, r0)];
}

function bitsOf(permissions: Permissions): number {
  return [...permissions].reduce((bits, letter) => bits | (accessBits[letter] ?? 0), 0);
}

/** struct bpf_insn; both architectures are little endian. */
function instruction(
  opcode: number,
  destination: number,
  { source = 0, offset = 0, immediate = 0 }: { source?: number; offset?: number; immediate?: number } = {},
): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeUInt8(opcode, 0);
  bytes.writeUInt8((source << 4) | destination, 1);
  bytes.writeInt16LE(offset, 2);
  bytes.writeInt32LE(immediate, 4);
  return bytes;
}

/**
 * The rules of a program that {@link deviceProgram} or a container runtime has made; undefined for another one. The
 * program is made of these rules only if making one of them gives the same instructions.
 */
export function rulesOfProgram(program: Uint8Array): DeviceRule[] | undefined {
  const words = new DataView(program.buffer, program.byteOffset, program.byteLength);
  const rules: DeviceRule[] = [];
  let found: { -readonly [K in keyof DeviceRule]?: DeviceRule[K] } = {};
  for (let at = 6 * 8; at + 8 <= program.byteLength; at += 8) {
    const [opcode, register] = [words.getUint8(at), words.getUint8(at + 1) & 15];
    const immediate = words.getInt32(at + 4, true);
    if (opcode === jumpIfOther && register === type) found = { type: immediate === types.b ? 'b' : 'c' };
    else if (opcode === jumpIfOther && register === major) found.major = immediate;
    else if (opcode === jumpIfOther && register === minor) found.minor = immediate;
    else if (opcode === andImmediate && register === r1) found.permissions = permissionsOf(immediate);
    else if (opcode === exit && found.type !== undefined) {
      rules.push({ major: any, minor: any, permissions: 'rwm', ...found, type: found.type });
      found = {};
    }
  }
  return rules.length === 0 ? undefined : rules;
}

function permissionsOf(bits: number): Permissions {
  return permissions(
    new Set(Object.keys(accessBits).filter((letter) => (bits & (accessBits[letter] ?? 0)) !== 0)),
  );
}
