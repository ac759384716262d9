/** Where objects live in the API. */
export interface Resource {
  /** Empty for the core group. */
  readonly group: string;
  readonly version: string;
  readonly plural: string;
  readonly kind: string;
}

const kubevirt = { group: 'kubevirt.io', version: 'v1' };
const core = { group: '', version: 'v1' };

export const vmiResource: Resource = {
  ...kubevirt,
  plural: 'virtualmachineinstances',
  kind: 'VirtualMachineInstance',
};
export const kubeVirtResource: Resource = { ...kubevirt, plural: 'kubevirts', kind: 'KubeVirt' };
export const eventResource: Resource = { ...core, plural: 'events', kind: 'Event' };
export const configMapResource: Resource = { ...core, plural: 'configmaps', kind: 'ConfigMap' };
export const nodeResource: Resource = { ...core, plural: 'nodes', kind: 'Node' };

export function apiVersion(resource: Resource): string {
  return resource.group === '' ? resource.version : `${resource.group}/${resource.version}`;
}

/** Path of the collection; without a namespace that of the whole cluster. */
export function collectionPath(resource: Resource, namespace = ''): string {
  const root = resource.group === '' ? '/api' : '/apis';
  const scope = namespace === '' ? '' : `/namespaces/${encodeURIComponent(namespace)}`;
  return `${root}/${apiVersion(resource)}${scope}/${resource.plural}`;
}

/** Path of one object. Throws when `name` is empty, which would name the collection. */
export function objectPath(resource: Resource, namespace: string, name: string): string {
  if (name === '') throw new TypeError(`${resource.kind} without a name`);
  return `${collectionPath(resource, namespace)}/${encodeURIComponent(name)}`;
}
