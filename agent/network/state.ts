/**
 * What the node remembers of each network of a VMI, one JSON file a network below
 * network-info-cache/<VMI UID>/ (KubeVirt pkg/network/cache, pkg/network/setup state). The format is
 * KubeVirt's own, so that a node can be switched over with its VMs running, and back; keys that only
 * this agent knows are ignored there.
 */
import { randomBytes } from 'node:crypto';
import {
  closeSync,
  fstatSync,
  mkdirSync,
  openSync,
  readSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { fromJson, type JsonValue as ProtoJson, toJson } from '@bufbuild/protobuf';
import { type DhcpRecord, DhcpRecordSchema } from '../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { isRecord, parseJson, stringifyJson } from '../json/lossless.js';
import type { Logger } from '../log/log.js';
import { parseIp } from './ip.js';
import type { VmiInterface } from './vmi-network.js';

/**
 * pending: to be set up. started: a set-up failed and left something that could not be undone.
 * finished: set up.
 */
export type NetworkPhase = 'pending' | 'started' | 'finished';
const phases: readonly NetworkPhase[] = ['pending', 'started', 'finished'];

export interface NetworkRecord {
  readonly phase: NetworkPhase;
  /** The interface when its addresses were read. */
  readonly iface?: VmiInterface;
  /** Primary family first. */
  readonly podIps: readonly string[];
  /** The pod that the record is about; absent in KubeVirt's own files. */
  readonly podUid?: string;
  /** While pending: what was read of the pod link before it was plumbed, which removes its routes. */
  readonly dhcp?: DhcpRecord;
}

/** What virt-api admits (KubeVirt pkg/network/admitter/netiface.go), as far as it fits a file's name. */
const networkName = /^[A-Za-z0-9_-]{1,240}$/;

const maxFileBytes = 256 * 1024;
const maxPodIps = 16;

/** Small files, so they are read and written at once: a start waits for each of them. */
export class NetworkStateStore {
  readonly #directory: string;
  readonly #log: Logger;
  readonly #memory = new Map<string, Map<string, NetworkRecord>>();

  constructor(directory: string, log: Logger) {
    this.#directory = directory;
    this.#log = log;
  }

  /**
   * Undefined if there is none or if it is unreadable, which is logged. Only what was read is
   * remembered: a file that appears or is repaired later is seen.
   */
  async read(vmiUid: string, network: string): Promise<NetworkRecord | undefined> {
    const known = this.#memory.get(vmiUid)?.get(network);
    if (known !== undefined) return known;
    try {
      const record = parseRecord(readBounded(this.#path(vmiUid, network)));
      this.#remember(vmiUid, network, record);
      return record;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') {
        const path = join(this.#directory, vmiUid, network);
        this.#log.object({ uid: vmiUid }).warning(`failed to read the network record ${path}`, error);
      }
      return undefined;
    }
  }

  async write(vmiUid: string, network: string, record: NetworkRecord): Promise<void> {
    const path = this.#path(vmiUid, network);
    const directory = join(path, '..');
    mkdirSync(directory, { recursive: true, mode: 0o750 });
    // Network names never begin with a dot, so the temporary name cannot be one.
    const temporary = join(directory, `.${network}.${randomBytes(6).toString('hex')}`);
    try {
      writeFileSync(temporary, formatRecord(record), { flag: 'wx', mode: 0o604 });
      renameSync(temporary, path);
    } catch (error) {
      rmSync(temporary, { force: true });
      throw error;
    }
    this.#remember(vmiUid, network, record);
  }

  async remove(vmiUid: string, network: string): Promise<void> {
    await rm(this.#path(vmiUid, network), { force: true });
    this.forget(vmiUid, network);
  }

  async removeVmi(vmiUid: string): Promise<void> {
    this.#memory.delete(vmiUid);
    await rm(this.#vmiDirectory(vmiUid), { recursive: true, force: true });
  }

  /** Drops the memory of one network, not its file. */
  forget(vmiUid: string, network: string): void {
    this.#memory.get(vmiUid)?.delete(network);
  }

  /** Drops the memory of a VMI, not its files. */
  forgetVmi(vmiUid: string): void {
    this.#memory.delete(vmiUid);
  }

  #remember(vmiUid: string, network: string, record: NetworkRecord): void {
    const records = this.#memory.get(vmiUid) ?? new Map<string, NetworkRecord>();
    records.set(network, record);
    this.#memory.set(vmiUid, records);
  }

  #vmiDirectory(vmiUid: string): string {
    if (!/^[0-9a-zA-Z-]{1,64}$/.test(vmiUid)) throw new Error(`VMI UID ${vmiUid} cannot name a directory`);
    return join(this.#directory, vmiUid);
  }

  #path(vmiUid: string, network: string): string {
    if (!networkName.test(network)) {
      throw new Error(`network name ${network} of VMI ${vmiUid} cannot name a file`);
    }
    return join(this.#vmiDirectory(vmiUid), network);
  }
}

function readBounded(path: string): string {
  const fd = openSync(path, 'r');
  try {
    const { size } = fstatSync(fd);
    if (size > maxFileBytes) throw new Error(`larger than ${maxFileBytes} bytes`);
    const buffer = Buffer.alloc(size);
    return buffer.toString('utf8', 0, readSync(fd, buffer));
  } finally {
    closeSync(fd);
  }
}

function parseRecord(text: string): NetworkRecord {
  const value = parseJson(text, maxFileBytes);
  if (!isRecord(value)) throw new Error('not a JSON object');
  // Old releases wrote one address only.
  const { iface, podIP, podIPs = podIP === undefined ? [] : [podIP], networkState = 0, podUID, dhcp } = value;
  if (!Array.isArray(podIPs) || podIPs.length > maxPodIps) throw new Error('field podIPs is no short list');
  const podIps = podIPs.map((ip) => {
    if (typeof ip !== 'string' || parseIp(ip) === undefined) throw new Error('field podIPs: not an address');
    return ip;
  });
  const phase = typeof networkState === 'number' ? phases[networkState] : undefined;
  if (phase === undefined) throw new Error('field networkState is not 0, 1 or 2');
  if (podUID !== undefined && typeof podUID !== 'string') throw new Error('field podUID is not text');
  return {
    phase,
    podIps,
    ...(isRecord(iface) && { iface: iface as unknown as VmiInterface }),
    ...(podUID !== undefined && { podUid: podUID }),
    ...(dhcp !== undefined && { dhcp: fromJson(DhcpRecordSchema, dhcp as ProtoJson) }),
  };
}

function formatRecord(record: NetworkRecord): string {
  const phase = phases.indexOf(record.phase);
  const value = {
    ...(record.iface !== undefined && { iface: record.iface }),
    ...(record.podIps.length > 0 && { podIP: record.podIps[0], podIPs: record.podIps }),
    ...(phase > 0 && { networkState: phase }),
    ...(record.podUid !== undefined && { podUID: record.podUid }),
    ...(record.dhcp !== undefined && { dhcp: toJson(DhcpRecordSchema, record.dhcp) }),
  };
  return stringifyJson(value);
}
