/** Loaded into a process of the product by a test: when it gets SIGUSR2 it tells on stderr how many timers it has. */
import { writeSync } from 'node:fs';

process.on('SIGUSR2', () => {
  const timers = process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;
  writeSync(2, `timers: ${timers}\n`);
});
