import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { create } from '@bufbuild/protobuf';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { NetworkStateStore } from '../../../agent/network/state.js';
import { DhcpRecordSchema } from '../../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { silentLog } from '../status/fakes.js';

const uid = 'aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee';
let directory: string;
let lines: string[];
let store: NetworkStateStore;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'network-state-'));
  lines = [];
  store = new NetworkStateStore(directory, silentLog(lines));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const path = (network = 'default') => join(directory, uid, network);

function put(content: string, network = 'default') {
  mkdirSync(join(directory, uid), { recursive: true });
  writeFileSync(path(network), content);
}

describe('NetworkStateStore', () => {
  it('reads what it wrote, also after a restart', async () => {
    const record = {
      phase: 'pending' as const,
      iface: { name: 'default', bridge: {} },
      podIps: ['10.244.2.5'],
      podUid: 'p1',
      dhcp: create(DhcpRecordSchema, { address: '10.244.2.5/24', mac: '0a:58:0a:f4:02:05' }),
    };
    await store.write(uid, 'default', record);
    expect(await store.read(uid, 'default')).toEqual(record);
    expect(await new NetworkStateStore(directory, silentLog()).read(uid, 'default')).toEqual(record);
  });

  it('writes what KubeVirt reads, readable by others, and leaves no temporary file', async () => {
    const iface = { name: 'default', masquerade: {} };
    await store.write(uid, 'default', { phase: 'finished', iface, podIps: ['10.0.0.5', 'fd00::5'] });
    expect(JSON.parse(readFileSync(path(), 'utf8'))).toEqual({
      iface,
      podIP: '10.0.0.5',
      podIPs: ['10.0.0.5', 'fd00::5'],
      networkState: 2,
    });
    expect(statSync(path()).mode & 0o777).toBe(0o604 & ~process.umask());
    expect(readdirSync(join(directory, uid))).toEqual(['default']);
  });

  it('reads records of KubeVirt v1.9.0', async () => {
    put(
      '{\n  "iface": {\n    "name": "default",\n    "bridge": {}\n  },\n  "podIP": "10.0.0.5",\n  "podIPs": [\n    "10.0.0.5"\n  ],\n  "networkState": 1\n}',
    );
    expect(await store.read(uid, 'default')).toEqual({
      phase: 'started',
      iface: { name: 'default', bridge: {} },
      podIps: ['10.0.0.5'],
    });
  });

  it('AFT-041 remembers only what it could read: a file that appears or is repaired is seen', async () => {
    expect(await store.read(uid, 'default')).toBeUndefined();
    put('{"podIPs": ["10.0.0');
    expect(await store.read(uid, 'default')).toBeUndefined();
    put('{"podIPs": ["10.0.0.5"]}');
    expect((await store.read(uid, 'default'))?.podIps).toEqual(['10.0.0.5']);
    put('{}');
    expect((await store.read(uid, 'default'))?.podIps).toEqual(['10.0.0.5']);
    store.forget(uid, 'default');
    expect((await store.read(uid, 'default'))?.podIps).toEqual([]);
  });

  it('says nothing about a missing file and names the path of a broken one', async () => {
    await store.read(uid, 'default');
    expect(lines).toEqual([]);
    put('not json');
    await store.read(uid, 'default');
    expect(lines).toHaveLength(1);
    expect(JSON.parse(lines[0] ?? '')).toMatchObject({
      level: 'warning',
      msg: expect.stringContaining(path()),
    });
  });

  it.each([
    ['an array', '[]'],
    ['a number', '7'],
    ['nothing', ''],
    ['a state that is none', '{"networkState": 3}'],
    ['a fractional state', '{"networkState": 1.5}'],
    ['addresses that are none', '{"podIPs": ["10.0.0.5; rm -rf /"]}'],
    ['an address of another type', '{"podIPs": [7]}'],
    ['no list of addresses', '{"podIPs": "10.0.0.5"}'],
    ['too many addresses', JSON.stringify({ podIPs: Array(17).fill('10.0.0.5') })],
    ['a pod UID of another type', '{"podUID": {}}'],
    ['a DHCP record of another shape', '{"dhcp": {"address": 7}}'],
    ['too much', `{"podIP": "10.0.0.5"${' '.repeat(300_000)}}`],
  ])('takes a file that holds %s as unreadable', async (_what, content) => {
    put(content);
    expect(await store.read(uid, 'default')).toBeUndefined();
    expect(lines).toHaveLength(1);
  });

  it.each(['Storage_1', '-', 'a'.repeat(240)])('keeps a record of the network %j', async (network) => {
    await store.write(uid, network, { phase: 'finished', podIps: [] });
    store.forget(uid, network);
    expect((await store.read(uid, network))?.phase).toBe('finished');
  });

  it.each(['../other/default', '.hidden', 'a.b', '', 'a/b', 'a\n', 'a'.repeat(241)])(
    'never makes a path of the network name %j',
    async (network) => {
      const writing = store.write(uid, network, { phase: 'finished', podIps: [] });
      await expect(writing).rejects.toThrow('cannot name a file');
      expect(await store.read(uid, network)).toBeUndefined();
      expect(readdirSync(directory)).toEqual([]);
    },
  );

  it.each(['..', '', 'a/b', '.'])('never makes a path of the VMI UID %j', async (vmiUid) => {
    await expect(store.write(vmiUid, 'default', { phase: 'finished', podIps: [] })).rejects.toThrow(
      'cannot name a directory',
    );
    await expect(store.removeVmi(vmiUid)).rejects.toThrow('cannot name a directory');
  });

  it('NET-026 removes the directory and the memory of a VMI', async () => {
    await store.write(uid, 'default', { phase: 'finished', podIps: ['10.0.0.5'] });
    await store.write(uid, 'blue', { phase: 'started', podIps: [] });
    await store.removeVmi(uid);
    expect(readdirSync(directory)).toEqual([]);
    expect(await store.read(uid, 'default')).toBeUndefined();
    await store.removeVmi(uid);
  });
});
