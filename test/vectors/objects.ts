import type { Domain } from '../../agent/api/domain.js';
import type { Vmi } from '../../agent/api/vmi.js';
import { readDomain } from '../../agent/domains/domain-json.js';
import type { JsonValue } from '../../agent/json/lossless.js';
import type { InterfaceStatus, VmiInterface, VmiNetwork } from '../../agent/network/vmi-network.js';

export type JsonObject = { [key: string]: JsonValue };

/** A partial VMI with the structs that Go has as zero values. */
export function vmiOf(partial: JsonObject): Vmi {
  const { metadata, spec, status, ...rest } = partial;
  return {
    ...rest,
    metadata: { name: '', namespace: '', uid: '', ...(metadata as object) },
    spec: { domain: {}, ...(spec as object) },
    status: { ...(status as object) },
  } as Vmi;
}

export function domainOf(json: JsonValue | undefined): Domain | undefined {
  return json === null || json === undefined ? undefined : readDomain(json);
}

export function vmiWithNetworks(
  networks: readonly VmiNetwork[] | null,
  interfaces: readonly VmiInterface[] | null,
  statuses: readonly InterfaceStatus[] | null = [],
  devices: object = {},
  cpu: object = {},
  activePods: Record<string, string> = {},
): Vmi {
  return vmiOf({
    metadata: { name: 'vm', namespace: 'ns', uid: 'uid-1' },
    spec: { networks, domain: { cpu, devices: { interfaces, ...devices } } },
    status: { interfaces: statuses, activePods },
  } as never);
}
