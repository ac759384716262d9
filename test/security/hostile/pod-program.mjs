/**
 * A process of a pod: listens where it is told to and behaves as it is told. One JSON array a line on stdin:
 * ["listen", path, behaviour, backlog]. Says each connection on stdout.
 */
import { spawn } from 'node:child_process';
import { createServer } from 'node:net';
import { createInterface } from 'node:readline';

const say = (...words) => process.stdout.write(`${JSON.stringify(words)}\n`);

const lingering = new URL('lingering.py', import.meta.url).pathname;

const behaviours = {
  echo: (socket) => socket.pipe(socket),
  close: (socket) => socket.end(),
  // Takes what comes, says nothing.
  mute: (socket) => socket.resume(),
  drip: (socket) => {
    const timer = setInterval(() => socket.write('.'), 1000);
    socket.on('close', () => clearInterval(timer));
  },
  flood: (socket) => {
    const chunk = Buffer.alloc(1 << 16, 0x41);
    const pour = () => {
      while (socket.write(chunk));
    };
    socket.on('drain', pour);
    pour();
  },
  // Sends a socket that nobody asked for, and says what came of it.
  linger: (socket, path) => {
    const stdio = [socket, 'pipe', 'inherit'];
    const child = spawn('/usr/bin/python3', [lingering, 'accepted'], { stdio });
    child.stdout.on('data', (chunk) => say('lingering', path, chunk.toString().trim()));
    socket.destroy();
  },
};

createInterface({ input: process.stdin })
  .on('line', (line) => {
    const [, path, behaviour, backlog] = JSON.parse(line);
    createServer((socket) => {
      say('connection', path);
      socket.on('error', () => undefined);
      behaviours[behaviour](socket, path);
    })
      .on('error', (error) => say('error', path, error.code))
      .listen({ path, backlog }, () => say('listening', path));
  })
  .on('close', () => process.exit(0));
say('started');
