import { describe, expect, it } from 'vitest';
import { DomainParseError } from '../../agent/domains/domain-json.js';
import {
  type GuestFilesystem,
  parseGuestFilesystems,
  parseGuestInfo,
  parseGuestUsers,
} from '../../agent/launcher/guest-info.js';
import { loadVectors } from './load.js';

interface AgentUser {
  readonly Name: string;
  readonly Domain: string;
  readonly LoginTime: number;
}
interface AgentFilesystem {
  readonly Name: string;
  readonly Mountpoint: string;
  readonly Type: string;
  readonly UsedBytes: number;
  readonly TotalBytes: number;
  readonly Disk: readonly { readonly Serial: string; readonly BusType: string }[];
}
/** What the guest's agent told the launcher. */
interface Input {
  readonly agent?: {
    readonly version: string;
    readonly supported_commands?: readonly { readonly name: string; readonly enabled?: boolean }[];
  };
  readonly users?: readonly AgentUser[];
  readonly filesystems?: readonly AgentFilesystem[];
  readonly fsFreeze?: { readonly Status: string };
  readonly hostname?: string;
  readonly osInfo?: Readonly<Record<string, string>>;
  readonly timezone?: { readonly Zone: string; readonly Offset: number };
}
interface Expected {
  readonly agentVersion: string;
  readonly guestInfoResponse: string;
  readonly guestUserListResponse: string;
  readonly guestFilesystemsResponse: string;
}

const osKeys = [
  'Name',
  'KernelRelease',
  'Version',
  'PrettyName',
  'VersionId',
  'KernelVersion',
  'Machine',
  'Id',
];
const lowerFirst = (text: string) => text.charAt(0).toLowerCase() + text.slice(1);

function filesystemOf({
  Name,
  Mountpoint,
  Type,
  UsedBytes,
  TotalBytes,
  Disk,
}: AgentFilesystem): GuestFilesystem {
  return {
    diskName: Name,
    mountPoint: Mountpoint,
    fileSystemType: Type,
    usedBytes: BigInt(UsedBytes),
    totalBytes: BigInt(TotalBytes),
    disk: Disk.map(({ Serial, BusType }) => ({ serial: Serial, busType: BusType })),
  };
}

describe('guest_payloads', () => {
  it.each(loadVectors<Input, Expected>('wire', 'guest_payloads'))('$name', ({ input, expected }) => {
    const users = (input.users ?? []).map(({ Name, Domain, LoginTime }) => ({
      ...{ userName: Name, domain: Domain, loginTime: LoginTime },
    }));
    const filesystems = (input.filesystems ?? []).map(filesystemOf);
    expect(parseGuestUsers(expected.guestUserListResponse)).toEqual(users);
    expect(parseGuestFilesystems(expected.guestFilesystemsResponse)).toEqual(filesystems);
    const { Zone = '', Offset = 0 } = input.timezone ?? {};
    expect(parseGuestInfo(expected.guestInfoResponse)).toEqual({
      guestAgentVersion: expected.agentVersion,
      supportedCommands: (input.agent?.supported_commands ?? []).map(({ name, enabled = false }) => ({
        ...{ name, enabled },
      })),
      hostname: input.hostname ?? '',
      os: Object.fromEntries(osKeys.map((key) => [lowerFirst(key), input.osInfo?.[key] ?? ''])),
      timezone: `${Zone}, ${Offset}`,
      // The launcher tells ten of each at most here.
      userList: users.slice(0, 10),
      fsInfo: { disks: filesystems.slice(0, 10) },
      fsFreezeStatus: input.fsFreeze?.Status ?? '',
    });
  });

  it.each([
    ['[1]', 'GuestUsers[0]'],
    ['{}', 'not an array'],
    ['[{"userName":7}]', 'GuestUsers[0].userName'],
    ['[{"loginTime":"now"}]', 'GuestUsers[0].loginTime'],
    [`[${Array(5000).fill('{}').join()}]`, 'at most 4096'],
    [`${'['.repeat(100_000)}`, 'GuestUsers'],
    [' '.repeat(5 * 1024 * 1024), 'exceeds'],
  ])('a hostile list is an error that names what is wrong: %.40s', (text, named) => {
    expect(() => parseGuestUsers(text)).toThrow(DomainParseError);
    expect(() => parseGuestUsers(text)).toThrow(named);
  });

  it('sizes beyond 2^53 are kept', () => {
    const [filesystem] = parseGuestFilesystems('[{"usedBytes":9223372036854775807,"totalBytes":null}]');
    expect(filesystem).toMatchObject({ usedBytes: 9223372036854775807n, totalBytes: 0n });
  });
});
