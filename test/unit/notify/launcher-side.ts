/** The launcher's end of the notify pipe: grpc-js over the unix socket. */
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { Client, credentials, type ServiceError } from '@grpc/grpc-js';
import { NotifyInfoResponseSchema } from '../../../gen/kubevirt/notify/info/info_pb.js';
import {
  DomainEventRequestSchema,
  K8sEventRequestSchema,
  type Response,
  ResponseSchema,
} from '../../../gen/kubevirt/notify/v1/notify_pb.js';

const identity = (value: Buffer) => value;

export class LauncherSide {
  private readonly client: Client;

  constructor(path: string) {
    this.client = new Client(`unix:${path}`, credentials.createInsecure(), {
      'grpc.use_local_subchannel_pool': 1,
    });
  }

  close(): void {
    this.client.close();
  }

  /** Bytes in, bytes out. Rejects with the gRPC status. */
  raw(path: string, request: Uint8Array): Promise<Buffer> {
    return new Promise((resolve, reject) => {
      this.client.makeUnaryRequest<Buffer, Buffer>(
        path,
        identity,
        identity,
        Buffer.from(request),
        { deadline: Date.now() + 10_000 },
        (error: ServiceError | null, value?: Buffer) =>
          error === null && value !== undefined ? resolve(value) : reject(error),
      );
    });
  }

  async info(): Promise<number[]> {
    const bytes = await this.raw('/kubevirt.notify.info.NotifyInfo/Info', Buffer.alloc(0));
    return fromBinary(NotifyInfoResponseSchema, bytes).supportedNotifyVersions;
  }

  async call(rpc: string, request: Uint8Array): Promise<Response> {
    return fromBinary(ResponseSchema, await this.raw(`/kubevirt.notify.v1.Notify/${rpc}`, request));
  }

  domain(eventType: string, domain: string, status = ''): Promise<Response> {
    const request = { eventType, domainJSON: Buffer.from(domain), statusJSON: Buffer.from(status) };
    return this.call(
      'HandleDomainEvent',
      toBinary(DomainEventRequestSchema, create(DomainEventRequestSchema, request)),
    );
  }

  k8s(event: object): Promise<Response> {
    const request = { eventJSON: Buffer.from(JSON.stringify(event)) };
    return this.call(
      'HandleK8sEvent',
      toBinary(K8sEventRequestSchema, create(K8sEventRequestSchema, request)),
    );
  }
}
