import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { create } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bindingOf, hasManagedTap } from '../../agent/network/bindings.js';
import { HelperPodNetworks } from '../../agent/network/pod-networks.js';
import { NetworkStateStore } from '../../agent/network/state.js';
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

class World {
  readonly directory = join(root, String(runs++));
  readonly helper = new FakeNetworkHelper();
  #store = this.#newStore();

  #newStore() {
    return new NetworkStateStore(this.directory, silentLog());
  }

  restartAgent() {
    this.#store = this.#newStore();
  }

  async setup(step: SetupStep) {
    const before = { calls: this.helper.calls.length, applied: this.helper.applied.length };
    this.helper.observed = observed(step.currentStatus);
    this.helper.observeError = step.netnsEnterFails
      ? helperFailure('do-netns failure', { unchanged: true })
      : step.nmstateReadFails
        ? helperFailure('nmstate read failed', { unchanged: true })
        : undefined;
    const natFails = step.masqueradeFails && step.interfaces.some((iface) => iface.masquerade);
    this.helper.applyError = step.nmstateApplyFails
      ? helperFailure('nmstate apply failed', { unchanged: false })
      : natFails
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
      await networks.setup(
        vmi,
        step.networks.map(({ name }) => name),
      );
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

/** Guests get private networks only, and a pod one masquerade interface: the fields that are refused. */
function refusedField(name: string): string | undefined {
  if (name === 'masquerade vmNetworkCIDR="0.0.0.0/0" ip=dual') return 'ipv4_cidr';
  return /secondary masquerade (ordinal|state=(up|down))/.test(name)
    ? 'attachments[1].masquerade'
    : undefined;
}

/** The helper's own check lets the request pass. */
function expectAccepted(name: string, applied: FakeNetworkHelper['applied']) {
  for (const request of applied) {
    const pod = { podUid, vmiUid: 'aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee' };
    const check = () => apply.parse(createPolicy(), create(ApplyRequestSchema, { ...request, pod }));
    const refused = refusedField(name);
    if (refused === undefined) expect(check).not.toThrow();
    else expect(check).toThrow(refused);
  }
}

// A plugin that only has a sidecar needs nothing from the node: there is no call that could fail.
const applyNotNeeded = /^sidecar: apply fails|^hotplug fails, then unplugged \(started state\) sidecar/;

// KubeVirt applies what is absent once more, which needs the link; here it is removed, as a bridge is.
const managedTapRemoved = 'unplug when multus already removed the link managed';

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

const noDhcpRecord = new Set([
  'bridge dhcp routes: no routes at all',
  'bridge dhcp routes: unparsable destination',
  'bridge dhcp mac spec="" status="bad"',
]);
const wrongFamily = new Set([
  'masquerade vmNetworkCIDR="fd10:0:2::/120" ip=dual',
  'masquerade vmIPv6NetworkCIDR="10.0.2.0/24"',
]);
// An absent interface that was never plumbed is ignored, whatever its binding.
const absentIgnored = /^secondary (slirp|macvtap|deprecated-passt|none|managed) state=absent$/;

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
  it.each(titled)('%s', async (_title, { name, input, expected }) => {
    const result = await new World().setup(input);
    if (wrongFamily.has(name)) {
      expect(result.error).toMatch(
        /^Critical network error: failed to parse VM CIDR: .*, not an IPv[46] network$/,
      );
      expect(result.critical).toBe(true);
      return;
    }
    if (absentIgnored.test(name)) {
      expect(result.error).toBe('');
      expect(shownAttachments(result.applied).map(({ network }) => network)).toEqual(['default']);
      return;
    }
    expectAccepted(name, result.applied);
    expectError(result.error, expected.error);
    expect(result.critical).toBe(expected.criticalNetworkError);
    expect(result.calls.filter((call) => call === 'observe')).toHaveLength(expected.nmstateReads);
    expect(shownAttachments(result.applied)).toEqual(expectedAttachments(input, expected));
    // What is absent and was never set up needs nothing.
    const wanted = input.interfaces.some((iface) => iface.passtBinding && iface.state !== 'absent');
    expect(result.applied.some(({ passt }) => passt)).toBe(wanted && expectedPasst(expected));
    expect(result.applied.flatMap(({ detachments }) => detachments)).toEqual([]);
    // Addresses are written once what goes with them is known.
    const files = noDhcpRecord.has(name) ? {} : nodeFiles(expected.filesAfter);
    expect(result.files).toEqual(files);
  });
});

describe('netpod-sequences', () => {
  const all = loadVectors<{ steps: SetupStep[] }, { steps: SetupResult[] }>('network', 'netpod-sequences');

  it.each(all)('NET-005 $name', async ({ name, input, expected }) => {
    const world = new World();
    for (const [position, step] of input.steps.entries()) {
      const wanted = expected.steps[position];
      if (wanted === undefined) throw new Error(`no expectation for step ${position}`);
      if (step.agentRestartBefore) world.restartAgent();
      const before = world.files();
      const result = await world.setup(step);
      if (applyNotNeeded.test(name) && step.nmstateApplyFails) {
        expect([result.error, result.calls]).toEqual(['', ['observe']]);
        return;
      }
      if (name === managedTapRemoved && wanted.error !== '') {
        expect(result.error).toBe('');
        expect(result.applied).toMatchObject([{ attachments: [], detachments: [{ network: 'blue' }] }]);
        expect(Object.keys(result.files)).toEqual(['default']);
        return;
      }
      expectError(result.error, wanted.error);
      expect(result.critical).toBe(wanted.criticalNetworkError);
      // Entering the namespace and reading it is one call here.
      expect(result.calls.filter((call) => call === 'observe')).toHaveLength(
        step.netnsEnterFails && wanted.error !== '' ? 1 : wanted.nmstateReads,
      );
      expect(result.files).toEqual(nodeFiles(wanted.filesAfter));

      const changed = step.networks
        .map(({ name }) => name)
        .filter((name) => {
          const state = (files: Record<string, JsonObject>) => files[name]?.['networkState'] ?? 0;
          return state(before) !== state(result.files);
        });
      const binding = (name: string) => step.interfaces.find((iface) => iface.name === name);
      const isPlumbed = (name: string) => {
        const iface = binding(name);
        if (iface === undefined) return false;
        return (
          ['bridge', 'masquerade'].includes(bindingOf(iface)) ||
          hasManagedTap(iface, step.bindingPlugins ?? {})
        );
      };
      const isAbsent = (name: string) => binding(name)?.state === 'absent';
      expect(result.applied.flatMap(({ attachments }) => attachments.map(({ network }) => network))).toEqual(
        changed.filter((name) => isPlumbed(name) && !isAbsent(name)),
      );
      expect(result.applied.flatMap(({ detachments }) => detachments.map(({ network }) => network))).toEqual(
        changed.filter((name) => isPlumbed(name) && isAbsent(name)),
      );
    }
  });
});
