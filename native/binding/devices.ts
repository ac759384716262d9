/** Device nodes of launchers, and what their cgroups may open. */
import type { Call, Launcher } from './call.js';

export type ClaimableDevice = 'kvm' | 'mshv' | 'tun' | 'vhost-net' | 'vhost-vsock' | 'sev' | 'vfio';

export type ClaimOutcome = 'claimed' | 'already-owned' | 'missing';

/**
 * A claimable device as the launcher's /dev shows it. `other`: not the character device of the expected
 * numbers, or behind a link; `host`: the node of the host's own devtmpfs.
 */
export interface ObservedDevice {
  readonly device: ClaimableDevice;
  readonly state: 'missing' | 'present' | 'other' | 'host';
  readonly uid: number;
  readonly gid: number;
  /** Permission bits. */
  readonly mode: number;
}

/** A device node in the launcher's /dev. */
export interface DeviceNode {
  /** Below /dev. */
  readonly path: string;
  readonly type: 'b' | 'c';
  readonly major: number;
  readonly minor: number;
}

/** The cgroup hierarchy that decides about devices: its root directory. */
export interface DeviceHierarchy {
  readonly root: number;
  readonly version: 1 | 2;
}

/** A device program of a cgroup. */
export interface AttachedProgram {
  readonly id: number;
  /** struct bpf_insn; empty where the kernel hides them. */
  readonly instructions: Uint8Array;
}

/** What decides which devices a process may open: text of devices.list (cgroup v1), or all programs (v2). */
export type DeviceDecision = { readonly list: string } | { readonly programs: readonly AttachedProgram[] };

/** Each runs whole on one privileged thread. */
export interface DeviceCalls {
  /**
   * Gives nodes of the launcher's /dev to uid:gid: the devices, and a block device /dev/<name> for each of
   * `volumes`. One outcome for each device, then one for each volume.
   */
  claimDevices(
    call: Call,
    launcher: Launcher,
    devices: readonly ClaimableDevice[],
    volumes: readonly string[],
    uid: number,
    gid: number,
  ): Promise<ClaimOutcome[]>;
  /** All claimable devices. Changes nothing. */
  observeDevices(call: Call, launcher: Launcher): Promise<ObservedDevice[]>;
  /** Device nodes in /dev and its directories that are no mounts; at most 4096 entries (else E2BIG). */
  listDeviceNodes(call: Call, launcher: Launcher): Promise<DeviceNode[]>;
  /**
   * cgroup v2: makes the program (struct bpf_insn) the only one of the launcher's cgroup, and of crun's above it, in
   * one step. False when it was already. The one before stays when it cannot be loaded.
   */
  replaceDevicePrograms(
    call: Call,
    hierarchy: DeviceHierarchy,
    launcher: Launcher,
    podUid: string,
    instructions: Uint8Array,
  ): Promise<boolean>;
  /** cgroup v2: the programs of the launcher's own cgroup. */
  attachedDevicePrograms(
    call: Call,
    hierarchy: DeviceHierarchy,
    launcher: Launcher,
    podUid: string,
  ): Promise<AttachedProgram[]>;
  /** cgroup v1: text of devices.list of the launcher's cgroup. */
  readDeviceList(call: Call, hierarchy: DeviceHierarchy, launcher: Launcher, podUid: string): Promise<string>;
  /** cgroup v1: writes to devices.allow and devices.deny, one after another, up to the first that fails. */
  changeDeviceList(
    call: Call,
    hierarchy: DeviceHierarchy,
    launcher: Launcher,
    podUid: string,
    changes: readonly { readonly allow: boolean; readonly rule: string }[],
  ): Promise<void>;
}
