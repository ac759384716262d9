/**
 * Seccomp profiles as container runtimes resolve them. RuntimeDefault is the profile of Podman and CRI-O
 * (Debian package golang-github-containers-common); that of containerd and Docker is its sibling.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { repositoryRoot } from '../pods/bundle.js';
import type { SeccompProfile } from './manifest.js';

const runtimeDefaultFile = '/usr/share/containers/seccomp.json';
const architecture = process.arch === 'x64' ? 'amd64' : process.arch;
const ociArchitecture = process.arch === 'x64' ? 'SCMP_ARCH_X86_64' : 'SCMP_ARCH_AARCH64';

interface Conditions {
  readonly caps?: readonly string[];
  readonly arches?: readonly string[];
}

interface Rule {
  readonly names: readonly string[];
  readonly action: string;
  readonly args?: readonly object[] | null;
  readonly errnoRet?: number;
  readonly includes?: Conditions;
  readonly excludes?: Conditions;
}

interface Profile {
  readonly defaultAction: string;
  readonly defaultErrnoRet?: number;
  readonly syscalls: readonly Rule[];
}

/** `linux.seccomp` of an OCI runtime configuration; undefined for no filter. */
export function ociSeccomp(profile: SeccompProfile, capabilities: readonly string[]): object | undefined {
  if (profile.type === 'Unconfined') return undefined;
  const file =
    profile.type === 'RuntimeDefault'
      ? runtimeDefaultFile
      : join(repositoryRoot(), 'deploy/seccomp', (profile.localhostProfile ?? '').replace(/^.*\//, ''));
  const { defaultAction, defaultErrnoRet, syscalls } = JSON.parse(readFileSync(file, 'utf8')) as Profile;
  return {
    defaultAction,
    ...(defaultErrnoRet === undefined ? {} : { defaultErrnoRet }),
    architectures: [ociArchitecture],
    syscalls: syscalls
      .filter((rule) => applies(rule, capabilities))
      .map(({ names, action, args, errnoRet }) => ({
        names,
        action,
        ...(args ? { args } : {}),
        ...(errnoRet === undefined ? {} : { errnoRet }),
      })),
  };
}

function applies({ includes, excludes }: Rule, capabilities: readonly string[]): boolean {
  const holds = ({ caps, arches }: Conditions, every: boolean) => {
    const tests = [
      ...(caps ?? []).map((cap) => capabilities.includes(cap)),
      ...(arches === undefined ? [] : [arches.includes(architecture)]),
    ];
    return every ? tests.every(Boolean) : tests.some(Boolean);
  };
  return holds(includes ?? {}, true) && !holds(excludes ?? {}, false);
}
