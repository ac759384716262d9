/** `privctl describe`: what the helper can be asked to do. From this program itself, so it needs no helper. */
import { toJson } from '@bufbuild/protobuf';
import {
  Capability,
  type Declaration,
  Effect,
  Namespace,
} from '../../../gen/virtprivsep/privhelper/v1/declaration_pb.js';
import {
  type MethodDescription,
  MethodDescriptionSchema,
} from '../../../gen/virtprivsep/privhelper/v1/helper_pb.js';
import { table as agentTable, inspection } from '../../dispatch.js';
import { createPolicy } from '../../policy/policy.js';
import { type DeclaredEntry, declareAll, describeAll } from '../../server/routes.js';
import { CommandError, exitCodes, table } from '../output.js';
import type { Session } from '../session.js';
import { readOverrides } from './policy.js';

/** Every method, the agent's first. */
export function allMethods(): readonly DeclaredEntry[] {
  return declareAll([...agentTable, ...inspection]);
}

/** `PodService.Identify`, whatever its letters' case and with or without the package. */
export function findMethod(text: string): DeclaredEntry {
  const wanted = text.replace(/^virtprivsep\.privhelper\.v1\./, '').toLowerCase();
  const found = allMethods().find(({ declared }) => declared.name.toLowerCase() === wanted);
  if (found === undefined) {
    throw new CommandError(exitCodes.usage, `no method ${text}`, 'privctl describe lists them.');
  }
  return found;
}

const namespaces: Readonly<Record<Namespace, string>> = {
  [Namespace.UNSPECIFIED]: '',
  [Namespace.POD_NETWORK]: 'pod network',
  [Namespace.LAUNCHER_MOUNT]: 'launcher mount',
  [Namespace.CONTAINER_DISK_MOUNT]: 'disk mount',
  [Namespace.ATTACHMENT_MOUNT]: 'attachment mount',
};

const effects: Readonly<Record<Effect, string>> = {
  [Effect.UNSPECIFIED]: '',
  [Effect.READ]: 'looks',
  [Effect.CHANGES_POD]: 'changes pod',
  [Effect.CHANGES_HELPER]: 'changes helper',
  [Effect.CHANGES_NODE]: 'changes node',
};

export function capabilityNames({ capabilities }: Declaration): string {
  return capabilities.map((capability) => Capability[capability]).join(' ');
}

export function namespaceNames({ enters }: Declaration): string {
  return enters.map((namespace) => namespaces[namespace]).join(', ');
}

export async function describe(session: Session): Promise<void> {
  const [name] = session.args;
  const chosen = name === undefined ? allMethods() : [findMethod(name)];
  const { policyFile } = session.options;
  const policy = createPolicy(policyFile === undefined ? {} : readOverrides(policyFile));
  const described = describeAll(chosen, policy);
  if (session.json) {
    const options = { alwaysEmitImplicit: true };
    session.value({
      methods: described.map((method) => toJson(MethodDescriptionSchema, method, options)),
    });
  } else if (name !== undefined || session.options.full) {
    session.lines(described.flatMap((method, i) => [...(i === 0 ? [] : ['']), ...details(method)]));
  } else {
    session.lines(overview(chosen));
  }
}

function overview(methods: readonly DeclaredEntry[]): string[] {
  const rows = methods.map(({ entry, declared: { name, declaration, deadlineMs } }) => [
    name,
    capabilityNames(declaration),
    namespaceNames(declaration),
    effects[declaration.effect],
    deadlineMs === 0 ? 'stream' : `${deadlineMs / 1000} s`,
    entry.subject,
  ]);
  const titles = ['METHOD', 'RAISES', 'ENTERS', 'EFFECT', 'WITHIN', 'ABOUT'];
  return [
    ...table(
      titles.map((title) => ({ title })),
      rows,
    ),
    '',
    'privctl describe METHOD shows the checks; --full shows those of all.',
  ];
}

function details({ method, declaration, checks }: MethodDescription): string[] {
  if (declaration === undefined) return [];
  const none = (text: string) => (text === '' ? 'none' : text);
  return [
    method.replace(/^virtprivsep\.privhelper\.v1\./, ''),
    `  raises   ${none(capabilityNames(declaration))}`,
    `  enters   ${none(namespaceNames(declaration))}`,
    `  effect   ${effects[declaration.effect]}`,
    `  changes  ${declaration.changes}`,
    `  within   ${declaration.deadlineMs === 0 ? 'as long as the stream is read' : `${declaration.deadlineMs} ms`}`,
    ...(checks.length === 0 ? ['  checks   none: there is nothing to check'] : []),
    ...checks.map((check, i) => `  ${i === 0 ? 'checks ' : '       '}  ${i + 1}. ${check}`),
  ];
}
