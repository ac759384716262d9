/**
 * The process of a container-disk container: its socket tells the node agent that the image is there, and
 * which process's root it is in. Behaves as KubeVirt's cmd/container-disk-v2alpha.
 */
import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { dirname } from 'node:path';

const checkIntervalMs = 1000;
const longestCopyPath = 102;

function main(copyPath: string | undefined): void {
  if (copyPath === undefined || copyPath.length > longestCopyPath) {
    process.stderr.write(`container-disk: copy path missing or longer than ${longestCopyPath} bytes\n`);
    process.exit(1);
  }
  const socket = `${copyPath}.sock`;
  process.umask(0);
  mkdirSync(dirname(copyPath), { recursive: true });

  const server = createServer((connection) => connection.destroy());
  server.on('error', (error) => {
    process.stderr.write(`container-disk: listen ${socket}: ${error.message}\n`);
    process.exit(1);
  });
  server.listen({ path: socket, backlog: 50 });
  // The node agent ends the container by removing the socket.
  setInterval(() => {
    if (!existsSync(socket)) process.exit(0);
  }, checkIntervalMs);
  process.on('SIGTERM', () => {
    rmSync(socket, { force: true });
    process.exit(0);
  });
}

main(process.argv[process.argv.indexOf('--copy-path') + 1]);
