import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { create } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type BindingPlugins, bindingOf, hasManagedTap } from '../../agent/network/bindings.js';
import { formatCidr, maskedNetwork, parseCidr } from '../../agent/network/ip.js';
import { HelperPodNetworks } from '../../agent/network/pod-networks.js';
import { NetworkStateStore } from '../../agent/network/state.js';
import { isAbsent, type VmiInterface } from '../../agent/network/vmi-network.js';
import { CriticalNetworkError } from '../../agent/reconcile/ports.js';
import { ApplyRequestSchema } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { apply } from '../../privhelper/policy/network.js';
import { createPolicy } from '../../privhelper/policy/policy.js';
import { FakeNetworkHelper, helperFailure, onePod, podUid } from '../unit/network/fakes.js';
import { silentLog } from '../unit/status/fakes.js';
import { loadVectors } from './load.js';
import {
  expectedAttachments,
  expectedPasst,
  observed,
  type SetupResult,
  type SetupStep,
  shownAttachments,
} from './nmstate.js';
import { type JsonObject, vmiWithNetworks } from './objects.js';

const cacheDirectory = '/var/run/kubevirt-private/network-info-cache/uid-1/';

let root: string;
let runs = 0;
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'network-vectors-'));
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** Its NAT fails only where a request has some. */
class NetworkHelperOfCase extends FakeNetworkHelper {
  natError: Error | undefined;

  override async applyNetwork(request: Parameters<FakeNetworkHelper['applyNetwork']>[0]): Promise<boolean> {
    await super.applyNetwork(request);
    const nat = request.attachments.some(({ binding }) => binding.case === 'masquerade');
    if (nat && this.natError !== undefined) throw this.natError;
    return true;
  }
}

class World {
  readonly directory = join(root, String(runs++));
  readonly helper = new NetworkHelperOfCase();
  #store = this.#newStore();

  #newStore() {
    return new NetworkStateStore(this.directory, silentLog());
  }

  restartAgent() {
    this.#store = this.#newStore();
  }

  /** Sets up these of the step's networks, all of them if it is not said which. */
  async setup(step: SetupStep, names = step.networks.map(({ name }) => name)) {
    const before = { calls: this.helper.calls.length, applied: this.helper.applied.length };
    this.helper.observed = observed(step.currentStatus);
    this.helper.observeError = step.netnsEnterFails
      ? helperFailure('do-netns failure', { unchanged: true })
      : step.nmstateReadFails
        ? helperFailure('nmstate read failed', { unchanged: true })
        : undefined;
    this.helper.applyError = step.nmstateApplyFails
      ? helperFailure('nmstate apply failed', { unchanged: false })
      : undefined;
    this.helper.natError = step.masqueradeFails
      ? helperFailure('masquerade failed', { unchanged: false })
      : undefined;
    const networks = new HelperPodNetworks({
      helper: this.helper,
      pods: onePod,
      state: this.#store,
      node: 'node01',
      agentPodIp: step.MY_POD_IP === '' ? undefined : step.MY_POD_IP,
      config: () => ({ plugins: step.bindingPlugins ?? {}, portRanges: true }),
      log: silentLog(),
    });
    const multiqueue = step.queuesCapacity > 0;
    const vmi = vmiWithNetworks(
      step.networks,
      step.interfaces,
      step.interfaceStatuses,
      { networkInterfaceMultiqueue: multiqueue },
      { cores: step.queuesCapacity },
      { [podUid]: 'node01' },
    );
    let error: Error | undefined;
    try {
      await networks.setup(vmi, names);
    } catch (thrown) {
      error = thrown as Error;
    }
    return {
      error: (error?.message ?? '').replace('setup failed, err: ', ''),
      critical: error?.cause instanceof CriticalNetworkError,
      calls: this.helper.calls.slice(before.calls),
      applied: this.helper.applied.slice(before.applied),
      files: this.files(),
    };
  }

  /** Node-side files without the keys that KubeVirt does not have. */
  files(): Record<string, JsonObject> {
    const directory = join(this.directory, 'uid-1');
    let names: string[] = [];
    try {
      names = readdirSync(directory);
    } catch {
      // No file was written yet.
    }
    return Object.fromEntries(
      names.map((name) => {
        const { podUID, dhcp: _, ...stock } = JSON.parse(readFileSync(join(directory, name), 'utf8'));
        expect(podUID).toBe(podUid);
        return [name, stock];
      }),
    );
  }
}

function nodeFiles(filesAfter: SetupResult['filesAfter']): Record<string, JsonObject> {
  return Object.fromEntries(
    Object.entries(filesAfter)
      .filter(([path]) => path.startsWith(cacheDirectory))
      .map(([path, content]) => [path.slice(cacheDirectory.length), content]),
  );
}

/** Up to the parts that a dump or the Go runtime fills in; the helper's errors name the call. */
function expectError(error: string, wanted: string) {
  const [start = ''] = wanted.split('<LIST>');
  const shown = error.replace(/helper \S+: /, '');
  expect(wanted === '' ? shown : shown.slice(0, start.length)).toBe(start);
}

type Applied = FakeNetworkHelper['applied'][number];
type Outcome = Awaited<ReturnType<World['setup']>>;

const privateNetworks = ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', '100.64.0.0/10', 'fc00::/7'];

function isPrivate(cidr: string): boolean {
  const inner = parseCidr(cidr);
  return privateNetworks.some((text) => {
    const outer = parseCidr(text);
    if (inner === undefined || outer === undefined) throw new Error(`no network: ${cidr}`);
    const { prefixLength } = outer;
    return (
      inner.address.family === outer.address.family &&
      inner.prefixLength >= prefixLength &&
      formatCidr(maskedNetwork({ ...inner, prefixLength })) === text
    );
  });
}

/** Guests get private networks only, and a pod one masquerade interface: the field that is refused. */
function refusedField({ attachments }: Applied): string | undefined {
  let masquerades = 0;
  for (const [i, { binding }] of attachments.entries()) {
    if (binding.case !== 'masquerade') continue;
    if (++masquerades > 1) return `attachments[${i}].masquerade`;
    const { ipv4Cidr, ipv6Cidr } = binding.value;
    if (ipv4Cidr !== '' && !isPrivate(ipv4Cidr)) return 'ipv4_cidr';
    if (ipv6Cidr !== '' && !isPrivate(ipv6Cidr)) return 'ipv6_cidr';
  }
  return undefined;
}

/** The helper's own check lets the request pass. */
function expectAccepted(applied: readonly Applied[]) {
  for (const request of applied) {
    const pod = { podUid, vmiUid: 'aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee' };
    const check = () => apply.parse(createPolicy(), create(ApplyRequestSchema, { ...request, pod }));
    const refused = refusedField(request);
    if (refused === undefined) expect(check).not.toThrow();
    else expect(check).toThrow(refused);
  }
}

/** Of a network that the node makes links for. */
function isPlumbed(iface: VmiInterface, plugins: BindingPlugins): boolean {
  return ['bridge', 'masquerade'].includes(bindingOf(iface)) || hasManagedTap(iface, plugins);
}

/** A guest network that is given for the other family, which KubeVirt takes as it is. */
function hasWrongFamily({ networks }: SetupStep): boolean {
  return networks.some(({ pod }) => {
    const v4 = pod?.vmNetworkCIDR && parseCidr(pod.vmNetworkCIDR);
    const v6 = pod?.vmIPv6NetworkCIDR && parseCidr(pod.vmIPv6NetworkCIDR);
    return (v4 && v4.address.family !== 4) || (v6 && v6.address.family !== 6);
  });
}

/** What else a case shows, by what its name says of it. */
function idsOf(name: string): string {
  const ids: [RegExp, string][] = [
    [/^queues .* q=([2-9]|\d\d+) model="e1000/, 'NET-012 '],
    [/^podIP order .* ip=dual$/, 'NET-018 '],
    [/^a stray netN link/, 'NET-022 '],
    [/custom name/, 'NET-023 '],
  ];
  return ids.map(([pattern, id]) => (pattern.test(name) ? id : '')).join('');
}

/**
 * The step of KubeVirt's that fails has nothing to do here: a plugin that only has a sidecar needs nothing from the
 * node, and a network that is plumbed already is left alone.
 */
function isNotCalled(error: string, { error: ours, applied }: Outcome): boolean {
  if (ours !== '') return false;
  if (error.endsWith('nmstate apply failed')) return applied.length === 0;
  const bindings = applied.flatMap(({ attachments }) => attachments.map(({ binding }) => binding.case));
  return error.endsWith('masquerade failed') && !bindings.includes('masquerade');
}

/** Entering the namespace and reading it is one call here. */
function observations({ error, nmstateReads }: SetupResult): number {
  return error === 'do-netns failure' ? 1 : nmstateReads;
}

/** What a DHCP record cannot be made of; the addresses of its interface are not written then, either. */
const noDhcpRecord = /^(no gateway address found|address .*: invalid MAC|invalid CIDR)/;

/** The files without that of the interface that the set-up stopped at, which is the last one in order. */
function withoutLast(files: Record<string, JsonObject>, { interfaces }: SetupStep) {
  const last = interfaces.map(({ name }) => name).findLast((name) => name in files);
  return Object.fromEntries(Object.entries(files).filter(([name]) => name !== last));
}

describe.each(['netpod-setup', 'netpod-queues'])('%s', (file) => {
  const all = loadVectors<SetupStep, SetupResult>('network', file).map((vector) => ({
    ...vector,
    input: {
      ...vector.input,
      networks: vector.input.networks ?? [],
      interfaces: vector.input.interfaces ?? [],
    },
  }));
  const titled = all.map((vector) => [`NET-005 ${idsOf(vector.name)}${vector.name}`, vector] as const);
  it.each(titled)('%s', async (_title, { input, expected }) => {
    const result = await new World().setup(input);
    if (hasWrongFamily(input) && result.error.includes('not an IPv')) {
      expect(result.error).toMatch(
        /^Critical network error: failed to parse VM CIDR: .*, not an IPv[46] network$/,
      );
      expect(result.critical).toBe(true);
      return;
    }
    const interfaces = input.interfaces.filter(({ state }) => state !== 'absent');
    if (interfaces.length < input.interfaces.length) {
      // What is absent and was never set up is ignored, whatever its binding; it only counts.
      const without = await new World().setup(
        input,
        input.networks
          .map(({ name }) => name)
          .filter((name) => interfaces.some((iface) => iface.name === name)),
      );
      const bare = (applied: Applied[]) =>
        shownAttachments(applied).map(({ index: _, ...attachment }) => attachment);
      expect(result.error).toBe(without.error);
      expect(bare(result.applied)).toEqual(bare(without.applied));
      expect(result.files).toEqual(without.files);
      if (expected.error !== '' && result.error !== expected.error) return;
    }
    expectAccepted(result.applied);
    if (isNotCalled(expected.error, result)) return;
    expectError(result.error, expected.error);
    expect(result.critical).toBe(expected.criticalNetworkError);
    expect(result.calls.filter((call) => call === 'observe')).toHaveLength(observations(expected));
    expect(shownAttachments(result.applied)).toEqual(
      expectedAttachments(input, expected).filter(({ network }) =>
        interfaces.some(({ name }) => name === network),
      ),
    );
    // What is absent and was never set up needs nothing.
    const wanted = interfaces.some((iface) => iface.passtBinding);
    expect(result.applied.some(({ passt }) => passt)).toBe(wanted && expectedPasst(expected));
    expect(result.applied.flatMap(({ detachments }) => detachments)).toEqual([]);
    // Addresses are written once what goes with them is known.
    const files = nodeFiles(expected.filesAfter);
    expect(result.files).toEqual(noDhcpRecord.test(expected.error) ? withoutLast(files, input) : files);
  });
});

describe('netpod-sequences', () => {
  const all = loadVectors<{ steps: SetupStep[] }, { steps: SetupResult[] }>('network', 'netpod-sequences');

  it.each(all)('NET-005 $name', async ({ input, expected }) => {
    const world = new World();
    for (const [position, step] of input.steps.entries()) {
      const wanted = expected.steps[position];
      if (wanted === undefined) throw new Error(`no expectation for step ${position}`);
      if (step.agentRestartBefore) world.restartAgent();
      const before = world.files();
      const result = await world.setup(step);
      if (isNotCalled(wanted.error, result)) return;
      const unplugged = step.interfaces.filter(
        (iface) => isAbsent(iface) && hasManagedTap(iface, step.bindingPlugins ?? {}) && iface.name in before,
      );
      if (/pod link \(.*\) is missing/.test(wanted.error) && result.error !== wanted.error) {
        // KubeVirt applies what is absent once more, which needs the link; here it is removed, as a bridge is.
        const detachments = unplugged.map(({ name }) => ({ network: name }));
        expect(detachments).not.toEqual([]);
        expect(result.applied).toMatchObject([{ attachments: [], detachments }]);
        for (const { name } of unplugged) {
          expect(Object.hasOwn(result.files, name)).toBe(result.error !== '');
        }
        return;
      }
      expectError(result.error, wanted.error);
      expect(result.critical).toBe(wanted.criticalNetworkError);
      expect(result.calls.filter((call) => call === 'observe')).toHaveLength(observations(wanted));
      expect(result.files).toEqual(nodeFiles(wanted.filesAfter));

      const changed = step.networks
        .map(({ name }) => name)
        .filter((name) => {
          const state = (files: Record<string, JsonObject>) => files[name]?.['networkState'] ?? 0;
          return state(before) !== state(result.files);
        });
      const isOf = (name: string, absent: boolean) => {
        const iface = step.interfaces.find((candidate) => candidate.name === name);
        return (
          iface !== undefined && isPlumbed(iface, step.bindingPlugins ?? {}) && isAbsent(iface) === absent
        );
      };
      // What is found wrong before anything is applied changes the state all the same.
      expect(result.applied.flatMap(({ attachments }) => attachments.map(({ network }) => network))).toEqual(
        wanted.desiredSpec === null ? [] : changed.filter((name) => isOf(name, false)),
      );
      const detached = result.applied.flatMap(({ detachments }) => detachments.map(({ network }) => network));
      // A removal that fails changes nothing.
      const plumbed = Object.keys(before).filter((name) => before[name]?.['networkState'] !== undefined);
      const removable = step.networks.map(({ name }) => name).filter((name) => plumbed.includes(name));
      const failed = result.error !== '' && detached.length > 0;
      expect(detached).toEqual((failed ? removable : changed).filter((name) => isOf(name, true)));
    }
  });
});
