/** VirtualMachineInstances as the API server stores them. */
import { nodeNameLabel } from '../api/names.js';
import type { Vmi } from '../api/vmi.js';
import type { JsonValue } from '../json/lossless.js';
import { isRecord } from '../json/lossless.js';
import type { VmiApi } from '../reconcile/ports.js';
import { checkObject } from './objects.js';
import { apiVersion, vmiResource } from './resources.js';
import type { RestClient } from './rest.js';
import { isSlim } from './slim-vmi.js';

/** Label selector of the VMIs that run on `node`. */
export function sourceSelector(node: string): string {
  return `${nodeNameLabel} in (${node})`;
}

/**
 * Checks the outline of a VMI; everything in it is kept as it is. Throws a TypeError that names the field.
 */
export function decodeVmi(value: JsonValue): Vmi {
  const object = checkObject(value);
  const metadata = object['metadata'] as Record<string, JsonValue>;
  for (const field of ['namespace', 'uid']) {
    if (typeof metadata[field] !== 'string') throw new TypeError(`metadata.${field} is missing`);
  }
  for (const field of ['labels', 'annotations']) {
    const texts = metadata[field];
    if (texts !== undefined && texts !== null && !isRecord(texts)) {
      throw new TypeError(`metadata.${field} is not a JSON object`);
    }
  }
  const { spec, status = {} } = object;
  if (!isRecord(spec)) throw new TypeError('spec is not a JSON object');
  if (!isRecord(status)) throw new TypeError('status is not a JSON object');
  // Items of a list may lack these two; a PUT needs them.
  const typed = { apiVersion: apiVersion(vmiResource), kind: vmiResource.kind, ...object, status };
  return typed as unknown as Vmi;
}

export class VmiClient implements VmiApi {
  constructor(private readonly rest: Pick<RestClient, 'update'>) {}

  async update(vmi: Vmi): Promise<Vmi> {
    const { namespace, name } = vmi.metadata;
    if (isSlim(vmi))
      throw new TypeError(`VMI ${namespace}/${name} was kept in part only and cannot be written`);
    const body = vmi as unknown as JsonValue;
    return decodeVmi(await this.rest.update(vmiResource, namespace, name, body));
  }
}
