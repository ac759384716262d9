import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { DomainParseError, parseDomain } from '../../../agent/domains/domain-json.js';

describe('parseDomain', () => {
  it('WIRE-020 unknown, missing and null keys', () => {
    const domain = parseDomain(
      '{"ObjectMeta":{"name":"a","namespace":"b","creationTimestamp":null,"new":[1]},"Extra":{"x":1},' +
        '"Spec":null,"Status":{"Status":"Running","Interfaces":null}}',
    );
    expect(domain.ObjectMeta).toEqual({ name: 'a', namespace: 'b', uid: '', deletionTimestamp: undefined });
    expect(domain.Spec.Devices.Disks).toEqual([]);
    expect(domain.Status).toMatchObject({ Status: 'Running', Interfaces: [], PanicCount: 0 });
  });

  it('WIRE-020 keys of the wrong case are ignored', () => {
    const domain = parseDomain(
      '{"objectMeta":{"name":"a"},"status":{"Status":"Paused"},"Status":{"status":"x"}}',
    );
    expect(domain.ObjectMeta.name).toBe('');
    expect(domain.Status.Status).toBe('');
  });

  it.each([
    ['{"ObjectMeta":[]}', 'Domain.ObjectMeta: array instead of object'],
    ['{"Status":{"Status":5}}', 'Domain.Status.Status: number instead of string'],
    ['{"Spec":{"Devices":{"Disks":{}}}}', 'Domain.Spec.Devices.Disks: object instead of array'],
    [
      '{"Spec":{"Devices":{"Disks":[{"Target":{"Device":[]}}]}}}',
      'Disks[0].Target.Device: array instead of string',
    ],
    ['{"Spec":{"CurrentMemory":{"Value":1.5}}}', 'CurrentMemory.Value: number instead of integer'],
    ['{"ObjectMeta":{"deletionTimestamp":"yesterday"}}', 'deletionTimestamp: not an RFC 3339 time'],
    [`{"Spec":{"Devices":{"Disks":[${'{},'.repeat(1024)}{}]}}}`, 'Disks: 1025 entries, at most 1024'],
    [`"${'x'.repeat(4 * 1024 * 1024)}"`, 'exceeds'],
    ['{', 'Domain'],
    ['', 'Domain'],
    [`${'{"Spec":'.repeat(200_000)}1.50${'}'.repeat(200_000)}`, 'nested too deeply'],
  ])('%#: names the path at fault', (text, message) => {
    expect(() => parseDomain(text)).toThrow(DomainParseError);
    expect(() => parseDomain(text)).toThrow(message);
  });

  it('whatever the text, the result is a Domain or a DomainParseError', () => {
    fc.assert(
      fc.property(
        fc.oneof(
          fc.string(),
          fc.json(),
          fc.json().map((j) => `{"Spec":${j},"Status":${j}}`),
        ),
        (text) => {
          try {
            expect(typeof parseDomain(text).Status.PanicCount).toBe('number');
          } catch (error) {
            expect(error).toBeInstanceOf(DomainParseError);
          }
        },
      ),
    );
  });
});
