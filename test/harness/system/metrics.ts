import http from 'node:http';
import { join } from 'node:path';
import type { System } from './system.js';

/** The agent's metrics as its socket tells them. */
export function agentMetrics(system: System): Promise<string> {
  return new Promise((resolve, reject) => {
    const socketPath = join(system.privateDir, 'agent.sock');
    const request = http.get({ socketPath, path: '/metrics' }, (response) => {
      let text = '';
      response.on('data', (chunk) => {
        text += chunk;
      });
      response.on('end', () => resolve(text));
    });
    request.on('error', reject);
  });
}
