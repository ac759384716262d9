/**
 * What a device program of cgroup v2 answers. Runtimes and systemd each write theirs in a way of their own, so the
 * instructions are carried out instead of being recognised: those that such programs are made of.
 */
import type { DeviceNumbers } from '../pods/plugged-devices.js';
import { accessBits, types } from './program.js';

export interface DeviceQuestion extends DeviceNumbers {
  readonly type: 'b' | 'c';
  /** Letters of what is to be done. */
  readonly access: string;
}

const bytesOfInstruction = 8;
const classOf = { loadWord: 1, alu: 4, jump: 5, jump32: 6, alu64: 7 } as const;

type Operator = (a: bigint, b: bigint, bits: number) => bigint;
/** By the operation in the code's upper half: bpf_insn, BPF_OP. */
const arithmetic: Readonly<Record<number, Operator>> = {
  0: (a, b) => a + b,
  16: (a, b) => a - b,
  64: (a, b) => a | b,
  80: (a, b) => a & b,
  96: (a, b, bits) => a << (b & BigInt(bits - 1)),
  112: (a, b, bits) => a >> (b & BigInt(bits - 1)),
  160: (a, b) => a ^ b,
  176: (_, b) => b,
};
const conditions: Readonly<Record<number, (a: bigint, b: bigint) => boolean>> = {
  0: () => true,
  16: (a, b) => a === b,
  32: (a, b) => a > b,
  48: (a, b) => a >= b,
  64: (a, b) => (a & b) !== 0n,
  80: (a, b) => a !== b,
  160: (a, b) => a < b,
  176: (a, b) => a <= b,
};
const exit = 0x95;
const fromRegister = 0x08;
/** Sizes of a load, BPF_SIZE; all of them in the mode BPF_MEM. */
const loads: Readonly<Record<number, (context: DataView, offset: number) => number>> = {
  97: (context, offset) => context.getUint32(offset, true),
  105: (context, offset) => context.getUint16(offset, true),
  113: (context, offset) => context.getUint8(offset),
};

/** Whether the program allows it; undefined for one that does anything else than to compare what it is asked. */
export function answerOf(program: Uint8Array, question: DeviceQuestion): boolean | undefined {
  const code = new DataView(program.buffer, program.byteOffset, program.byteLength);
  const context = contextOf(question);
  /** Undefined: nothing that can be reckoned with, as the address of the context in r1. */
  const registers: (bigint | undefined)[] = [];
  // Only forward, so it ends.
  for (let at = 0; at + bytesOfInstruction <= program.byteLength; at += bytesOfInstruction) {
    const opcode = code.getUint8(at);
    const [destination, source] = [code.getUint8(at + 1) & 15, code.getUint8(at + 1) >> 4];
    const offset = code.getInt16(at + 2, true);
    const immediate = BigInt(code.getInt32(at + 4, true));
    if (opcode === exit) {
      const [answer] = registers;
      return answer === undefined ? undefined : (answer & 1n) !== 0n;
    }
    const group = opcode & 7;
    if (group === classOf.loadWord) {
      const load = loads[opcode];
      const isContext = source === 1 && !(1 in registers);
      if (load === undefined || !isContext || offset < 0 || offset > context.byteLength - 4) return undefined;
      registers[destination] = BigInt(load(context, offset));
      continue;
    }
    const bits = group === classOf.alu64 || group === classOf.jump ? 64 : 32;
    const given = (opcode & fromRegister) === 0 ? immediate : registers[source];
    if (group === classOf.alu || group === classOf.alu64) {
      const operator = arithmetic[opcode & 0xf0];
      const before = (opcode & 0xf0) === 0xb0 ? 0n : registers[destination];
      if (operator === undefined) return undefined;
      registers[destination] =
        given === undefined || before === undefined
          ? undefined
          : BigInt.asUintN(bits, operator(BigInt.asUintN(bits, before), BigInt.asUintN(bits, given), bits));
    } else if (group === classOf.jump || group === classOf.jump32) {
      const condition = conditions[opcode & 0xf0];
      const value = (opcode & 0xf0) === 0 ? 0n : registers[destination];
      if (condition === undefined || value === undefined || given === undefined || offset < 0)
        return undefined;
      if (condition(BigInt.asUintN(bits, value), BigInt.asUintN(bits, given)))
        at += offset * bytesOfInstruction;
    } else {
      return undefined;
    }
  }
  return undefined;
}

/** struct bpf_cgroup_dev_ctx */
function contextOf({ type, access, major, minor }: DeviceQuestion): DataView {
  const bits = [...access].reduce((sum, letter) => sum | (accessBits[letter] ?? 0), 0);
  const context = new DataView(new ArrayBuffer(12));
  context.setUint32(0, (bits << 16) | types[type], true);
  context.setUint32(4, major, true);
  context.setUint32(8, minor, true);
  return context;
}
