/** The one write at the end of a pass (KubeVirt pkg/virt-handler/vm.go updateVMIStatus). */
import type { Phase, Vmi } from '../api/vmi.js';
import type { ClusterConfig } from '../cluster/config.js';
import type { VmMemory } from './cleanup.js';
import { withPhaseTransition, withSynchronized } from './conditions.js';
import type { ControllerDeps, NodeFacts } from './deps.js';
import { failsVmi } from './errors.js';
import type { VmiPass } from './pass.js';
import { calculatePhase, phaseNeedsProbe } from './phase.js';
import { isFinal, isMigrationTarget, phaseOf } from './predicates.js';
import { semanticEqual } from './semantic-equal.js';
import { applyStatusRules } from './status/apply.js';
import type { StatusPorts, StatusSettings } from './status/pass.js';
import { lookAgain } from './update/hotplug-mount.js';

export type StatusDeps = ControllerDeps & { readonly memory: VmMemory };

/**
 * Brings the status up to date and sends it if it differs. Throws what makes the write impossible; nothing
 * is sent then and the key is retried. A final VMI is never written again.
 */
export async function writeStatus(
  deps: StatusDeps,
  pass: VmiPass,
  branchError: Error | undefined,
): Promise<void> {
  const { vmi: cached, domain } = pass;
  if (isFinal(cached)) return;
  const rules = await applyStatusRules(
    { vmi: cached, domain, branchFailed: branchError !== undefined },
    statusPorts(deps),
    statusSettings(deps.clusterConfig(), deps.node),
  );
  if (rules.volumesOnTheirWay) lookAgain(deps, pass);

  const oldPhase = phaseOf(cached);
  const computed = await currentPhase(deps, pass);
  const phase = branchError !== undefined && failsVmi(branchError) ? 'Failed' : computed;

  const now = deps.clock.now();
  const updated: Vmi = {
    ...rules.vmi,
    status: {
      ...rules.vmi.status,
      phase,
      conditions: withSynchronized(rules.vmi.status.conditions, branchError, now),
      phaseTransitionTimestamps: withPhaseTransition(
        rules.vmi.status.phaseTransitionTimestamps,
        oldPhase,
        phase,
        now,
      ),
    },
  };
  if (!semanticEqual(updated.status, cached.status)) await put(deps, pass, updated);
  for (const { type, reason, message } of rules.events) deps.events.event(cached, type, reason, message);
  if (phase !== oldPhase) await announce(deps, pass, updated, phase);
}

/** The phase that the VMI should have now; asks the launcher where the domain does not tell. */
export async function currentPhase(deps: StatusDeps, { key, ref, vmi, domain }: VmiPass): Promise<Phase> {
  const { ended } = deps.memory;
  if (domain !== undefined) {
    const { phase } = calculatePhase(vmi, domain, undefined);
    if (phase === 'Succeeded' || phase === 'Failed') ended.note(ref.uid, phase);
    else ended.forget(ref.uid);
    return phase;
  }
  const known = ended.phase(ref.uid);
  if (known !== undefined) return known;
  const probe = phaseNeedsProbe(vmi, domain) ? await deps.clients.isUnresponsive(vmi) : undefined;
  const { phase, requeueAfterMs } = calculatePhase(vmi, domain, probe);
  if (requeueAfterMs !== undefined) deps.queue.addAfter(key, requeueAfterMs);
  return phase;
}

/** Until the write comes back as an event the cache is older than what this pass knows. */
async function put(deps: ControllerDeps, pass: VmiPass, updated: Vmi): Promise<void> {
  deps.expectations.set(pass.key, 1, 0);
  try {
    await deps.api.update(updated);
  } catch (error) {
    deps.expectations.set(pass.key, 0, 0);
    throw error;
  }
  deps.metrics.vmiSynced(pass.ref);
}

const phaseEvents: Partial<Record<Phase, readonly ['Normal' | 'Warning', string, string]>> = {
  Running: ['Normal', 'Started', 'VirtualMachineInstance started.'],
  Succeeded: ['Normal', 'Stopped', 'The VirtualMachineInstance was shut down.'],
  Failed: ['Warning', 'Stopped', 'The VirtualMachineInstance crashed.'],
};

async function announce(deps: ControllerDeps, pass: VmiPass, updated: Vmi, phase: Phase): Promise<void> {
  const event = phaseEvents[phase];
  if (event !== undefined) deps.events.event(pass.vmi, ...event);
  if (phase !== 'Running') return;
  deps.timeline?.mark(pass.ref, 'Running written', 'api');
  if (deps.hooks.present && !isMigrationTarget(updated)) await deps.hooks.call('PostVMStart', updated);
}

function statusPorts(deps: ControllerDeps): StatusPorts {
  return {
    launchers: deps.clients,
    facts: deps.facts,
    hotplug: deps.hotplug,
    containerDisks: deps.containerDisks,
    netStat: deps.netStat,
    backupTrackers: deps.backupTrackers,
    clock: deps.clock,
    log: deps.log,
  };
}

function statusSettings(cluster: ClusterConfig, node: NodeFacts): StatusSettings {
  return {
    host: node.name,
    hostArchitecture: node.architecture,
    hostCpuModel: node.cpuModel(),
    cluster,
  };
}
