/**
 * The VSOCK service with a unix socket in the place of the one of CID 2 port 1: the relay, the API server and the
 * client's gRPC are real. The socket of the kernel itself is tried by native/test/vsock_test.cc.
 */
import { mkdtempSync, openSync, rmSync } from 'node:fs';
import http2 from 'node:http2';
import { connect, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { Client, credentials, type ServiceError, status } from '@grpc/grpc-js';
import { KubeConfig } from '@kubernetes/client-node';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { CaBundle, caConfigMapName, decodeCaConfigMap } from '../../agent/cluster/ca-bundle.js';
import { isGateOn } from '../../agent/cluster/config.js';
import { ClusterConfigWatch } from '../../agent/cluster/watch.js';
import { ClientRateLimiter } from '../../agent/kube/client-rate-limiter.js';
import { Informer } from '../../agent/kube/informer.js';
import { checkObject, type KubeObject } from '../../agent/kube/objects.js';
import { configMapResource, kubeVirtResource } from '../../agent/kube/resources.js';
import { RestClient } from '../../agent/kube/rest.js';
import { systemTimers } from '../../agent/kube/timers.js';
import { SystemServer } from '../../agent/vsock/system-server.js';
import { VsockService } from '../../agent/vsock/vsock-service.js';
import { BundleSchema, EmptyRequestSchema } from '../../gen/kubevirt/vsock/system/v1/system_pb.js';
import { loadNative } from '../../native/binding.js';
import { startApiServer } from '../harness/apiserver/api-server.js';
import { createAuthority } from '../harness/apiserver/certificates.js';
import { waitFor } from '../harness/pods/run.js';
import { FakeTimers, settle } from '../unit/kube/fake-timers.js';
import { testLogger } from '../unit/kube/test-logger.js';

const native = loadNative();
const waitMs = 20_000;
const caBundle = '/kubevirt.vsock.system.v1.System/CABundle';
const identity = (bytes: Buffer) => bytes;

let directory: string;
let path: string;
let lines: string[];
let cleanups: (() => unknown)[];
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'vsock-service-'));
  path = join(directory, 'port-1');
  lines = [];
  cleanups = [];
});
afterEach(async () => {
  for (const cleanup of cleanups.reverse()) await cleanup();
  rmSync(directory, { recursive: true, force: true });
});

const listen = () => native.listenUnix({ path, type: 'stream', mode: 0o600, gid: 0, backlog: 64 });

/** grpc-js, as a guest. */
function guest(): {
  raw(method: string, request: Buffer): Promise<Buffer>;
  bundle(): Promise<string>;
  close(): void;
} {
  const client = new Client(`unix:${path}`, credentials.createInsecure(), {
    'grpc.use_local_subchannel_pool': 1,
  });
  cleanups.push(() => client.close());
  const raw = (method: string, request: Buffer) =>
    new Promise<Buffer>((resolve, reject) => {
      const deadline = Date.now() + waitMs;
      const done = (error: ServiceError | null, value?: Buffer) =>
        error === null && value !== undefined ? resolve(value) : reject(error);
      client.makeUnaryRequest<Buffer, Buffer>(method, identity, identity, request, { deadline }, done);
    });
  return {
    raw,
    bundle: async () => {
      const request = Buffer.from(toBinary(EmptyRequestSchema, create(EmptyRequestSchema)));
      return Buffer.from(fromBinary(BundleSchema, await raw(caBundle, request)).Raw).toString();
    },
    close: () => client.close(),
  };
}

/** A connection of a guest that speaks no gRPC, and its end. */
function stranger(first?: Buffer | string): { socket: Socket; closed: Promise<void> } {
  const socket = connect(path, () => first !== undefined && socket.write(first));
  cleanups.push(() => socket.destroy());
  const closed = new Promise<void>((resolve) => socket.on('close', () => resolve()));
  socket.on('error', () => socket.destroy()).resume();
  return { socket, closed };
}

/** The service, switched on, with a bundle. */
function service(bundle: () => string = () => 'PEM'): VsockService {
  const made = new VsockService({
    helper: { listenVsock: async () => listen() },
    relay: native,
    caBundle: () => Buffer.from(bundle()),
    timers: systemTimers(),
    log: testLogger(lines),
  });
  cleanups.push(() => made.stop());
  made.set(true);
  return made;
}
const listening = (times = 1) =>
  waitFor('the service to listen', waitMs, () => said('guests can ask').length === times);
const said = (text: string) => lines.filter((line) => line.includes(text));

describe('the VSOCK service', () => {
  it('NET-030 is switched by the gate VSOCK of the KubeVirt object and answers the bundle of the config map as it is', async () => {
    const api = await startApiServer();
    cleanups.push(() => api.stop());
    const kubeConfig = new KubeConfig();
    kubeConfig.loadFromString(api.kubeConfigText);
    const timers = systemTimers();
    const log = testLogger(lines);
    const limiter = new ClientRateLimiter(timers, { qps: 1_000, burst: 1_000 });
    const rest = new RestClient({ kubeConfig, timers, limiter, userAgent: 'test' });
    cleanups.push(() => rest.close());
    const basics = { rest, timers, logger: log, random: () => 0 };

    let listened = 0;
    const bundle = new CaBundle(log);
    const vsock = new VsockService({
      helper: {
        listenVsock: async () => {
          listened++;
          return listen();
        },
      },
      relay: native,
      caBundle: () => bundle.current(),
      timers,
      log,
    });
    const cluster = new ClusterConfigWatch(log, () => vsock.set(isGateOn(cluster.current(), 'VSOCK')));
    const kubeVirts = new Informer<KubeObject>({
      ...basics,
      resource: kubeVirtResource,
      decode: (value) => checkObject(value) as unknown as KubeObject,
    });
    const configMaps = new Informer({
      ...basics,
      resource: configMapResource,
      namespace: 'kubevirt',
      fieldSelector: `metadata.name=${caConfigMapName}`,
      decode: decodeCaConfigMap,
    });
    kubeVirts.addHandler(cluster);
    configMaps.addHandler(bundle);
    for (const informer of [kubeVirts, configMaps]) {
      informer.start();
      cleanups.push(() => informer.stop());
    }
    cleanups.push(() => vsock.stop());
    const kubevirt = (configuration: object) =>
      api.store.put('kubevirts', {
        apiVersion: 'kubevirt.io/v1',
        kind: 'KubeVirt',
        metadata: { namespace: 'kubevirt', name: 'kubevirt' },
        spec: { configuration: configuration as never },
      });
    const gates = (...featureGates: string[]) => kubevirt({ developerConfiguration: { featureGates } });
    const published = (data: Record<string, string>) =>
      api.store.put('configmaps', { metadata: { namespace: 'kubevirt', name: 'kubevirt-ca' }, data });

    gates();
    await kubeVirts.whenSynced();
    await configMaps.whenSynced();
    expect(listened).toBe(0);
    gates('VSOCK');
    await listening();
    const asking = guest();
    await expect(asking.bundle()).rejects.toMatchObject({
      code: status.UNKNOWN,
      details: 'configmap kubevirt-ca not found. Unable to detect request header CA',
    });
    const [first, second] = [createAuthority('one').cert, createAuthority('two').cert];
    published({ 'ca-bundle': first });
    await waitFor('the first bundle', waitMs, async () => (await asking.bundle().catch(() => '')) === first);
    // Rotation: both, until the operator takes the old one away.
    published({ 'ca-bundle': first + second });
    await waitFor('both', waitMs, async () => (await asking.bundle()) === first + second);
    published({ 'ca-bundle': 'garbage' });
    await waitFor('the log', waitMs, () => said('is not usable').length === 1);
    expect(await asking.bundle()).toBe(first + second);

    // What else changes in the object is no reason to begin anew.
    kubevirt({ developerConfiguration: { featureGates: ['VSOCK'], useEmulation: true } });
    await waitFor('the change', waitMs, () => cluster.current().useEmulation);
    expect(listened).toBe(1);

    const { socket, closed } = stranger();
    await waitFor('a connection', waitMs, () => socket.readyState === 'open');
    gates();
    await closed;
    await expect(asking.bundle()).rejects.toMatchObject({ code: status.UNAVAILABLE });
    gates('VSOCK');
    await listening(2);
    expect(await guest().bundle()).toBe(first + second);
    expect(listened).toBe(2);
  });

  it('NET-030 tries again every second, with a server of its own each time, and says only what is new', async () => {
    const timers = new FakeTimers();
    const outcomes: (() => number)[] = [];
    let tried = 0;
    const made = new VsockService({
      helper: {
        listenVsock: async () => {
          tried++;
          const outcome = outcomes.shift();
          if (outcome === undefined) throw new Error('EADDRNOTAVAIL');
          return outcome();
        },
      },
      relay: native,
      caBundle: () => Buffer.from('PEM'),
      timers,
      log: testLogger(lines),
    });
    cleanups.push(() => made.stop());
    const warnings = () => said('no VSOCK service').map((line) => JSON.parse(line).reason);
    made.set(true);
    made.set(true);
    await settle();
    for (let second = 1; second < 5; second++) {
      expect(tried).toBe(second);
      timers.advance(999);
      await settle();
      expect(tried).toBe(second);
      timers.advance(1);
      await settle();
    }
    expect(warnings()).toEqual(['EADDRNOTAVAIL']);
    // What cannot be waited on, which stands for a listener that breaks; then one that works.
    outcomes.push(() => openSync('/dev/null', 'r'), listen);
    timers.advance(1_000);
    await settle();
    expect(warnings()).toHaveLength(2);
    timers.advance(1_000);
    await listening();
    expect(await guest().bundle()).toBe('PEM');
    made.set(false);
    made.set(true);
    await settle();
    expect(warnings()).toEqual(['EADDRNOTAVAIL', expect.stringMatching('EPERM'), 'EADDRNOTAVAIL']);
  });

  it('NET-030 lets go of a socket that comes when it is switched off already', async () => {
    const closed: number[] = [];
    let come: (fd: number) => void = () => {};
    const made = new VsockService({
      helper: { listenVsock: () => new Promise((resolve) => (come = resolve)) },
      relay: { acceptRelayed: () => expect.fail('accepts'), close: (fd) => void closed.push(fd) },
      caBundle: () => Buffer.from('PEM'),
      timers: new FakeTimers(),
      log: testLogger(lines),
    });
    made.set(true);
    await settle();
    const stopped = made.stop();
    come(77);
    await stopped;
    expect(closed).toEqual([77]);
  });
});

describe('hostile guests', () => {
  it('NET-030 are told no more than the one method, and whatever they send the next guest is served', async () => {
    service();
    await listening();
    const asking = guest();
    for (const method of [
      '/kubevirt.vsock.system.v1.System/Other',
      '/kubevirt.notify.v1.Notify/HandleDomainEvent',
    ]) {
      await expect(asking.raw(method, Buffer.alloc(0))).rejects.toMatchObject({ code: status.UNIMPLEMENTED });
    }
    await expect(asking.raw(caBundle, Buffer.alloc(2_000))).rejects.toMatchObject({
      code: status.RESOURCE_EXHAUSTED,
    });
    expect(await asking.bundle()).toBe('PEM');
    asking.close();
    for (const bytes of ['GET / HTTP/1.1\r\nhost: node\r\n\r\n', Buffer.alloc(100_000, 0xff)]) {
      await stranger(bytes).closed;
    }
    expect(await guest().bundle()).toBe('PEM');
  });

  it('NET-030 have two connections at a time, and a new one only now and then', async () => {
    const first = service();
    await listening();
    // Ten in a row are anybody's; a guest that goes on and on is let in once a second.
    const started = performance.now();
    let served = 0;
    while (served < 11) {
      const { socket, closed } = stranger('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
      const answered = new Promise<boolean>((resolve) => socket.once('data', () => resolve(true)));
      if (await Promise.race([answered, closed.then(() => false)])) served++;
      socket.destroy();
    }
    expect(performance.now() - started).toBeGreaterThan(1_000);
    await first.stop();

    service();
    await listening(2);
    const held = [stranger(), stranger()];
    await waitFor('two connections', waitMs, () => held.every(({ socket }) => socket.readyState === 'open'));
    for (let i = 0; i < 100; i++) await stranger().closed;
    expect(held.every(({ socket }) => !socket.destroyed)).toBe(true);
    for (const { socket } of held) socket.destroy();
    await waitFor('room again', waitMs, () =>
      guest()
        .bundle()
        .then(
          () => true,
          () => false,
        ),
    );
  });

  it('NET-030 that send without end are cut off', async () => {
    service();
    await listening();
    const { socket, closed } = stranger('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
    const ping = Buffer.from([0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    const flood = Buffer.concat([Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]), ...Array(1_000).fill(ping)]);
    const more = () => {
      while (!socket.destroyed && socket.write(flood));
    };
    socket.on('drain', more);
    more();
    await closed;
    expect(socket.bytesWritten).toBeLessThan(4 << 20);
  });

  it('NET-030 that say nothing, end no call, or make none are closed', async () => {
    const server = new SystemServer(() => Buffer.alloc(1 << 20, 'x'), { callMs: 300, idleMs: 300 });
    cleanups.push(() => server.stop());
    const accepting = native.acceptRelayed(
      listen(),
      { connections: 8, perPeer: 8, burst: 8, perMinute: 60, maxReceivedBytes: 1 << 20 },
      (arrived) => {
        if (arrived instanceof Error) throw arrived;
        server.serve(new Socket({ fd: arrived.fd, readable: true, writable: true }));
      },
    );
    cleanups.push(() => accepting.stop());
    await stranger().closed;
    // A call that does not end, and one whose answer is not taken.
    for (const settings of [{}, { initialWindowSize: 0 }]) {
      const session = http2.connect('http://node', { settings, createConnection: () => connect(path) });
      cleanups.push(() => session.destroy());
      const closed = new Promise<void>((resolve) => session.on('close', () => resolve()));
      session.on('error', () => session.destroy());
      const call = session.request({
        ':method': 'POST',
        ':path': caBundle,
        'content-type': 'application/grpc',
        te: 'trailers',
      });
      call.on('error', () => undefined);
      const nothing = Buffer.alloc(5);
      if ('initialWindowSize' in settings) call.end(nothing);
      else call.write(nothing.subarray(0, 3));
      await closed;
    }
    const asking = guest();
    expect((await asking.bundle()).length).toBe(1 << 20);
  });
});
