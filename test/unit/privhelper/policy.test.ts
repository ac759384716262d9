import { create, type MessageInitShape } from '@bufbuild/protobuf';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type ApplyRequest,
  ApplyRequestSchema,
  Protocol,
} from '../../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { IdentifyRequestSchema } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import type { PodRef } from '../../../privhelper/policy/check.js';
import { apply } from '../../../privhelper/policy/network.js';
import { createPolicy } from '../../../privhelper/policy/policy.js';
import { podOnly, podUid as stat } from '../../../privhelper/policy/requests.js';
import { podA, refA, refusedField } from './fakes.js';

const policy = createPolicy();

describe('policy', () => {
  it('refuses a setting outside its bound, naming it', () => {
    expect(() => createPolicy({ maxTickets: 100_000 })).toThrow(/maxTickets/);
    expect(() => createPolicy({ agentUid: 0 })).toThrow(/agentUid/);
    expect(() => createPolicy({ qemuUid: 1.5 })).toThrow(/qemuUid/);
  });
});

describe('pod references', () => {
  const parse = (pod?: PodRef) => () =>
    podOnly.parse(policy, create(IdentifyRequestSchema, pod === undefined ? {} : { pod: { ...pod } }));

  it('passes canonical UUIDs unchanged', () => {
    expect(parse(refA)()).toEqual(refA);
  });

  it.each([
    ['', 'pod.pod_uid'],
    ['..', 'pod.pod_uid'],
    ['../../etc', 'pod.pod_uid'],
    [`${podA}/..`, 'pod.pod_uid'],
    [podA.toUpperCase().replaceAll('1', 'A'), 'pod.pod_uid'],
    [podA.replaceAll('-', ''), 'pod.pod_uid'],
    [`${podA}\n`, 'pod.pod_uid'],
    [` ${podA}`, 'pod.pod_uid'],
    [`${podA}\0`, 'pod.pod_uid'],
  ])('WIRE-022 refuses pod UID %j', (podUid, field) => {
    expect(refusedField(parse({ ...refA, podUid }))).toBe(field);
    expect(refusedField(parse({ podUid: refA.podUid, vmiUid: podUid }))).toBe('pod.vmi_uid');
    expect(refusedField(() => stat.parse(policy, { podUid } as never))).toBe('pod_uid');
  });

  it('refuses a request without pod', () => {
    expect(refusedField(parse())).toBe('pod');
  });

  it('refuses whatever is not a UUID', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 64 }), (podUid) => {
        expect(refusedField(parse({ ...refA, podUid }))).toBe('pod.pod_uid');
      }),
    );
  });
});

describe('network set-up', () => {
  type Init = MessageInitShape<typeof ApplyRequestSchema>;
  type AttachmentInit = NonNullable<Init['attachments']>[number];
  const request = (init: Init): ApplyRequest => create(ApplyRequestSchema, { ...init, pod: refA } as Init);
  const parse = (init: Init) => apply.parse(policy, request(init));
  const field = (init: Init) => refusedField(() => parse(init));
  const bridge = { case: 'bridge', value: {} } as const;
  const one = (more: Partial<AttachmentInit>): Init => ({
    attachments: [
      { network: 'default', podInterface: 'eth0', primary: true, binding: bridge, ...more } as AttachmentInit,
    ],
  });
  const masquerade = (value: object) => one({ binding: { case: 'masquerade', value } as never });
  const dhcp = (value: object) => one({ binding: { case: 'bridge', value: { dhcp: value } } as never });

  it('makes a plan with the default guest networks', () => {
    expect(parse(masquerade({ ports: [{ protocol: Protocol.TCP, port: 80 }] })).attachments).toEqual([
      {
        podInterface: 'eth0',
        primary: true,
        index: 0,
        queues: 0,
        binding: {
          kind: 'masquerade',
          ipv4: { network: '10.0.2.0', prefixLength: 24 },
          ipv6: { network: 'fd10:0:2::', prefixLength: 120 },
          ports: [{ protocol: 'tcp', port: 80, endPort: 0 }],
          istio: false,
          migrationOverTcp: false,
        },
      },
    ]);
  });

  it('makes a plan of a managed tap, and says in the audit log that the pod is for passt', () => {
    const setup = parse({ ...one({ binding: { case: 'managedTap', value: {} } as never }), passt: true });
    expect(setup.attachments).toMatchObject([{ podInterface: 'eth0', binding: { kind: 'managed-tap' } }]);
    expect(setup.records).toEqual([]);
    expect(apply.audited(setup)).toMatchObject({
      attachments: [{ podInterface: 'eth0', binding: 'managed-tap' }],
      passt: true,
    });
    expect(parse(one({})).passt).toBe(false);
  });

  it('clears host bits of a guest network', () => {
    const { binding } = parse(masquerade({ ipv4Cidr: '192.168.7.99/28', ipv6Cidr: 'FD00::1:2/112' }))
      .attachments[0] as never as { binding: { ipv4: object; ipv6: object } };
    expect(binding.ipv4).toEqual({ network: '192.168.7.96', prefixLength: 28 });
    expect(binding.ipv6).toEqual({ network: 'fd00::1:0', prefixLength: 112 });
  });

  it.each(['lo', '', '.', '..', 'a/b', 'eth0\0', 'e'.repeat(16), 'exactly12chr', 'eth 0'])(
    'NET-031 refuses pod interface %j',
    (podInterface) => {
      expect(field(one({ podInterface }))).toBe('attachments[0].pod_interface');
    },
  );

  it('passes the hashed name of a secondary interface', () => {
    expect(field(one({ podInterface: 'pod16477688c0e', primary: false }))).toBeUndefined();
  });

  it.each(['Default', 'storage_net', '-a', 'a'.repeat(240)])('accepts network %j', (network) => {
    expect(field(one({ network }))).toBeUndefined();
  });

  it.each(['', 'a.b', 'a b', 'a\n', 'a/b', 'ä', 'a'.repeat(241), '../x'])(
    'NET-031 refuses network %j',
    (network) => {
      expect(field(one({ network }))).toBe('attachments[0].network');
    },
  );

  it('bounds numbers and lists', () => {
    expect(field(one({ index: 100 }))).toBe('attachments[0].index');
    expect(field(one({ queues: 257 }))).toBe('attachments[0].queues');
    expect(field(one({ queues: 256, index: 99 }))).toBeUndefined();
    const [attachment] = one({}).attachments ?? [];
    expect(field({ attachments: new Array(65).fill(attachment) })).toBe('attachments');
    expect(field({ detachments: new Array(65).fill({ network: 'a', podInterface: 'net1' }) })).toBe(
      'detachments',
    );
    const ports = new Array(1025).fill({ protocol: Protocol.TCP, port: 1 });
    expect(field(masquerade({ ports }))).toBe('attachments[0].masquerade.ports');
  });

  it('refuses an attachment without binding', () => {
    expect(field(one({ binding: { case: undefined } as never }))).toBe('attachments[0].binding');
  });

  it('refuses names that occur twice, across attachments and detachments', () => {
    const first = { network: 'a', podInterface: 'net1', binding: bridge };
    const second = { network: 'b', podInterface: 'net2', binding: bridge };
    expect(field({ attachments: [first, second] })).toBeUndefined();
    expect(field({ attachments: [first, { ...second, network: 'a' }] })).toBe('attachments[1].network');
    expect(field({ attachments: [first, { ...second, podInterface: 'net1' }] })).toBe(
      'attachments[1].pod_interface',
    );
    // tap1 of net1 and of eth1
    expect(field({ attachments: [first, { ...second, podInterface: 'eth1' }] })).toBe(
      'attachments[1].pod_interface',
    );
    expect(field({ attachments: [first], detachments: [{ network: 'b', podInterface: 'net1' }] })).toBe(
      'detachments[0].pod_interface',
    );
    const primaries = [
      { ...first, primary: true },
      { ...second, primary: true },
    ];
    expect(field({ attachments: primaries })).toBe('attachments[1].primary');
  });

  it('refuses a second masquerade interface', () => {
    const binding = { case: 'masquerade', value: {} } as const;
    expect(
      field({
        attachments: [
          { network: 'a', podInterface: 'eth0', primary: true, binding },
          { network: 'b', podInterface: 'net1', binding },
        ],
      }),
    ).toBe('attachments[1].masquerade');
  });

  it.each([
    '8.8.8.0/24',
    '10.0.2.0/31',
    '10.0.2.0/33',
    '10.0.2.0',
    '0.0.0.0/0',
    '172.0.0.0/8',
    '127.0.0.0/8',
    '169.254.0.0/16',
    'fd10:0:2::/120',
    '10.0.2.0/24/24',
    '10.0.2/24',
    '010.0.2.0/24',
    ' 10.0.2.0/24',
  ])('NET-031 refuses guest network %j', (ipv4Cidr) => {
    expect(field(masquerade({ ipv4Cidr }))).toBe('attachments[0].masquerade.ipv4_cidr');
  });

  it.each([
    '2001:db8::/64',
    'fd10:0:2::/127',
    'fe80::/64',
    '::/0',
    '10.0.2.0/24',
    'fd10::%lo/120',
    'fc00::/6',
  ])('NET-031 refuses guest IPv6 network %j', (ipv6Cidr) => {
    expect(field(masquerade({ ipv6Cidr }))).toBe('attachments[0].masquerade.ipv6_cidr');
  });

  it.each([
    [{ protocol: Protocol.UNSPECIFIED, port: 80 }, 'protocol'],
    [{ protocol: 9, port: 80 }, 'protocol'],
    [{ protocol: Protocol.TCP, port: 0 }, 'port'],
    [{ protocol: Protocol.UDP, port: 65536 }, 'port'],
    [{ protocol: Protocol.SCTP, port: 80, endPort: 79 }, 'end_port'],
    [{ protocol: Protocol.TCP, port: 80, endPort: 65536 }, 'end_port'],
  ])('NET-031 refuses port %j', (port, name) => {
    expect(field(masquerade({ ports: [port] }))).toBe(`attachments[0].masquerade.ports[0].${name}`);
  });

  it('parses every field of a DHCP record', () => {
    const prefix = 'attachments[0].bridge.dhcp';
    const good = { address: '10.244.2.5/24', mac: '0a:58:0a:f4:00:05', gateway: '10.244.2.1', routes: [{}] };
    expect(field(dhcp(good))).toBeUndefined();
    expect(field(dhcp({ ...good, address: '' }))).toBe(`${prefix}.address`);
    expect(field(dhcp({ ...good, address: 'fd00::1/64' }))).toBe(`${prefix}.address`);
    expect(field(dhcp({ ...good, mac: '0A:58:0a:f4:00:05' }))).toBe(`${prefix}.mac`);
    expect(field(dhcp({ ...good, mac: '0a:58:0a:f4:00' }))).toBe(`${prefix}.mac`);
    expect(field(dhcp({ ...good, gateway: 'gateway' }))).toBe(`${prefix}.gateway`);
    expect(field(dhcp({ ...good, routes: [{ destination: '10.0.0.0' }] }))).toBe(
      `${prefix}.routes[0].destination`,
    );
    expect(field(dhcp({ ...good, routes: [{ gateway: '::1' }] }))).toBe(`${prefix}.routes[0].gateway`);
    expect(field(dhcp({ ...good, routes: new Array(65).fill({}) }))).toBe(`${prefix}.routes`);
    expect(field(dhcp({ ...good, ipamDisabled: true }))).toBe(`${prefix}.ipam_disabled`);
    expect(field(dhcp({ ipamDisabled: true }))).toBeUndefined();
  });
});
