import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { fromBinary, toBinary, toJson } from '@bufbuild/protobuf';
import { Client, credentials, Server, ServerCredentials, type ServiceError, status } from '@grpc/grpc-js';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Vmi } from '../../agent/api/vmi.js';
import { Cmd } from '../../gen/kubevirt/cmd/v1/cmd_pb.js';
import { addCmdServices } from '../harness/launcher/cmd-server.js';
import { leaseFor } from '../harness/launcher/dhcp.js';
import type { JsonObject } from '../harness/launcher/domain-document.js';
import { domainDocument, emptySpec, machineSpec } from '../harness/launcher/domain-document.js';
import type { DomainManager } from '../harness/launcher/domain-manager.js';
import { noFaults } from '../harness/launcher/faults.js';
import { callUnary } from '../harness/launcher/grpc.js';
import { LibvirtError, reasonName, stateName } from '../harness/launcher/libvirt.js';
import { type Failed, notify, type Observation } from '../harness/launcher/notifications.js';

interface Case {
  readonly name: string;
  readonly input: Record<string, unknown>;
  readonly expected: Record<string, unknown>;
}

function load(file: string, area = 'wire'): unknown {
  return JSON.parse(
    gunzipSync(readFileSync(new URL(`./${area}/${file}.gz`, import.meta.url))).toString('utf8'),
  );
}

const cases = (file: string) => load(file) as Case[];

const implemented = new Set([
  'Ping',
  'SyncVirtualMachine',
  'PauseVirtualMachine',
  'UnpauseVirtualMachine',
  'ShutdownVirtualMachine',
  'KillVirtualMachine',
  'DeleteVirtualMachine',
  'ResetVirtualMachine',
  'HotplugHostDevices',
  'SoftRebootVirtualMachine',
  'SignalTargetPodCleanup',
  'GetDomain',
  'GetDomainStats',
  'GetGuestInfo',
  'GetUsers',
  'GetFilesystems',
  'GetQemuVersion',
]);

/** The manager that the cases were recorded with: all commands do the same, questions have fixed answers. */
function scriptedManager(scenario: () => string): DomainManager {
  const act = async () => {
    if (scenario().endsWith('/go-error')) throw new Error('plain failure');
    if (scenario().endsWith('/libvirt-error')) {
      throw new LibvirtError(55, 10, 'Requested operation is not valid: domain is not running');
    }
  };
  const expectedJson = (field: string) => {
    const response = recorded(scenario()).expected['response'] as Record<string, string>;
    return JSON.parse(response[field] ?? 'null') as never;
  };
  return {
    sync: act,
    pause: act,
    unpause: act,
    reset: act,
    softReboot: act,
    shutdown: act,
    kill: act,
    delete: act,
    hotplugHostDevices: act,
    domains: async () => {
      await act();
      if (scenario() === 'GetDomain/none') return [];
      return [expectedJson('domain'), { kind: 'second' }];
    },
    stats: async () => {
      await act();
      return expectedJson('domainStats');
    },
    qemuVersion: async () => {
      await act();
      return '9.1.0';
    },
    guestInfo: async () => expectedJson('guestInfoResponse'),
    users: async () => expectedJson('guestUserListResponse'),
    filesystems: async () => expectedJson('guestFilesystemsResponse'),
  };
}

const serverCases = cases('cmd_server.json');

function recorded(name: string): Case {
  const found = serverCases.find((each) => each.name === name);
  if (found === undefined) throw new Error(`no case ${name}`);
  return found;
}

describe('launcher command server', () => {
  let scenario = '';
  const server = new Server();
  let client: Client;

  beforeAll(async () => {
    addCmdServices(server, {
      manager: scriptedManager(() => scenario),
      faults: noFaults,
      onTargetPodCleanup: () => {},
      onCommand: () => {},
    });
    const port = await new Promise<number>((resolve, reject) =>
      server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, bound) =>
        error === null ? resolve(bound) : reject(error),
      ),
    );
    client = new Client(`127.0.0.1:${port}`, credentials.createInsecure());
  });
  afterAll(() => {
    client.close();
    server.forceShutdown();
  });

  for (const { name, input, expected } of serverCases) {
    it(`LAU-001 ${name}`, async () => {
      scenario = name;
      const method = Cmd.methods.find((each) => each.name === input['rpc']);
      if (method === undefined) throw new Error(`no such RPC: ${String(input['rpc'])}`);
      const request = fromBinary(method.input, Buffer.from(String(input['requestBase64']), 'base64'));
      const call = callUnary(client, method, request, 5000);
      if (!implemented.has(method.name)) {
        expect(((await call.catch((error: ServiceError) => error)) as ServiceError).code).toBe(
          status.UNIMPLEMENTED,
        );
        return;
      }
      const wanted = fromBinary(method.output, Buffer.from(String(expected['responseBase64']), 'base64'));
      expect(toJson(method.output, await call)).toEqual(toJson(method.output, wanted));
    });
  }

  it('LAU-001 answers are the recorded bytes for fields in order', () => {
    const bytes = toBinary(Cmd.method.pauseVirtualMachine.output, {
      $typeName: 'kubevirt.cmd.v1.Response',
      success: false,
      message: 'plain failure',
    });
    // As recorded of PauseVirtualMachine/go-error.
    expect(Buffer.from(bytes).toString('base64')).toBe('Eg1wbGFpbiBmYWlsdXJl');
  });
});

const uid = '1f3c7b1e-6f0d-4a53-9a52-3a7a3c1f9f10';
const uuid = '5a9fc181-957e-5c32-9e5a-2de5e9673531';
const metadata = {
  UID: uid,
  GracePeriod: { DeletionGracePeriodSeconds: 30, DeletionTimestamp: null, MarkedForGracefulShutdown: null },
};
const machine = {
  name: 'default_testvmi',
  uuid,
  memoryMiB: 1024,
  cpus: 2,
  acpi: true,
  disks: [
    {
      volume: 'containerdisk',
      path: '/var/run/kubevirt/container-disks/disk_0.img',
      device: 'disk',
      bus: 'virtio',
      bootOrder: 1,
    },
    { volume: 'cd', path: '/var/run/kubevirt/container-disks/disk_1.img', device: 'cdrom', bus: 'sata' },
  ],
  nics: [{ network: 'default', tap: 'tap0', mac: '02:00:00:aa:bb:cc', mtu: 1450, model: 'virtio' }],
  runDirectory: '/var/run/libvirt/qemu/run',
  consoleDirectory: `/var/run/kubevirt-private/${uid}`,
} as const;

function failed(text: unknown): Failed | undefined {
  if (text === undefined) return undefined;
  return text === 'not found' ? 'not found' : 'failed';
}

describe('launcher notifications', () => {
  for (const { name, input, expected } of cases('launcher_events.json')) {
    it(`LAU-002 ${name}`, () => {
      const libvirt = { state: Number(input['libvirtState']), reason: Number(input['libvirtReason']) };
      const errors = (input['diskErrors'] ?? []) as { code: number }[];
      const observed: Observation = {
        state: failed(input['lookup']) ?? failed(input['getState']) ?? libvirt,
        spec: failed(input['getXML']) ?? ((meta) => machineSpec(machine, 'pc-q35-7.2', true, meta)),
        diskErrors: errors.map(({ code }) => ({ volume: 'containerdisk', code })),
      };
      const lifecycle =
        input['event'] === undefined
          ? undefined
          : { event: Number(input['event']), detail: Number(input['detail']) };
      const jobOperation = input['jobOperation'] === undefined ? undefined : Number(input['jobOperation']);
      const sent = notify(
        { namespace: 'default', name: 'testvmi' },
        uid,
        { lifecycle, jobOperation },
        observed,
        metadata,
        { count: 0, info: null },
        '2026-01-02T03:04:05Z',
      );
      expect(sent.domainEvent === undefined ? [] : [summary(sent.domainEvent)]).toEqual(
        expected['domainEventsSent'],
      );
      expect(sent.k8sEvents).toEqual(expected['k8sEventsSent']);
      expect(sent.signal === undefined ? [] : [sent.signal]).toEqual(expected['signalledToMainLoop']);
    });
  }

  for (const { name, input, expected } of cases('conv_state_reason.json')) {
    it(`LAU-002 ${name}`, () => {
      const libvirt = { state: Number(input['libvirtState']), reason: Number(input['libvirtReason']) };
      expect({ status: stateName(libvirt.state), reason: reasonName(libvirt) }).toEqual(expected);
    });
  }
});

interface DomainParts {
  readonly ObjectMeta: Record<string, unknown>;
  readonly Spec: {
    readonly Name: string;
    readonly UUID: string;
    readonly Metadata: { readonly KubeVirt: Record<string, unknown> };
  };
  readonly Status: Record<string, unknown>;
}

function summary(event: { readonly type: string; readonly domain: JsonObject }) {
  const { ObjectMeta, Spec, Status } = event.domain as unknown as DomainParts;
  return {
    eventType: event.type,
    domain: {
      deletionTimestampSet: ObjectMeta['deletionTimestamp'] !== undefined,
      gracePeriodPresent: Spec.Metadata.KubeVirt['GracePeriod'] !== null,
      kubevirtUID: Spec.Metadata.KubeVirt['UID'],
      name: ObjectMeta['name'],
      namespace: ObjectMeta['namespace'],
      panicCount: Status['PanicCount'],
      panicInfo: Status['GuestPanicInfo'],
      reason: Status['Reason'],
      specName: Spec.Name,
      specUUID: Spec.UUID,
      status: Status['Status'],
      uid: ObjectMeta['uid'],
    },
  };
}

interface Field {
  readonly json: string;
  readonly type: string;
}

/** Differences between a value and a type of the schema: missing, surplus and mistyped members. */
function faults(
  value: unknown,
  type: string,
  schema: Readonly<Record<string, Field[]>>,
  path: string,
): string[] {
  const optional = / \| null$/.exec(type);
  if (optional !== null)
    return value === null ? [] : faults(value, type.slice(0, optional.index), schema, path);
  const array = /^Array<(.*)>$/.exec(type);
  if (array?.[1] !== undefined) {
    if (!Array.isArray(value)) return [`${path}: not an array`];
    const element = array[1];
    return value.flatMap((each, index) => faults(each, element, schema, `${path}[${index}]`));
  }
  if (type === 'string') return typeof value === 'string' ? [] : [`${path}: not a string`];
  if (type === 'boolean') return typeof value === 'boolean' ? [] : [`${path}: not a boolean`];
  if (/^(u?int(\d+)?|float64)$/.test(type)) return typeof value === 'number' ? [] : [`${path}: not a number`];
  if (type === '{Space: string, Local: string}') {
    return Object.keys(value as object).join() === 'Space,Local' ? [] : [`${path}: not a name`];
  }
  const fields = schema[type];
  if (fields === undefined) return typeof value === 'string' ? [] : [`${path}: unknown type ${type}`];
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return [`${path}: not an object`];
  const given = value as Record<string, unknown>;
  const names = fields.map((field) => field.json).filter((name) => !name.startsWith('('));
  return [
    ...names.filter((name) => !(name in given)).map((name) => `${path}.${name}: missing`),
    ...Object.keys(given)
      .filter(
        (name) => !names.includes(name) && !(type === 'Domain' && ['kind', 'apiVersion'].includes(name)),
      )
      .map((name) => `${path}.${name}: surplus`),
    ...fields
      .filter((field) => field.json in given && field.type !== 'ObjectMeta')
      .flatMap((field) => faults(given[field.json], field.type, schema, `${path}.${field.json}`)),
  ];
}

describe('launcher domain documents', () => {
  const schema = load('data/domain-schema.json') as Record<string, Field[]>;
  const name = { namespace: 'default', name: 'testvmi', uid };
  const state = { Status: 'Running', Reason: 'Unknown', GuestPanicInfo: null, PanicCount: 0 };

  it.each([
    ['running', machineSpec(machine, 'pc-q35-7.2', true, metadata)],
    ['shut off', machineSpec(machine, 'pc-q35-7.2', false, metadata)],
    ['without devices', machineSpec({ ...machine, disks: [], nics: [] }, 'pc-q35-7.2', true, metadata)],
    ['gone', emptySpec(metadata)],
  ])('LAU-003 a domain that is %s has all keys of the schema, and no other', (_, spec) => {
    expect(faults(domainDocument(name, spec, state), 'Domain', schema, 'Domain')).toEqual([]);
  });

  it('LAU-003 the check itself sees a missing, a surplus and a mistyped key', () => {
    const document = domainDocument(name, emptySpec(metadata), state);
    const { PanicCount: _, ...broken } = document['Status'] as JsonObject;
    const found = faults({ ...document, Status: { ...broken, Reason: 1, X: 1 } }, 'Domain', schema, 'Domain');
    expect(found.sort()).toEqual([
      'Domain.Status.PanicCount: missing',
      'Domain.Status.Reason: not a string',
      'Domain.Status.X: surplus',
    ]);
  });

  const gone = cases('domain_json.json').filter((each) => each.name === 'gone (final delete notification)');
  it.each(gone)('LAU-003 the document of a domain that is $name is the recorded one', ({ expected }) => {
    const document = domainDocument(
      { ...name, deletionTimestamp: 'DELETION_TIMESTAMP' },
      emptySpec({ UID: uid, GracePeriod: null }),
      { ...state, Status: 'NoState', Reason: 'NonExistent' },
    );
    const wanted = expected['domainJSON'];
    expect(document).toEqual(typeof wanted === 'string' ? JSON.parse(wanted) : wanted);
  });
});

describe('launcher DHCP leases', () => {
  const vif = { IP: '' as const, MAC: null, Gateway: '', IPAMDisabled: false, Routes: null };
  const link = (_: string, attribute: 'address' | 'mtu') =>
    attribute === 'mtu' ? '1450' : '0a:58:0a:f4:02:05';
  const vmiWith = (given: object, pod: object) =>
    ({
      metadata: { name: 'vm1', namespace: 'default', uid },
      spec: {
        domain: { devices: { interfaces: [{ name: 'default', ...given }] } },
        networks: [{ name: 'default', pod }],
      },
      status: {},
    }) as unknown as Vmi;

  const v4 = (load('masquerade-guest-address.json', 'network') as Case[]).filter(({ name }) =>
    name.startsWith('v4'),
  );
  for (const { name, input, expected } of v4) {
    it(`masquerade ${name}`, () => {
      const vmi = vmiWith({ masquerade: {} }, input['pod'] as object);
      const lease = () => leaseFor(vmi, { name: 'default', masquerade: {} }, 0, () => vif, link, []);
      if (expected['error'] !== '') {
        expect(lease).toThrow(String(expected['error']));
        return;
      }
      const found = lease();
      expect(`${found?.address}/${prefixOf(found?.mask)}`).toBe(expected['vm']);
      expect(`${found?.gateway}/${prefixOf(found?.mask)}`).toBe(expected['gateway']);
    });
  }

  it('bridge: what the node agent noted', () => {
    const given = {
      name: 'default',
      bridge: {},
      dhcpOptions: { bootFileName: 'http://peer/boot', tftpServerName: 'peer' },
    };
    const base64 = (bytes: number[]) => Buffer.from(bytes).toString('base64');
    const cache = {
      IP: { IP: '10.244.2.5', Mask: base64([255, 255, 255, 0]) },
      MAC: base64([0x0a, 0x58, 0x0a, 0xf4, 0x02, 0x05]),
      Gateway: '10.244.2.1',
      IPAMDisabled: false,
      Routes: [
        { Dst: null, Gw: '10.244.2.1' },
        { Dst: { IP: '10.96.0.0', Mask: base64([255, 240, 0, 0]) }, Gw: '10.244.2.254' },
      ],
    };
    expect(leaseFor(vmiWith(given, {}), given, 2, () => cache, link, ['10.96.0.10'])).toEqual({
      interface: 'k6t-eth0',
      mac: '0a:58:0a:f4:02:05',
      server: '169.254.75.12',
      address: '10.244.2.5',
      mask: '255.255.255.0',
      gateway: '10.244.2.1',
      routes: [{ network: '10.96.0.0', prefixLength: 12, gateway: '10.244.2.254' }],
      mtu: 1450,
      hostname: 'vm1',
      nameservers: ['10.96.0.10'],
      bootFileName: 'http://peer/boot',
      tftpServerName: 'peer',
    });
    expect(
      leaseFor(vmiWith(given, {}), given, 0, () => ({ ...cache, IPAMDisabled: true }), link, []),
    ).toBeUndefined();
  });
});

function prefixOf(mask: string | undefined): number {
  return (mask ?? '')
    .split('.')
    .reduce((sum, part) => sum + Number(part).toString(2).replaceAll('0', '').length, 0);
}
