/** The commands of privctl, with what each is told. */
import { audit } from './commands/audit.js';
import { call, explain } from './commands/calls.js';
import { describe } from './commands/describe.js';
import { doctor } from './commands/doctor.js';
import { cgroup, devices, mounts, net, pods } from './commands/pods.js';
import { policy } from './commands/policy.js';
import type { Session } from './session.js';

export interface Command {
  readonly name: string;
  readonly synopsis: string;
  readonly summary: string;
  /** More for `privctl help NAME`, one paragraph a line. */
  readonly details: readonly string[];
  /** Least and most arguments. */
  readonly arity: readonly [number, number];
  /** Options besides those that every command has. */
  readonly options: readonly OptionName[];
  /** What completion offers for the first argument. */
  readonly completes?: 'pods' | 'methods' | 'words';
  readonly words?: readonly string[];
  run(session: Session): Promise<void>;
}

export const options = {
  output: {
    type: 'string',
    short: 'o',
    default: 'table',
    value: 'table|json',
    help: 'for people, or for programs',
  },
  full: { type: 'boolean', default: false, help: 'shorten and leave out nothing' },
  help: { type: 'boolean', short: 'h', default: false, help: 'help for a command' },
  'socket-dir': {
    type: 'string',
    default: '/run/virt-privsep',
    value: 'DIR',
    help: "the helper's directory, for ctl.sock",
  },
  quiet: { type: 'boolean', short: 'q', default: false, help: 'pod UIDs only' },
  follow: { type: 'boolean', short: 'f', default: false, help: 'go on with what comes' },
  refused: { type: 'boolean', default: false, help: 'refusals only' },
  pod: { type: 'string', value: 'UID', help: 'of one pod or VMI; the beginning of a UID will do' },
  since: { type: 'string', value: 'TIME', help: '10m, 2h, 1d, or a point in time' },
  limit: { type: 'string', default: '50', value: 'N', help: 'the newest N; 0 for all' },
  'audit-file': {
    type: 'string',
    default: '/var/log/virt-privsep/audit.jsonl',
    value: 'FILE',
    help: "the helper's audit log",
  },
  'state-dir': {
    type: 'string',
    default: '/var/run/kubevirt-private/container-disk-mount-state',
    value: 'DIR',
    help: "the helper's mount records, when it is not running",
  },
  'hotplug-state-dir': {
    type: 'string',
    default: '/var/run/kubevirt-private/hotplug-volume-mount-state',
    value: 'DIR',
    help: "the helper's records of hot-plugged volumes, when it is not running",
  },
  'kubelet-pods-dir': {
    type: 'string',
    value: 'DIR',
    help: 'where the pods are, when the helper is not running',
  },
  policy: { type: 'string', value: 'FILE', help: "a policy file instead of the running helper's policy" },
} as const;

export type OptionName = keyof typeof options;

/** Options of every command. */
export const commonOptions: readonly OptionName[] = ['output', 'full', 'socket-dir', 'help'];

const podArgument = "POD is a pod or VMI UID, the beginning of one (four characters), or the VMI's name.";

export const commands: readonly Command[] = [
  {
    name: 'doctor',
    synopsis: 'doctor',
    summary: 'is everything there that VMs need, and is anything left behind?',
    details: ['Works without the helper, too, and then says what it can. Exits with 1 when something fails.'],
    arity: [0, 0],
    options: ['audit-file', 'state-dir', 'hotplug-state-dir', 'kubelet-pods-dir', 'policy'],
    run: doctor,
  },
  {
    name: 'pods',
    synopsis: 'pods',
    summary: 'launcher pods on this node, with VMI, process, namespaces, disks and age',
    details: [
      "NAME is what the launcher's command line says: its own word, which the helper trusts for nothing.",
      'VMI is what the agent named the pod with; it is empty for a pod that the agent has not touched.',
      "PINNED: the helper holds the launcher's process and namespaces.",
    ],
    arity: [0, 0],
    options: ['quiet'],
    run: pods,
  },
  {
    name: 'net',
    synopsis: 'net POD',
    summary: 'links, addresses, routes and NAT in the pod, and the difference to what was set up',
    details: [
      podArgument,
      'The difference is what setting the network up again would change. Of NAT the chains and the numbers of their rules are shown; whether the rules are the right ones is part of the difference.',
    ],
    arity: [1, 1],
    options: [],
    completes: 'pods',
    run: net,
  },
  {
    name: 'mounts',
    synopsis: 'mounts POD',
    summary: 'mounts of the launcher, container disks marked',
    details: [podArgument],
    arity: [1, 1],
    options: [],
    completes: 'pods',
    run: mounts,
  },
  {
    name: 'devices',
    synopsis: 'devices POD',
    summary: "device nodes in the launcher's /dev and whose they are",
    details: [podArgument],
    arity: [1, 1],
    options: [],
    completes: 'pods',
    run: devices,
  },
  {
    name: 'cgroup',
    synopsis: 'cgroup POD',
    summary: 'cgroups of the launcher and their limits',
    details: [podArgument],
    arity: [1, 1],
    options: [],
    completes: 'pods',
    run: cgroup,
  },
  {
    name: 'audit',
    synopsis: 'audit',
    summary: 'what was asked of the helper, what came of it, and what never ended',
    details: [
      'Begin and end of a call are one line. `interrupted`: the helper ended during the call. `running`: no end so far.',
      'With --output json one JSON object a line.',
    ],
    arity: [0, 0],
    options: ['follow', 'pod', 'refused', 'since', 'limit', 'audit-file'],
    run: audit,
  },
  {
    name: 'explain',
    synopsis: 'explain METHOD [JSON]',
    summary: 'would this call be allowed, and if not, why? Nothing is done',
    details: [
      'JSON is the request, for instance \'{"pod":{"podUid":"...","vmiUid":"..."}}\'. Exits with 3 when it would be refused, with 1 when it would fail.',
    ],
    arity: [1, 2],
    options: [],
    completes: 'methods',
    run: explain,
  },
  {
    name: 'call',
    synopsis: 'call METHOD [JSON]',
    summary: "makes a call, checked and audited as the agent's are",
    details: [
      'The answer is JSON. A method that answers with a ticket gives its descriptor to nobody: it is closed when privctl ends.',
      'A stream (PodService.Watch) is shown until it is interrupted.',
    ],
    arity: [1, 2],
    options: [],
    completes: 'methods',
    run: call,
  },
  {
    name: 'describe',
    synopsis: 'describe [METHOD]',
    summary: 'methods with capabilities, namespaces, effect and checks',
    details: [
      'Works without the helper: limits are the default ones, or those of the file that --policy names.',
    ],
    arity: [0, 1],
    options: ['policy'],
    completes: 'methods',
    run: describe,
  },
  {
    name: 'policy',
    synopsis: 'policy show | policy check FILE',
    summary: 'what the helper allows; whether it would use a file',
    details: ['Works without the helper. check exits with 1 when the helper would not start with the file.'],
    arity: [1, 2],
    options: ['policy'],
    completes: 'words',
    words: ['show', 'check'],
    run: policy,
  },
];
