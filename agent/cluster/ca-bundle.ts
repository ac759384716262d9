/**
 * The cluster's CA certificates, from the config map of virt-operator (KubeVirt pkg/util/tls/ca-manager.go). What does
 * not parse, and a config map that is deleted, leave the certificates before in force.
 */
import { X509Certificate } from 'node:crypto';
import type { JsonValue } from '../json/lossless.js';
import { isRecord } from '../json/lossless.js';
import { checkObject, type KubeObject } from '../kube/objects.js';
import type { Logger } from '../log/log.js';

export const caConfigMapName = 'kubevirt-ca';
const key = 'ca-bundle';
/** The operator keeps 50. */
const maxCertificates = 200;
const begin = '-----BEGIN CERTIFICATE-----';
const end = '-----END CERTIFICATE-----';

/** The config map, as much of it as is kept. */
export interface CaConfigMap extends KubeObject {
  readonly bundle: string | undefined;
}

export function decodeCaConfigMap(value: JsonValue): CaConfigMap {
  const object = checkObject(value);
  const { name, namespace, uid, resourceVersion } = (object as unknown as KubeObject).metadata;
  const data = object['data'];
  const bundle = isRecord(data) ? data[key] : undefined;
  return {
    metadata: {
      name,
      ...(namespace !== undefined && { namespace }),
      ...(uid !== undefined && { uid }),
      ...(resourceVersion !== undefined && { resourceVersion }),
    },
    bundle: typeof bundle === 'string' ? bundle : undefined,
  };
}

/** There is no bundle. The message says what is wrong with the config map. */
class NoCaBundle extends Error {
  override readonly name = 'NoCaBundle';
}

export class CaBundle {
  #current: Uint8Array | NoCaBundle = new NoCaBundle(
    `configmap ${caConfigMapName} not found. Unable to detect request header CA`,
  );

  constructor(private readonly log: Logger) {}

  /** PEM text. Throws NoCaBundle while no good one was seen. */
  current(): Uint8Array {
    if (this.#current instanceof NoCaBundle) throw this.#current;
    return this.#current;
  }

  add(configMap: CaConfigMap): void {
    this.#read(configMap);
  }

  update(before: CaConfigMap, after: CaConfigMap): void {
    if (after.bundle !== before.bundle) this.#read(after);
  }

  delete(): void {}

  #read({ metadata: { namespace, name }, bundle }: CaConfigMap): void {
    const place = `configmap ${namespace}/${name}`;
    try {
      if (bundle === undefined) throw new NoCaBundle(`${key} not found in ${place}`);
      const count = countCertificates(bundle);
      this.#current = Buffer.from(bundle);
      this.log.info(`CA update in ${place} detected: ${count} certificates`);
    } catch (error) {
      if (!(error instanceof NoCaBundle)) throw error;
      const kept = this.#current instanceof NoCaBundle ? 'there is none' : 'the one before stays in force';
      this.log.error(`the CA bundle of ${place} is not usable; ${kept}`, error);
      if (this.#current instanceof NoCaBundle) this.#current = error;
    }
  }
}

/** Throws NoCaBundle unless all certificates in the text parse, and there is one. */
function countCertificates(text: string): number {
  let count = 0;
  for (let at = text.indexOf(begin); at >= 0; at = text.indexOf(begin, at)) {
    const to = text.indexOf(end, at);
    if (to < 0) break;
    if (count === maxCertificates) throw new NoCaBundle(`more than ${maxCertificates} certificates`);
    try {
      new X509Certificate(text.slice(at, to + end.length));
    } catch (error) {
      throw new NoCaBundle(`certificate ${count + 1} is not valid: ${(error as Error).message}`);
    }
    count++;
    at = to + end.length;
  }
  if (count === 0) throw new NoCaBundle('data does not contain any valid RSA or ECDSA certificates');
  return count;
}
