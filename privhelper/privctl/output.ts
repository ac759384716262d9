/** What privctl writes: aligned tables for people, JSON for programs. */

/** Ends the command with a message; the code is the process's exit code. */
export class CommandError extends Error {
  override readonly name = 'CommandError';

  constructor(
    readonly exitCode: ExitCode,
    message: string,
    /** What to do about it. */
    readonly hint?: string,
  ) {
    super(message);
  }
}

export const exitCodes = { ok: 0, failed: 1, usage: 2, refused: 3 } as const;
export type ExitCode = (typeof exitCodes)[keyof typeof exitCodes];

/** Without control characters: much of what is shown is a launcher's word and must not steer a terminal. */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, (character) => {
    const code = character.charCodeAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u${code.toString(16)}`;
  });
}

export interface Column {
  readonly title: string;
  readonly align?: 'right';
}

/** Rows under a heading, two spaces between columns, `-` for what is empty. Columns without any cell are left out. */
export function table(columns: readonly Column[], rows: readonly (readonly string[])[]): string[] {
  const shown = columns.map((_, i) => rows.some((row) => (row[i] ?? '') !== ''));
  const cells = [
    columns.map(({ title }) => title),
    ...rows.map((row) => columns.map((_, i) => cell(row[i]))),
  ];
  const widths = columns.map((_, i) => Math.max(...cells.map((row) => row[i]?.length ?? 0)));
  return cells.map((row) =>
    row
      .map((text, i) =>
        columns[i]?.align === 'right' ? text.padStart(widths[i] ?? 0) : text.padEnd(widths[i] ?? 0),
      )
      .filter((_, i) => shown[i])
      .join('  ')
      .trimEnd(),
  );
}

function cell(text: string | undefined): string {
  return text === undefined || text === '' ? '-' : printable(text);
}

/** A heading and what it is about. */
export function section(title: string, lines: readonly string[]): string[] {
  return ['', title, ...lines.map((line) => `  ${line}`)];
}

/** The first group of a UUID, which is what people compare; the whole when asked for. */
export function shortUid(uid: string, full: boolean): string {
  return full ? uid : uid.slice(0, 8);
}

/** An age in the largest unit that says enough: 42s, 17m, 5h, 3d. */
export function age(milliseconds: number): string {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 2 * 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 2 * 86_400) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86_400)}d`;
}

/** From here on cgroup v1 means no limit. */
const unlimited = 2 ** 62;

/** Bytes with a binary unit; other text unchanged. */
export function bytes(text: string): string {
  const value = Number(text);
  if (!/^\d+$/.test(text) || value < 1024) return text;
  if (value >= unlimited) return 'unlimited';
  const units = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  const power = Math.min(units.length, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** power).toFixed(1)} ${units[power - 1]}`;
}

/** `1 link`, `2 links`. */
export function count(n: number, noun: string): string {
  return `${n} ${noun}${n === 1 ? '' : 's'}`;
}
