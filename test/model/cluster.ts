/** virt-controller, kubelet and the user, as far as one node's VMIs need them. */
import type { Vmi } from '../../agent/api/vmi.js';
import { rfc3339 } from '../../agent/reconcile/time.js';
import type { ModelApi } from './api.js';
import { networkFailed } from './expected.js';
import { type LauncherTraits, ModelLauncher } from './launcher.js';
import type { ModelTime } from './time.js';

export const node = 'node01';

/** One VMI from its creation to its end, and what was done to it. */
export interface ModelVm {
  readonly key: string;
  readonly uid: string;
  readonly launcher: ModelLauncher;
  deleted: boolean;
}

export class ModelCluster {
  readonly vms: ModelVm[] = [];
  #nextUid = 1;

  constructor(
    readonly api: ModelApi,
    private readonly time: ModelTime,
    /** Tells the agent's side that a pod looks different. */
    private readonly podChanged: (podUid: string) => void,
  ) {}

  /** The VM of the name whose object exists. */
  current(name: string): ModelVm | undefined {
    return this.vms.find((vm) => vm.key === `default/${name}` && this.exists(vm));
  }

  exists(vm: ModelVm): boolean {
    return this.api.get(vm.key)?.metadata.uid === vm.uid;
  }

  launcherOf(podUid: string): ModelLauncher | undefined {
    return this.vms.find(({ launcher }) => launcher.podUid === podUid)?.launcher;
  }

  /** A VMI that was just handed to this node, with its pod. Nothing if there is one of the name. */
  create(name: string, traits: LauncherTraits): void {
    if (this.current(name) !== undefined) return;
    const uid = `uid-${this.#nextUid}`;
    const podUid = `pod-${this.#nextUid++}`;
    const ref = { namespace: 'default', name, uid };
    const launcher = new ModelLauncher(podUid, ref, traits, this.time, () => this.#podChanged(podUid));
    const vm: ModelVm = { key: `default/${name}`, uid, launcher, deleted: false };
    this.vms.push(vm);
    const now = rfc3339(this.time.now());
    this.api.write({
      apiVersion: 'kubevirt.io/v1',
      kind: 'VirtualMachineInstance',
      metadata: {
        ...ref,
        creationTimestamp: now,
        labels: { 'kubevirt.io/nodeName': node },
        finalizers: ['foregroundDeleteVirtualMachine'],
      },
      spec: { terminationGracePeriodSeconds: traits.gracePeriod, domain: { devices: {} } },
      status: {
        phase: 'Scheduled',
        nodeName: node,
        activePods: { [podUid]: node },
        phaseTransitionTimestamps: [{ phase: 'Scheduled', phaseTransitionTimestamp: now }],
      },
    } as unknown as Vmi);
    this.podChanged(podUid);
  }

  delete(vm: ModelVm): void {
    if (vm.deleted) return;
    vm.deleted = true;
    vm.launcher.mayStop = true;
    const deletionTimestamp = rfc3339(this.time.now());
    this.api.change(vm.key, (vmi) => ({ ...vmi, metadata: { ...vmi.metadata, deletionTimestamp } }));
    this.#endPod(vm);
    this.#finish(vm);
  }

  /** Somebody else changes the object. */
  touch(vm: ModelVm): void {
    const touched = String(this.time.now());
    this.api.change(vm.key, (vmi) => ({
      ...vmi,
      metadata: { ...vmi.metadata, labels: { ...vmi.metadata.labels, touched } },
    }));
  }

  /** The object goes at once; the pod follows when its time is over. */
  forceDelete(vm: ModelVm): void {
    vm.deleted = true;
    vm.launcher.mayStop = true;
    this.api.remove(vm.key);
    this.#endPod(vm);
  }

  /** The pod is evicted: the VM is asked to stop, the VMI stays. */
  evict(vm: ModelVm): void {
    vm.launcher.mayStop = true;
    vm.launcher.history.ends.push('evicted');
    this.#endPod(vm);
  }

  /** Setting the VM up went wrong for good: what has begun of it has to go. */
  failedBySetup(uid: string): void {
    const launcher = this.vms.find((vm) => vm.uid === uid)?.launcher;
    if (launcher === undefined) return;
    launcher.mayStop = true;
    launcher.history.ends.push(networkFailed);
  }

  /** The agent dies. Between undefining a guest that ended and writing so, it takes with it how it ended. */
  lastWords({ key, launcher }: ModelVm): void {
    const phase = this.api.get(key)?.status.phase;
    const written = phase === 'Succeeded' || phase === 'Failed';
    if (launcher.count('DeleteVirtualMachine') > 0 && !written) launcher.history.ends.push('not written');
  }

  /** kubelet: SIGTERM, and SIGKILL when the pod's time is over. */
  #endPod({ launcher }: ModelVm): void {
    this.time.after(500, () => launcher.terminate());
    this.time.after((launcher.traits.gracePeriod + 30) * 1000, () => launcher.exit('pod killed'));
  }

  #podChanged(podUid: string): void {
    this.podChanged(podUid);
    const vm = this.vms.find(({ launcher }) => launcher.podUid === podUid);
    if (vm === undefined) return;
    if (!vm.launcher.alive && vm.launcher.directory) {
      // The volumes of a pod that ended go soon after.
      this.time.after(5_000, () => vm.launcher.directory && vm.launcher.removeDirectory());
    }
    if (!vm.launcher.directory) this.time.after(1_000, () => this.#podGone(vm));
  }

  #podGone(vm: ModelVm): void {
    const vmi = this.api.get(vm.key);
    if (vmi?.metadata.uid !== vm.uid || vmi.status.activePods?.[vm.launcher.podUid] === undefined) return;
    const { activePods: _, ...status } = vmi.status;
    this.api.write({ ...vmi, status: { ...status, activePods: {} } });
    this.#finish(vm);
  }

  /** The finalizer goes when no pod is left. */
  #finish(vm: ModelVm): void {
    const vmi = this.api.get(vm.key);
    if (!vm.deleted || vmi?.metadata.uid !== vm.uid) return;
    if (Object.keys(vmi.status.activePods ?? {}).length === 0) this.api.remove(vm.key);
  }
}
