import { describe, expect, it } from 'vitest';
import { RegistryLoopMetrics } from '../../../agent/metrics/loop-metrics.js';
import { exponentialBounds, formatNumber, Registry } from '../../../agent/metrics/registry.js';
import { PanicCounter } from '../../../agent/reconcile/panics.js';
import { loadVectors } from '../../vectors/load.js';
import { domainOf } from '../reconcile/world.js';

describe('Registry', () => {
  it('writes families, series and labels in order, and escapes them', () => {
    const registry = new Registry();
    const counter = registry.counter('b_total', 'Counts "b",\nline \\ two.', ['z', 'a']);
    counter.increment('2', 'x');
    counter.increment('1', 'y"\n\\');
    counter.increment('2', 'x');
    registry.gauge('a', 'A.').set(1.5);
    registry.gauge('unused', 'Without a series.');
    expect(registry.text()).toBe(
      [
        '# HELP a A.',
        '# TYPE a gauge',
        'a 1.5',
        '# HELP b_total Counts "b",\\nline \\\\ two.',
        '# TYPE b_total counter',
        'b_total{a="x",z="2"} 2',
        'b_total{a="y\\"\\n\\\\",z="1"} 1',
        '',
      ].join('\n'),
    );
  });

  it('cumulates the buckets of a histogram', () => {
    const registry = new Registry();
    const histogram = registry.histogram('h', 'H.', [0.1, 1], ['name']);
    for (const value of [0.05, 0.1, 0.5, 7]) histogram.observe(value, 'q');
    expect(registry.text().split('\n').slice(2, -1)).toEqual([
      'h_bucket{name="q",le="0.1"} 2',
      'h_bucket{name="q",le="1"} 3',
      'h_bucket{name="q",le="+Inf"} 4',
      'h_sum{name="q"} 7.65',
      'h_count{name="q"} 4',
    ]);
  });

  it('follows a value and drops the series of an object that is gone', () => {
    const registry = new Registry();
    const gauge = registry.gauge('g', 'G.', ['namespace', 'name', 'kind']);
    let value = 1;
    gauge.follow(() => value, 'ns', 'vm', 'x');
    gauge.set(5, 'ns', 'vm2', 'x');
    value = 2;
    expect(registry.text()).toContain('g{kind="x",name="vm",namespace="ns"} 2\n');
    gauge.remove('ns', 'vm');
    expect(registry.text()).not.toContain('name="vm",');
    expect(registry.text()).toContain('name="vm2"');
  });

  it('leaves out series beyond 10,000 and says so', () => {
    const registry = new Registry();
    const counter = registry.counter('c_total', 'C.', ['code']);
    for (let i = 0; i < 10_050; i++) counter.increment(String(i));
    counter.increment('7');
    expect(counter.size).toBe(10_000);
    expect(registry.text()).toContain('# c_total: 50 values beyond 10000 series left out\n');
    expect(registry.text()).toContain('c_total{code="7"} 2\n');
  });

  it('refuses a second metric of a name, and labels that are not the metric’s', () => {
    const registry = new Registry();
    const counter = registry.counter('c', 'C.', ['a']);
    expect(() => registry.gauge('c', 'C.')).toThrow('exists already');
    expect(() => counter.increment()).toThrow('c has 1 labels');
  });

  it('writes numbers as Go does', () => {
    const numbers = [
      0,
      1,
      -1,
      0.0001,
      0.00001,
      1e-8,
      999_999,
      1_000_000,
      1_234_567.5,
      0.1 + 0.2,
      1 / 0,
      -1 / 0,
      0 / 0,
    ];
    expect(numbers.map(formatNumber)).toEqual(
      '0 1 -1 0.0001 1e-05 1e-08 999999 1e+06 1.2345675e+06 0.30000000000000004 +Inf -Inf NaN'.split(' '),
    );
    // As in a scrape of virt-handler.
    expect(exponentialBounds(1e-8, 10, 10).map(formatNumber)).toEqual(
      '1e-08 1e-07 1e-06 9.999999999999999e-06 9.999999999999999e-05 0.001 0.01 0.1 1 10'.split(' '),
    );
  });
});

describe('loop metrics', () => {
  const ref = (name: string) => ({ namespace: 'default', name, uid: `u-${name}` });

  it('count writes until the VMI is gone from the node', () => {
    const registry = new Registry();
    const metrics = new RegistryLoopMetrics(registry);
    metrics.vmiSynced(ref('vm1'));
    metrics.vmiSynced(ref('vm1'));
    metrics.vmiSynced(ref('vm10'));
    expect(registry.text()).toContain('kubevirt_vmi_sync_total{name="vm1",namespace="default"} 2\n');
    metrics.forgetVmi('default/vm1');
    expect(registry.text()).not.toContain('name="vm1"');
    expect(registry.text()).toContain('name="vm10"');
  });

  it('guest panics as in a scrape of virt-handler', () => {
    interface Input {
      readonly guestPanics?: readonly (readonly [string, string, string, number])[];
    }
    const registry = new Registry();
    const metrics = new RegistryLoopMetrics(registry);
    for (const { input, expected } of loadVectors<Input, { text: string }>('process', 'metrics_node')) {
      const counters = new Map<string, { counter: PanicCounter; count: number }>();
      for (const [, name, Type, Arg1] of input.guestPanics ?? []) {
        const seen = counters.get(name) ?? { counter: new PanicCounter(), count: 0 };
        counters.set(name, seen);
        const Status = { PanicCount: ++seen.count, GuestPanicInfo: { Type, Arg1 } };
        const panic = seen.counter.next('u', domainOf({ Status }));
        if (panic !== undefined) metrics.guestPanicked(ref(name), panic.type, panic.bugcheckCode);
      }
      const panics = /# HELP kubevirt_vmi_guest_os_panic_total[\s\S]*/.exec(expected.text)?.[0];
      expect(registry.text()).toBe(panics);
    }
  });
});
