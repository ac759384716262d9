/** Sends events to the node agent through its notify pipe, with the launcher's rules of retrying. */
import { Client, credentials } from '@grpc/grpc-js';
import { NotifyInfo } from '../../../gen/kubevirt/notify/info/info_pb.js';
import { Notify } from '../../../gen/kubevirt/notify/v1/notify_pb.js';
import { callUnary } from './grpc.js';
import type { DomainEvent, DomainName, K8sEvent } from './notifications.js';

export interface NotifierTimes {
  readonly dialMs: number;
  readonly versionMs: number;
  readonly callMs: number;
  readonly retryMs: number;
  /** From the first attempt until an event is dropped. */
  readonly giveUpMs: number;
}

export const launcherTimes: NotifierTimes = {
  dialMs: 2000,
  versionMs: 5000,
  callMs: 5000,
  retryMs: 1000,
  giveUpMs: 20_000,
};

interface Answer {
  readonly success: boolean;
  readonly message: string;
}

export class Notifier {
  #client: Client | undefined;

  constructor(
    private readonly pipe: string,
    private readonly times: NotifierTimes,
    private readonly log: (line: string) => void,
  ) {}

  /** True when delivered; false when refused or dropped after the last attempt. */
  sendDomainEvent(event: DomainEvent): Promise<boolean> {
    const request = { domainJSON: Buffer.from(JSON.stringify(event.domain)), eventType: event.type };
    return this.#send(`domain event ${event.type}`, (client) =>
      callUnary(client, Notify.method.handleDomainEvent, request, this.times.callMs),
    );
  }

  sendK8sEvent(vmi: DomainName & { readonly uid: string }, event: K8sEvent): Promise<boolean> {
    const document = {
      metadata: {},
      involvedObject: {
        kind: 'VirtualMachineInstance',
        namespace: vmi.namespace,
        name: vmi.name,
        uid: vmi.uid,
        apiVersion: 'kubevirt.io/v1',
      },
      reason: event.reason,
      message: event.message,
      source: {},
      firstTimestamp: null,
      lastTimestamp: null,
      type: event.type,
      eventTime: null,
      reportingComponent: '',
      reportingInstance: '',
    };
    const request = { eventJSON: Buffer.from(JSON.stringify(document)) };
    return this.#send(`event ${event.reason}`, (client) =>
      callUnary(client, Notify.method.handleK8sEvent, request, this.times.callMs),
    );
  }

  close(): void {
    this.#client?.close();
    this.#client = undefined;
  }

  async #send(what: string, call: (client: Client) => Promise<Answer>): Promise<boolean> {
    const deadline = performance.now() + this.times.giveUpMs;
    for (;;) {
      try {
        const answer = await call(await this.#connected());
        if (!answer.success) this.log(`${what} refused: ${answer.message}`);
        return answer.success;
      } catch (error) {
        this.close();
        if (performance.now() + this.times.retryMs > deadline) {
          this.log(`${what} dropped: ${(error as Error).message}`);
          return false;
        }
      }
      await new Promise((resolve) => setTimeout(resolve, this.times.retryMs));
    }
  }

  async #connected(): Promise<Client> {
    if (this.#client !== undefined) return this.#client;
    // A subchannel of the global pool would keep an old connection's back-off.
    const client = new Client(`unix:${this.pipe}`, credentials.createInsecure(), {
      'grpc.use_local_subchannel_pool': 1,
    });
    try {
      await new Promise<void>((resolve, reject) =>
        client.waitForReady(Date.now() + this.times.dialMs, (error) =>
          error === undefined ? resolve() : reject(error),
        ),
      );
      const info = await callUnary(client, NotifyInfo.method.info, {}, this.times.versionMs);
      if (!info.supportedNotifyVersions.includes(1)) throw new Error('no notify version in common');
    } catch (error) {
      client.close();
      throw error;
    }
    this.#client = client;
    return client;
  }
}
