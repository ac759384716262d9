import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { loadKubeConfig } from '../../../agent/kube/kube-config.js';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'kube-config-'));
});
afterEach(() => rmSync(directory, { recursive: true }));

function write(user: object): string {
  const file = join(directory, 'kubeconfig');
  const config = {
    clusters: [{ name: 'c', cluster: { server: 'https://10.0.0.1:6443' } }],
    users: [{ name: 'u', user }],
    contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
    'current-context': 'x',
  };
  writeFileSync(file, JSON.stringify(config));
  return file;
}

describe('loadKubeConfig', () => {
  it('reads a file', () => {
    expect(loadKubeConfig(write({ token: 't' }), {}).getCurrentCluster()?.server).toBe(
      'https://10.0.0.1:6443',
    );
  });

  it('refuses credentials that a program would have to fetch', () => {
    const file = write({ exec: { apiVersion: 'client.authentication.k8s.io/v1', command: 'aws' } });
    expect(() => loadKubeConfig(file, {})).toThrow('credential plugin');
  });

  it('names a file that cannot be read, and the lack of a service account', () => {
    expect(() => loadKubeConfig(join(directory, 'none'), {})).toThrow(/cannot read kubeconfig .*none/);
    expect(() => loadKubeConfig(undefined, {})).toThrow('unable to load in-cluster configuration');
  });
});
