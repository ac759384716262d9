/** `virt-agent timeline NAMESPACE/NAME`: asks the agent that runs on this node. */
import http from 'node:http';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { defaultPrivateDir, UsageError } from '../flags.js';
import type { Actor } from '../reconcile/ports.js';
import { timelineSvg, timelineTable } from '../timeline/render.js';
import type { VmiTimeline } from '../timeline/timeline.js';

export const inspectSocketName = 'agent.sock';
export const timelineUsage = `usage: virt-agent timeline NAMESPACE/NAME [--output table|json|svg] [--kubevirt-private-dir DIR]`;

const timeoutMs = 5_000;
const maxBytes = 1024 * 1024;

const renderers: Readonly<Record<string, (timeline: VmiTimeline) => string>> = {
  table: (timeline) => `${timelineTable(timeline)}\n`,
  json: (timeline) => `${JSON.stringify(timeline, undefined, 2)}\n`,
  svg: timelineSvg,
};

/** The text to print. Throws UsageError for wrong arguments, an Error when the agent does not answer as hoped. */
export async function timelineCommand(args: readonly string[]): Promise<string> {
  const { key, output, privateDir } = parse(args);
  const render = renderers[output];
  if (render === undefined) throw new UsageError(`--output: ${output} is none of table, json, svg`);
  const path = join(privateDir, inspectSocketName);
  const { status, text } = await get(path, `/timeline/${key}`);
  if (status !== 200) throw new Error(text.trim());
  return render(readTimeline(text));
}

function parse(args: readonly string[]): { key: string; output: string; privateDir: string } {
  let parsed: ReturnType<typeof parseAll>;
  try {
    parsed = parseAll(args);
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
  const [key = '', ...more] = parsed.positionals;
  if (more.length > 0 || !/^[a-z0-9.-]+\/[a-z0-9.-]+$/.test(key)) {
    throw new UsageError('one VMI is to be named, as NAMESPACE/NAME');
  }
  return { key, output: parsed.values.output, privateDir: parsed.values['kubevirt-private-dir'] };
}

function parseAll(args: readonly string[]) {
  return parseArgs({
    args: [...args],
    strict: true,
    allowPositionals: true,
    options: {
      output: { type: 'string', short: 'o', default: 'table' },
      'kubevirt-private-dir': { type: 'string', default: defaultPrivateDir },
    },
  });
}

async function get(socketPath: string, path: string): Promise<{ status: number; text: string }> {
  try {
    return await new Promise((resolve, reject) => {
      const signal = AbortSignal.timeout(timeoutMs);
      const request = http.get({ socketPath, path, signal }, (response) => {
        const chunks: Buffer[] = [];
        let size = 0;
        response.on('data', (chunk: Buffer) => {
          size += chunk.length;
          if (size > maxBytes) request.destroy(new Error(`the answer exceeds ${maxBytes} bytes`));
          else chunks.push(chunk);
        });
        response.on('error', reject);
        response.on('end', () =>
          resolve({ status: response.statusCode ?? 0, text: Buffer.concat(chunks).toString('utf8') }),
        );
      });
      request.on('error', reject);
    });
  } catch (error) {
    throw new Error(`the agent does not answer on ${socketPath}: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

const actors: readonly string[] = ['agent', 'helper', 'launcher', 'api'] satisfies readonly Actor[];

/** The agent that answers may be of another release. */
function readTimeline(text: string): VmiTimeline {
  const value = JSON.parse(text) as Partial<VmiTimeline>;
  const isStep = (step: unknown): boolean => {
    const { step: name, who, atMs } = (step ?? {}) as Record<string, unknown>;
    return typeof name === 'string' && actors.includes(String(who)) && typeof atMs === 'number';
  };
  if (!Array.isArray(value.steps) || !value.steps.every(isStep) || typeof value.vmi?.name !== 'string') {
    throw new Error('the answer of the agent is not a timeline');
  }
  return value as VmiTimeline;
}
