import { Code, ConnectError } from '@connectrpc/connect';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { HelperError, HelperUnavailable, toHelperError } from '../../../agent/helper/errors.js';
import { HelperClient } from '../../../agent/helper/helper-client.js';
import { LauncherPods } from '../../../agent/helper/launcher-pods.js';
import { createHelperTransport } from '../../../agent/helper/transport.js';
import { FailureSchema } from '../../../gen/virtprivsep/privhelper/v1/common_pb.js';
import { SocketState } from '../../../gen/virtprivsep/privhelper/v1/pod_pb.js';
import { eventually, FakeHelper, failure, quietLog } from '../launcher/peers.js';

const pod = { podUid: 'pod-a', vmiUid: 'u1' };

let fake: FakeHelper;
let helper: HelperClient;
let stopping: AbortController;
beforeEach(async () => {
  fake = new FakeHelper();
  await fake.start();
  helper = new HelperClient(createHelperTransport(fake.socketPath), fake);
  stopping = new AbortController();
});
afterEach(async () => {
  stopping.abort();
  await fake.stop();
});

describe('errors', () => {
  it('carry what the helper says of the failure', async () => {
    fake.fail.set('identify', failure('openat2 launcher-sock', 'EACCES'));
    const error = await helper.identify(pod).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(HelperError);
    expect(error).toMatchObject({
      code: Code.FailedPrecondition,
      operation: 'openat2 launcher-sock',
      errno: 13,
      errnoName: 'EACCES',
      refused: false,
      unchanged: true,
    });
    expect((error as Error).message).toContain('PodService.Identify');
    expect((error as Error).message).toContain('EACCES');
  });

  it('say what is refused', async () => {
    fake.fail.set('identify', failure('cgroup of the peer', 'EPERM', true));
    await expect(helper.identify(pod)).rejects.toMatchObject({ refused: true });
  });

  it('names the field at fault', () => {
    const detail = { desc: FailureSchema, value: { field: 'pod.pod_uid' } };
    const error = toHelperError(
      'PodService.Stat',
      new ConnectError('bad', Code.InvalidArgument, undefined, [detail]),
    );
    expect(error).toMatchObject({ field: 'pod.pod_uid' });
  });

  it('a helper that is down is HelperUnavailable, and the next call after its return works', async () => {
    await helper.health();
    await fake.kill();
    const error = await helper.health().catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(HelperUnavailable);
    await fake.start();
    await helper.identify(pod);
  });

  it('a helper that was never there is HelperUnavailable', async () => {
    const nowhere = new HelperClient(createHelperTransport(`${fake.directory}/nowhere.sock`), fake);
    await expect(nowhere.health()).rejects.toBeInstanceOf(HelperUnavailable);
  });
});

describe('restart', () => {
  it('is noticed by another instance id, once', async () => {
    const restarts: string[] = [];
    helper.on('restarted', (id) => restarts.push(id));
    await helper.health();
    await helper.health();
    await fake.kill();
    await fake.start();
    await helper.health();
    await helper.health();
    expect(restarts).toEqual(['instance-2']);
  });
});

describe('LauncherPods', () => {
  function follow(recheckIntervalMs = 60_000): LauncherPods {
    const pods = new LauncherPods({ helper, log: quietLog(), recheckIntervalMs });
    void pods.run(stopping.signal);
    return pods;
  }

  it('has all pods when it is synced, and follows changes', async () => {
    fake.setPod('pod-a', {});
    fake.setPod('pod-b', { launcherSocket: SocketState.ABSENT });
    const pods = follow();
    expect(pods.synced).toBe(false);
    await pods.whenSynced(AbortSignal.timeout(5_000));
    expect(pods.podUids().sort()).toEqual(['pod-a', 'pod-b']);
    const changes: string[] = [];
    pods.on('change', (podUid, state) => changes.push(`${podUid} ${state?.launcherSocket ?? 'gone'}`));
    fake.setPod('pod-b', { launcherSocket: SocketState.PRESENT });
    fake.setPod('pod-b', { launcherSocket: SocketState.PRESENT });
    fake.removePod('pod-a');
    await eventually(() => changes.length === 2, 'both changes');
    expect(changes).toEqual(['pod-b present', 'pod-a gone']);
  });

  it('keeps what it knows while the helper is down and drops what vanished meanwhile', async () => {
    fake.setPod('pod-a', {});
    fake.setPod('pod-b', {});
    const pods = follow();
    await pods.whenSynced(AbortSignal.timeout(5_000));
    await fake.kill();
    fake.removePod('pod-a');
    await expect(helper.health()).rejects.toBeInstanceOf(HelperUnavailable);
    expect(pods.get('pod-a')?.directory).toBe(true);
    await fake.start();
    await eventually(() => pods.get('pod-a') === undefined, 'pod-a is gone');
    expect(pods.get('pod-b')?.launcherSocket).toBe('present');
  });

  it('looks again in case an event was lost', async () => {
    fake.setPod('pod-a', {});
    const pods = follow(20);
    await pods.whenSynced(AbortSignal.timeout(5_000));
    fake.forgetToTell('pod-a', { launcherSocket: SocketState.ABSENT, unresponsiveMarker: true });
    await eventually(() => pods.get('pod-a')?.unresponsiveMarker === true, 'the lost change is seen');
  });

  it('a state that the helper does not explain is not taken for absence', async () => {
    fake.setPod('pod-a', { launcherSocket: SocketState.UNSPECIFIED });
    const pods = follow();
    await pods.whenSynced(AbortSignal.timeout(5_000));
    expect(pods.get('pod-a')?.launcherSocket).toBe('refused');
  });
});
