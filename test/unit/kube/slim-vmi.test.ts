import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { type JsonValue, parseJson } from '../../../agent/json/lossless.js';
import { isSlim, slimVmi } from '../../../agent/kube/slim-vmi.js';
import { decodeVmi } from '../../../agent/kube/vmi-api.js';

const transform = slimVmi('node01');

function vmiText(index: number, node: string, note = 'y'): string {
  return JSON.stringify({
    apiVersion: 'kubevirt.io/v1',
    kind: 'VirtualMachineInstance',
    metadata: {
      namespace: 'ns',
      name: `vm-${index}`,
      uid: `00000000-0000-0000-0000-${String(index).padStart(12, '0')}`,
      resourceVersion: String(1000 + index),
      labels: { 'kubevirt.io/nodeName': node, app: 'x' },
      annotations: { 'kubevirt.io/create-migration-target': 'true', note },
    },
    spec: { domain: { devices: {} }, volumes: [] },
    status: {
      phase: 'Running',
      nodeName: node,
      activePods: { 'pod-uid': node },
      migrationState: {
        sourceNode: 'node07',
        targetNode: node,
        completed: true,
        targetPod: 'virt-launcher',
        sourceState: {},
        targetState: { syncAddress: null, nodeAddress: '10.0.0.1', pod: 'p' },
      },
    },
  });
}

describe('slimVmi', () => {
  it('keeps of a foreign VMI who it is, where it is and how its migration stands', () => {
    const slim = transform(decodeVmi(parseJson(vmiText(1, 'node02'), 1e6)));
    expect(isSlim(slim)).toBe(true);
    expect(slim).toEqual({
      slim: true,
      metadata: {
        namespace: 'ns',
        name: 'vm-1',
        uid: '00000000-0000-0000-0000-000000000001',
        resourceVersion: '1001',
        labels: { 'kubevirt.io/nodeName': 'node02' },
        annotations: { 'kubevirt.io/create-migration-target': 'true' },
      },
      spec: { domain: { devices: {} } },
      status: {
        phase: 'Running',
        nodeName: 'node02',
        activePods: { 'pod-uid': 'node02' },
        migrationState: {
          sourceNode: 'node07',
          targetNode: 'node02',
          completed: true,
          sourceState: {},
          targetState: { syncAddress: null, nodeAddress: '10.0.0.1' },
        },
      },
    });
  });

  it.each([
    ['runs here by label', { labels: { 'kubevirt.io/nodeName': 'node01' }, status: {} }],
    ['comes here by label', { labels: { 'kubevirt.io/migrationTargetNodeName': 'node01' }, status: {} }],
    ['runs here by status', { labels: {}, status: { nodeName: 'node01' } }],
    ['left this node', { labels: {}, status: { migrationState: { sourceNode: 'node01' } } }],
    ['comes here by status', { labels: {}, status: { migrationState: { targetNode: 'node01' } } }],
  ])('keeps a VMI whole that %s', (_, { labels, status }) => {
    const vmi = decodeVmi({ metadata: { namespace: 'ns', name: 'vm', uid: 'u', labels }, spec: {}, status });
    expect(transform(vmi)).toBe(vmi);
    expect(isSlim(vmi)).toBe(false);
  });

  it('AFT-069 20 000 foreign VMIs of 20 kB take less than 60 MiB', () => {
    setFlagsFromString('--expose-gc');
    const gc = runInNewContext('gc') as () => void;
    const kept: unknown[] = [];
    const perPage = 500;
    const note = 'x'.repeat(20_000);
    const readPage = (page: number) => {
      const texts = Array.from({ length: perPage }, (_, n) => vmiText(page * perPage + n, 'node02', note));
      // Every eighth page must be read by the lossless parser, which makes its strings another way: 50 MB of them.
      const text = `[${texts.join(',')},${page % 8 === 0 ? '1e2' : '100'}]`;
      const items = (parseJson(text, 2 ** 26) as JsonValue[]).slice(0, -1);
      for (const item of items) kept.push(transform(decodeVmi(item)));
    };
    gc();
    const before = process.memoryUsage().heapUsed;
    for (let page = 0; page < 40; page++) readPage(page);
    gc();
    expect(kept).toHaveLength(20_000);
    expect(process.memoryUsage().heapUsed - before).toBeLessThan(60 * 2 ** 20);
  }, 180_000);
});
