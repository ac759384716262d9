/** Kubernetes objects as `kubectl kustomize` renders them from deploy/, as far as the tests look into them. */
import { join } from 'node:path';
import { parseAllDocuments } from 'yaml';
import { repositoryRoot } from '../pods/bundle.js';
import { run } from '../pods/run.js';

export interface KubeObject {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: {
    readonly name: string;
    readonly namespace?: string;
    readonly labels?: Readonly<Record<string, string>>;
  };
}

export interface DaemonSet extends KubeObject {
  readonly kind: 'DaemonSet';
  readonly spec: {
    readonly selector: { readonly matchLabels: Readonly<Record<string, string>> };
    readonly template: {
      readonly metadata: {
        readonly labels: Readonly<Record<string, string>>;
        readonly annotations?: Readonly<Record<string, string>>;
      };
      readonly spec: PodSpec;
    };
  };
}

export interface PodSpec {
  readonly hostPID?: boolean;
  readonly hostNetwork?: boolean;
  readonly hostIPC?: boolean;
  readonly automountServiceAccountToken?: boolean;
  readonly serviceAccountName: string;
  readonly securityContext?: { readonly seccompProfile?: SeccompProfile };
  readonly initContainers?: readonly ContainerSpec[];
  readonly containers: readonly ContainerSpec[];
  readonly volumes: readonly Volume[];
}

export interface ContainerSpec {
  readonly name: string;
  readonly image: string;
  readonly command: readonly string[];
  readonly args?: readonly string[];
  readonly env?: readonly EnvVar[];
  readonly securityContext: SecurityContext;
  readonly volumeMounts: readonly VolumeMount[];
}

export interface EnvVar {
  readonly name: string;
  readonly value?: string;
  readonly valueFrom?: { readonly fieldRef?: { readonly fieldPath: string } };
}

export interface SeccompProfile {
  readonly type: 'RuntimeDefault' | 'Unconfined' | 'Localhost';
  readonly localhostProfile?: string;
}

export interface SecurityContext {
  readonly runAsUser: number;
  readonly runAsGroup: number;
  readonly runAsNonRoot?: boolean;
  readonly privileged?: boolean;
  readonly allowPrivilegeEscalation?: boolean;
  readonly readOnlyRootFilesystem?: boolean;
  readonly capabilities?: { readonly drop?: readonly string[]; readonly add?: readonly string[] };
  readonly seccompProfile?: SeccompProfile;
  readonly appArmorProfile?: { readonly type: string };
  readonly seLinuxOptions?: { readonly type?: string; readonly level?: string };
}

export interface VolumeMount {
  readonly name: string;
  readonly mountPath: string;
  readonly readOnly?: boolean;
  readonly mountPropagation?: 'None' | 'HostToContainer' | 'Bidirectional';
}

export interface Volume {
  readonly name: string;
  readonly emptyDir?: object;
  readonly hostPath?: {
    readonly path: string;
    readonly type?: 'Directory' | 'DirectoryOrCreate' | 'CharDevice';
  };
  readonly projected?: { readonly sources: readonly ProjectedSource[] };
}

export interface ProjectedSource {
  readonly serviceAccountToken?: { readonly path: string };
  readonly configMap?: {
    readonly name: string;
    readonly items: readonly { readonly key: string; readonly path: string }[];
  };
  readonly downwardAPI?: {
    readonly items: readonly { readonly path: string; readonly fieldRef: { readonly fieldPath: string } }[];
  };
}

/** The objects of a directory below deploy/. */
export async function render(directory: string): Promise<KubeObject[]> {
  const text = await run('kubectl', ['kustomize', join(repositoryRoot(), 'deploy', directory)]);
  return parseAllDocuments(text).map((document) => document.toJS() as KubeObject);
}

/** Throws when there is none of that name. */
export function daemonSet(objects: readonly KubeObject[], name: string): DaemonSet {
  const found = objects.find((object) => object.kind === 'DaemonSet' && object.metadata.name === name);
  if (found === undefined) throw new Error(`no DaemonSet ${name}`);
  return found as DaemonSet;
}

/** Throws when there is none of that name. */
export function container(spec: PodSpec, name: string): ContainerSpec {
  const found = [...(spec.initContainers ?? []), ...spec.containers].find((one) => one.name === name);
  if (found === undefined) throw new Error(`no container ${name}`);
  return found;
}

/** The pod spec with one container changed. */
export function withContainer(
  spec: PodSpec,
  name: string,
  change: (container: ContainerSpec) => ContainerSpec,
): PodSpec {
  const each = (one: ContainerSpec) => (one.name === name ? change(one) : one);
  return {
    ...spec,
    ...(spec.initContainers && { initContainers: spec.initContainers.map(each) }),
    containers: spec.containers.map(each),
  };
}

export function withoutMount(spec: PodSpec, name: string, volume: string): PodSpec {
  return withContainer(spec, name, (one) => ({
    ...one,
    volumeMounts: one.volumeMounts.filter((mount) => mount.name !== volume),
  }));
}

export function withoutCapability(spec: PodSpec, name: string, capability: string): PodSpec {
  return withContainer(spec, name, (one) => ({
    ...one,
    securityContext: {
      ...one.securityContext,
      capabilities: {
        ...one.securityContext.capabilities,
        add: (one.securityContext.capabilities?.add ?? []).filter((added) => added !== capability),
      },
    },
  }));
}
