import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { JsonValue } from '../../../agent/json/lossless.js';
import { jsonLines } from '../../../agent/kube/json-lines.js';

async function* chunks(...parts: readonly (string | Buffer)[]): AsyncGenerator<Buffer> {
  for (const part of parts) yield Buffer.from(part);
}

async function collect(source: AsyncIterable<Buffer>, maxBytes = 100): Promise<JsonValue[]> {
  const lines: JsonValue[] = [];
  for await (const line of jsonLines(source, maxBytes)) lines.push(line);
  return lines;
}

describe('jsonLines', () => {
  it('finds the lines wherever the chunks are cut', async () => {
    const text = Buffer.from('{"a":"äöü€"}\n\n[1,2]\n{"b":9007199254740993}\n');
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 0, max: text.length })), async (cuts) => {
        const at = [0, ...cuts.sort((a, b) => a - b), text.length];
        const parts = at.slice(1).map((end, n) => text.subarray(at[n], end));
        const lines = await collect(chunks(...parts));
        expect(lines).toHaveLength(3);
        expect(lines[0]).toEqual({ a: 'äöü€' });
      }),
    );
  });

  it('bounds a line, complete or not', async () => {
    await expect(collect(chunks('"', 'x'.repeat(60), 'x'.repeat(60)))).rejects.toThrow(
      'watch line exceeds 100 bytes',
    );
    await expect(collect(chunks(`"${'x'.repeat(120)}"\n`))).rejects.toThrow('watch line exceeds 100 bytes');
  });

  it('names what is not JSON, and a stream that ends within a line', async () => {
    await expect(collect(chunks('{"a":1}\nnonsense\n'))).rejects.toThrow('watch line is not JSON: nonsense');
    await expect(collect(chunks('{"a":1}\n{"b"'))).rejects.toThrow('watch stream ended within a line');
  });
});
