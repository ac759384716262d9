import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  formatQuantity,
  type QuantityFormat,
  quantityNanos,
  quantityValue,
} from '../../../agent/api/quantity.js';
import { parseHostTopology } from '../../../agent/reconcile/host-topology.js';
import { instant, rfc3339 } from '../../../agent/reconcile/time.js';
import { parseXml, XmlError } from '../../../agent/reconcile/xml.js';

describe('quantities', () => {
  it.each([
    ['0', 0n],
    ['1Gi', 1073741824n],
    ['1.5Gi', 1610612736n],
    ['2k', 2000n],
    ['1e3', 1000n],
    ['1E3', 1000n],
    ['1E', 10n ** 18n],
    ['1500m', 2n],
    ['1n', 1n],
    ['-1500m', -1n],
    ['.5Ki', 512n],
    ['1e-1', 1n],
  ])('%s is %s', (text, value) => expect(quantityValue(text)).toBe(value));

  it.each(['', '.', '1 Gi', '1gi', 'Gi', '1e', '1e999', '1Gi2', 'x', '0x10', `${'9'.repeat(41)}`])(
    '"%s" is none',
    (text) => expect(quantityValue(text)).toBeUndefined(),
  );

  it('are written in canonical form', () => {
    expect(formatQuantity(1048576000n, 'decimal')).toBe('1048576k');
    expect(formatQuantity(1048576000n, 'exponent')).toBe('1048576e3');
    expect(formatQuantity(1n << 31n, 'binary')).toBe('2Gi');
    expect(formatQuantity(1000n, 'binary')).toBe('1k');
    expect(formatQuantity(0n, 'binary')).toBe('0');
    fc.assert(
      fc.property(
        fc.bigInt({ min: 0n, max: 1n << 63n }),
        fc.constantFrom<QuantityFormat[]>('decimal', 'binary', 'exponent'),
        (value, format) => {
          expect(quantityValue(formatQuantity(value, format))).toBe(value);
        },
      ),
    );
  });

  it('any text is a quantity or none', () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom(...'0123456789.eE+-KMGinumkTP') }), (text) => {
        quantityNanos(text);
      }),
    );
  });
});

describe('times', () => {
  it('are whole seconds of UTC', () => {
    expect(rfc3339(946684800999)).toBe('2000-01-01T00:00:00Z');
    expect(instant('2000-01-01T01:00:00+01:00')).toBe(946684800000);
    expect(instant('2000-01-01T00:00:00.5Z')).toBe(946684800500);
    for (const wrong of [undefined, null, '', '2000-01-01', '2000-13-01T00:00:00Z', 'now']) {
      expect(instant(wrong)).toBeUndefined();
    }
  });
});

describe('parseXml', () => {
  it('reads elements, attributes, text and entities', () => {
    const root = parseXml(
      `<?xml version="1.0"?><!-- <x> --><a b='1' c="&lt;&#65;&quot;">t<d/>u&amp;<d e="2>1">v</d></a>\n`,
      1000,
    );
    expect(root.name).toBe('a');
    expect([...root.attributes]).toEqual([
      ['b', '1'],
      ['c', '<A"'],
    ]);
    expect(root.text).toBe('tu&');
    expect(root.children.map(({ name, text }) => [name, text])).toEqual([
      ['d', ''],
      ['d', 'v'],
    ]);
    expect(root.children[1]?.attributes.get('e')).toBe('2>1');
  });

  it.each([
    '',
    'text',
    '<a>',
    '<a></b>',
    '</a>',
    '<a/><b/>',
    '<a b=1/>',
    '<a',
    '<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
    '<a><![CDATA[x]]></a>',
    `${'<a>'.repeat(100)}${'</a>'.repeat(100)}`,
  ])('refuses %j', (text) => expect(() => parseXml(text, 10_000)).toThrow(XmlError));

  it('refuses a document beyond the limit', () => {
    expect(() => parseXml(`<a>${'x'.repeat(100)}</a>`, 100)).toThrow('exceeds 100');
  });

  it('ends on any text, in time that grows with its length', () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom(...'<>/="\' ab!-?&;#x'), maxLength: 300 }), (text) => {
        try {
          parseXml(text, 1000);
        } catch (error) {
          expect(error).toBeInstanceOf(XmlError);
        }
      }),
      { numRuns: 2000 },
    );
    for (const hostile of [
      `<a ${'b="'.repeat(60_000)}`,
      `<a${' b="1"'.repeat(40_000)}`,
      '<!--'.repeat(60_000),
    ]) {
      expect(() => parseXml(hostile, 1_000_000)).toThrow(XmlError);
    }
  });
});

describe('parseHostTopology', () => {
  it('AFT-055 any element may be missing', () => {
    for (const text of [
      '<capabilities/>',
      '<capabilities><host/></capabilities>',
      '<capabilities><host><topology/></host></capabilities>',
      '<capabilities><host><topology><cells num="0"/></topology></host></capabilities>',
    ]) {
      expect(parseHostTopology(text).cells).toEqual([]);
    }
    const cell =
      '<capabilities><host><topology><cells><cell id="2"/></cells></topology></host></capabilities>';
    expect(parseHostTopology(cell).cells).toEqual([{ id: 2, pages: [], distances: [], cpus: [] }]);
  });

  it('numbers that are none count as 0, sibling ranges are left out', () => {
    const text = `<capabilities><host><topology><cells><cell id="x"><memory unit="KiB">-1</memory>
      <cpus><cpu id="4294967296" siblings="0,1-3, 4,5"/></cpus></cell></cells></topology></host></capabilities>`;
    expect(parseHostTopology(text).cells).toEqual([
      {
        id: 0,
        memory: { amount: 0n, unit: 'KiB' },
        pages: [],
        distances: [],
        cpus: [{ id: 0, siblings: [0, 5] }],
      },
    ]);
  });
});
