/**
 * The policy file: YAML with the sections `users`, `paths`, `audit`, `devices` and `limits`, in the form
 * that {@link settings} gives. What a file does not say keeps its default; what it says and nobody knows
 * is an error.
 */
import { closeSync, constants, fstatSync, openSync, readFileSync, type Stats } from 'node:fs';
import { parseDocument } from 'yaml';
import { createPolicy, type Overrides, type Policy, settings } from './policy.js';

/** The only form so far. */
const version = 1;
const maxBytes = 64 << 10;

/** A policy file that is not used; the message names the field or what is wrong with the file. */
export class PolicyFileError extends Error {
  override readonly name = 'PolicyFileError';
}

const keyOfPath = new Map(Object.entries(settings).map(([key, { path }]) => [path, key as keyof Policy]));
const sections = new Set([...keyOfPath.keys()].flatMap((path) => path.split('.').slice(0, -1)));

/** Values of a policy file's text. Throws a PolicyFileError. */
export function parsePolicy(text: string): Overrides {
  const top = record('policy', parseYaml(text));
  if (top['version'] !== version) throw new PolicyFileError(`version: must be ${version}`);
  const overrides: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(top)) {
    if (name === 'version') continue;
    const fields = sections.has(name) ? Object.entries(record(name, value)) : [[undefined, value] as const];
    for (const [field, given] of fields) {
      const path = field === undefined ? name : `${name}.${field}`;
      const key = keyOfPath.get(path);
      if (key === undefined) throw new PolicyFileError(`${path}: unknown field`);
      overrides[key] = bounded(() => settings[key].parse(given));
    }
  }
  return overrides as Overrides;
}

/**
 * Reads a policy file. It must be a regular file of root's that nobody else may write; links on the way are
 * followed, mounted ConfigMaps consist of them. Throws a PolicyFileError.
 */
export function readPolicyFile(path: string): Overrides {
  const { text, stats } = read(path);
  const problem = ownershipProblem(stats);
  if (problem !== undefined) throw new PolicyFileError(`${path}: ${problem}`);
  try {
    return parsePolicy(text);
  } catch (error) {
    throw new PolicyFileError(`${path}: ${(error as Error).message}`);
  }
}

/** Everything that is wrong with a policy file, for `privctl policy check`; nothing when it would be used. */
export function policyFileProblems(path: string): string[] {
  const problems: string[] = [];
  try {
    const { text, stats } = read(path);
    const problem = ownershipProblem(stats);
    if (problem !== undefined) problems.push(problem);
    createPolicy(parsePolicy(text));
  } catch (error) {
    problems.push((error as Error).message);
  }
  return problems;
}

function read(path: string): { text: string; stats: Stats } {
  let fd: number;
  try {
    fd = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch (error) {
    throw new PolicyFileError(`policy file: ${(error as Error).message}`);
  }
  try {
    const stats = fstatSync(fd);
    if (!stats.isFile()) throw new PolicyFileError(`${path}: not a regular file`);
    if (stats.size > maxBytes) throw new PolicyFileError(`${path}: larger than ${maxBytes} bytes`);
    return { text: readFileSync(fd, 'utf8'), stats };
  } finally {
    closeSync(fd);
  }
}

function ownershipProblem({ uid, mode }: Stats): string | undefined {
  if (uid !== 0) return `belongs to uid ${uid}, not to root`;
  if ((mode & 0o022) !== 0) return `may be written by others (mode ${(mode & 0o7777).toString(8)})`;
  return undefined;
}

function parseYaml(text: string): unknown {
  const document = parseDocument(text, { version: '1.2', schema: 'core', uniqueKeys: true, strict: true });
  const [problem] = [...document.errors, ...document.warnings];
  if (problem !== undefined) throw new PolicyFileError(problem.message.split('\n')[0] ?? 'not YAML');
  try {
    return document.toJS({ maxAliasCount: 0 });
  } catch {
    throw new PolicyFileError('aliases are not accepted');
  }
}

function record(path: string, value: unknown): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new PolicyFileError(`${path}: not a mapping`);
  }
  return value as Record<string, unknown>;
}

function bounded<T>(parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    throw new PolicyFileError((error as Error).message);
  }
}
