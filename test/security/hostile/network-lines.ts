/** The methods about pod networks. */
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type ApplyRequest,
  type Attachment,
  type MasqueradeBinding,
  MigrationSide,
  NetworkService,
  Protocol,
} from '../../../gen/virtprivsep/privhelper/v1/network_pb.js';
import { type Line, launcher, line, pod, type Use } from './line.js';
import { passtSocket } from './pod.js';

const record: Use = { entry: 'private/vif-cache-net1.json', how: 'make' };
const droppedFiles = ['vif-cache-net7.json', 'dhcp_started-net7'].map(
  (name): Use => ({ entry: `private/${name}`, how: 'make' }),
);
const passt: Use = { entry: passtSocket, how: 'connect' };

/** A change of one attachment of a network set-up. */
function attachment(at: number, field: string, change: (attachment: Attachment) => void) {
  const inRequest = ({ attachments }: ApplyRequest) => {
    const found = attachments[at];
    if (found !== undefined) change(found);
  };
  return [`attachments[${at}].${field}`, inRequest] as const;
}

function masquerade(field: string, change: (binding: MasqueradeBinding) => void) {
  return attachment(0, `masquerade.${field}`, ({ binding }) => {
    if (binding.case === 'masquerade') change(binding.value);
  });
}

/** One interface of each binding, with every field set. */
const network = {
  attachments: [
    {
      network: 'default',
      podInterface: 'eth0',
      primary: true,
      index: 1,
      queues: 2,
      binding: {
        case: 'masquerade',
        value: {
          ipv4Cidr: '10.0.2.0/24',
          ipv6Cidr: 'fd10:0:2::/120',
          ports: [{ protocol: Protocol.TCP, port: 22, endPort: 23 }],
        },
      },
    },
    {
      network: 'second',
      podInterface: 'net1',
      index: 2,
      binding: {
        case: 'bridge',
        value: {
          dhcp: {
            address: '192.168.77.2/24',
            mac: '02:00:00:00:00:01',
            gateway: '192.168.77.1',
            routes: [{ destination: '10.9.0.0/16', gateway: '192.168.77.1' }],
          },
        },
      },
    },
  ],
  detachments: [{ network: 'third', podInterface: 'net7' }],
  passt: true,
} satisfies MessageInitShape<typeof NetworkService.method.apply.input>;

export const networkLines: readonly Line[] = [
  line(NetworkService.method.observe, pod, { uses: [launcher] }),
  line(NetworkService.method.repairPasst, (target) => ({ ...pod(target), side: MigrationSide.SOURCE }), {
    uses: [launcher, passt],
  }),
  line(NetworkService.method.apply, (target) => ({ ...pod(target), ...network }), {
    uses: [launcher, record, ...droppedFiles],
    wrong: [
      attachment(0, 'binding', (a) => {
        a.binding = { case: undefined };
      }),
      ...['lo', 'a'.repeat(16), 'longer-name1'].map((name) =>
        attachment(0, 'pod_interface', (a) => {
          a.podInterface = name;
        }),
      ),
      attachment(0, 'index', (a) => {
        a.index = 100;
      }),
      attachment(0, 'queues', (a) => {
        a.queues = 257;
      }),
      attachment(1, 'primary', (a) => {
        a.primary = true;
      }),
      attachment(1, 'network', (a) => {
        a.network = 'default';
      }),
      ...['8.8.8.0/24', '0.0.0.0/0', '10.0.2.0/31', '10.0.2.0/33', '10.0.2.256/24', '::/64'].map((cidr) =>
        masquerade('ipv4_cidr', (binding) => {
          binding.ipv4Cidr = cidr;
        }),
      ),
      ...[0, 65536].map((port) =>
        masquerade('ports[0].port', ({ ports: [first] }) => {
          if (first !== undefined) first.port = port;
        }),
      ),
    ],
  }),
];
