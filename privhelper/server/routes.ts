/** Connects the dispatch table to Connect RPC. */
import { create } from '@bufbuild/protobuf';
import { type ConnectRouter, createContextKey, type HandlerContext } from '@connectrpc/connect';
import {
  type MethodDescription,
  MethodDescriptionSchema,
} from '../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { PodService } from '../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import type { Peer } from '../../native/binding.js';
import { type Declared, declaredBy } from '../declarations.js';
import { type Entry, subjectWords, type UnaryEntry } from '../dispatch.js';
import type { CallFailure } from '../failure.js';
import type { Helper } from '../helper.js';
import type { Policy } from '../policy/policy.js';
import type { Calls, CheckedRequest } from './calls.js';

/** What the connection knows of a request. */
export interface RequestOrigin {
  readonly peer: Peer;
  readonly actor: string | undefined;
  /** Set once the request has reached its check; what never does is a refusal of its own. */
  dispatched: boolean;
  /** Settles when a unary call has ended, whatever became of its stream. */
  answered?: Promise<void>;
  /** Why it never reached its check, where that is known. */
  refusal?: CallFailure;
}

export const originKey = createContextKey<RequestOrigin | undefined>(undefined);

export interface DeclaredEntry {
  readonly entry: Entry;
  readonly declared: Declared;
}

export interface DeclaredUnary extends DeclaredEntry {
  readonly entry: UnaryEntry;
}

/**
 * `withheld`: capabilities that are not raised, whatever is declared. Throws when an entry's method has no complete
 * declaration, or none of what identifying its launcher takes.
 */
export function declareAll(entries: readonly Entry[], withheld = 0n): readonly DeclaredEntry[] {
  const identify = declaredBy(PodService.method.identify).caps;
  return entries.map((entry) => {
    const declared = declaredBy(entry.method);
    const needed = entry.subject === 'helper' || entry.subject === 'pod' ? 0n : identify;
    if ((declared.caps & needed) !== needed) {
      throw new Error(`${declared.name} is about a launcher and does not declare what identifying it takes`);
    }
    return { entry, declared: { ...declared, caps: declared.caps & ~withheld } };
  });
}

/** With the limits of the policy. */
export function describeAll(entries: readonly DeclaredEntry[], policy: Policy): readonly MethodDescription[] {
  return entries.map(({ entry, declared }) =>
    create(MethodDescriptionSchema, {
      method: `${entry.method.parent.typeName}.${entry.method.name}`,
      declaration: declared.declaration,
      checks: [...entry.words(policy), ...subjectWords[entry.subject]],
    }),
  );
}

export function addRoutes(
  router: ConnectRouter,
  entries: readonly DeclaredEntry[],
  helper: Helper,
  calls: Calls,
): void {
  for (const { entry, declared } of entries) {
    const checkOf = (request: unknown) => () => check(entry, helper, request);
    if (entry.kind === 'unary') {
      router.rpc(entry.method, (request, context) =>
        calls.unary(declared, contextOf(context), checkOf(request), (invocation, checked) =>
          entry.run(helper, invocation, checked),
        ),
      );
    } else {
      router.rpc(entry.method, (request, context) =>
        calls.stream(declared, contextOf(context), checkOf(request), (invocation, checked) =>
          entry.run(helper, invocation, checked),
        ),
      );
    }
  }
}

/** The table has paired each check with its own request and operation, so the types meet again here. */
export function check(entry: Entry, { policy }: Helper, request: unknown): CheckedRequest<never> {
  const checked = entry.parse(policy, request as never);
  return {
    checked: checked as never,
    podUid: checked.podUid,
    vmiUid: checked.vmiUid,
    arguments: entry.audited(checked as never),
  };
}

function contextOf(context: HandlerContext) {
  const origin = context.values.get(originKey);
  if (origin === undefined) throw new Error('request without a connection');
  origin.dispatched = true;
  return { peer: origin.peer, actor: origin.actor, signal: context.signal, timeoutMs: context.timeoutMs() };
}
