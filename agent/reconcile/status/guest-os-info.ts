import type { Domain } from '../../api/domain.js';
import type { VmiStatus } from '../../api/vmi.js';

type GuestOsInfo = VmiStatus['guestOSInfo'];

/** Taken over as a whole when the guest's name changed, so a new kernel alone is not noticed. */
export function guestOsInfo(current: GuestOsInfo, domain: Domain | undefined): GuestOsInfo {
  const info = domain?.Status.OSInfo;
  if (!info?.Name || info.Name === current?.name) return current;
  return withoutEmpty({
    name: info.Name,
    kernelRelease: info.KernelRelease,
    version: info.Version,
    prettyName: info.PrettyName,
    versionId: info.VersionId,
    kernelVersion: info.KernelVersion,
    machine: info.Machine,
    id: info.Id,
  });
}

function withoutEmpty<T extends object>(fields: T): Partial<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value)) as Partial<T>;
}
