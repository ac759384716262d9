import fc from 'fast-check';
import { parse } from 'lossless-json';
import { describe, expect, it } from 'vitest';
import { JsonTooLarge, parseJson, stringifyJson } from '../../../agent/json/lossless.js';

describe('parseJson', () => {
  it.each([
    '9007199254740993',
    '[9007199254740993]',
    '{"a":-0}',
    '{"a": -0.0}',
    '{"a":1.0,"b":2}',
    '[1e3,1E3,12e-1]',
    '{"a":\n1.50}',
    '[0,-1,999999999999999]',
    '{"time":"10:00:00.5","__proto__":{"x":1}}',
  ])('writes %s as it was read', (text) => {
    expect(stringifyJson(parseJson(text, 1e3))).toBe(text.replaceAll(/\s/g, ''));
  });

  it('yields what the lossless parser alone would, for any document', () => {
    const number = fc.oneof(
      fc.integer().map(String),
      fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => JSON.stringify(value)),
      fc.bigInt({ min: -(2n ** 70n), max: 2n ** 70n }).map(String),
      fc.constantFrom('-0', '0', '1.0', '1e400', '0.1e-7', '123456789012345', '1234567890123456'),
    );
    const { document } = fc.letrec<{ document: string }>((tie) => ({
      document: fc.oneof(
        { maxDepth: 4 },
        number,
        fc.string().map((text) => JSON.stringify(text)),
        fc.constantFrom('true', 'false', 'null'),
        fc.array(tie('document'), { maxLength: 4 }).map((items) => `[${items.join(', ')}]`),
        fc
          .array(fc.tuple(fc.string(), tie('document')), { maxLength: 4 })
          .map((fields) => `{${fields.map(([key, value]) => `${JSON.stringify(key)}:${value}`).join(',')}}`),
      ),
    }));
    fc.assert(
      fc.property(document, (text) => {
        const lossless = parse(text, undefined, { onDuplicateKey: ({ newValue }) => newValue });
        expect(stringifyJson(parseJson(text, 1e6))).toBe(stringifyJson(lossless));
      }),
      { numRuns: 500 },
    );
  });

  it('refuses what is too long or not JSON', () => {
    expect(() => parseJson('[1,2,3]', 6)).toThrow(JsonTooLarge);
    expect(() => parseJson('[1,', 10)).toThrow(SyntaxError);
    expect(() => parseJson('[1.5,', 10)).toThrow(SyntaxError);
  });
});
