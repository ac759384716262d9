/** Reading an audit log back: begin and end of a call become one operation. */

export type Outcome =
  | 'allowed'
  | 'refused'
  | 'failed'
  /** Has begun and not ended so far. */
  | 'running'
  /** Has begun, and the helper was started anew before it ended: the pod may be changed half-way. */
  | 'interrupted'
  /** Refusals that were counted only. */
  | 'suppressed'
  /** The helper started. */
  | 'started';

/** Fields of the log as they are in it; absent where the log has none. */
export interface Operation {
  readonly outcome: Outcome;
  readonly time: string;
  readonly call?: string;
  readonly method?: string;
  readonly actor: string;
  readonly pod?: string;
  readonly vmi?: string;
  readonly arguments?: unknown;
  readonly errno?: string;
  readonly field?: string;
  readonly message?: string;
  readonly suppressed?: number;
  readonly durationMs?: number;
}

type Line = Readonly<Record<string, unknown>>;

/** Calls that may be open at a time; of more the oldest is given up. */
const maxOpen = 4096;

export class OperationReader {
  private readonly open = new Map<string, Operation>();
  /** Lines that are not of the log's form. */
  malformed = 0;

  /** What is complete with this line. Operations that never ended come when the helper's next start is seen. */
  read(text: string): Operation[] {
    const line = parseLine(text);
    if (line === undefined) {
      this.malformed += 1;
      return [];
    }
    const key = `${line['call']} ${line['method']}`;
    switch (line['event']) {
      case 'begin': {
        this.open.set(key, operation(line, 'running'));
        const [oldest] = this.open.keys();
        if (this.open.size > maxOpen && oldest !== undefined) this.open.delete(oldest);
        return [];
      }
      case 'end': {
        const begun = this.open.get(key);
        this.open.delete(key);
        return [{ ...begun, ...operation(line, outcomeOf(line)), ...(begun && { time: begun.time }) }];
      }
      case 'refusal':
        return [operation(line, 'refused')];
      case 'suppressed':
        return [operation(line, 'suppressed')];
      case 'start': {
        const ended = [...this.open.values()].map((each) => ({ ...each, outcome: 'interrupted' as const }));
        this.open.clear();
        return [...ended, operation(line, 'started')];
      }
      default:
        this.malformed += 1;
        return [];
    }
  }

  /** What has begun and not ended. */
  get unfinished(): readonly Operation[] {
    return [...this.open.values()];
  }
}

function parseLine(text: string): Line | undefined {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && 'time' in value && typeof value.time === 'string') {
      return value as Line;
    }
  } catch {
    // A line that a full disk cut off, or not a log of the helper's.
  }
  return undefined;
}

function outcomeOf(line: Line): Outcome {
  const decision = line['decision'];
  return decision === 'refused' || decision === 'failed' ? decision : 'allowed';
}

function operation(line: Line, outcome: Outcome): Operation {
  const text = (name: string) => (typeof line[name] === 'string' ? { [name]: line[name] } : {});
  const number = (name: string, as: string) => (typeof line[name] === 'number' ? { [as]: line[name] } : {});
  return {
    outcome,
    time: String(line['time']),
    actor: actorOf(line),
    ...text('call'),
    ...text('method'),
    ...text('pod'),
    ...text('vmi'),
    ...(line['arguments'] === undefined ? {} : { arguments: line['arguments'] }),
    ...text('errno'),
    ...text('field'),
    ...text('message'),
    ...number('suppressed', 'suppressed'),
    ...number('duration_ms', 'durationMs'),
  };
}

function actorOf({ actor, peer, event }: Line): string {
  if (typeof actor === 'string') return actor;
  if (event === 'start') return 'helper';
  // Whoever has got past the connection and is no operator is the agent.
  if (event === 'begin' || event === 'end') return 'agent';
  const uid = typeof peer === 'object' && peer !== null && 'uid' in peer ? peer.uid : undefined;
  const pid = typeof peer === 'object' && peer !== null && 'pid' in peer ? peer.pid : undefined;
  return uid === undefined ? '' : `uid ${uid} pid ${pid}`;
}
