/** A pod, a helper that keeps what it is asked, and agents that set the pod's networks up one after the other. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { Vmi } from '../../../agent/api/vmi.js';
import type { BindingPlugins } from '../../../agent/network/bindings.js';
import { HelperPodNetworks } from '../../../agent/network/pod-networks.js';
import { NetworkStateStore } from '../../../agent/network/state.js';
import { CriticalNetworkError, type PodNetworks } from '../../../agent/reconcile/ports.js';
import { silentLog } from '../status/fakes.js';
import { FakeNetworkHelper, observation, podUid } from './fakes.js';

export const uid = 'aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee';
export const mac = '0a:58:0a:f4:02:05';
export const critical = expect.objectContaining({ cause: expect.any(CriticalNetworkError) });

export const beforePlumbing = observation(
  [
    { name: 'lo', index: 1, addresses: ['127.0.0.1/8', '::1/128'] },
    {
      name: 'eth0',
      index: 2,
      kind: 'veth',
      mac,
      mtu: 1450,
      addresses: ['10.244.2.5/24', 'fe80::858:aff:fef4:205/64'],
    },
  ],
  [
    { destination: '0.0.0.0/0', gateway: '10.244.2.1', link: 'eth0' },
    { destination: '10.244.2.0/24', link: 'eth0' },
  ],
);
/** Plumbing a bridge renames the pod link, puts a dummy in its place and loses the routes. */
export const plumbedLinks = [
  { name: 'lo', index: 1, addresses: ['127.0.0.1/8'] },
  { name: 'eth0-nic', index: 2, kind: 'veth', mac: '02:00:00:00:00:01', mtu: 1450 },
  { name: 'k6t-eth0', index: 3, kind: 'bridge', addresses: ['169.254.75.10/32'] },
  { name: 'tap0', index: 4, kind: 'tun' },
  { name: 'eth0', index: 5, kind: 'dummy', mac, mtu: 1450, addresses: ['10.244.2.5/24'] },
];
export const afterPlumbing = observation(plumbedLinks);

export function vmi(
  over: { interface?: object; activePods?: Record<string, string>; statuses?: object[] } = {},
): Vmi {
  return {
    metadata: { name: 'vm', namespace: 'ns', uid },
    spec: {
      networks: [{ name: 'default', pod: {} }],
      domain: { devices: { interfaces: [{ name: 'default', bridge: {}, ...over.interface }] } },
    },
    status: { activePods: over.activePods ?? { [podUid]: 'node01' }, interfaces: over.statuses ?? [] },
  } as Vmi;
}

export class PodNetworksWorld {
  readonly directory = mkdtempSync(join(tmpdir(), 'pod-networks-'));
  readonly helper = new FakeNetworkHelper();
  /** Of all agents. */
  readonly lines: string[] = [];
  /** How often a pod was looked up. */
  finds = 0;

  constructor() {
    this.helper.observed = beforePlumbing;
  }

  startAgent(
    over: { podUid?: string; agentPodIp?: string | undefined; plugins?: BindingPlugins } = {},
  ): PodNetworks {
    return new HelperPodNetworks({
      helper: this.helper,
      pods: {
        find: async (vmi) => {
          this.finds++;
          return { podUid: over.podUid ?? podUid, vmiUid: vmi.metadata.uid };
        },
      },
      state: this.store(),
      node: 'node01',
      agentPodIp: 'agentPodIp' in over ? over.agentPodIp : '10.0.0.1',
      config: () => ({ plugins: over.plugins ?? {}, portRanges: true }),
      log: silentLog(this.lines),
    });
  }

  /** What another agent would read. */
  store(): NetworkStateStore {
    return new NetworkStateStore(this.directory, silentLog(this.lines));
  }

  record(network = 'default') {
    return JSON.parse(readFileSync(join(this.directory, uid, network), 'utf8'));
  }

  putRecord(content: object) {
    mkdirSync(join(this.directory, uid), { recursive: true });
    writeFileSync(join(this.directory, uid, 'default'), JSON.stringify(content));
  }

  remove() {
    rmSync(this.directory, { recursive: true, force: true });
  }
}
