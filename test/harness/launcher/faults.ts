/** Misbehaviour on demand. */
export interface Faults {
  /** Calls are taken and never answered. */
  readonly hang: boolean;
  readonly slowSyncMs: number;
  /** The guest keeps NICs that are to be unplugged until `release-nics` is in the private directory. */
  readonly holdNics: boolean;
  /** HotplugHostDevices fails as often. */
  readonly hostDeviceFailures: number;
  readonly cmdVersions: readonly number[];
}

export const noFaults: Faults = {
  hang: false,
  slowSyncMs: 0,
  holdNics: false,
  hostDeviceFailures: 0,
  cmdVersions: [1],
};
