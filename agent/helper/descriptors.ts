import { type ListenOptions, Socket } from 'node:net';
import type { Native } from '../../native/binding.js';

/** Redeems the helper's tickets. The bytes of what it yields never pass through the helper. */
export interface DescriptorChannel {
  /** A connected stream socket. */
  connected(ticket: Uint8Array): Promise<Socket>;
  /** What `net.Server.listen` takes to serve the listening socket. */
  listening(ticket: Uint8Array): Promise<ListenOptions>;
  /** A descriptor of a file, or of a socket that Node cannot use. The caller closes it. */
  file(ticket: Uint8Array): Promise<number>;
}

/** The descriptor channel beside the helper's socket (SEQPACKET, SCM_RIGHTS; see unix(7)). */
export class NativeDescriptorChannel implements DescriptorChannel {
  constructor(
    private readonly native: Pick<Native, 'claimDescriptor'>,
    private readonly path: string,
    private readonly timeoutMs: number,
  ) {}

  async connected(ticket: Uint8Array): Promise<Socket> {
    return new Socket({ fd: await this.file(ticket), readable: true, writable: true });
  }

  async listening(ticket: Uint8Array): Promise<ListenOptions> {
    return { fd: await this.file(ticket) } as ListenOptions;
  }

  file(ticket: Uint8Array): Promise<number> {
    return this.native.claimDescriptor(this.path, ticket, this.timeoutMs);
  }
}
