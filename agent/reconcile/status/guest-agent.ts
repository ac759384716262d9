/** Conditions AgentConnected and AgentVersionNotSupported. */
import type { Domain } from '../../api/domain.js';
import type { Vmi } from '../../api/vmi.js';
import type { GuestAgentInfo } from '../ports.js';
import { type Condition, condition, ensureCondition, findCondition, withoutCondition } from './conditions.js';

const connected = 'AgentConnected';
const unsupported = 'AgentVersionNotSupported';
const agentChannel = 'org.qemu.guest_agent.0';

const basicCommands = [
  'guest-ping',
  'guest-get-time',
  'guest-info',
  'guest-shutdown',
  'guest-network-get-interfaces',
  'guest-get-fsinfo',
  'guest-get-host-name',
  'guest-get-users',
  'guest-get-timezone',
  'guest-get-osinfo',
];
const sshCommands = [
  'guest-ssh-get-authorized-keys',
  'guest-ssh-add-authorized-keys',
  'guest-ssh-remove-authorized-keys',
];
/** Older agents: keys are written with these. */
const fileCommands = [
  'guest-exec-status',
  'guest-exec',
  'guest-file-open',
  'guest-file-close',
  'guest-file-read',
  'guest-file-write',
];
const passwordCommands = ['guest-set-user-password'];

/** Guests choose their version text; more of it is not looked at. */
const maxVersionLength = 256;

/** Why the guest's agent cannot do what the VMI asks of it; undefined: it can. */
export function guestAgentObstacle(
  vmi: Vmi,
  info: GuestAgentInfo,
  supportedVersions: readonly string[],
): string | undefined {
  return info.supportedCommands.length === 0
    ? versionObstacle(info.guestAgentVersion, supportedVersions)
    : commandObstacle(vmi, info.supportedCommands);
}

/** The same for an agent that tells its commands. */
export function commandObstacle(vmi: Vmi, commands: GuestAgentInfo['supportedCommands']): string | undefined {
  // Of a command that is listed twice the later entry counts.
  const enabled = new Map(commands.map((command) => [command.name, command.enabled]));
  const can = (required: readonly string[]) => required.every((command) => enabled.get(command) === true);
  const lacks = (purpose: string) => `This guest agent doesn't support required ${purpose} commands`;
  if (!can(basicCommands)) return lacks('basic');
  const credentials = vmi.spec.accessCredentials ?? [];
  if (credentials.some(({ sshPublicKey }) => sshPublicKey?.propagationMethod?.qemuGuestAgent)) {
    if (!can(sshCommands) && !can(fileCommands)) return lacks('public key');
  }
  if (credentials.some(({ userPassword }) => userPassword?.propagationMethod?.qemuGuestAgent)) {
    if (!can(passwordCommands)) return lacks('password');
  }
  return undefined;
}

function versionObstacle(version: string, supported: readonly string[]): string | undefined {
  const text = version.slice(0, maxVersionLength);
  if (supported.some((pattern) => compiled(pattern)?.test(text))) return undefined;
  return `Guest agent version '${text}' is not supported`;
}

/** Undefined for a configured pattern that is no regular expression: it matches nothing. */
function compiled(pattern: string): RegExp | undefined {
  try {
    return new RegExp(pattern);
  } catch {
    return undefined;
  }
}

/** `now`: RFC 3339. */
export function agentConnected(
  conditions: readonly Condition[],
  domain: Domain | undefined,
  now: string,
): readonly Condition[] {
  const isConnected = (domain?.Spec.Devices?.Channels ?? []).some(
    ({ Target }) => Target?.Name === agentChannel && Target.State === 'connected',
  );
  return isConnected
    ? ensureCondition(conditions, condition(connected, 'True', { probed: now }))
    : withoutCondition(conditions, connected);
}

export function isAgentConnected(conditions: readonly Condition[]): boolean {
  return findCondition(conditions, connected) !== undefined;
}

/** Only to be asked while the agent is connected. `now`: RFC 3339. */
export function agentSupported(
  conditions: readonly Condition[],
  obstacle: string | undefined,
  now: string,
): readonly Condition[] {
  return obstacle === undefined
    ? withoutCondition(conditions, unsupported)
    : ensureCondition(conditions, condition(unsupported, 'True', { reason: obstacle, probed: now }));
}
