/** The API server for tests as kubectl sees it. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type ApiServer, startApiServer } from '../harness/apiserver/api-server.js';

const kubectlPath = '/usr/bin/kubectl';
const run = promisify(execFile);

let api: ApiServer;
let directory: string;

beforeAll(async () => {
  api = await startApiServer({ namespaces: ['vms'] });
  directory = await mkdtemp(join(tmpdir(), 'apiserver-'));
  await writeFile(join(directory, 'kubeconfig'), api.kubeConfigText, { mode: 0o600 });
});

afterAll(async () => {
  await api.stop();
  await rm(directory, { recursive: true, force: true });
});

function argumentsFor(args: readonly string[]): string[] {
  return ['--kubeconfig', join(directory, 'kubeconfig'), '--cache-dir', join(directory, 'cache'), ...args];
}

async function kubectl(...args: string[]): Promise<string> {
  const { stdout } = await run(kubectlPath, argumentsFor(args), { timeout: 30_000 });
  return stdout;
}

async function apply(verb: 'apply' | 'create' | 'replace', manifest: string): Promise<string> {
  const file = join(directory, 'manifest.yaml');
  await writeFile(file, manifest);
  return await kubectl(verb, '-f', file);
}

const vmi = (more = '') => `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: vm
  namespace: vms
  labels: {app: demo}
spec:
  domain:
    devices: {}
    memory: {guest: 64Mi}
${more}`;

describe.skipIf(!existsSync(kubectlPath))('kubectl', () => {
  it('creates, shows, applies, watches and deletes a VMI', async () => {
    expect(await apply('create', vmi())).toBe('virtualmachineinstance.kubevirt.io/vm created\n');
    const yaml = await kubectl('get', 'vmi', 'vm', '-n', 'vms', '-o', 'yaml');
    expect(yaml).toMatch(/^apiVersion: kubevirt.io\/v1\nkind: VirtualMachineInstance\n/);
    expect(yaml).toMatch(/\n {2}generation: 1\n/);
    expect(yaml).toMatch(/\n {2}uid: [0-9a-f-]{36}\n/);

    const watching = spawn(
      kubectlPath,
      argumentsFor(['get', 'vmi', '-n', 'vms', '--watch', '--output-watch-events']),
    );
    const lines = createInterface({ input: watching.stdout })[Symbol.asyncIterator]();
    const nextLine = async () =>
      String((await lines.next()).value)
        .split(/\s+/)
        .slice(0, 4)
        .join(' ');
    try {
      expect(await nextLine()).toBe('EVENT NAME AGE PHASE');
      expect(await nextLine()).toMatch(/^ADDED vm \d+s/);
      await api.untilCount({ verb: 'watch', plural: 'virtualmachineinstances' }, 1);

      const applied = await apply('apply', vmi('  terminationGracePeriodSeconds: 30\n'));
      expect(applied).toBe('virtualmachineinstance.kubevirt.io/vm configured\n');
      expect(await nextLine()).toMatch(/^MODIFIED vm/);
      const seconds = '{.spec.terminationGracePeriodSeconds}';
      expect(await kubectl('get', 'vmi', 'vm', '-n', 'vms', '-o', `jsonpath=${seconds}`)).toBe('30');

      api.store.change('virtualmachineinstances', 'vms', 'vm', (copy) => {
        copy['status'] = { phase: 'Running', nodeName: 'node01', interfaces: [{ ipAddress: '10.0.0.7' }] };
      });
      expect(await nextLine()).toMatch(/^MODIFIED vm \d+s Running/);
      expect(await kubectl('get', 'vmis', '-A', '--no-headers')).toMatch(
        /^vms\s+vm\s+\d+s\s+Running\s+10\.0\.0\.7\s+node01\s/,
      );

      expect(await kubectl('delete', 'vmi', 'vm', '-n', 'vms')).toContain('"vm" deleted');
      expect(await nextLine()).toMatch(/^DELETED vm/);
    } finally {
      watching.kill();
      await once(watching, 'exit');
    }
    await expect(kubectl('get', 'vmi', 'vm', '-n', 'vms')).rejects.toThrow(
      'Error from server (NotFound): virtualmachineinstances.kubevirt.io "vm" not found',
    );
  });

  it('waits for a finalizer when it deletes, and patches it away', async () => {
    await apply('create', vmi());
    await kubectl(
      'patch',
      'vmi',
      'vm',
      '-n',
      'vms',
      '--type=json',
      '-p',
      '[{"op":"add","path":"/metadata/finalizers","value":["foregroundDeleteVirtualMachine"]}]',
    );
    await kubectl('delete', 'vmi', 'vm', '-n', 'vms', '--wait=false');
    expect(await kubectl('get', 'vmi', 'vm', '-n', 'vms', '-o', 'yaml')).toContain('deletionTimestamp: ');
    const watches = { verb: 'watch', plural: 'virtualmachineinstances' };
    const before = api.count(watches);
    const waiting = kubectl('wait', '--for=delete', 'vmi/vm', '-n', 'vms', '--timeout=20s');
    await api.untilCount(watches, before + 1);
    await kubectl(
      'patch',
      'vmi',
      'vm',
      '-n',
      'vms',
      '--type=merge',
      '-p',
      '{"metadata":{"finalizers":null}}',
    );
    await waiting;
    expect(api.store.get('virtualmachineinstances', 'vms', 'vm')).toBeUndefined();
  });

  it('refuses a replace with an old version', async () => {
    await apply('create', vmi());
    const old = await kubectl('get', 'vmi', 'vm', '-n', 'vms', '-o', 'yaml');
    await kubectl('label', 'vmi', 'vm', '-n', 'vms', 'tier=gold');
    await expect(apply('replace', old)).rejects.toThrow('the object has been modified');
    await kubectl('delete', 'vmi', '-n', 'vms', '--all');
    expect(api.store.list('virtualmachineinstances')).toEqual([]);
  });

  it('handles built-in kinds: namespaces, config maps, pods, events, nodes', async () => {
    await apply('create', 'apiVersion: v1\nkind: Namespace\nmetadata: {name: extra}\n');
    expect(await kubectl('get', 'ns', 'extra', '--no-headers')).toMatch(/^extra\s/);
    const settings =
      'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: extra}\ndata: {a: b}\n';
    expect(await apply('create', settings)).toBe('configmap/settings created\n');
    expect(await kubectl('get', 'cm', '-n', 'extra', '-o', 'jsonpath={.items[*].data.a}')).toBe('b');
    const pod = (image: string) => `
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: extra}
spec:
  containers:
  - {name: a, image: one}
  - {name: b, image: ${image}}
`;
    await apply('apply', pod('two'));
    expect(await apply('apply', pod('three'))).toBe('pod/p configured\n');
    expect(
      await kubectl('get', 'pod', 'p', '-n', 'extra', '-o', 'jsonpath={.spec.containers[*].image}'),
    ).toBe('one three');
    api.store.put('events', {
      metadata: { namespace: 'extra', name: 'p.1' },
      involvedObject: { kind: 'Pod', namespace: 'extra', name: 'p' },
      type: 'Normal',
      reason: 'Started',
      message: 'hello',
    });
    expect(await kubectl('get', 'events', '-n', 'extra')).toContain('hello');
    api.store.put('nodes', { metadata: { name: 'node01' } });
    await kubectl('label', 'node', 'node01', 'kubevirt.io/schedulable=true');
    expect(await kubectl('get', 'nodes', '-l', 'kubevirt.io/schedulable in (true)', '-o', 'name')).toBe(
      'node/node01\n',
    );
  });
});
