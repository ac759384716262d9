import type { JsonValue } from '../json/lossless.js';
import { parseJson } from '../json/lossless.js';

const newline = 0x0a;

/**
 * Splits a stream of JSON lines and parses each without loss. Throws when a line exceeds `maxBytes`, is
 * not JSON, or the stream ends within one.
 */
export async function* jsonLines(
  chunks: AsyncIterable<Buffer>,
  maxBytes: number,
): AsyncGenerator<JsonValue, void> {
  let parts: Buffer[] = [];
  let size = 0;
  for await (const chunk of chunks) {
    let start = 0;
    for (let end = chunk.indexOf(newline); end !== -1; end = chunk.indexOf(newline, start)) {
      parts.push(chunk.subarray(start, end));
      size += end - start;
      start = end + 1;
      if (size > maxBytes) throw new RangeError(`watch line exceeds ${maxBytes} bytes`);
      if (size > 0) yield parseLine(Buffer.concat(parts, size), maxBytes);
      parts = [];
      size = 0;
    }
    if (start === chunk.length) continue;
    parts.push(chunk.subarray(start));
    size += chunk.length - start;
    if (size > maxBytes) throw new RangeError(`watch line exceeds ${maxBytes} bytes`);
  }
  if (size > 0) throw new SyntaxError('watch stream ended within a line');
}

function parseLine(line: Buffer, maxBytes: number): JsonValue {
  const text = line.toString('utf8');
  try {
    return parseJson(text, maxBytes);
  } catch (error) {
    throw new SyntaxError(`watch line is not JSON: ${text.slice(0, 120)}`, { cause: error });
  }
}
