import type { Vmi } from './vmi.js';

/** A launcher pod on this node and the VMI that it runs, both by UID. */
export interface PodRef {
  readonly podUid: string;
  readonly vmiUid: string;
}

export interface PodFinder {
  /**
   * The one pod of the VMI on this node whose launcher socket exists. Throws an Error that is worth a
   * retry: `No command socket found for vmi <uid>`, or `Found multiple sockets for vmi <ns>/<name>.
   * waiting for only one to exist`.
   */
  find(vmi: Vmi): Promise<PodRef>;
}

/** UIDs of the VMI's active pods on the node. */
export function activePodsOnNode(vmi: Vmi, node: string): string[] {
  return Object.entries(vmi.status.activePods ?? {})
    .filter(([, name]) => name === node)
    .map(([uid]) => uid);
}
