/** Stopping a domain that runs (KubeVirt pkg/virt-handler/vm.go processVmShutdown, processVmDestroy). */
import type { Domain } from '../api/domain.js';
import type { ControllerDeps } from './deps.js';
import { isDisconnected } from './errors.js';
import { gracePeriodOf, graceState, nextSignalSeconds } from './grace-period.js';
import type { Pass } from './pass.js';
import type { LauncherClient } from './ports.js';

export type ShutdownDeps = Pick<
  ControllerDeps,
  'clients' | 'hooks' | 'events' | 'queue' | 'clock' | 'timeline'
>;

export async function stopVm(deps: ShutdownDeps, pass: Pass, gracefully: boolean): Promise<void> {
  if (deps.hooks.present) await deps.hooks.call('PreVMStop', pass.vmi ?? pass.ref);
  await stopDomain(deps, pass, gracefully);
}

/**
 * Signals the guest to shut down until its grace period is over, then kills it; ungracefully, kills it at
 * once. The launcher's next event drives what follows.
 */
export async function stopDomain(deps: ShutdownDeps, pass: Pass, gracefully: boolean): Promise<void> {
  const client = await deps.clients.getVerified(pass.vmi ?? pass.ref);
  const grace = graceState(gracePeriodOf(pass.vmi), pass.domain, deps.clock.now());
  if (gracefully && hasGracePeriod(pass.domain) && !grace.expired) {
    await signal(deps, pass, client, grace);
    return;
  }
  await tolerateDisconnect(() => client.killVirtualMachine(pass.vmi ?? pass.ref));
  deps.events.event(pass.vmi ?? pass.ref, 'Normal', 'Deleted', 'VirtualMachineInstance stopping');
  deps.timeline?.mark(pass.ref, 'killed', 'agent');
}

/** The domain's own period decides whether it can be asked; the VMI's decides for how long. */
function hasGracePeriod(domain: Domain | undefined): boolean {
  return (domain?.Spec.Metadata.KubeVirt.GracePeriod?.DeletionGracePeriodSeconds ?? 0) !== 0;
}

async function signal(
  deps: ShutdownDeps,
  pass: Pass,
  client: LauncherClient,
  grace: ReturnType<typeof graceState>,
): Promise<void> {
  if (pass.domain?.Status.Status === 'ShuttingDown') {
    // The guest has begun: no new signal, but the end of its time must not wait for an event.
    if (grace.secondsLeft !== undefined) deps.queue.addAfter(pass.key, grace.secondsLeft * 1000);
    return;
  }
  await tolerateDisconnect(() => client.shutdownVirtualMachine(pass.vmi ?? pass.ref));
  if (grace.secondsLeft === undefined) {
    deps.events.event(pass.vmi ?? pass.ref, 'Normal', 'ShuttingDown', 'Signaled Graceful Shutdown');
    deps.timeline?.mark(pass.ref, 'shutdown signalled', 'agent');
  }
  deps.queue.addAfter(pass.key, nextSignalSeconds(gracePeriodOf(pass.vmi), grace) * 1000);
}

/** A launcher that closes the connection while it ends its domain has done what was asked. */
export async function tolerateDisconnect(call: () => Promise<void>): Promise<void> {
  try {
    await call();
  } catch (error) {
    if (!isDisconnected(error)) throw error;
  }
}
