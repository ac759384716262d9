/** The reconcile loop of one node (KubeVirt pkg/virt-handler/vm.go VirtualMachineController). */
import type { Domain } from '../api/domain.js';
import type { VmiRef } from '../api/vmi.js';
import { asError } from '../as-error.js';
import { cleanUp, type VmMemory } from './cleanup.js';
import { type Branch, decide } from './decide.js';
import { deleteVm, removeMovedVm } from './delete.js';
import type { ControllerDeps } from './deps.js';
import { EndedGuests } from './ended-guests.js';
import { IrrecoverableError } from './errors.js';
import { domainUid, gate, mayDestroyMovedDomain } from './gates.js';
import { IoErrorBackoff } from './io-errors.js';
import { PanicCounter } from './panics.js';
import { hasVmi, type Pass, type VmiPass } from './pass.js';
import { ConnectHeldBack } from './ports.js';
import {
  domainPausedByIoError,
  isAlive,
  isDeleting,
  isFinal,
  isMigrating,
  isRunning,
  phaseOf,
  refOf,
} from './predicates.js';
import { stopVm } from './shutdown.js';
import { isNotStarted, isStartingHere, StartingDomains } from './starting-domains.js';
import { currentPhase, writeStatus } from './status-write.js';
import { SriovHotplug } from './update/sriov-hotplug.js';
import { connect, updateVm } from './update/update.js';
import { VolumePolls } from './volume-poll.js';

/**
 * One pass over one key at a time: the caller, the work queue's worker, never runs `execute` for a key
 * twice at once. Caches are read at the start of a pass only.
 */
export class VmiController {
  readonly #deps: ControllerDeps & { readonly memory: VmMemory };
  /** UID of each VMI that a pass worked on, until it is gone: what was kept for it has to go too. */
  readonly #lastUids = new Map<string, string>();

  constructor(deps: ControllerDeps) {
    this.#deps = {
      ...deps,
      memory: {
        panics: new PanicCounter(),
        sriov: new SriovHotplug(deps.clock),
        ioErrors: new IoErrorBackoff(deps.clock),
        ended: new EndedGuests(),
        volumePolls: new VolumePolls(deps.clock),
        starting: new StartingDomains(deps.clock),
      },
    };
  }

  /** Entries kept for VMIs beside the caches; none is left when all VMIs are gone. */
  get remembered(): number {
    const { panics, sriov, ioErrors, ended, volumePolls, starting } = this.#deps.memory;
    const kept = [this.#lastUids, panics, sriov, ioErrors, ended, volumePolls, starting];
    return kept.reduce((sum, { size }) => sum + size, 0);
  }

  /** `key`: namespace/name. Throws when the key is to be retried through the rate limiter. */
  async execute(key: string): Promise<void> {
    const pass = this.#begin(key);
    if (pass === undefined) return;
    try {
      await this.#act(pass);
      if (!hasVmi(pass)) this.#lastUids.delete(key);
      if (!hasVmi(pass) || isFinal(pass.vmi)) this.#deps.memory.ended.forget(pass.ref.uid);
    } finally {
      if (this.#deps.localVmis.get(key) === undefined) this.#deps.metrics.forgetVmi(key);
    }
  }

  /** Reads the caches; undefined while an own write has not come back yet. */
  #begin(key: string): Pass | undefined {
    const { localVmis, globalVmis, domains, ghostRecords, expectations } = this.#deps;
    const { namespace, name } = splitKey(key);
    const vmi = localVmis.get(key) ?? globalVmis.get(key);
    if (vmi === undefined) expectations.delete(key);
    else if (!expectations.satisfied(key)) return undefined;

    const cached = domains.get(key);
    const domain = cached?.ObjectMeta.deletionTimestamp == null ? cached : undefined;
    if (vmi !== undefined) return { key, ref: refOf(vmi), vmi, domain };
    const uid =
      (cached === undefined ? '' : domainUid(cached)) ||
      ghostRecords.lastKnownUid(key) ||
      this.#lastUids.get(key) ||
      '';
    return { key, ref: { namespace, name, uid }, vmi, domain };
  }

  async #act(pass: Pass): Promise<void> {
    const host = this.#deps.node.name;
    const verdict = gate({ host, ...pass });
    if (verdict === 'uid-mismatch') return this.#handlePredecessor(pass);
    if (verdict === 'orphan-delete') return deleteVm(this.#deps, pass);
    if (hasVmi(pass) && phaseOf(pass.vmi) === 'Failed' && isMigrating(pass.vmi, this.#deps.clock.now())) {
      await cleanUp(this.#deps, pass.key, pass.ref);
    }
    if (verdict === 'owned-elsewhere') return this.#cleanUpMoved(pass);
    const { domain } = pass;
    if (verdict === 'ignore-migrating' && hasVmi(pass) && domain !== undefined) {
      if (isStartingHere(pass.vmi, domain, host)) return this.#awaitStart(pass, domain);
    }
    this.#deps.memory.starting.forget(pass.ref.uid);
    if (verdict !== 'sync') return undefined;
    if (!hasVmi(pass) || !isRunning(pass.vmi) || pass.domain !== undefined) return this.#sync(pass);
    if (this.#deps.memory.ended.phase(pass.ref.uid) !== undefined) return this.#sync(pass);

    const learned = await this.#learnDomain(pass);
    if (learned === 'wait') return undefined;
    if (learned === undefined) return this.#sync(pass);
    this.#deps.domains.put(pass.key, learned);
    return this.#act({ ...pass, domain: learned });
  }

  /** A start that fails right away may leave the last that was heard of it for ever: its launcher is asked. */
  async #awaitStart(pass: VmiPass, domain: Domain): Promise<void> {
    const { queue, domains, memory } = this.#deps;
    const waitMs = memory.starting.askInMs(pass.ref.uid, domain);
    if (waitMs > 0) return queue.addAfter(pass.key, waitMs);
    const learned = await this.#learnDomain(pass);
    if (learned === 'wait') return undefined;
    if (learned !== undefined && !isNotStarted(learned)) {
      domains.put(pass.key, learned);
      return this.#act({ ...pass, domain: learned });
    }
    // Nothing is cleaned up, or the pod's container disks would end: the launcher starts it again.
    domains.delete(pass.key);
    return this.#act({ ...pass, domain: undefined });
  }

  /**
   * Asks the launcher of a VM whose domain is not cached, mostly because the agent has just started, or is cached as
   * it may be no more: a launcher tries for 20 s to send an event, so that an agent that was away is told last what
   * was true before. Undefined: there is no domain, or the launcher is dead. `wait`: the key comes back.
   */
  async #learnDomain(pass: VmiPass): Promise<Domain | 'wait' | undefined> {
    const { clients, queue, domains, events, log } = this.#deps;
    const probe = await clients.isUnresponsive(pass.vmi);
    if (!probe.initialized) {
      queue.addAfter(pass.key, 1000);
      return 'wait';
    }
    if (probe.unresponsive) return undefined;
    try {
      const client = await connect(this.#deps, pass);
      if (client === undefined) return 'wait';
      const cached = domains.get(pass.key);
      const domain = await client.getDomain();
      // An event overtook the answer, and has queued the key.
      return domains.get(pass.key) === cached ? domain : 'wait';
    } catch (error) {
      if (error instanceof ConnectHeldBack) {
        queue.addAfter(pass.key, error.retryAfterMs);
        return 'wait';
      }
      if (!isDeleting(pass.vmi)) {
        events.event(pass.vmi, 'Warning', 'SyncFailed', asError(error).message);
        throw error;
      }
      log.object(pass.ref).warning('launcher of a deleted VMI does not tell its domain', error);
      return undefined;
    }
  }

  /** A domain of an older VMI with this name: nothing of it is cleaned up while its launcher answers. */
  async #handlePredecessor(pass: Pass): Promise<void> {
    const { clients, queue, log } = this.#deps;
    const uid = pass.domain === undefined ? '' : domainUid(pass.domain);
    const predecessor: VmiRef = { ...pass.ref, uid };
    const probe = await clients.isUnresponsive(predecessor);
    if (!probe.initialized) {
      queue.addAfter(pass.key, 1000);
      return;
    }
    if (probe.unresponsive) {
      log.object(pass.ref).info(`cleaning up after the older VMI with UID "${uid}"`);
      await cleanUp(this.#deps, pass.key, predecessor);
    } else {
      log.object(pass.ref).info(`waiting for the launcher of the older VMI with UID "${uid}" to end`);
    }
    queue.addAfter(pass.key, 5000);
  }

  async #cleanUpMoved(pass: Pass): Promise<void> {
    const { node, localState, log } = this.#deps;
    if (!hasVmi(pass)) return;
    if (pass.domain === undefined && !(await localState.holds(pass.ref))) return;
    log.object(pass.ref).info(`the VMI is on ${pass.vmi.status.nodeName}, removing what is left of it here`);
    await removeMovedVm(this.#deps, pass, mayDestroyMovedDomain(pass.vmi, node.name));
  }

  async #sync(pass: Pass): Promise<void> {
    const { log, timeline } = this.#deps;
    if (pass.domain?.Status.Status === 'Unknown') {
      log.object(pass.ref).warning('the launcher does not answer, nothing is done until it does');
      return;
    }
    if (hasVmi(pass)) {
      await this.#remember(pass);
      if (!isFinal(pass.vmi)) this.#countPanic(pass);
    }
    if (pass.domain?.Status.Status === 'Running') timeline?.mark(pass.ref, 'domain running', 'launcher');
    const branch = await this.#decide(pass);
    if (branch === 'delete' && hasVmi(pass) && !isFinal(pass.vmi) && isNotStarted(pass.domain)) {
      // An event of before the start may have come late.
      const learned = await this.#learnDomain(pass);
      if (learned === 'wait') return undefined;
      if (isAlive(learned)) {
        this.#deps.domains.put(pass.key, learned);
        return this.#act({ ...pass, domain: learned });
      }
    }
    await this.#afterStop(pass);
    const branchError = await this.#run(branch, pass);
    if (hasVmi(pass)) await writeStatus(this.#deps, pass, branchError);
    if (branchError !== undefined && !(branchError instanceof ConnectHeldBack)) throw branchError;
  }

  /** The VMI before this one of the same name may have gone unseen; what only this process kept of it goes now. */
  async #remember({ key, ref }: VmiPass): Promise<void> {
    const { clients, ghostRecords, memory } = this.#deps;
    const before = this.#lastUids.get(key);
    this.#lastUids.set(key, ref.uid);
    if (before === undefined || before === ref.uid) return;
    memory.ended.forget(before);
    // With a ghost record there is more of it, and a cleanup of its own.
    if (ghostRecords.lastKnownUid(key) !== before) await clients.close({ ...ref, uid: before });
  }

  async #decide(pass: Pass): Promise<Branch> {
    const { queue, clock, memory } = this.#deps;
    const phase = hasVmi(pass) ? await currentPhase(this.#deps, pass) : undefined;
    const { branch, requeueAfterMs } = decide({
      vmi: pass.vmi,
      domain: pass.domain,
      phase,
      now: clock.now(),
    });
    if (requeueAfterMs !== undefined) queue.addAfter(pass.key, requeueAfterMs);
    const failing = branch === 'update' && domainPausedByIoError(pass.domain);
    const delayMs = memory.ioErrors.delay(pass.ref.uid, failing);
    if (delayMs === undefined) return branch;
    queue.addAfter(pass.key, delayMs);
    return 'none';
  }

  #countPanic({ ref, domain }: VmiPass): void {
    const { memory, metrics } = this.#deps;
    const panic = memory.panics.next(ref.uid, domain);
    if (panic !== undefined) metrics.guestPanicked(ref, panic.type, panic.bugcheckCode);
  }

  async #afterStop(pass: Pass): Promise<void> {
    const { hooks } = this.#deps;
    if (!hooks.present || !hasVmi(pass) || !isFinal(pass.vmi) || isAlive(pass.domain)) return;
    await hooks.call('PostVMStop', pass.vmi);
  }

  /** The branch's error, reported; the status is written all the same. */
  async #run(branch: Branch, pass: Pass): Promise<Error | undefined> {
    try {
      await this.#runBranch(branch, pass);
      return undefined;
    } catch (thrown) {
      const error = asError(thrown);
      if (error instanceof ConnectHeldBack) {
        // The failure before was reported; the next try has its own time.
        this.#deps.queue.addAfter(pass.key, error.retryAfterMs);
        return error;
      }
      if (!hasVmi(pass) || !isFinal(pass.vmi)) {
        this.#deps.events.event(pass.vmi ?? pass.ref, 'Warning', 'SyncFailed', error.message);
      }
      return error;
    }
  }

  async #runBranch(branch: Branch, pass: Pass): Promise<void> {
    switch (branch) {
      case 'shutdown':
        return stopVm(this.#deps, pass, true);
      case 'destroy':
        await stopVm(this.#deps, pass, false);
        throw new IrrecoverableError('VMI is irrecoverable due to failed post-copy migration');
      case 'delete':
        return deleteVm(this.#deps, pass);
      case 'update':
        return hasVmi(pass) ? updateVm(this.#deps, pass) : undefined;
      case 'none':
        return undefined;
    }
  }
}

const keyPattern = /^([^/]+)\/([^/]+)$/;

function splitKey(key: string): { namespace: string; name: string } {
  const match = keyPattern.exec(key);
  if (match?.[1] === undefined || match[2] === undefined) {
    throw new Error(`unexpected key format: ${JSON.stringify(key)}`);
  }
  return { namespace: match[1], name: match[2] };
}
