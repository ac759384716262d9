/** The cluster's CA bundle against virt-handler's, but for a bundle that does not parse after one that did. */
import { describe, expect, it } from 'vitest';
import { CaBundle, type CaConfigMap, decodeCaConfigMap } from '../../agent/cluster/ca-bundle.js';
import type { JsonValue } from '../../agent/json/lossless.js';
import { testLogger } from '../unit/kube/test-logger.js';
import { loadVectors } from './load.js';

interface Input {
  readonly ops: readonly {
    readonly op: 'put' | 'delete' | 'get';
    readonly resourceVersion?: string;
    readonly data?: JsonValue;
  }[];
}
type Got = { readonly error: string } | { readonly raw: string };

/** What is different on purpose: the key is called by its name, and what does not parse changes nothing. */
function adapted(name: string, results: readonly Got[]): Got[] {
  return results.map((got, i) => {
    if (name === 'key missing') return { error: 'ca-bundle not found in configmap kubevirt/kubevirt-ca' };
    const before = results[i - 1];
    return 'error' in got && before !== undefined && 'raw' in before ? before : got;
  });
}

describe('the CA bundle', () => {
  it.each(loadVectors<Input, Got[]>('process', 'ca_manager'))(
    'NET-030 $name',
    ({ name, input, expected }) => {
      const bundle = new CaBundle(testLogger());
      const seen = new Map<string, CaConfigMap>();
      const results: Got[] = [];
      for (const { op, data = null, resourceVersion } of input.ops) {
        const before = seen.get('it');
        if (op === 'put') {
          const metadata = {
            namespace: 'kubevirt',
            name: 'kubevirt-ca',
            resourceVersion: resourceVersion ?? '',
          };
          // A watch never says the same version twice.
          if (before?.metadata.resourceVersion === resourceVersion) continue;
          const after = decodeCaConfigMap({ metadata, data });
          seen.set('it', after);
          if (before === undefined) bundle.add(after);
          else bundle.update(before, after);
        } else if (op === 'delete') {
          seen.delete('it');
          bundle.delete();
        } else {
          try {
            results.push({ raw: Buffer.from(bundle.current()).toString() });
          } catch (error) {
            results.push({ error: (error as Error).message });
          }
        }
      }
      const told = expected.map((got) => ('error' in got ? { error: got.error } : { raw: got.raw }));
      expect(results).toEqual(adapted(name, told));
    },
  );

  it('NET-030 takes no more certificates than a bundle can have, and none that is broken', () => {
    const [one] = loadVectors<Input, Got[]>('process', 'ca_manager').filter(
      ({ name }) => name === 'one cert',
    );
    const data = one?.input.ops[0]?.data as { 'ca-bundle': string };
    const pem = data['ca-bundle'];
    const read = (text: JsonValue) => {
      const bundle = new CaBundle(testLogger());
      const metadata = { namespace: 'kubevirt', name: 'kubevirt-ca' };
      bundle.add(decodeCaConfigMap({ metadata, data: { 'ca-bundle': text } }));
      return () => bundle.current();
    };
    expect(read(pem.repeat(200))()).toHaveLength(200 * pem.length);
    expect(read(pem.repeat(201))).toThrow('more than 200');
    expect(read(`${pem}${pem.replace('MII', 'MIJ')}`)).toThrow('certificate 2 is not valid');
    expect(read('-----BEGIN CERTIFICATE-----\n'.repeat(30_000))).toThrow('any valid');
    expect(read(5)).toThrow('not found in configmap');
  });
});
