/** How helper and agent are run on the node of the harness. */
import type { ApiServer } from '../apiserver/api-server.js';
import type { HarnessNode } from '../pods/node.js';
import type { Spawned } from '../pods/run.js';

export const agentUser = 65531;
export const helperUser = 65530;

export type ProgramName = 'helper' | 'agent';

/** A process of the product. */
export interface Component {
  /** Where signals go. */
  readonly pid: number;
  readonly process: Spawned;
}

/** Host paths of what the product keeps. */
export interface ProgramPaths {
  readonly socketDir: string;
  readonly privateDir: string;
  readonly mountRecordDir: string;
  readonly hotplugRecordDir: string;
  readonly pluggedDevicesDir: string;
  readonly auditFile: string;
}

export interface Programs {
  readonly paths: ProgramPaths;
  /** Address at which the API server must listen for the agent to reach it. */
  readonly apiHost: string;
  /** Gives the agent its credentials. */
  connect(api: ApiServer): void;
  /** Starts a program with its output going to descriptor `log`. */
  start(which: ProgramName, extra: readonly string[], log: number): Promise<Component>;
  /** Removes what running them needed. All have ended. */
  destroy(): Promise<void>;
}

export type MakePrograms = (node: HarnessNode) => Promise<Programs>;
