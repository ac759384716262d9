/** privctl as people run it, on a node with three VMs. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { expect } from 'vitest';
import { type Spawned, start } from '../harness/pods/run.js';
import { System, type Vm } from '../harness/system/system.js';

export interface Ran {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

export class PrivctlNode {
  private constructor(
    readonly system: System,
    readonly vms: readonly Vm[],
  ) {}

  /** The product with three running VMs: `alpha` has a disk, `bravo` bridge binding, `charlie` is in namespace `other`. */
  static async create(): Promise<PrivctlNode> {
    const system = await System.create();
    try {
      await system.startProduct();
      const vms = [
        await system.createVm({ name: 'alpha', machine: 'fake', containerDisk: true }),
        await system.createVm({ name: 'bravo', machine: 'fake', binding: 'bridge' }),
        await system.createVm({ name: 'charlie', machine: 'fake', namespace: 'other' }),
      ];
      for (const vm of vms) await system.waitForPhase(vm, 'Running', 60_000);
      return new PrivctlNode(system, vms);
    } catch (error) {
      await system.stop();
      throw error;
    }
  }

  /** Where the audit log is. */
  get log(): string[] {
    return ['--audit-file', this.system.auditFile];
  }

  /** Where everything is that `doctor` looks at. */
  get files(): string[] {
    return [...this.log, '--state-dir', this.system.mountRecordDir];
  }

  run(args: readonly string[], user?: { uid: number; gid: number }): Promise<Ran> {
    return new Promise((resolve) => {
      const options = { cwd: '/', maxBuffer: 16 << 20, ...user };
      execFile(process.execPath, this.command(args), options, (error, out, err) => {
        resolve({ code: typeof error?.code === 'number' ? error.code : error === null ? 0 : -1, out, err });
      });
    });
  }

  /** One that goes on until it is ended. */
  start(args: readonly string[]): { readonly process: Spawned; readonly out: () => string } {
    const spawned = start(process.execPath, this.command(args), { stdio: ['ignore', 'pipe', 'ignore'] });
    let out = '';
    spawned.child.stdout?.on('data', (chunk: Buffer) => {
      out += chunk.toString();
    });
    return { process: spawned, out: () => out };
  }

  /** The JSON of a command that succeeds. */
  async json(...args: string[]) {
    const { code, out, err } = await this.run([...args, '-o', 'json']);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    return JSON.parse(out);
  }

  vm(name: string): Vm {
    const found = this.vms.find((each) => each.name === name);
    if (found === undefined) throw new Error(`no VM ${name}`);
    return found;
  }

  private command(args: readonly string[]): string[] {
    const program = join(this.system.node.root, 'product', 'dist/privhelper/privctl/main.js');
    return [program, ...args, '--socket-dir', this.system.socketDir];
  }
}

export function ref({ pod, uid }: Vm) {
  return { podUid: pod.uid, vmiUid: uid };
}

/** A request about a pod, as JSON. */
export function request(pod: { podUid: string; vmiUid: string }, more: object = {}): string {
  return JSON.stringify({ pod, ...more });
}
