/** Checks of requests that have no file of their own. */
import type { PodRef as PodRefMessage } from '../../gen/virtprivsep/privhelper/v1/common_pb.js';
import type { ExplainRequest } from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { malformed } from '../failure.js';
import type { Check, Named, PodRef } from './check.js';
import { uuidField } from './fields.js';

const nothing = () => ({});

export function parsePodRef(pod: PodRefMessage | undefined): PodRef {
  if (pod === undefined) throw malformed('pod', 'missing');
  return {
    podUid: uuidField('pod.pod_uid', pod.podUid),
    vmiUid: uuidField('pod.vmi_uid', pod.vmiUid),
  };
}

export const podRefWords = ['pod_uid and vmi_uid are canonical UUIDs'] as const;

/** Requests without fields. */
export const empty: Check<unknown, Named> = { words: () => [], parse: nothing, audited: nothing };

/** Requests without fields that look at every launcher. */
export const everyLauncher: Check<unknown, Named> = {
  ...empty,
  words: () => ['each launcher is checked as if it were named; one that fails is listed with the reason'],
};

/** Requests with a pod and nothing else. */
export const podOnly: Check<{ pod?: PodRefMessage | undefined }, PodRef> = {
  words: () => podRefWords,
  parse: (_policy, request) => parsePodRef(request.pod),
  audited: nothing,
};

/** Requests with a pod UID and nothing else. */
export const podUid: Check<{ podUid: string }, { readonly podUid: string }> = {
  words: () => ['pod_uid is a canonical UUID'],
  parse: (_policy, request) => ({ podUid: uuidField('pod_uid', request.podUid) }),
  audited: nothing,
};

export interface ExplainedCall extends Named {
  readonly method: string;
  readonly request: Uint8Array;
}

export const explain: Check<ExplainRequest, ExplainedCall> = {
  words: () => ['method is a method of the helper; the request is decoded and checked, never carried out'],
  parse(_policy, { method, request }) {
    if (!/^[A-Za-z]{1,64}\.[A-Za-z]{1,64}$/.test(method)) throw malformed('method', 'not Service.Method');
    return { method, request };
  },
  audited: ({ method }) => ({ method }),
};
