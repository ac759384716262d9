/** A peer of guests in the node's network: serves boot scripts over HTTP and sees who asks. */
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { runVariable } from '../pods/leftovers.js';
import type { HarnessNode } from '../pods/node.js';
import { signal, start, waitFor } from '../pods/run.js';

export interface PeerRequest {
  /** Source address, as the peer saw it. */
  readonly from: string;
  readonly path: string;
}

export interface Peer {
  /** Base URL, without a slash at its end. */
  readonly url: string;
  /** Requests so far, in order. */
  readonly requests: readonly PeerRequest[];
  /** Waits for a request of a path (without query). */
  request(path: string, timeoutMs: number): Promise<PeerRequest>;
  stop(): Promise<void>;
}

/** `files`: path -> text. */
export async function startPeer(
  node: HarnessNode,
  files: Readonly<Record<string, string>>,
  port = 8080,
): Promise<Peer> {
  const peer = start(
    'nsenter',
    [
      `--net=/proc/${node.netnsPid}/ns/net`,
      '--',
      process.execPath,
      join(node.programsDir, 'peer.mjs'),
      node.gateway,
      String(port),
      JSON.stringify(files),
    ],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
      cwd: '/',
      env: { PATH: process.env['PATH'] ?? '', [runVariable]: node.runId },
    },
  );
  const requests: PeerRequest[] = [];
  let listening = false;
  let ended = false;
  void peer.exited.then(() => {
    ended = true;
  });
  if (peer.child.stdout === null) throw new Error('the peer has no output');
  createInterface({ input: peer.child.stdout }).on('line', (line) => {
    const message = JSON.parse(line) as { listening?: boolean } & PeerRequest;
    if (message.listening === true) listening = true;
    else requests.push(message);
  });
  await waitFor('the peer to listen', 10_000, () => {
    if (ended) throw new Error(`the peer could not listen on ${node.gateway}:${port}`);
    return listening;
  });
  return {
    url: `http://${node.gateway}:${port}`,
    requests,
    request: (path, timeoutMs) =>
      waitFor(`a guest to ask for ${path}`, timeoutMs, () =>
        requests.find((request) => request.path.split('?')[0] === path),
      ),
    stop: async () => {
      signal(peer.pid, 'SIGTERM');
      await peer.exited;
    },
  };
}
