/** Discovery documents, as far as kubectl and client libraries read them. */
import { groupVersion, kinds } from './kinds.js';
import type { JsonObject } from './status.js';

const verbs = ['create', 'delete', 'deletecollection', 'get', 'list', 'patch', 'update', 'watch'];
const version = {
  major: '1',
  minor: '32',
  gitVersion: 'v1.32.0',
  gitCommit: '',
  gitTreeState: 'clean',
  buildDate: '2025-01-01T00:00:00Z',
  goVersion: '',
  compiler: '',
  platform: 'linux/amd64',
};

/** The document at `path`, or undefined. */
export function discoveryDocument(path: string): JsonObject | undefined {
  switch (path) {
    case '/version':
      return version;
    case '/api':
      return { kind: 'APIVersions', versions: ['v1'], serverAddressByClientCIDRs: [] };
    case '/apis':
      return { kind: 'APIGroupList', apiVersion: 'v1', groups: groups().map(groupEntry) };
    case '/api/v1':
      return resourceList('', 'v1');
    case '/openapi/v3':
      return { paths: {} };
  }
  const [root, apis, group, apiVersion, ...rest] = path.split('/');
  if (root !== '' || apis !== 'apis' || group === undefined || rest.length > 0) return undefined;
  if (!groups().includes(group)) return undefined;
  return apiVersion === undefined
    ? { kind: 'APIGroup', apiVersion: 'v1', ...groupEntry(group) }
    : resourceList(group, apiVersion);
}

/** `/openapi/v2` as kubectl wants it: protobuf of a document that has a version and no definitions. */
export function openApiV2(): { readonly contentType: string; readonly body: Buffer } {
  const text = (field: number, value: string) =>
    Buffer.concat([Buffer.from([(field << 3) | 2, value.length]), Buffer.from(value)]);
  const message = (field: number, body: Buffer) =>
    Buffer.concat([Buffer.from([(field << 3) | 2, body.length]), body]);
  const info = Buffer.concat([text(1, 'test'), text(2, 'v1')]);
  return {
    contentType: 'application/com.github.proto-openapi.spec.v2.v1.0+protobuf',
    body: Buffer.concat([text(1, '2.0'), message(2, info), message(8, Buffer.alloc(0))]),
  };
}

function groups(): string[] {
  return [...new Set(kinds.map(({ group }) => group))].filter((group) => group !== '');
}

function groupEntry(group: string): JsonObject {
  const versions = [...new Set(kinds.filter((kind) => kind.group === group).map(groupVersion))];
  const entries = versions.map((text) => ({ groupVersion: text, version: text.slice(group.length + 1) }));
  return { name: group, versions: entries, preferredVersion: entries[0] ?? {} };
}

function resourceList(group: string, apiVersion: string): JsonObject | undefined {
  const found = kinds.filter((kind) => kind.group === group && kind.version === apiVersion);
  const [first] = found;
  if (first === undefined) return undefined;
  const resources = found.flatMap((kind) => {
    const entry = {
      name: kind.plural,
      singularName: kind.singular,
      namespaced: kind.namespaced,
      kind: kind.kind,
      verbs,
      shortNames: [...kind.shortNames],
    };
    if (!kind.statusSubresource) return [entry];
    const status = { ...entry, name: `${kind.plural}/status`, verbs: ['get', 'patch', 'update'] };
    return [entry, { ...status, singularName: '', shortNames: [] }];
  });
  return { kind: 'APIResourceList', apiVersion: 'v1', groupVersion: groupVersion(first), resources };
}
