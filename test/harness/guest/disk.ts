/**
 * Bootable container disks with a guest that is small enough for emulation and yet uses disk and network:
 * iPXE, run by a script on the disk. It gets its address by DHCP, runs the boot script that DHCP names, and
 * then answers echo requests for ever.
 *
 * Needs Debian's packages ipxe and binutils.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { repositoryRoot } from '../pods/bundle.js';
import { run } from '../pods/run.js';

export interface GuestDiskOptions {
  /** File to write. */
  readonly path: string;
  /** Whether the guest turns off at its power button. One that does not is ended by its grace period. */
  readonly obeysAcpi: boolean;
  /** iPXE script (default {@link guestScript}). */
  readonly script?: string;
}

/** Lines that a guest writes to its console, in order. */
export const guestLines = {
  bootLoader: 'boot: loading from the container disk',
  /** Only with a second disk: what the guest has written to it and read back. */
  secondDisk: 'boot: second disk: written by the guest',
  script: 'guest: script from the container disk',
  address: 'guest: address ',
} as const;

export const guestScript = `#!ipxe
echo ${guestLines.script}
:dhcp
dhcp net0 || goto dhcp
echo ${guestLines.address}\${net0/ip}
isset \${filename} || goto idle
:fetch
chain --autofree \${filename} || goto retry
goto idle
:retry
sleep 1
goto fetch
:idle
sleep 1
goto idle
`;

const sectorBytes = 512;
const loaderSectors = 4;
/** Where boot.S has its layout block. */
const layoutOffset = 512;
/** The firmware refuses disks smaller than a cylinder. */
const diskBytes = 2 * 1024 * 1024;
const kernelPaths = ['/boot/ipxe.lkrn', '/usr/lib/ipxe/ipxe.lkrn'];

/** What the guest writes at the begin of a second disk. */
export const guestMark = 'written by the guest';

/** Writes the disk. Throws when iPXE or the assembler is not installed. */
export async function buildGuestDisk(options: GuestDiskOptions): Promise<void> {
  const loader = await assemble('boot');
  const kernel = readKernel();
  const script = Buffer.from(options.script ?? guestScript);
  const kernelSectors = Math.ceil(kernel.length / sectorBytes);
  const scriptSector = loaderSectors + kernelSectors;
  const setupSectors = (kernel[0x1f1] ?? 0) + 1;

  const disk = Buffer.alloc(diskBytes);
  loader.copy(disk);
  kernel.copy(disk, loaderSectors * sectorBytes);
  script.copy(disk, scriptSector * sectorBytes);
  let at = disk.writeUInt16LE(setupSectors, layoutOffset);
  for (const value of [loaderSectors, kernelSectors, scriptSector, script.length])
    at = disk.writeUInt32LE(value, at);
  disk.writeUInt16LE(options.obeysAcpi ? 1 : 0, at);
  writeFileSync(options.path, disk);
}

/** Where drives.S finds the name of a drive. */
const nameOffset = 256;

/**
 * A disk whose guest waits for two more, starting again and again, and then says of each when it can read it and when it
 * cannot any more: {@link driveLines}. It knows no power button.
 */
export async function buildWatchingDisk(path: string): Promise<void> {
  const disk = Buffer.alloc(diskBytes);
  (await assemble('drives')).copy(disk);
  writeFileSync(path, disk);
}

/** What that guest says of a {@link buildDataDisk}. */
export const driveLines = {
  reads: (name: string) => `guest: reads ${name}`,
  loses: (name: string) => `guest: loses ${name}`,
} as const;

export function buildDataDisk(path: string, name: string): void {
  const disk = Buffer.alloc(diskBytes);
  disk.write(`${name}\r\n\0`, nameOffset, 'latin1');
  writeFileSync(path, disk);
}

function readKernel(): Buffer {
  for (const path of kernelPaths) {
    try {
      return readFileSync(path);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
  }
  throw new Error(`none of ${kernelPaths.join(', ')} exists: install the package ipxe`);
}

/** A boot sector, with what follows it. */
async function assemble(program: 'boot' | 'drives'): Promise<Buffer> {
  const directory = mkdtempSync(join(tmpdir(), 'vp-boot-'));
  try {
    const object = join(directory, 'boot.o');
    const binary = join(directory, 'boot.bin');
    await run('as', ['--32', '-o', object, join(repositoryRoot(), `test/harness/guest/${program}.S`)]);
    await run('ld', ['-m', 'elf_i386', '-Ttext', '0x7c00', '--oformat', 'binary', '-o', binary, object]);
    return readFileSync(binary);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}
