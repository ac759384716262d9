/** What the helper tells the agent about a pod's network, against what KubeVirt reads in the same state. */
import { randomUUID } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  type Link,
  NetworkService,
  type ObserveResponse,
} from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { startLauncher } from '../harness/launcher/start.js';
import { createNode, type HarnessNode } from '../harness/pods/node.js';
import type { Pod } from '../harness/pods/pod.js';
import { waitFor } from '../harness/pods/run.js';
import { loadVectors } from '../vectors/load.js';
import { arrange, dummyKind, type RecordedLink, type RecordedRoute } from './network-state.js';
import { HelperProcess } from './privhelper-fixture.js';

interface Input {
  readonly links: readonly RecordedLink[] | null;
  readonly routes: readonly RecordedRoute[] | null;
  readonly sysctl: Readonly<Record<string, string>>;
}
interface Interface {
  readonly name: string;
  readonly index: number;
  readonly type: string;
  readonly state: string;
}
interface Status {
  readonly interfaces?: readonly Interface[] | null;
  readonly routes: { readonly running?: readonly { readonly 'table-id': number }[] };
  readonly 'linux-stack': object;
}

const vectors = loadVectors<Input, { error: string; status: Status }>('network', 'nmstate-read');

const mainTable = 254;
/** No link of these kinds can be brought there. native/test/net_observe_test.cc has all states by their numbers. */
const unreachable = new Set(['unknown', 'not-present', 'testing']);

const states: Readonly<Record<string, string>> = {
  notpresent: 'not-present',
  lowerlayerdown: 'lower-layer-down',
};

/** KubeVirt tells taps from tun devices, which have no link address and which its library calls by another name. */
function typeOf({ kind, mac }: Link): string {
  if (kind === 'tun') return mac === '' ? 'tuntap' : 'tap';
  return kind === '' ? 'device' : kind;
}

function addressesOf(link: Link, ipv6: boolean) {
  const address = link.addresses
    .filter(({ ip }) => ip.includes(':') === ipv6)
    .map(({ ip, prefixLength }) => ({ IP: ip, 'prefix-length': prefixLength }));
  return { enabled: address.length > 0, ...(address.length > 0 && { address }) };
}

/** The answer as KubeVirt's nmstate status. */
function statusOf({ links, routes, sysctls }: ObserveResponse) {
  const nameOf = (index: number) => links.find((link) => link.index === index)?.name;
  const controllerOf = (link: Link) => (link.controller === 0 ? {} : { controller: nameOf(link.controller) });
  const running = routes.map(({ destination, gateway, linkIndex }) => ({
    destination,
    'next-hop-interface': nameOf(linkIndex),
    ...(gateway !== '' && { 'next-hop-address': gateway }),
    'table-id': mainTable,
  }));
  return {
    interfaces: links.map((link) => ({
      name: link.name,
      index: link.index,
      type: typeOf(link),
      state: states[link.operstate] ?? link.operstate,
      ...(link.mac !== '' && { 'mac-address': link.mac }),
      mtu: link.mtu,
      ...controllerOf(link),
      IPv4: addressesOf(link, false),
      IPv6: addressesOf(link, true),
      'linux-stack': {
        'ip4-route-local-net': link.routeLocalnet,
        'port-learning': link.portLearning ?? false,
      },
      Metadata: null,
    })),
    routes: running.length === 0 ? {} : { running },
    'linux-stack': {
      ipv4: {
        'arp-ignore': sysctls?.ipv4ArpIgnore,
        forwarding: sysctls?.ipv4Forwarding,
        'ping-group-range': [sysctls?.ipv4PingGroupStart, sysctls?.ipv4PingGroupEnd],
        'unprivileged-port-start': sysctls?.ipv4UnprivilegedPortStart,
      },
      ipv6: { forwarding: sysctls?.ipv6Forwarding },
    },
  };
}

describe.runIf(process.getuid?.() === 0)('what a pod network is observed as', () => {
  let node: HarnessNode;
  let helper: HelperProcess;
  let pod: Pod;
  const vmiUid = randomUUID();

  beforeAll(async () => {
    node = await createNode();
    pod = await node.createPod({ name: 'virt-launcher-vm', vmiUid, podIP: '10.244.2.5' });
    await startLauncher(pod, { namespace: 'default', name: 'vm', vmiUid, machine: 'fake' });
    helper = new HelperProcess(node.podsDir);
    await helper.start();
  });
  afterAll(async () => {
    await helper?.destroy();
    await node?.destroy();
    expect(await node?.leftovers()).toEqual([]);
  });

  const observe = () => helper.client(NetworkService).observe({ pod: { podUid: pod.uid, vmiUid } });

  it.each(vectors)('NET-009 $name', async ({ input, expected }) => {
    const links = input.links ?? [];
    const reachable = links.map((link) =>
      link.name !== 'lo' && unreachable.has(link.operState) ? { ...link, operState: 'down' } : link,
    );
    await arrange(pod, reachable, input.routes ?? [], input.sysctl);
    const names = new Set(links.map(({ name }) => name));
    const dummy = await dummyKind();
    const wanted = {
      ...expected.status,
      interfaces: (expected.status.interfaces ?? []).map((iface) => {
        const { operState } = reachable.find(({ name }) => name === iface.name) ?? { operState: iface.state };
        return { ...iface, state: operState, type: iface.type === 'dummy' ? dummy : iface.type };
      }),
      // The main table's are what is asked for; what answered here did not look at the table.
      routes: mainRoutes(expected.status),
    };
    // The kernel notices a carrier by and by.
    let last: unknown;
    await waitFor('the state of the links', 10_000, async () => {
      const observed = await observe();
      const shown = statusOf(observed);
      last = {
        ...shown,
        // Besides those of the case: lo, and what a link of it is connected to.
        interfaces: shown.interfaces
          .filter(({ name }) => names.has(name))
          .map((iface) => {
            const { index } = wanted.interfaces.find(({ name }) => name === iface.name) ?? iface;
            // The kernel chooses the number of a tun device.
            return ['tap', 'tuntap'].includes(iface.type) ? { ...iface, index } : iface;
          })
          .sort((one, other) => one.index - other.index),
      };
      return isDeepStrictEqual(last, wanted);
    }).catch(() => undefined);
    expect(expected.error).toBe('');
    expect(last).toEqual(wanted);
  });
});

function mainRoutes({ routes }: Status) {
  const running = routes.running?.filter((route) => route['table-id'] === mainTable);
  return running === undefined ? {} : { running };
}
