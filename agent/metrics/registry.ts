/**
 * Counters, gauges and histograms, and the text that Prometheus reads (exposition format 0.0.4). Numbers
 * and order are written as Go's client writes them.
 */

/** Label values in the order of the metric's label names. */
export type Labels = readonly string[];

/** Series of one metric. Labels may come from guests and users, so a flood of new ones is cut off. */
const maxSeries = 10_000;

interface Definition {
  readonly name: string;
  readonly help: string;
  readonly labels: readonly string[];
}

abstract class Family<S> {
  abstract readonly type: 'counter' | 'gauge' | 'histogram';
  protected readonly series = new Map<string, { readonly labels: Labels; readonly state: S }>();
  #left = 0;

  constructor(readonly definition: Definition) {}

  /** Series that were left out because there are too many. */
  get leftOut(): number {
    return this.#left;
  }

  get size(): number {
    return this.series.size;
  }

  /** Drops the series whose labels begin with these values. */
  remove(...first: Labels): void {
    for (const [id, { labels }] of this.series) {
      if (first.every((value, i) => labels[i] === value)) this.series.delete(id);
    }
  }

  /** The lines of all series, in the order of their labels. */
  *lines(): Generator<string> {
    const sorted = [...this.series.values()].sort((a, b) =>
      compare(this.#key(a.labels), this.#key(b.labels)),
    );
    for (const { labels, state } of sorted) yield* this.format(labels, state);
  }

  protected abstract make(): S;
  protected abstract format(labels: Labels, state: S): Iterable<string>;

  /** Undefined when there are too many. */
  protected find(labels: Labels): S | undefined {
    const { name, labels: names } = this.definition;
    if (labels.length !== names.length) throw new TypeError(`${name} has ${names.length} labels`);
    const id = JSON.stringify(labels);
    const known = this.series.get(id);
    if (known !== undefined) return known.state;
    if (this.series.size >= maxSeries) {
      this.#left++;
      return undefined;
    }
    const state = this.make();
    this.series.set(id, { labels: [...labels], state });
    return state;
  }

  protected line(
    suffix: string,
    labels: Labels,
    value: number,
    ...more: readonly [string, string][]
  ): string {
    const { name, labels: names } = this.definition;
    const own = names.map((label, i): [string, string] => [label, labels[i] ?? '']);
    // Go's client leaves the bucket bound at the end.
    const all = [...own.sort(([a], [b]) => compare(a, b)), ...more].map(
      ([k, v]) => `${k}="${escapeLabel(v)}"`,
    );
    return `${name}${suffix}${all.length === 0 ? '' : `{${all.join(',')}}`} ${formatNumber(value)}`;
  }

  #key(labels: Labels): string {
    const { labels: names } = this.definition;
    const pairs = names.map((label, i): [string, string] => [label, labels[i] ?? '']);
    return JSON.stringify(pairs.sort(([a], [b]) => compare(a, b)).map(([, value]) => value));
  }
}

export class Counter extends Family<{ value: number }> {
  readonly type = 'counter';

  increment(...labels: Labels): void {
    const state = this.find(labels);
    if (state !== undefined) state.value++;
  }

  protected make(): { value: number } {
    return { value: 0 };
  }

  protected *format(labels: Labels, { value }: { value: number }): Generator<string> {
    yield this.line('', labels, value);
  }
}

export class Gauge extends Family<{ read: () => number }> {
  readonly type = 'gauge';

  set(value: number, ...labels: Labels): void {
    this.follow(() => value, ...labels);
  }

  /** The value is read when it is asked for. */
  follow(read: () => number, ...labels: Labels): void {
    const state = this.find(labels);
    if (state !== undefined) state.read = read;
  }

  protected make(): { read: () => number } {
    return { read: () => 0 };
  }

  protected *format(labels: Labels, { read }: { read: () => number }): Generator<string> {
    yield this.line('', labels, read());
  }
}

interface Observations {
  /** One count a bound, not cumulated; the last one is of what exceeds them all. */
  readonly counts: number[];
  sum: number;
}

export class Histogram extends Family<Observations> {
  readonly type = 'histogram';

  constructor(
    definition: Definition,
    /** Upper bounds, ascending. */
    private readonly bounds: readonly number[],
  ) {
    super(definition);
  }

  observe(value: number, ...labels: Labels): void {
    const state = this.find(labels);
    if (state === undefined) return;
    const at = this.bounds.findIndex((bound) => value <= bound);
    const index = at === -1 ? this.bounds.length : at;
    state.counts[index] = (state.counts[index] ?? 0) + 1;
    state.sum += value;
  }

  protected make(): Observations {
    return { counts: [...this.bounds, Number.POSITIVE_INFINITY].map(() => 0), sum: 0 };
  }

  protected *format(labels: Labels, { counts, sum }: Observations): Generator<string> {
    let count = 0;
    for (const [i, bound] of [...this.bounds, Number.POSITIVE_INFINITY].entries()) {
      count += counts[i] ?? 0;
      yield this.line('_bucket', labels, count, ['le', formatNumber(bound)]);
    }
    yield this.line('_sum', labels, sum);
    yield this.line('_count', labels, count);
  }
}

/** All metrics of the process. */
export class Registry {
  readonly #families = new Map<string, Counter | Gauge | Histogram>();

  counter(name: string, help: string, labels: readonly string[] = []): Counter {
    return this.#add(new Counter({ name, help, labels }));
  }

  gauge(name: string, help: string, labels: readonly string[] = []): Gauge {
    return this.#add(new Gauge({ name, help, labels }));
  }

  histogram(
    name: string,
    help: string,
    bounds: readonly number[],
    labels: readonly string[] = [],
  ): Histogram {
    return this.#add(new Histogram({ name, help, labels }, bounds));
  }

  /** Metrics without a series are left out. */
  text(): string {
    const lines: string[] = [];
    const families = [...this.#families.values()].sort((a, b) =>
      compare(a.definition.name, b.definition.name),
    );
    for (const family of families) {
      const { name, help } = family.definition;
      if (family.leftOut > 0)
        lines.push(`# ${name}: ${family.leftOut} values beyond ${maxSeries} series left out`);
      if (family.size === 0) continue;
      lines.push(`# HELP ${name} ${help.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')}`);
      lines.push(`# TYPE ${name} ${family.type}`, ...family.lines());
    }
    return lines.map((line) => `${line}\n`).join('');
  }

  #add<F extends Counter | Gauge | Histogram>(family: F): F {
    const { name } = family.definition;
    if (this.#families.has(name)) throw new TypeError(`metric ${name} exists already`);
    this.#families.set(name, family);
    return family;
  }
}

/** `count` bounds, each `factor` times the one before. */
export function exponentialBounds(first: number, factor: number, count: number): number[] {
  const bounds: number[] = [];
  for (let bound = first; bounds.length < count; bound *= factor) bounds.push(bound);
  return bounds;
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

function escapeLabel(text: string): string {
  return text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n').replaceAll('"', '\\"');
}

/** As Go's strconv formats with 'g' and the least precision that is exact. */
export function formatNumber(value: number): string {
  if (Number.isNaN(value)) return 'NaN';
  if (!Number.isFinite(value)) return value > 0 ? '+Inf' : '-Inf';
  const [digits = '0', exponent = '0'] = value.toExponential().split('e');
  const power = Number(exponent);
  if (power < -4 || power >= 6) {
    return `${digits}e${power < 0 ? '-' : '+'}${String(Math.abs(power)).padStart(2, '0')}`;
  }
  return String(value);
}
