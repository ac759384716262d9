import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { GhostRecordStore } from '../../agent/domains/ghost-records.js';
import { quietLog } from '../unit/launcher/peers.js';
import { loadVectors } from './load.js';

let directory: string;
let store: GhostRecordStore;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'ghost-'));
  store = new GhostRecordStore(directory, quietLog());
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

function attempt(work: () => void): string | null {
  try {
    work();
    return null;
  } catch (error) {
    return (error as Error).message.replaceAll(directory, '<root>');
  }
}

function files(): Record<string, string> {
  return Object.fromEntries(
    readdirSync(directory).map((name) => [name, readFileSync(join(directory, name), 'utf8')]),
  );
}

describe('ghost_records', () => {
  type Op = { Op: 'add' | 'delete'; Namespace: string; Name: string; Socket: string; UID: string };
  type Input = { ops?: Op[]; files?: Record<string, string>; thenDelete?: string };
  type Expected = {
    errors: (string | null)[];
    files: Record<string, { content: string; mode: string }>;
    lastKnownUID: Record<string, string>;
    lastKnownUIDAfterReload: Record<string, string>;
    deleteError: string | null;
    filesAfterDelete: string[];
    records: object[];
  };
  const cases = loadVectors<Input, Expected>('wire', 'ghost_records');

  it.each(cases.filter(({ input }) => input.ops !== undefined))(
    'WIRE-018 REC-044 $name',
    ({ name, input, expected }) => {
      const errors = (input.ops ?? []).map((op) =>
        attempt(() => {
          const record = { name: op.Name, namespace: op.Namespace, socketFile: op.Socket, uid: op.UID };
          if (op.Op === 'add') store.add(record);
          else store.delete(`${op.Namespace}/${op.Name}`);
        }),
      );
      if (name === 'uid with slash') {
        // KubeVirt writes outside of the directory here.
        expect(errors).toEqual(['ghost record UID "../x" is not a file name']);
        expect(files()).toEqual({});
        return;
      }
      expect(errors).toEqual(expected.errors);
      const written = Object.entries(files()).map(([file, content]) => {
        const mode = (statSync(join(directory, file)).mode & 0o777).toString(8);
        return [file, { content, mode }];
      });
      expect(Object.fromEntries(written)).toEqual(expected.files);
      for (const [key, uid] of Object.entries(expected.lastKnownUID))
        expect(store.lastKnownUid(key) ?? '').toBe(uid);
      store.load();
      for (const [key, uid] of Object.entries(expected.lastKnownUIDAfterReload)) {
        expect(store.lastKnownUid(key) ?? '').toBe(uid);
      }
    },
  );

  it.each(cases.filter(({ input }) => input.files !== undefined))(
    'WIRE-018 REC-044 $name',
    ({ input, expected }) => {
      for (const [file, content] of Object.entries(input.files ?? {}))
        writeFileSync(join(directory, file), content);
      store.load();
      const byKey = (records: readonly object[]) =>
        records.map((record) => JSON.stringify(Object.entries(record).sort())).sort();
      expect(byKey(store.list())).toEqual(byKey(expected.records ?? []));
      const error = attempt(() => store.delete(input.thenDelete ?? ''));
      expect(error).toBe(
        expected.deleteError?.replaceAll('/var/run/kubevirt-private/ghost-records', '<root>') ?? null,
      );
      expect(readdirSync(directory).sort()).toEqual(expected.filesAfterDelete);
    },
  );
});

describe('ghost-records', () => {
  type Step = {
    op: string;
    name?: string;
    namespace?: string;
    socketFile?: string;
    uid?: string;
    key?: string;
  };
  const cases = loadVectors<Step[], { filesAfter: Record<string, string>; results: object[] }>(
    'reconcile',
    'ghost-records',
  );
  it.each(cases)('WIRE-018 REC-044 $name', ({ input, expected }) => {
    const results = input.map(({ op, name = '', namespace = '', socketFile = '', uid = '', key = '' }) => {
      switch (op) {
        case 'add':
          return { error: attempt(() => store.add({ name, namespace, socketFile, uid })) };
        case 'delete':
          return { error: attempt(() => store.delete(`${namespace}/${name}`)) };
        case 'uid':
          return { uid: store.lastKnownUid(key) ?? '' };
        case 'findBySocket': {
          const found = store.findBySocket(socketFile);
          return { found: found !== undefined, uid: found?.uid ?? '' };
        }
        case 'restart':
          store = new GhostRecordStore(directory, quietLog());
          store.load();
          return {};
        case 'corrupt':
          writeFileSync(join(directory, uid), '{');
          return {};
        case 'rmfile':
          rmSync(join(directory, uid));
          return {};
        default:
          throw new Error(`step ${op}`);
      }
    });
    expect(results).toEqual(expected.results);
    expect(files()).toEqual(expected.filesAfter);
  });
});

describe('reading defensively', () => {
  it('REC-044 links, directories, huge and strange files are logged, skipped and left', () => {
    const lines: string[] = [];
    const outside = mkdtempSync(join(tmpdir(), 'outside-'));
    writeFileSync(join(outside, 'record'), '{"name":"a","namespace":"b","socketFile":"/s","uid":"u"}');
    symlinkSync(join(outside, 'record'), join(directory, 'link'));
    mkdirSync(join(directory, 'dir'));
    writeFileSync(join(directory, 'huge'), 'x'.repeat(20_000));
    writeFileSync(join(directory, 'array'), '[]');
    writeFileSync(join(directory, 'number'), '{"name":1}');
    writeFileSync(join(directory, 'good'), '{"name":"n","namespace":"ns","socketFile":"/s","uid":"good"}');
    store = new GhostRecordStore(directory, quietLog(lines));
    store.load();
    expect(store.list().map(({ uid }) => uid)).toEqual(['good']);
    expect(lines).toHaveLength(5);
    expect(readdirSync(directory)).toHaveLength(6);
    rmSync(outside, { recursive: true });
  });

  it('REC-044 a record without UID is read, and cannot be deleted', () => {
    writeFileSync(join(directory, 'u1'), '{"name":"n","namespace":"ns","socketFile":"/s"}');
    writeFileSync(join(directory, 'u2'), 'null');
    store.load();
    expect(store.list().map(({ name }) => name)).toEqual(['n', '']);
    expect(attempt(() => store.delete('ns/n'))).toBe('unable to remove ghost record with empty UID');
    expect(readdirSync(directory)).toHaveLength(2);
  });

  it('REC-044 a stored socket with a slash at its end is the same socket', () => {
    store.add({ name: 'n', namespace: 'ns', socketFile: '/s//1/', uid: 'u1' });
    store.add({ name: 'n', namespace: 'ns', socketFile: '/s/1', uid: 'u1' });
    expect(store.findBySocket('/s/1')?.uid).toBe('u1');
  });

  it('REC-044 a write that was cut short leaves nothing that is read', () => {
    writeFileSync(join(directory, '.writing-u1'), '{"name":"n"');
    store.load();
    expect(store.list()).toEqual([]);
    expect(readdirSync(directory)).toEqual([]);
  });
});
