/**
 * The native addon as TypeScript sees it. Everything that needs a kernel interface which Node does not
 * offer is here and nothing else; decisions are not.
 *
 * Conventions
 * - A descriptor is a plain number. Whoever receives one owns it and closes it with {@link Native.close}.
 * - `caps` is a bit mask of kernel capability numbers. The privileged thread raises exactly these for
 *   the call and lowers them before the promise settles.
 * - Every failure is a {@link NativeError}. After a failure nothing differs from before the call unless
 *   `unchanged` is false.
 * - `deadlineMs` bounds the call; exceeding it gives ETIMEDOUT.
 */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { DeviceCalls } from './binding/devices.js';
import type { DiskCalls } from './binding/disks.js';
import type { NetworkCalls } from './binding/network.js';
import type { PodCalls } from './binding/pods.js';
import type { ProcessCalls } from './binding/process.js';
import type { ResourceCalls } from './binding/resources.js';
import type { StartCalls } from './binding/start.js';

export type * from './binding/call.js';
export type * from './binding/devices.js';
export type * from './binding/disks.js';
export type * from './binding/network.js';
export type * from './binding/pods.js';
export type * from './binding/process.js';
export type * from './binding/resources.js';

export interface Native
  extends DeviceCalls,
    DiskCalls,
    NetworkCalls,
    PodCalls,
    ProcessCalls,
    ResourceCalls,
    StartCalls {}

/** Loads the addon that `npm run build:native` made. Throws when it is missing. */
export function loadNative(): Native {
  const require = createRequire(import.meta.url);
  const here = dirname(fileURLToPath(import.meta.url));
  // The sources run from <root>/native, the build from <root>/dist/native.
  const root = here.includes(join('dist', 'native')) ? join(here, '..', '..') : join(here, '..');
  return require(join(root, 'build', 'Release', 'privsep.node')) as Native;
}
