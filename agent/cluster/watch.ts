/** The cluster configuration as it is now, from the KubeVirt object. */
import { isDeepStrictEqual } from 'node:util';
import type { KubeObject } from '../kube/objects.js';
import type { Logger } from '../log/log.js';
import { type ClusterConfig, parseClusterConfig } from './config.js';

/** Keeps the last good configuration: a KubeVirt object that does not parse changes nothing. */
export class ClusterConfigWatch {
  #current: ClusterConfig = parseClusterConfig(undefined);

  constructor(
    private readonly log: Logger,
    /** Called when the configuration is another one than before. */
    private readonly onChange: () => void,
  ) {}

  current(): ClusterConfig {
    return this.#current;
  }

  add(object: KubeObject): void {
    this.#read(object);
  }

  update(_before: KubeObject, after: KubeObject): void {
    this.#read(after);
  }

  /** A KubeVirt object that is deleted takes the VMs' agent with it; until then its configuration holds. */
  delete(): void {}

  #read(object: KubeObject): void {
    let read: ClusterConfig;
    try {
      read = parseClusterConfig(object);
    } catch (error) {
      this.log.error('the KubeVirt object is not valid; the configuration before stays in force', error);
      return;
    }
    // The object changes for many reasons that are not the agent's.
    if (isDeepStrictEqual(read, this.#current)) return;
    this.#current = read;
    this.onChange();
  }
}
