/** Deleting a domain that is off (KubeVirt pkg/virt-handler/vm.go processVmDelete). */
import { asError } from '../as-error.js';
import { type CleanupDeps, cleanUp } from './cleanup.js';
import type { ControllerDeps } from './deps.js';
import type { Pass } from './pass.js';
import type { LauncherClient } from './ports.js';
import { isAlive } from './predicates.js';
import { tolerateDisconnect } from './shutdown.js';

export type DeleteDeps = CleanupDeps & Pick<ControllerDeps, 'events'>;

/** Undefines the domain, then removes everything that this node keeps for the VMI. */
export async function deleteVm(deps: DeleteDeps, pass: Pass): Promise<void> {
  await withLastClient(deps, pass, async (client) => {
    deps.events.event(pass.vmi ?? pass.ref, 'Normal', 'Deleted', 'Signaled Deletion');
    await tolerateDisconnect(() => client.deleteVirtualMachine(pass.vmi ?? pass.ref));
    deps.timeline?.mark(pass.ref, 'deleted', 'agent');
  });
  await cleanUp(deps, pass.key, pass.ref);
}

/**
 * Removes what is left here of a VMI that another node owns. `destroy`: a domain that is still here has
 * migrated well and is only a shell; otherwise the domain is not touched.
 */
export async function removeMovedVm(deps: DeleteDeps, pass: Pass, destroy: boolean): Promise<void> {
  if (pass.domain !== undefined && destroy) {
    const { domain } = pass;
    await withLastClient(deps, pass, async (client) => {
      if (isAlive(domain)) await tolerateDisconnect(() => client.killVirtualMachine(pass.ref));
      await tolerateDisconnect(() => client.deleteVirtualMachine(pass.ref));
    });
  }
  await cleanUp(deps, pass.key, pass.ref);
}

/**
 * Without a launcher that answers the pod is gone and the domain with it. The client is closed on every
 * way out: a launcher that ends during the call may accept a connection once more.
 */
async function withLastClient(
  deps: DeleteDeps,
  pass: Pass,
  use: (client: LauncherClient) => Promise<void>,
): Promise<void> {
  try {
    let client: LauncherClient;
    try {
      client = await deps.clients.getVerified(pass.vmi ?? pass.ref);
    } catch (error) {
      deps.log.object(pass.ref).info(`launcher is gone, nothing to delete there: ${asError(error).message}`);
      return;
    }
    await use(client);
  } finally {
    await deps.clients.close(pass.ref);
  }
}
