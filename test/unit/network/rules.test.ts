import { describe, expect, it } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import { networksForLiveUpdate } from '../../../agent/network/filters.js';
import { interfaceQueues, queueCapacity } from '../../../agent/network/queues.js';
import type { InterfaceStatus, VmiInterface, VmiNetwork } from '../../../agent/network/vmi-network.js';
import { networkObstacle } from '../../../agent/reconcile/status/network-migratable.js';

const blue: VmiNetwork = { name: 'blue', multus: { networkName: 'nad' } };

describe('a running VM', () => {
  const listed = (iface: object, ...statuses: InterfaceStatus[]) =>
    networksForLiveUpdate([blue], [{ name: 'blue', ...iface }], statuses);
  const inDomain = { name: 'blue', infoSource: 'domain, multus-status' };

  it('NET-025 goes by any entry of its status, where one is listed twice', () => {
    expect(listed({ bridge: {} }, { name: 'blue', infoSource: 'multus-status' }, inDomain)).toEqual(['blue']);
    expect(listed({ bridge: {} }, { name: 'blue' }, inDomain)).toEqual([]);
    expect(listed({ bridge: {}, state: 'absent' }, { name: 'blue' }, inDomain)).toEqual(['blue']);
    expect(listed({ bridge: {}, state: 'absent' }, inDomain)).toEqual([]);
  });
});

describe('queues', () => {
  const vmi = (domain: object, interfaces: InterfaceStatus[] = []) =>
    ({
      metadata: { name: 'vm', namespace: 'ns', uid: 'u' },
      spec: { domain: { ...domain, devices: { networkInterfaceMultiqueue: true } } },
      status: { interfaces },
    }) as Vmi;

  it.each([
    [{ resources: { limits: { cpu: '4' }, requests: { cpu: '2' } } }, 4],
    [{ resources: { requests: { cpu: '1500m' } } }, 2],
    [{ cpu: { model: 'host-model' }, resources: { limits: { cpu: 3 } } }, 3],
    [{ cpu: { threads: 2 }, resources: { limits: { cpu: '8' } } }, 2],
    [{ resources: { limits: { memory: '1Gi' } } }, 1],
    [{ resources: { limits: { cpu: '1k' } } }, 256],
  ])('NET-025 are those of the topology, else of the CPUs: %j', (domain, wanted) =>
    expect(queueCapacity(vmi(domain))).toBe(wanted),
  );

  it('NET-013 are those of the entry that is in the domain', () => {
    const statuses = [{ name: 'blue' }, { name: 'blue', infoSource: 'domain', queueCount: 3 }];
    expect(interfaceQueues(vmi({ cpu: { cores: 8 } }, statuses), { name: 'blue', bridge: {} })).toBe(3);
  });
});

describe('the pod network', () => {
  const obstacle = (iface: Omit<VmiInterface, 'name'>, plugin: object) =>
    networkObstacle(
      {
        metadata: { name: 'vm', namespace: 'ns', uid: 'u' },
        spec: {
          networks: [{ name: 'default', pod: {} }],
          domain: { devices: { interfaces: [{ name: 'default', ...iface }] } },
        },
        status: {},
      } as Vmi,
      { plugin },
    );

  it('NET-025 is behind a bridge whatever else the interface names', () => {
    const binding = { name: 'plugin' };
    expect(obstacle({ binding }, { migration: {} })).toBeUndefined();
    expect(obstacle({ binding }, { migration: null })).toMatch(/^cannot migrate VMI/);
    expect(obstacle({ bridge: {}, binding }, { migration: {} })).toMatch(/^cannot migrate VMI/);
  });
});
