/** VMI objects for the harness's guests, as virt-controller hands them to the node. */
import type { Vmi } from '../../../agent/api/vmi.js';

export interface GuestVmiOptions {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  readonly nodeName: string;
  /** Launcher pods: UID -> node name. */
  readonly activePods: Readonly<Record<string, string>>;
  readonly binding: 'bridge' | 'masquerade';
  /** Boot script of the guest (default: none). */
  readonly bootUrl?: string;
  readonly terminationGracePeriodSeconds?: number;
  /** Size of a claim that is the guest's second disk, for instance `4Mi` (default: none). */
  readonly claim?: string;
  /** Beside one core. */
  readonly cpu?: NonNullable<Vmi['spec']['domain']>['cpu'];
}

/** Name of the volume of the claim. */
export const claimVolume = 'data';

/** A non-root VMI in phase Scheduled with one container disk and one pod network. */
export function guestVmi(options: GuestVmiOptions): Vmi {
  return {
    apiVersion: 'kubevirt.io/v1',
    kind: 'VirtualMachineInstance',
    metadata: {
      namespace: options.namespace,
      name: options.name,
      uid: options.uid,
      labels: { 'kubevirt.io/nodeName': options.nodeName },
      annotations: { 'kubevirt.io/nonroot': 'true' },
      finalizers: ['foregroundDeleteVirtualMachine'],
    },
    spec: {
      terminationGracePeriodSeconds: options.terminationGracePeriodSeconds ?? 30,
      domain: {
        memory: { guest: '64Mi' },
        cpu: { cores: 1, sockets: 1, threads: 1, ...options.cpu },
        features: { acpi: { enabled: true } },
        devices: {
          disks: [
            { name: 'boot', disk: { bus: 'virtio' }, bootOrder: 1 },
            ...(options.claim === undefined ? [] : [{ name: claimVolume, disk: { bus: 'virtio' } }]),
          ],
          interfaces: [
            {
              name: 'default',
              model: 'virtio',
              ...(options.binding === 'bridge' ? { bridge: {} } : { masquerade: {} }),
              ...(options.bootUrl === undefined ? {} : { dhcpOptions: { bootFileName: options.bootUrl } }),
            },
          ],
        },
      },
      networks: [{ name: 'default', pod: {} }],
      volumes: [
        { name: 'boot', containerDisk: { image: 'harness/guest:1', imagePullPolicy: 'IfNotPresent' } },
        ...(options.claim === undefined
          ? []
          : [{ name: claimVolume, persistentVolumeClaim: { claimName: claimVolume } }]),
      ],
    },
    status: {
      phase: 'Scheduled',
      nodeName: options.nodeName,
      activePods: { ...options.activePods },
      runtimeUser: 107,
      migrationTransport: 'Unix',
      ...(options.claim === undefined
        ? {}
        : {
            volumeStatus: [
              {
                name: claimVolume,
                target: '',
                persistentVolumeClaimInfo: {
                  claimName: claimVolume,
                  accessModes: ['ReadWriteOnce'],
                  volumeMode: 'Filesystem',
                  capacity: { storage: options.claim },
                },
              },
            ],
          }),
    },
  };
}
