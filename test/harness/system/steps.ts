/** Acting at the moment when an agent notes a step of a VM's timeline. */
import { watch } from 'node:fs';
import { basename, dirname } from 'node:path';
import type { System } from './system.js';

/**
 * Calls `act` as soon as the step stands in the timeline file, from the file's own notification. Rejects
 * when it does not within `timeoutMs`.
 */
export async function atStep(
  system: System,
  uid: string,
  step: string,
  act: () => void,
  timeoutMs = 30_000,
): Promise<void> {
  const directory = watch(dirname(system.timelineFile));
  let timer: NodeJS.Timeout | undefined;
  try {
    await new Promise<void>((resolve, reject) => {
      const look = () => {
        if (!system.timeline(uid).some((noted) => noted.step === step)) return;
        act();
        resolve();
      };
      directory.on('change', (_event, name) => {
        if (String(name) === basename(system.timelineFile)) look();
      });
      timer = setTimeout(() => {
        const noted = system.timeline(uid).map((one) => one.step);
        reject(
          new Error(
            `step "${step}" not within ${timeoutMs} ms; noted: ${noted.join(', ')}\n${system.tail()}`,
          ),
        );
      }, timeoutMs);
      look();
    });
  } finally {
    clearTimeout(timer);
    directory.close();
  }
}
