/** The agent's set-up of pod networks with a real helper behind it. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Vmi } from '../../agent/api/vmi.js';
import type { BindingPlugins } from '../../agent/network/bindings.js';
import type { NetworkHelper } from '../../agent/network/helper.js';
import { HelperPodNetworks } from '../../agent/network/pod-networks.js';
import { NetworkStateStore } from '../../agent/network/state.js';
import { NetworkService } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { silentLog } from '../unit/status/fakes.js';
import type { HelperProcess } from './privhelper-fixture.js';

export const nodeName = 'node01';

/** Its calls, as the agent's own client makes them. */
export function networkHelper(helper: HelperProcess): NetworkHelper {
  const client = helper.client(NetworkService);
  return {
    observeNetwork: (pod) => client.observe({ pod }),
    applyNetwork: async (request) => (await client.apply(request)).changed,
  };
}

/** What agents of one node remember. */
export class NetworkMemory {
  readonly directory = mkdtempSync(join(tmpdir(), 'network-state-'));

  /** An agent that knows what is on disk, for a VMI that has one pod. */
  agent(podUid: string, by: NetworkHelper, plugins: BindingPlugins = {}): HelperPodNetworks {
    return new HelperPodNetworks({
      helper: by,
      pods: { find: async (vmi: Vmi) => ({ podUid, vmiUid: vmi.metadata.uid }) },
      state: new NetworkStateStore(this.directory, silentLog()),
      node: nodeName,
      agentPodIp: '10.0.0.1',
      config: () => ({ plugins, portRanges: true }),
      log: silentLog(),
    });
  }

  remove(): void {
    rmSync(this.directory, { recursive: true, force: true });
  }
}
