/** A method of the helper as the hostile tests need it. */
import {
  create,
  type DescMessage,
  type DescMethod,
  type Message,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf';

/** What a request is made for. */
export interface Target {
  readonly podUid: string;
  readonly vmiUid: string;
  /** A pod that holds volumes which are plugged into the VM. */
  readonly attachmentPodUid: string;
  /** Path of a container-disk image, as the container-disk process sees it. */
  readonly image: string;
}

/**
 * An entry of the pod's volumes and what the method does with it: `connect`: reaches whoever listens there, so
 * anything but a socket of the pod must be refused; `pin`: the same, unless the launcher is pinned; `make`: creates
 * it, puts its own in its place, gives it an owner or takes it away; `look`: reports what is there.
 */
export interface Use {
  readonly entry: `${'sockets' | 'public' | 'private' | 'container-disks' | 'hotplug-disks' | 'virtiofs-containers' | 'libvirt-runtime'}/${string}`;
  readonly how: 'connect' | 'pin' | 'make' | 'look';
}

/** A change that makes a request wrong, and the field that the refusal must name. */
export interface Wrong {
  readonly field: string;
  readonly change: (request: Message) => void;
}

export interface Line {
  readonly method: DescMethod;
  readonly request: (target: Target) => Message;
  readonly encode: (target: Target) => Uint8Array;
  readonly uses: readonly Use[];
  readonly wrong: readonly Wrong[];
  /** Text fields in which only NUL and length are wrong. */
  readonly anyText: readonly string[];
  /** The pods here have no QEMU, so the method at best says that there is none (ESRCH, not refused). */
  readonly wantsQemu: boolean;
}

interface More<I extends DescMessage> {
  readonly uses?: readonly Use[];
  readonly wrong?: readonly (readonly [field: string, change: (request: MessageShape<I>) => void])[];
  readonly anyText?: readonly string[];
  readonly wantsQemu?: boolean;
}

export function line<I extends DescMessage>(
  method: DescMethod & { readonly input: I },
  request: (target: Target) => MessageInitShape<I>,
  { uses = [], wrong = [], anyText = [], wantsQemu = false }: More<I> = {},
): Line {
  return {
    method,
    request: (target) => create(method.input, request(target)),
    encode: (target) => toBinary(method.input, create(method.input, request(target))),
    uses,
    // The pairing of method and change is made here, so the types meet again.
    wrong: wrong.map(([field, change]) => ({ field, change: change as (request: Message) => void })),
    anyText,
    wantsQemu,
  };
}

export const pod = ({ podUid, vmiUid }: Target) => ({ pod: { podUid, vmiUid } });

export const launcher: Use = { entry: 'sockets/launcher-sock', how: 'pin' };
