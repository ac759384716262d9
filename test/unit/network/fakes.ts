import { create } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import type { PodFinder } from '../../../agent/api/pod-ref.js';
import { HelperError, HelperUnavailable } from '../../../agent/helper/errors.js';
import type { NetworkHelper } from '../../../agent/network/helper.js';
import { FailureSchema } from '../../../gen/virtprivsep/privhelper/v1/common_pb.js';
import {
  AddressSchema,
  type Attachment,
  type Detachment,
  LinkSchema,
  type ObserveResponse,
  ObserveResponseSchema,
  RouteSchema,
} from '../../../gen/virtprivsep/privhelper/v1/network_pb.js';

export const podUid = '11111111-2222-3333-4444-555555555555';

export interface FakeLink {
  readonly name: string;
  readonly index: number;
  readonly kind?: string;
  readonly mac?: string;
  readonly mtu?: number;
  /** `<address>/<prefix length>` */
  readonly addresses?: readonly string[];
}

export interface FakeRoute {
  readonly destination: string;
  readonly gateway?: string;
  readonly link: string;
}

export function observation(links: readonly FakeLink[], routes: readonly FakeRoute[] = []): ObserveResponse {
  return create(ObserveResponseSchema, {
    links: links.map(({ addresses = [], ...link }) =>
      create(LinkSchema, {
        ...link,
        addresses: addresses.map((text) => {
          const [ip, prefixLength] = text.split('/');
          return create(AddressSchema, { ip: ip ?? '', prefixLength: Number(prefixLength) });
        }),
      }),
    ),
    routes: routes.map(({ destination, gateway = '', link }) =>
      create(RouteSchema, {
        destination,
        gateway,
        linkIndex: links.find(({ name }) => name === link)?.index ?? 0,
      }),
    ),
  });
}

export interface FailureFields {
  readonly unchanged?: boolean;
  readonly refused?: boolean;
  readonly errnoName?: string;
  readonly field?: string;
  readonly code?: Code;
}

export function helperFailure(
  message: string,
  { code = Code.Internal, ...failure }: FailureFields,
): HelperError {
  return new HelperError('NetworkService.Apply', code, message, create(FailureSchema, failure));
}

export function helperUnavailable(): HelperUnavailable {
  return new HelperUnavailable('NetworkService.Apply', Code.Unavailable, 'connection lost', undefined);
}

/** Answers what it was given and keeps what it was asked. */
export class FakeNetworkHelper implements NetworkHelper {
  observed: ObserveResponse = observation([]);
  observeError: Error | undefined;
  applyError: Error | undefined;
  /** Of removals only. */
  detachError: Error | undefined;
  readonly calls: string[] = [];
  readonly applied: { attachments: Attachment[]; detachments: Detachment[]; passt: boolean }[] = [];

  async observeNetwork(): Promise<ObserveResponse> {
    this.calls.push('observe');
    if (this.observeError !== undefined) throw this.observeError;
    return this.observed;
  }

  async applyNetwork(request: Parameters<NetworkHelper['applyNetwork']>[0]): Promise<boolean> {
    this.calls.push('apply');
    const { attachments, detachments, passt } = request;
    this.applied.push({ attachments, detachments, passt });
    const error = detachments.length > 0 ? (this.detachError ?? this.applyError) : this.applyError;
    if (error !== undefined) throw error;
    return true;
  }
}

export const onePod: PodFinder = {
  find: async (vmi) => ({ podUid, vmiUid: vmi.metadata.uid }),
};
