import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { parseFlags as parseAgentFlags } from '../../agent/flags.js';
import { Capability } from '../../gen/virtprivsep/privhelper/v1/declaration_pb.js';
import { declaredBy, services } from '../../privhelper/declarations.js';
import { parseFlags as parseHelperFlags } from '../../privhelper/flags.js';
import { imagePrograms } from '../harness/deploy/image.js';
import {
  type ContainerSpec,
  container,
  type DaemonSet,
  daemonSet,
  type KubeObject,
  type PodSpec,
  render,
} from '../harness/deploy/manifest.js';
import { repositoryRoot } from '../harness/pods/bundle.js';

const variants = ['base', 'overlays/privileged', 'overlays/seccomp', 'overlays/two-daemonsets'] as const;
const rendered = new Map<string, KubeObject[]>();

beforeAll(async () => {
  for (const variant of variants) rendered.set(variant, await render(variant));
});

const deploy = (path: string) => readFileSync(join(repositoryRoot(), 'deploy', path), 'utf8');

function stock<T>(name: string): T {
  const file = new URL(`../vectors/process/${name}.json.gz`, import.meta.url);
  return JSON.parse(gunzipSync(readFileSync(file)).toString('utf8')) as T;
}

function objects(variant: string): KubeObject[] {
  return rendered.get(variant) ?? [];
}

function podSpecs(variant: string): PodSpec[] {
  return objects(variant)
    .filter((object): object is DaemonSet => object.kind === 'DaemonSet')
    .map(({ spec }) => spec.template.spec);
}

/** The pod that holds the container, and the container. */
function find(variant: string, name: string): [PodSpec, ContainerSpec] {
  const spec = podSpecs(variant).find(({ containers }) => containers.some((one) => one.name === name));
  if (spec === undefined) throw new Error(`no container ${name} in ${variant}`);
  return [spec, container(spec, name)];
}

function hostPaths(spec: PodSpec, { volumeMounts }: ContainerSpec): string[] {
  const names = new Set(volumeMounts.map(({ name }) => name));
  return spec.volumes.flatMap(({ name, hostPath }) => (names.has(name) && hostPath ? [hostPath.path] : []));
}

/** What the methods of the helper declare, all together. */
function declaredCapabilities(): string[] {
  const declared = services.flatMap(({ methods }) =>
    methods.flatMap((method) => declaredBy(method).declaration.capabilities),
  );
  return [...new Set(declared)].map((capability) => Capability[capability] ?? '');
}

describe.each(variants)('%s', (variant) => {
  it('the agent has no privilege', () => {
    const { securityContext: security } = find(variant, 'virt-handler')[1];
    expect(security.capabilities).toEqual({ drop: ['ALL'] });
    expect(security.runAsNonRoot).toBe(true);
    expect([0, 107]).not.toContain(security.runAsUser);
    expect(security.runAsUser).toBe(65531);
    expect(security.runAsGroup).toBe(65531);
    expect(security.allowPrivilegeEscalation).toBe(false);
    expect(security.readOnlyRootFilesystem).toBe(true);
    expect(security.privileged).toBeUndefined();
    expect(security.appArmorProfile).toBeUndefined();
    expect(security.seLinuxOptions).toBeUndefined();
  });

  it('the agent sees of the host only its own state, and the sockets read-only', () => {
    const [spec, agent] = find(variant, 'virt-handler');
    expect(hostPaths(spec, agent).filter((path) => path !== '/run/virt-privsep')).toEqual([
      '/var/run/kubevirt-private/ghost-records',
      '/var/run/kubevirt-private/network-info-cache',
    ]);
    expect(agent.volumeMounts.find(({ name }) => name === 'helper-sockets')?.readOnly).toBe(true);
  });

  it('every container has a system call filter and a read-only root', () => {
    for (const spec of podSpecs(variant)) {
      expect(spec.securityContext?.seccompProfile).toEqual({ type: 'RuntimeDefault' });
      for (const one of [...(spec.initContainers ?? []), ...spec.containers]) {
        expect(one.securityContext.readOnlyRootFilesystem).toBe(true);
        expect(['RuntimeDefault', 'Localhost', undefined]).toContain(
          one.securityContext.seccompProfile?.type,
        );
      }
    }
  });

  it('the service-account token is in the agent alone', () => {
    for (const spec of podSpecs(variant)) {
      expect(spec.automountServiceAccountToken).toBe(false);
      const tokens = spec.volumes.filter(({ projected }) =>
        projected?.sources.some(({ serviceAccountToken }) => serviceAccountToken !== undefined),
      );
      for (const one of [...(spec.initContainers ?? []), ...spec.containers]) {
        const mounts = one.volumeMounts.filter(({ name }) => tokens.some((volume) => volume.name === name));
        expect(mounts).toHaveLength(one.name === 'virt-handler' ? 1 : 0);
      }
    }
    const account = objects(variant).find(({ kind }) => kind === 'ServiceAccount');
    expect(account).toMatchObject({ automountServiceAccountToken: false });
  });

  it('AFT-011 CVE-2025-64434 no secret, so not the certificate of virt-api either', () => {
    expect(JSON.stringify(stock('daemonset.virt-handler'))).toContain('kubevirt-virt-handler-certs');
    for (const { volumes } of podSpecs(variant)) {
      for (const volume of volumes) expect(volume).not.toHaveProperty('secret');
    }
    expect(JSON.stringify(objects(variant))).not.toContain('kubevirt-virt-handler-certs');
  });

  it('AFT-039 no mount reaches the host', () => {
    for (const spec of podSpecs(variant)) {
      for (const one of [...(spec.initContainers ?? []), ...spec.containers]) {
        for (const mount of one.volumeMounts) expect(mount.mountPropagation).not.toBe('Bidirectional');
      }
    }
  });

  it('the helper has the host paths that it needs', () => {
    const [spec, helper] = find(variant, 'virt-privhelper');
    expect(spec.hostPID).toBe(true);
    expect(hostPaths(spec, helper).filter((path) => path !== '/run/virt-privsep')).toEqual([
      '/var/lib/kubelet/pods',
      '/var/run/kubevirt-private/container-disk-mount-state',
      '/var/run/kubevirt-private/hotplug-volume-mount-state',
      '/var/run/kubevirt-private/plugged-block-devices',
      '/sys/fs/cgroup',
      '/var/log/virt-privsep',
      '/dev/net/tun',
    ]);
    expect(helper.securityContext.appArmorProfile).toEqual({ type: 'Unconfined' });
    expect(helper.securityContext.seLinuxOptions).toEqual({ type: 'spc_t', level: 's0' });
  });

  it('no pod uses the network or IPC of the host', () => {
    for (const spec of podSpecs(variant)) {
      expect(spec.hostNetwork).toBeUndefined();
      expect(spec.hostIPC).toBeUndefined();
    }
  });

  it('exactly one pod of a node is found as virt-handler', () => {
    const found = objects(variant).filter(
      (object): object is DaemonSet =>
        object.kind === 'DaemonSet' &&
        (object as DaemonSet).spec.template.metadata.labels['kubevirt.io'] === 'virt-handler',
    );
    expect(found.map(({ metadata }) => metadata.name)).toEqual(['virt-handler']);
    for (const object of objects(variant)) {
      if (object.kind !== 'DaemonSet') continue;
      const { selector, template } = (object as DaemonSet).spec;
      expect(template.metadata.labels).toMatchObject(selector.matchLabels);
    }
  });

  it('both programs accept their arguments', () => {
    const agent = find(variant, 'virt-handler')[1];
    const helper = find(variant, 'virt-privhelper')[1];
    expect(agent.command).toEqual(['virt-handler']);
    expect(helper.command).toEqual(['virt-privhelper']);
    const { helperDir, privateDir } = parseAgentFlags(agent.args ?? [], {});
    const flags = parseHelperFlags(helper.args ?? []);
    const { socketDir, stateDir, hotplugStateDir, pluggedDevicesDir, auditFile, uid } = flags;
    const mounted = ({ volumeMounts }: ContainerSpec) => volumeMounts.map(({ mountPath }) => mountPath);
    expect(mounted(agent)).toEqual(expect.arrayContaining([helperDir, privateDir]));
    expect(mounted(helper)).toEqual(
      expect.arrayContaining([
        socketDir,
        stateDir,
        hotplugStateDir,
        pluggedDevicesDir,
        auditFile.replace(/\/[^/]+$/, ''),
      ]),
    );
    expect(uid).not.toBe(agent.securityContext.runAsUser);
    expect(flags.hostNetns).toBe('/proc/1/ns/net');
    expect(flags.hostCgroupns).toBe('/proc/1/ns/cgroup');
  });
});

describe('capabilities of the helper', () => {
  const own = ['LINUX_IMMUTABLE', 'SETGID', 'SETPCAP', 'SETUID'];

  it.each(variants.filter((variant) => variant !== 'overlays/privileged'))(
    'are what the methods declare, and what the audit log and giving up root take: %s',
    (variant) => {
      const { capabilities } = find(variant, 'virt-privhelper')[1].securityContext;
      expect(capabilities?.drop).toEqual(['ALL']);
      expect([...(capabilities?.add ?? [])].sort()).toEqual(
        [...new Set([...declaredCapabilities(), ...own])].sort(),
      );
    },
  );

  it('reach no other devices under systemd than are opened or made', () => {
    const unit = deploy('systemd/virt-privhelper.service');
    expect(unit).toMatch(/^DevicePolicy=closed$/m);
    const allowed = [...unit.matchAll(/^DeviceAllow=(.*)$/gm)].map(([, rule]) => rule);
    expect(allowed).toEqual(['/dev/net/tun rwm', '/dev/vhost-vsock r', 'block-* m']);
  });

  it('are the same for systemd', () => {
    const [, line = ''] =
      /^CapabilityBoundingSet=(.*)$/m.exec(deploy('systemd/virt-privhelper.service')) ?? [];
    expect(line.split(' ').sort()).toEqual(
      [...new Set([...declaredCapabilities(), ...own])].map((name) => `CAP_${name}`).sort(),
    );
  });

  it('the privileged variant differs in nothing else', () => {
    const [base] = podSpecs('base');
    const [privileged] = podSpecs('overlays/privileged');
    const { capabilities: _, ...security } = container(base as PodSpec, 'virt-privhelper').securityContext;
    const sorted = (spec?: PodSpec) =>
      [...(spec?.containers ?? [])].sort((a, b) => a.name.localeCompare(b.name));
    expect(sorted(privileged)).toEqual(
      sorted(base).map((one) =>
        one.name === 'virt-privhelper' ? { ...one, securityContext: { ...security, privileged: true } } : one,
      ),
    );
    expect({ ...privileged, containers: [] }).toEqual({ ...base, containers: [] });
  });
});

describe('two DaemonSets', () => {
  it('only the pod of the helper sees the processes of the host', () => {
    expect(find('overlays/two-daemonsets', 'virt-handler')[0].hostPID).toBeUndefined();
    expect(find('overlays/two-daemonsets', 'virt-privhelper')[0].hostPID).toBe(true);
  });

  it('neither pod has volumes of the other, and both the directory of the sockets', () => {
    for (const spec of podSpecs('overlays/two-daemonsets')) {
      const used = [...(spec.initContainers ?? []), ...spec.containers].flatMap(({ volumeMounts }) =>
        volumeMounts.map(({ name }) => name),
      );
      expect(new Set(spec.volumes.map(({ name }) => name))).toEqual(new Set(used));
      expect(spec.volumes).toContainEqual({
        name: 'helper-sockets',
        hostPath: { path: '/run/virt-privsep', type: 'DirectoryOrCreate' },
      });
    }
  });
});

describe('in place of virt-handler', () => {
  it('what other components match on is as in the stock DaemonSet', () => {
    const theirs = stock<DaemonSet>('daemonset.virt-handler');
    const ours = daemonSet(objects('base'), 'virt-handler');
    expect(ours.metadata).toEqual(theirs.metadata);
    expect(ours.spec.selector).toEqual(theirs.spec.selector);
    expect(ours.spec.template.metadata).toEqual(theirs.spec.template.metadata);
    const facts = ({ spec }: DaemonSet) => {
      const { hostPID, priorityClassName, serviceAccountName, tolerations } = spec.template.spec as PodSpec &
        Record<string, unknown>;
      return { hostPID, priorityClassName, serviceAccountName, tolerations };
    };
    expect(facts(ours)).toEqual(facts(theirs));
    expect(ours.spec.template.spec.containers[0]?.name).toBe('virt-handler');
    expect(ours.spec.template.spec.containers[0]?.env).toEqual(theirs.spec.template.spec.containers[0]?.env);
  });

  it('the patch of the KubeVirt object turns the stock DaemonSet into ours', () => {
    const check = spawnSync(process.execPath, ['scripts/kubevirt-cr-patch.mjs', '--check'], {
      cwd: repositoryRoot(),
      encoding: 'utf8',
    });
    expect(check.stderr).toBe('');
    const { spec } = parse(deploy('kubevirt-cr/patch.yaml')) as {
      spec: { customizeComponents: { patches: { resourceType: string; type: string; patch: string }[] } };
    };
    const [patch] = spec.customizeComponents.patches;
    expect(patch).toMatchObject({ resourceType: 'DaemonSet', resourceName: 'virt-handler', type: 'json' });
    const kubectl = spawnSync(
      'kubectl',
      ['patch', '--local', '--filename=-', '--type=json', `--patch=${patch?.patch}`, '--output=json'],
      { input: JSON.stringify(stock('daemonset.virt-handler')), encoding: 'utf8' },
    );
    expect(kubectl.stderr).toBe('');
    const patched: unknown = JSON.parse(kubectl.stdout);
    const base = daemonSet(objects('base'), 'virt-handler');
    expect(patched).toMatchObject({ spec: { selector: base.spec.selector, template: base.spec.template } });
    expect(JSON.stringify(patched)).not.toContain('kubevirt-virt-handler-certs');
  });

  interface Rule {
    readonly apiGroups: readonly string[];
    readonly resources: readonly string[];
    readonly verbs: readonly string[];
  }
  const grants = (all: readonly unknown[]) =>
    (all as { kind: string; rules?: Rule[] }[])
      .filter(({ kind }) => kind === 'ClusterRole' || kind === 'Role')
      .flatMap(({ rules }) => rules ?? [])
      .flatMap(({ apiGroups, resources, verbs }) =>
        apiGroups.flatMap((group) =>
          resources.flatMap((resource) => verbs.map((verb) => `${verb} ${group}/${resource}`)),
        ),
      );

  it('the role grants less than that of virt-handler', () => {
    const theirs = grants(stock<unknown[]>('rbac.virt-handler'));
    const ours = grants(objects('base'));
    const [role] = objects('base').filter(({ kind }) => kind === 'Role');
    expect(role).toMatchObject({
      metadata: { namespace: 'kubevirt' },
      rules: [{ resources: ['configmaps'], resourceNames: ['kubevirt-ca'] }],
    });
    expect(theirs).toEqual(expect.arrayContaining(ours));
    expect(ours.length).toBeLessThan(theirs.length);
  });
});

describe('admission', () => {
  interface Policy extends KubeObject {
    readonly spec: {
      readonly failurePolicy: string;
      readonly matchConditions: readonly { readonly expression: string }[];
      readonly matchConstraints: {
        readonly resourceRules: readonly { readonly operations: string[]; readonly resources: string[] }[];
      };
      readonly variables: readonly { readonly name: string; readonly expression: string }[];
      readonly validations: readonly { readonly expression: string; readonly reason: string }[];
    };
  }
  const policies = () =>
    objects('base').filter(({ kind }) => kind === 'ValidatingAdmissionPolicy') as Policy[];

  it('AFT-013 CVE-2023-26484 CVE-2025-64436 covers nodes and VMIs, fails closed, is bound, and asks for the node of the token', () => {
    expect(policies().flatMap(({ spec }) => spec.matchConstraints.resourceRules[0]?.resources)).toEqual([
      'nodes',
      'nodes/*',
      'virtualmachineinstances',
      'virtualmachineinstances/*',
    ]);
    const bindings = objects('base').filter(({ kind }) => kind === 'ValidatingAdmissionPolicyBinding');
    for (const { metadata, spec } of policies()) {
      expect(spec.failurePolicy).toBe('Fail');
      expect(spec.matchConstraints.resourceRules.flatMap(({ operations }) => operations)).toEqual(['UPDATE']);
      expect(spec.matchConditions.map(({ expression }) => expression)).toEqual([
        'request.userInfo.username == "system:serviceaccount:kubevirt:kubevirt-handler"',
      ]);
      expect(spec.variables.find(({ name }) => name === 'node')?.expression).toContain(
        'request.userInfo.extra["authentication.kubernetes.io/node-name"][0]',
      );
      expect(spec.validations.every(({ reason }) => reason === 'Forbidden')).toBe(true);
      expect(spec.validations.some(({ expression }) => expression.includes('variables.node'))).toBe(true);
      expect(bindings).toContainEqual(
        expect.objectContaining({ spec: { policyName: metadata.name, validationActions: ['Deny'] } }),
      );
    }
  });
});

describe('files for nodes', () => {
  it.each(['virt-handler', 'virt-privhelper'])('the seccomp profile of %s denies by default', (name) => {
    const profile = JSON.parse(deploy(`seccomp/${name}.json`)) as {
      defaultAction: string;
      syscalls: { names: string[]; action: string; args?: unknown[] }[];
    };
    expect(profile.defaultAction).toBe('SCMP_ACT_ERRNO');
    const free = profile.syscalls
      .filter(({ action, args }) => action === 'SCMP_ACT_ALLOW' && args === undefined)
      .flatMap(({ names }) => names);
    const never = ['bpf', 'init_module', 'kexec_load', 'ptrace', 'process_vm_writev', 'mount', 'pivot_root'];
    const entering = ['setns', 'move_mount', 'open_tree', 'setresuid', 'umount2'];
    const others = ['clone', 'unshare', 'socket', 'io_uring_setup', 'perf_event_open', 'add_key', 'mknodat'];
    for (const call of [...never, ...others]) expect(free).not.toContain(call);
    for (const call of entering) expect(free.includes(call)).toBe(name === 'virt-privhelper');
  });

  it('the overlay names the profiles that there are', () => {
    for (const one of podSpecs('overlays/seccomp').flatMap(({ containers }) => containers)) {
      const { localhostProfile = '' } = one.securityContext.seccompProfile ?? {};
      expect(existsSync(join(repositoryRoot(), 'deploy/seccomp', basename(localhostProfile)))).toBe(true);
    }
  });

  it('the image has the programs that manifests and units start', () => {
    const programs = imagePrograms();
    for (const file of programs.values()) {
      const source = join(repositoryRoot(), file.replace(/\.js$/, '.ts'));
      expect(readFileSync(source, 'utf8')).toMatch(/^#!\/usr\/bin\/env node\n/);
    }
    const units = ['virt-agent.service', 'virt-privhelper.service'].map((unit) => deploy(`systemd/${unit}`));
    const started = units.map((unit) => /^ExecStart=\/usr\/local\/bin\/(\S+)/m.exec(unit)?.[1] ?? '');
    for (const name of ['virt-handler', 'privctl', ...started]) expect([...programs.keys()]).toContain(name);
  });

  it.skipIf(!existsSync('/usr/bin/systemd-analyze'))('systemd understands the units', () => {
    const directory = mkdtempSync(join(tmpdir(), 'vp-units-'));
    try {
      const units = ['virt-agent.service', 'virt-privhelper.service'].map((unit) => {
        const file = join(directory, unit);
        writeFileSync(
          file,
          deploy(`systemd/${unit}`).replace(/^ExecStart=\S+/m, `ExecStart=${process.execPath}`),
        );
        return file;
      });
      const { stderr, status } = spawnSync('systemd-analyze', ['verify', '--man=no', ...units], {
        encoding: 'utf8',
      });
      expect(stderr).toBe('');
      expect(status).toBe(0);
    } finally {
      rmSync(directory, { recursive: true, force: true });
    }
  });
});
