import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Containers } from '../harness/deploy/containers.js';
import { Image } from '../harness/deploy/image.js';
import { daemonSet, type PodSpec, render } from '../harness/deploy/manifest.js';
import { waitFor } from '../harness/pods/run.js';
import { System } from '../harness/system/system.js';

let image: Image;

beforeAll(async () => {
  image = await Image.create();
});

afterAll(() => {
  image?.destroy();
});

async function podSpec(directory: string, name = 'virt-handler'): Promise<PodSpec> {
  return daemonSet(await render(directory), name).spec.template.spec;
}

describe('the DaemonSet as two containers', () => {
  it('one VM lives and ends: base', async () => {
    const spec = await podSpec('base');
    const system = await System.create((node) =>
      Containers.create(node, { image, helperPod: spec, agentPod: spec }),
    );
    try {
      await system.startProduct();
      const vm = await system.createVm({ name: 'vm', machine: 'fake', containerDisk: true });
      await system.waitForPhase(vm, 'Running');
      system.deleteVmi(vm);
      await system.finishDeletion(vm);
      expect(system.vmi(vm)).toBeUndefined();
    } finally {
      await system.stop();
    }
    expect(await system.node.leftovers()).toEqual([]);
    void waitFor;
  });
});
