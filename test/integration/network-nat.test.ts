/** NAT rules that the helper makes, listed by nft, against those of KubeVirt. */
import { execFileSync } from 'node:child_process';
import { create } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { attachmentOf } from '../../agent/network/attachment.js';
import { maskedNetwork, parseCidr } from '../../agent/network/ip.js';
import type { VmiInterface, VmiNetwork } from '../../agent/network/vmi-network.js';
import { ApplyRequestSchema } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import type { AttachmentPlan } from '../../native/binding.js';
import { apply } from '../../privhelper/policy/network.js';
import { createPolicy } from '../../privhelper/policy/policy.js';
import { observation, podUid } from '../unit/network/fakes.js';
import { loadVectors } from '../vectors/load.js';
import { vmiWithNetworks } from '../vectors/objects.js';
import { masquerade, NetworkNode, type NetworkPod, planOf } from './network-fixture.js';

interface Family {
  readonly enabled?: boolean | null;
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
  readonly vmiIface: VmiInterface;
  readonly failAtNftCommand?: number;
}

/** KubeVirt's own composition gives the bridge the network's first address and no other; a plan cannot either. */
function isReachable({ bridgeIfaceSpec: { IPv4, IPv6 } }: Input): boolean {
  return [IPv4, IPv6].every(({ address }) => {
    const text = address?.map(({ IP, 'prefix-length': prefix }) => `${IP}/${prefix}`)[0];
    const gateway = text === undefined ? undefined : parseCidr(text);
    return gateway === undefined || gateway.address.value === maskedNetwork(gateway).address.value + 1n;
  });
}

const vmiUid = 'aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee';

/** Addresses of the pod link in the families that the bridge has, which are those of the pod link. */
function podAddresses(input: Input): string[] {
  return (['IPv4', 'IPv6'] as const)
    .filter((family) => input.bridgeIfaceSpec[family].enabled)
    .flatMap((family) => input.podIfaceStatus[family].address ?? [])
    .map((address) => `${address.IP}/${address['prefix-length']}`);
}

function podLink(input: Input): { readonly name: string; readonly addresses: readonly string[] } {
  return { name: input.podIfaceStatus.name, addresses: podAddresses(input) };
}

/** What agent and helper make of the case. */
function attachmentPlan(input: Input): AttachmentPlan {
  const cidr = (family: Family) =>
    family.address?.map((address) => `${address.IP}/${address['prefix-length']}`)[0];
  const [ipv4, ipv6] = [cidr(input.bridgeIfaceSpec.IPv4), cidr(input.bridgeIfaceSpec.IPv6)];
  const pod = {
    ...(ipv4 !== undefined && { vmNetworkCIDR: ipv4 }),
    ...(ipv6 !== undefined && { vmIPv6NetworkCIDR: ipv6 }),
  };
  const network: VmiNetwork = { name: 'default', pod };
  const vmi = vmiWithNetworks([network], [input.vmiIface]);
  vmi.metadata.annotations = { 'sidecar.istio.io/inject': String(input.istio) };
  if (!input.legacyMigrationPorts) vmi.status.migrationTransport = 'Unix';
  const podInterface = input.podIfaceStatus.name;
  const attachment = attachmentOf({
    ...{ vmi, network, iface: input.vmiIface, podInterface, index: 0, dhcp: undefined },
    observed: observation([{ name: podInterface, index: 2, addresses: podAddresses(input) }]),
    ...{ plugins: {}, portRanges: input.portRangesGateEnabled },
  });
  const attachments = attachment === undefined ? [] : [attachment];
  const request = create(ApplyRequestSchema, { pod: { podUid, vmiUid }, attachments });
  const [plan] = apply.parse(createPolicy(), request).attachments;
  if (plan === undefined) throw new Error('no attachment');
  return plan;
}

interface Case {
  readonly name: string;
  readonly input: Input;
  /** `nft -n -s list ruleset` after KubeVirt's commands. */
  readonly rules: string;
}

/**
 * Cases that lead to the same set-up are one: the gate, for instance, matters only where there are ranges. Those on
 * equal pod links come in a row.
 */
function distinct(cases: readonly Case[]): Case[] {
  const byPlan = new Map<string, Case>();
  for (const one of cases) {
    const key = JSON.stringify([attachmentPlan(one.input), podAddresses(one.input)]);
    const same = byPlan.get(key);
    if (same === undefined) byPlan.set(key, one);
    else expect(one.rules, `${one.name} as ${same.name}`).toBe(same.rules);
  }
  const link = (one: Case) => JSON.stringify(podLink(one.input));
  return [...byPlan.values()].sort((one, other) => link(one).localeCompare(link(other)));
}

function recordedRules(): Case[] {
  return loadVectors<Input, { nftText: string }>('network', 'masquerade-ruleset').map(
    ({ name, input, expected }) => ({ name, input, rules: expected.nftText.trim() }),
  );
}

const commands = loadVectors<Input, { nftCommands: string[][] }>('network', 'masquerade-nft');

/** What the real nft makes of the commands of each case, in a namespace without anything else. */
function commandedRules(): Case[] {
  const marker = 'table bridge end';
  const script = commands.flatMap(({ expected }) => [
    expected.nftCommands.map((words) => words.join(' ')).join('; '),
    'list ruleset',
    'flush ruleset',
    ...['add', 'list', 'delete'].map((verb) => `${verb} ${marker}`),
  ]);
  const listing = execFileSync('unshare', ['--net', '--', 'nft', '-n', '-s', '-i'], {
    input: `${script.join('\n')}\n`,
    encoding: 'utf8',
  });
  const rules = listing.split(`${marker} {\n}\n`);
  return commands.map(({ name, input }, i) => ({ name, input, rules: rules[i]?.trim() ?? '' }));
}

/** Clears the set-up of the pod link `previous` and gives it another name and other addresses. */
function replaceLink(pod: NetworkPod, previous: string, input: Input): Promise<string> {
  const { name, addresses } = podLink(input);
  return pod.shell(`ip link del k6t-${previous} 2>/dev/null; ip link del tap0 2>/dev/null
    ip -batch - <<.
link set ${previous} down
link set ${previous} name ${name}
addr flush dev ${name}
link set ${name} up
${addresses.map((address) => `addr add ${address} dev ${name}`).join('\n')}
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
    const whole = commandedRules().filter(({ input }) => input.failAtNftCommand === undefined);
    const given = [...recordedRules(), ...whole];
    const all = given.filter(({ input }) => isReachable(input));
    expect(all.length).toBeGreaterThan(given.length * 0.9);
    const cases = distinct(all);
    let link = 'eth0';
    let at = '';
    for (const { name, input, rules } of cases) {
      const next = JSON.stringify(podLink(input));
      if (next !== at) await replaceLink(pod, link, input);
      [link, at] = [input.podIfaceStatus.name, next];
      const plan = planOf(attachmentPlan(input));
      expect(await pod.apply(plan), name).toBe(true);
      expect(await pod.apply(plan), name).toBe(false);
      const listed = await pod.shell('nft -n -s list ruleset && nft flush ruleset');
      expect(listed.trim(), name).toBe(rules);
    }
  });

  it('NET-010 AFT-044 are completed from whatever commands KubeVirt got to', async () => {
    const broken = commands.filter(({ input }) => input.failAtNftCommand !== undefined);
    expect(broken).not.toEqual([]);
    const fresh = await node.createPod();
    for (const { name, input, expected } of broken) {
      const plan = planOf(attachmentPlan(input));
      await replaceLink(fresh, 'eth0', input);
      expect(await fresh.apply(plan), name).toBe(true);
      const whole = await fresh.shell('nft -n -s list ruleset; nft flush ruleset');
      const script = expected.nftCommands.map((words) => words.join(' ')).join('\n');
      await fresh.shell(`nft -f - <<.\n${script}\n.`);
      expect(await fresh.apply(plan), name).toBe(true);
      expect(await fresh.shell('nft -n -s list ruleset'), name).toBe(whole);
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
