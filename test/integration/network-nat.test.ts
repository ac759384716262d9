/** NAT rules that the helper makes, listed by nft, against those of KubeVirt. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { AttachmentPlan, ForwardedPort } from '../../native/binding.js';
import { loadVectors } from '../vectors/load.js';
import { masquerade, NetworkNode, type NetworkPod, planOf } from './network-fixture.js';

interface Family {
  readonly enabled: boolean | null;
  readonly address?: readonly { readonly IP: string; readonly 'prefix-length': number }[];
}
interface Link {
  readonly name: string;
  readonly IPv4: Family;
  readonly IPv6: Family;
}
interface Input {
  readonly istio: boolean;
  readonly portRangesGateEnabled: boolean;
  readonly legacyMigrationPorts: boolean;
  readonly bridgeIfaceSpec: Link;
  readonly podIfaceStatus: Link;
  readonly vmiIface: {
    readonly ports?: readonly { readonly protocol?: string; readonly port: number }[];
    readonly portRanges?: readonly {
      readonly protocol?: string;
      readonly start: number;
      readonly end: number;
    }[];
  };
}
interface Expected {
  readonly nftText: string;
}

/** KubeVirt's own composition never gives the bridge another address than the network's first; a plan cannot either. */
const unreachable = new Set(['v6 gateway carry', 'gateway 10.255.255.254', 'gateway 10.0.2.255']);

const vectors = loadVectors<Input, Expected>('network', 'masquerade-ruleset').filter(
  ({ name }) => !unreachable.has(name),
);

function portOf(protocol: string | undefined, port: number, endPort: number): ForwardedPort {
  return { protocol: (protocol?.toLowerCase() || 'tcp') as ForwardedPort['protocol'], port, endPort };
}

function attachmentOf(input: Input): AttachmentPlan {
  const { binding } = masquerade;
  if (binding.kind !== 'masquerade') throw new Error('not a masquerade binding');
  const guest = (family: Family, otherwise: { network: string; prefixLength: number }) => {
    const first = family.address?.[0];
    return first === undefined ? otherwise : { network: first.IP, prefixLength: first['prefix-length'] };
  };
  const ranges = input.portRangesGateEnabled ? (input.vmiIface.portRanges ?? []) : [];
  return {
    ...masquerade,
    binding: {
      ...binding,
      ipv4: guest(input.bridgeIfaceSpec.IPv4, binding.ipv4),
      ipv6: guest(input.bridgeIfaceSpec.IPv6, binding.ipv6),
      ports: [
        ...(input.vmiIface.ports ?? []).map(({ protocol, port }) => portOf(protocol, port, 0)),
        ...ranges.map(({ protocol, start, end }) => portOf(protocol, start, end)),
      ],
      istio: input.istio,
      migrationOverTcp: input.legacyMigrationPorts,
    },
    podInterface: input.podIfaceStatus.name,
  };
}

/** Lists the rules, then clears the set-up and gives the pod link the name and addresses of the next case. */
function proceed(pod: NetworkPod, previous: string, input: Input): Promise<string> {
  const next = input.podIfaceStatus;
  const addresses = (['IPv4', 'IPv6'] as const)
    // The bridge has the families of the pod link's addresses.
    .filter((family) => input.bridgeIfaceSpec[family].enabled)
    .flatMap((family) => next[family].address ?? [])
    .map((address) => `addr add ${address.IP}/${address['prefix-length']} dev ${next.name}`);
  return pod.shell(`nft -n -s list ruleset && nft flush ruleset
    ip link del k6t-${previous} 2>/dev/null; ip link del tap0 2>/dev/null
    ip -batch - <<.
link set ${previous} down
link set ${previous} name ${next.name}
addr flush dev ${next.name}
link set ${next.name} up
${addresses.join('\n')}
.`);
}

describe('NAT rules of masquerade binding', () => {
  let node: NetworkNode;
  let pod: NetworkPod;

  beforeAll(async () => {
    node = await NetworkNode.create();
    pod = await node.createPod();
  });
  afterAll(async () => {
    await node?.destroyPods();
    await node?.destroy();
  });

  it('NET-010 are listed by nft like those of KubeVirt', { timeout: 600_000 }, async () => {
    expect(vectors.length).toBeGreaterThan(100);
    const inputs = vectors.map(({ input }) => input);
    await proceed(pod, 'eth0', inputs[0] as Input);
    for (const [i, { name, input, expected }] of vectors.entries()) {
      const plan = planOf(attachmentOf(input));
      expect(await pod.apply(plan), name).toBe(true);
      expect(await pod.apply(plan), name).toBe(false);
      const rules = await proceed(pod, input.podIfaceStatus.name, inputs[i + 1] ?? input);
      expect(rules.trim(), name).toBe(expected.nftText.trim());
    }
  });

  it('AFT-044 exist once however often they are set up, and foreign tables stay', async () => {
    const fresh = await node.createPod();
    await fresh.shell(
      `nft add table ip other; nft add chain ip other c '{ type filter hook input priority 0; }'
       nft add rule ip other c tcp dport 1 counter drop`,
    );
    const other = await fresh.shell('nft -s list table ip other');
    expect(await fresh.apply(planOf(masquerade))).toBe(true);
    const rules = await fresh.shell('nft -s list table ip nat');
    for (let i = 0; i < 3; i++) expect(await fresh.apply(planOf(masquerade))).toBe(false);
    // What a second set-up of KubeVirt leaves.
    await fresh.shell('nft add rule ip nat output ip daddr 127.0.0.1 counter dnat to 10.0.2.2');
    expect(await fresh.apply(planOf(masquerade))).toBe(true);
    expect(await fresh.shell('nft -s list table ip nat')).toBe(rules);
    expect(await fresh.shell('nft -s list table ip other')).toBe(other);
  });
});
