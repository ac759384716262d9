/** `privctl doctor`: is everything there that VMs need on this node, and is anything left behind? */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  type GetHelperResponse,
  type InspectedPod,
  InspectService,
} from '../../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import { loadNative } from '../../../native/binding.js';
import { OperationReader } from '../../audit/operations.js';
import { dispensableCaps, permittedCaps } from '../../declarations.js';
import { errnoOf } from '../../failure.js';
import {
  type Finding,
  helperFindings,
  kernelFindings,
  leftoverFindings,
  nodeFindings,
} from '../../inspect/health.js';
import { maxMountinfoBytes, parseMountinfo } from '../../inspect/mountinfo.js';
import { readBounded } from '../../inspect/proc.js';
import { HotplugRecords } from '../../pods/hotplug-records.js';
import { MountRecords } from '../../pods/records.js';
import { choosePolicy } from '../../policy/choose.js';
import { readVersion } from '../../version.js';
import { callError } from '../helper.js';
import { CommandError, count, exitCodes, section, table } from '../output.js';
import type { Session } from '../session.js';
import { LogFile } from './audit.js';
import { allMethods } from './describe.js';

interface Seen {
  readonly helper: GetHelperResponse | undefined;
  readonly pods: readonly InspectedPod[];
  /** Why there is no answer. */
  readonly problem: Finding | undefined;
}

export async function doctor(session: Session): Promise<void> {
  const { policyFile, stateDir, hotplugStateDir, auditFile, kubeletPodsDir: given } = session.options;
  const overrides = { kubeletPodsDir: given };
  const { policy } = choosePolicy({ policyFile, overrides, uid: 0 });
  const { helper, pods, problem } = await see(session);
  const kubeletPodsDir = helper?.kubeletPodsDir ?? policy.kubeletPodsDir;
  const mounts = parseMountinfo(await readBounded('/proc/self/mountinfo', maxMountinfoBytes));
  const permitted = permittedCaps(allMethods().map(({ declared }) => declared));
  const groups: [string, Finding[]][] = [
    [
      'HELPER',
      helper === undefined
        ? [problem ?? { check: 'running', status: 'fail', finding: 'no answer' }]
        : helperFindings(helper, {
            version: readVersion(),
            permitted,
            dispensable: dispensableCaps,
            now: Date.now(),
          }),
    ],
    [
      'NODE',
      nodeFindings({
        mounts,
        kubeletPodsDir,
        cgroupRoot:
          helper?.policy.find(({ path }) => path === 'paths.cgroupRoot')?.value ?? policy.cgroupRoot,
        selinux: helper?.selinux,
        helperLabel: helper === undefined ? undefined : labelOf(helper.pid),
      }),
    ],
    ['KERNEL', kernelFindings(loadNative().probeKernel())],
    [
      'LEFT BEHIND',
      leftoverFindings({
        records:
          helper?.records ??
          recordsOf(() => new MountRecords(stateDir, kubeletPodsDir, policy), kubeletPodsDir),
        hotplugRecords:
          helper?.hotplugRecords ??
          recordsOf(() => new HotplugRecords(hotplugStateDir, kubeletPodsDir, policy), kubeletPodsDir),
        pods,
        hostMounts: mounts,
        kubeletPodsDir,
        interrupted: withoutEnd(auditFile, helper !== undefined),
      }),
    ],
  ];
  const all = groups.flatMap(([, findings]) => findings);
  const failures = all.filter(({ status }) => status === 'fail').length;
  const warnings = all.filter(({ status }) => status === 'warn').length;
  if (session.json) {
    const findings = groups.flatMap(([group, list]) =>
      list.map((each) => ({ group: group.toLowerCase(), ...each })),
    );
    session.value({ failures, warnings, findings });
  } else {
    session.lines([
      ...groups.flatMap(([title, findings]) => section(title, lines(findings))).slice(1),
      '',
      failures + warnings === 0
        ? 'Nothing is wrong.'
        : `${count(failures, 'failure')}, ${count(warnings, 'warning')}.`,
    ]);
  }
  if (failures > 0) throw new CommandError(exitCodes.failed, '');
}

function lines(findings: readonly Finding[]): string[] {
  const rows = findings.map(({ status, check, finding, advice }) => [
    status.padEnd(4),
    check,
    finding,
    status === 'ok' ? '' : (advice ?? ''),
  ]);
  // The rows need no heading; what to do stands below its finding.
  const texts = table([{ title: '' }, { title: '' }, { title: '' }], rows).slice(1);
  const indent = ' '.repeat(6);
  return texts.flatMap((text, i) => {
    const advice = rows[i]?.[3] ?? '';
    return advice === '' ? [text] : [text, `${indent}${advice}`];
  });
}

async function see(session: Session): Promise<Seen> {
  try {
    const client = await session.client(InspectService);
    const helper = await client.getHelper({});
    const { pods } = await client.listPods({});
    return { helper, pods, problem: undefined };
  } catch (error) {
    const failure = callError(error);
    if (failure.exitCode === exitCodes.refused) throw failure;
    const problem = {
      check: 'running',
      status: 'fail',
      finding: failure.message,
      advice: "VMs run on, nothing is started or stopped: look at the helper's log",
    } as const;
    return { helper: undefined, pods: [], problem };
  }
}

function recordsOf(open: () => MountRecords | HotplugRecords, kubeletPodsDir: string) {
  const records = quietly(() => open().list()) ?? [];
  return records.map((record) => ({
    ...record,
    podPresent: record.podUid !== '' && existsSync(join(kubeletPodsDir, record.podUid)),
  }));
}

/** Calls of the current log that were never ended; without a helper those are all that have no end. */
function withoutEnd(auditFile: string, running: boolean): number {
  const reader = new OperationReader();
  let log: LogFile;
  try {
    log = new LogFile(auditFile);
  } catch {
    // privctl audit says why; there is nothing to count.
    return 0;
  }
  let found = 0;
  for (const line of log.lines()) {
    found += reader.read(line).filter(({ outcome }) => outcome === 'interrupted').length;
  }
  log.close();
  return running ? found : found + reader.unfinished.length;
}

function labelOf(pid: number): string | undefined {
  return quietly(() => readFileSync(`/proc/${pid}/attr/current`, 'utf8').replace(/[\0\n]/g, '')) || undefined;
}

/** Undefined where something is not there or not for this user. */
function quietly<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    if (errnoOf(error) === '') throw error;
    return undefined;
  }
}
