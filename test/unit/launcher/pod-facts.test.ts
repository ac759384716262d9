import { describe, expect, it } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import type { HelperClient } from '../../../agent/helper/helper-client.js';
import { PodFacts } from '../../../agent/launcher/pod-facts.js';
import { SelinuxMode } from '../../../gen/virtprivsep/privhelper/v1/helper_pb.js';

const vmi = { metadata: { namespace: 'ns', name: 'vm', uid: 'uid' } } as Vmi;
const full = 'system_u:object_r:container_file_t:s0:c1,c2';

/** A helper that gives these answers, one for each time it is asked for a label. */
function setUp(selinux: SelinuxMode, answers: readonly (string | Error)[] = []) {
  const asked: string[] = [];
  const left = [...answers];
  const helper = {
    health: async () => {
      asked.push('mode');
      return { selinux };
    },
    selinuxContext: async ({ podUid }: { podUid: string }) => {
      asked.push(podUid);
      const answer = left.shift();
      if (typeof answer !== 'string') throw answer;
      return answer;
    },
  };
  return { facts: new PodFacts(helper as unknown as HelperClient), asked };
}

describe("the SELinux label of a VMI's launcher", () => {
  it('STO-032 is none where SELinux is not active, and nobody looks for it', async () => {
    const { facts, asked } = setUp(SelinuxMode.DISABLED);
    for (const pod of ['p1', 'p2', undefined]) expect(await facts.selinuxContext(vmi, pod)).toBe('none');
    expect(asked).toEqual(['mode']);
  });

  it('AFT-047 is read once for each pod', async () => {
    const { facts, asked } = setUp(SelinuxMode.ENFORCING, [full, 'system_u:object_r:container_file_t:s0']);
    expect(await facts.selinuxContext(vmi, 'p1')).toBe(full);
    expect(await facts.selinuxContext(vmi, 'p1')).toBe(full);
    expect(await facts.selinuxContext(vmi, 'p2')).not.toBe(full);
    expect(await facts.selinuxContext(vmi, undefined)).toBeUndefined();
    expect(asked).toEqual(['mode', 'p1', 'p2']);
  });

  it('is read again when reading failed, and forgotten with the pod', async () => {
    const { facts, asked } = setUp(SelinuxMode.PERMISSIVE, [new Error('not yet'), '', full, full]);
    await expect(facts.selinuxContext(vmi, 'p1')).rejects.toThrow('not yet');
    await expect(facts.selinuxContext(vmi, 'p1')).rejects.toThrow('has no label');
    expect(await facts.selinuxContext(vmi, 'p1')).toBe(full);
    facts.forget('p1');
    expect(await facts.selinuxContext(vmi, 'p1')).toBe(full);
    expect(asked).toEqual(['mode', 'p1', 'p1', 'p1', 'p1']);
  });
});
