/** Encoded requests, made from the descriptors of their messages. */
import {
  type DescEnum,
  type DescField,
  type DescMessage,
  type DescMethod,
  ScalarType,
} from '@bufbuild/protobuf';
import { BinaryWriter, WireType } from '@bufbuild/protobuf/wire';
import { methodName } from '../../privhelper/declarations.js';
import type { Random } from './random.js';
import { acceptedValue, hostileScalar, links, type Target, type Targets, target } from './values.js';

/** How a request deviates from a good one: chances per field. */
interface Mood {
  /** Of a value that need not be accepted. */
  readonly value: number;
  /** Of an encoding that no library would make: a field twice, absent, unknown or of another wire type. */
  readonly structure: number;
}

const moods: readonly Mood[] = [
  ...new Array<Mood>(12).fill({ value: 0, structure: 0 }),
  ...new Array<Mood>(4).fill({ value: 0.05, structure: 0 }),
  ...new Array<Mood>(2).fill({ value: 0.4, structure: 0 }),
  { value: 0, structure: 0.1 },
  { value: 0.2, structure: 0.2 },
];

const maxDepth = 6;

/** One request in the making. */
interface Draft {
  readonly random: Random;
  readonly mood: Mood;
  readonly pod: Target;
  /** Which binding the first link has; the others have the first one, since a pod has one masquerade. */
  readonly variant: number;
  /** The first link's place among the names. */
  readonly firstLink: number;
  /** Links that the request has named. */
  named: number;
}

export class Requests {
  /** `methods`: those that a request to explain may name. */
  constructor(
    private readonly targets: Targets,
    private readonly methods: readonly DescMethod[],
  ) {}

  /** An encoded request; most are well-formed and would be accepted. */
  make(message: DescMessage, random: Random): Uint8Array {
    const mood = random.pick(moods);
    const pod = target(this.targets, random.chance(mood.value), random);
    const firstLink = random.chance(0.7) ? 0 : random.below(links.length);
    const draft = { random, mood, pod, firstLink, variant: random.below(2), named: 0 };
    const bytes = this.encode(message, draft, 0);
    return random.chance(0.05) ? disturb(bytes, random) : bytes;
  }

  private encode(message: DescMessage, draft: Draft, depth: number): Uint8Array {
    const { random, mood } = draft;
    if (message.name === 'ExplainRequest' && !random.chance(mood.value)) return this.explain(random);
    const writer = new BinaryWriter();
    const named = namedLink(message, draft);
    for (const field of message.fields) {
      if (field.oneof !== undefined && field !== chosen(field.oneof.fields, draft)) continue;
      const times = random.chance(mood.structure) ? random.below(4) : 1;
      for (let i = 0; i < times; i += 1) this.write(writer, field, named, draft, depth);
      if (random.chance(mood.structure)) unknownField(writer, random);
    }
    return writer.finish();
  }

  private explain(random: Random): Uint8Array {
    const method = random.pick(this.methods);
    const writer = new BinaryWriter();
    writer.tag(1, WireType.LengthDelimited).string(methodName(method));
    writer.tag(2, WireType.LengthDelimited).bytes(this.make(method.input, random));
    return writer.finish();
  }

  private write(
    writer: BinaryWriter,
    field: DescField,
    named: Readonly<Record<string, string | boolean>>,
    draft: Draft,
    depth: number,
  ): void {
    const { random, mood } = draft;
    if (random.chance(mood.structure)) {
      otherWireType(writer, field.number, random);
      return;
    }
    const hostile = random.chance(mood.value);
    for (let left = field.fieldKind === 'list' ? length(field, hostile, random) : 1; left > 0; left -= 1) {
      if (field.message !== undefined) {
        const bytes = depth < maxDepth ? this.encode(field.message, draft, depth + 1) : new Uint8Array();
        writer.tag(field.number, WireType.LengthDelimited).bytes(bytes);
      } else if (field.enum !== undefined) {
        writer.tag(field.number, WireType.Varint).int32(enumValue(field.enum, hostile, random));
      } else if (field.scalar !== undefined) {
        const given = hostile ? undefined : (named[field.localName] ?? this.value(field, draft));
        scalar(writer, field.number, field.scalar, given ?? hostileScalar(field.scalar, random));
      }
    }
  }

  private value(field: DescField, { random, pod }: Draft): string | number | boolean | undefined {
    if (field.localName === 'podUid') return pod.podUid;
    if (field.localName === 'vmiUid') return pod.vmiUid;
    if (field.localName === 'attachmentPodUid') return this.targets.attachment;
    return acceptedValue(`${field.parent.name}.${field.localName}`, random);
  }
}

/** Names that belong together: of a network, its link and whether that is the first one. */
function namedLink(message: DescMessage, draft: Draft): Readonly<Record<string, string | boolean>> {
  if (message.name !== 'Attachment' && message.name !== 'Detachment') return {};
  const podInterface = links[(draft.firstLink + draft.named) % links.length] ?? 'eth0';
  draft.named += 1;
  return { network: podInterface, podInterface, primary: podInterface === 'eth0' };
}

/** The member of a oneof that is set. */
function chosen(
  fields: readonly DescField[],
  { named, variant, random, mood }: Draft,
): DescField | undefined {
  // Other oneofs than a link's binding are free.
  if (named === 0 || random.chance(mood.structure)) return random.pick(fields);
  return fields[named === 1 ? variant % fields.length : 0];
}

function length(field: DescField, hostile: boolean, random: Random): number {
  if (hostile) return random.pick([0, 1, 17, 64, 65, random.chance(0.02) ? 1025 : 3]);
  return field.localName === 'detachments' ? random.below(2) : random.below(3);
}

function enumValue(description: DescEnum, hostile: boolean, random: Random): number {
  if (hostile) return random.pick([0, -1, 5, 99, 2 ** 31 - 1, -(2 ** 31)]);
  const known = description.values.map(({ number }) => number).filter((number) => number !== 0);
  return random.pick(known);
}

function scalar(
  writer: BinaryWriter,
  number: number,
  type: ScalarType,
  value: string | number | boolean | bigint | Uint8Array,
): void {
  if (typeof value === 'string') writer.tag(number, WireType.LengthDelimited).string(value);
  else if (value instanceof Uint8Array) writer.tag(number, WireType.LengthDelimited).bytes(value);
  else if (typeof value === 'boolean') writer.tag(number, WireType.Varint).bool(value);
  else if (typeof value === 'number') writer.tag(number, WireType.Varint).uint32(value);
  else if (type === ScalarType.UINT64) writer.tag(number, WireType.Varint).uint64(BigInt.asUintN(64, value));
  else writer.tag(number, WireType.Varint).int64(BigInt.asIntN(64, value));
}

function otherWireType(writer: BinaryWriter, number: number, random: Random): void {
  switch (random.below(5)) {
    case 0:
      writer.tag(number, WireType.Varint).uint32(random.uint32());
      break;
    case 1:
      writer.tag(number, WireType.Bit32).fixed32(random.uint32());
      break;
    case 2:
      writer.tag(number, WireType.Bit64).fixed64(BigInt(random.uint32()));
      break;
    case 3:
      writer.tag(number, WireType.LengthDelimited).bytes(random.bytes(random.below(32)));
      break;
    default:
      writer.tag(number, random.pick([WireType.StartGroup, WireType.EndGroup]));
  }
}

function unknownField(writer: BinaryWriter, random: Random): void {
  otherWireType(writer, random.pick([9, 15, 16, 2047, 2048, 2 ** 29 - 1]), random);
}

/** Damages an encoding: cuts it off, turns bits, puts in or takes out a piece, or replaces it whole. */
export function disturb(bytes: Uint8Array, random: Random): Uint8Array {
  const at = random.below(bytes.length + 1);
  switch (random.below(5)) {
    case 0:
      return bytes.subarray(0, at);
    case 1: {
      const damaged = Uint8Array.from(bytes);
      for (let i = random.below(8); i >= 0 && bytes.length > 0; i -= 1) {
        const place = random.below(bytes.length);
        damaged[place] = (damaged[place] ?? 0) ^ (1 << random.below(8));
      }
      return damaged;
    }
    case 2:
      return Buffer.concat([bytes.subarray(0, at), random.bytes(1 + random.below(12)), bytes.subarray(at)]);
    case 3:
      return Buffer.concat([
        bytes.subarray(0, at),
        bytes.subarray(Math.min(bytes.length, at + 1 + random.below(12))),
      ]);
    default:
      return random.bytes(random.below(256));
  }
}
