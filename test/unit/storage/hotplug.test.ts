import { describe, expect, it } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import { NotExist } from '../../../agent/reconcile/ports.js';
import { NoHotplugVolumes } from '../../../agent/storage/hotplug.js';

function vmi(spec: object, volumeStatus: object[]): Vmi {
  return { metadata: { name: 'vm', namespace: 'ns', uid: 'u1' }, spec, status: { volumeStatus } } as Vmi;
}

const plugged = { name: 'data', target: '', hotplugVolume: { attachPodUID: 'a1' } };

describe('NoHotplugVolumes', () => {
  const volumes = new NoHotplugVolumes();

  it('has nothing to do without hotplugged volumes, or once they left the spec', async () => {
    await volumes.mount(vmi({ volumes: [{ name: 'root' }] }, [{ name: 'root', target: 'vda' }]));
    await volumes.mount(vmi({ volumes: [] }, [plugged]));
  });

  it('says which volumes it does not attach, so that the VM keeps running', async () => {
    const pass = volumes.mount(vmi({ volumes: [{ name: 'data' }] }, [plugged]));
    await expect(pass).rejects.toBeInstanceOf(NotExist);
    await expect(pass).rejects.toThrow('hotplug volumes are not supported by this version: data');
    const utility = volumes.mount(vmi({ utilityVolumes: [{ name: 'data' }] }, [plugged]));
    await expect(utility).rejects.toBeInstanceOf(NotExist);
  });
});
