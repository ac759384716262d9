/**
 * What a launcher tells of its guest agent. The values are the guest's word: each list is bounded, each
 * field checked, unknown fields are left out. Fields have the names of KubeVirt's API
 * (VirtualMachineInstanceGuestAgentInfo and its parts).
 */
import { guarded } from '../domains/domain-json.js';
import { Fields, JsonShapeError } from '../json/fields.js';
import { parseJson } from '../json/lossless.js';
import type { GuestAgentInfo } from '../reconcile/ports.js';

const maxBytes = 4 * 1024 * 1024;
const limits = { commands: 1024, users: 4096, filesystems: 4096, disks: 256 };

export interface GuestUser {
  readonly userName: string;
  readonly domain: string;
  /** Seconds since the epoch, with a fraction. */
  readonly loginTime: number;
}

export interface GuestFilesystem {
  readonly diskName: string;
  readonly mountPoint: string;
  readonly fileSystemType: string;
  readonly usedBytes: bigint;
  readonly totalBytes: bigint;
  readonly disk: readonly { readonly serial: string; readonly busType: string }[];
}

export interface GuestOs {
  readonly name: string;
  readonly kernelRelease: string;
  readonly version: string;
  readonly prettyName: string;
  readonly versionId: string;
  readonly kernelVersion: string;
  readonly machine: string;
  readonly id: string;
}

export interface GuestInfo extends GuestAgentInfo {
  readonly hostname: string;
  readonly os: GuestOs;
  /** `<zone>, <offset in seconds>`. */
  readonly timezone: string;
  readonly userList: readonly GuestUser[];
  readonly fsInfo: { readonly disks: readonly GuestFilesystem[] };
  readonly fsFreezeStatus: string;
}

/** GetGuestInfo's answer; empty text is an agent that said nothing. Throws DomainParseError. */
export function parseGuestInfo(text: string): GuestInfo {
  return guarded('GuestInfo', () => {
    const info = Fields.of(text === '' ? undefined : parseJson(text, maxBytes), 'GuestInfo');
    const os = info.struct('os');
    return {
      guestAgentVersion: info.string('guestAgentVersion'),
      supportedCommands: info.list('supportedCommands', limits.commands, (command) => ({
        name: command.string('name'),
        enabled: command.boolean('enabled'),
      })),
      hostname: info.string('hostname'),
      os: {
        name: os.string('name'),
        kernelRelease: os.string('kernelRelease'),
        version: os.string('version'),
        prettyName: os.string('prettyName'),
        versionId: os.string('versionId'),
        kernelVersion: os.string('kernelVersion'),
        machine: os.string('machine'),
        id: os.string('id'),
      },
      timezone: info.string('timezone'),
      userList: info.list('userList', limits.users, user),
      fsInfo: { disks: info.struct('fsInfo').list('disks', limits.filesystems, filesystem) },
      fsFreezeStatus: info.string('fsFreezeStatus'),
    };
  });
}

/** GetUsers' answer. Throws DomainParseError. */
export function parseGuestUsers(text: string): GuestUser[] {
  return parseList('GuestUsers', text, limits.users, user);
}

/** GetFilesystems' answer. Throws DomainParseError. */
export function parseGuestFilesystems(text: string): GuestFilesystem[] {
  return parseList('GuestFilesystems', text, limits.filesystems, filesystem);
}

function parseList<T>(what: string, text: string, limit: number, read: (fields: Fields) => T): T[] {
  return guarded(what, () => {
    const value = text === '' ? [] : (parseJson(text, maxBytes) ?? []);
    if (!Array.isArray(value)) throw new JsonShapeError(`${what}: not an array`);
    if (value.length > limit) throw new JsonShapeError(`${what}: ${value.length} entries, at most ${limit}`);
    return value.map((item, i) => read(Fields.of(item, `${what}[${i}]`)));
  });
}

function user(fields: Fields): GuestUser {
  return {
    userName: fields.string('userName'),
    domain: fields.string('domain'),
    loginTime: fields.number('loginTime'),
  };
}

function filesystem(fields: Fields): GuestFilesystem {
  return {
    diskName: fields.string('diskName'),
    mountPoint: fields.string('mountPoint'),
    fileSystemType: fields.string('fileSystemType'),
    usedBytes: fields.bigint('usedBytes'),
    totalBytes: fields.bigint('totalBytes'),
    disk: fields.list('disk', limits.disks, (disk) => ({
      serial: disk.string('serial'),
      busType: disk.string('busType'),
    })),
  };
}
