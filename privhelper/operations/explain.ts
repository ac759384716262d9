/** InspectService.Explain: the checks of a call, one after another, without the call. */
import { type DescMethod, fromBinary, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import type {
  ExplainedStepSchema,
  ExplainResponseSchema,
} from '../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import type { Subject } from '../dispatch.js';
import { type CallFailure, malformed, toFailure } from '../failure.js';
import type { Helper } from '../helper.js';
import type { Invocation } from '../invocation.js';
import { meansGone } from '../pods/registry.js';
import type { Named, PodRef } from '../policy/check.js';
import type { ExplainedCall } from '../policy/requests.js';

type Step = MessageInitShape<typeof ExplainedStepSchema>;

export async function explain(
  helper: Helper,
  invocation: Invocation,
  { method, request }: ExplainedCall,
): Promise<MessageInitShape<typeof ExplainResponseSchema>> {
  const found = helper.methods.find(({ declared }) => declared.name === method);
  if (found === undefined) throw malformed('method', `the helper has no ${method}`);
  const { entry } = found;
  const steps: Step[] = [];
  let failure: CallFailure | undefined;
  const step = async (check: string, examine: () => Promise<string> | string) => {
    if (failure !== undefined) return;
    try {
      steps.push({ check, passed: true, finding: await examine() });
    } catch (error) {
      failure = toFailure(error);
      steps.push({ check, passed: false, finding: failure.message, field: failure.field });
    }
  };

  const answer = () => ({ steps, allowed: failure === undefined, refused: failure?.refused ?? false });

  let named: Named = {};
  await step('request', () => {
    const message = decode(entry.method, request);
    named = entry.parse(helper.policy, message as never);
    const words = entry.words(helper.policy);
    return words.length === 0 ? 'nothing to check' : words.join('; ');
  });
  if (entry.subject === 'helper' || failure !== undefined) return answer();
  const pod: PodRef = { podUid: named.podUid ?? '', vmiUid: named.vmiUid ?? '' };
  if (entry.subject !== 'observed launcher') {
    await step('binding', () => {
      helper.pods.checkBinding(pod);
      if (named.attachmentPodUid !== undefined) {
        helper.pods.checkAttachment(pod.podUid, named.attachmentPodUid);
      }
      const bound = helper.pods.boundTo(pod.podUid);
      return bound === undefined ? 'the pod is not bound to a VMI yet' : `the pod is bound to VMI ${bound}`;
    });
  }
  if (entry.subject === 'pod') return answer();
  await step('launcher', async () => {
    try {
      return await helper.pods.observe(
        invocation,
        pod.podUid,
        async ({ launcher: { pid, uid }, pinned }) =>
          `process ${pid} of uid ${uid} listens and is in the pod's cgroup; it is ${pinned ? '' : 'not yet '}pinned`,
      );
    } catch (error) {
      const standIn = recordsFor(helper, entry.subject);
      if (standIn === undefined || !meansGone(error)) throw error;
      const { noun, records } = standIn;
      return `nobody listens; ${records.names(pod) ? `the ${noun} names the pod` : `no ${noun} names the pod, so nothing is done`}`;
    }
  });
  return answer();
}

/** The records that stand in for a launcher that is gone. */
function recordsFor(
  helper: Helper,
  subject: Subject,
): { readonly noun: string; readonly records: { names(pod: PodRef): boolean } } | undefined {
  if (subject === 'launcher or record') return { noun: 'mount record', records: helper.records };
  return subject === 'launcher or hotplug record'
    ? { noun: 'record of hot-plugged volumes', records: helper.hotplugRecords }
    : undefined;
}

function decode(method: DescMethod, request: Uint8Array): MessageShape<DescMethod['input']> {
  try {
    return fromBinary(method.input, request, { readUnknownFields: false });
  } catch {
    throw malformed('request', `not a ${method.input.name}`);
  }
}
