/**
 * Ends connections whose other side gives no sign of life. One that has sent a frame of the wrong size is
 * among them: Node then reads nothing more from it, and so never learns that it was closed.
 */
import type { ServerHttp2Session } from 'node:http2';

/** Pings every `intervalMs` and ends the session when the ping before is still unanswered. */
export function endWhenSilent(session: ServerHttp2Session, intervalMs: number): void {
  let answered = true;
  const timer = setInterval(() => {
    if (session.destroyed) return;
    if (!answered) {
      session.destroy();
      return;
    }
    answered = false;
    session.ping((error) => {
      answered = error === null;
    });
  }, intervalMs);
  session.once('close', () => clearInterval(timer));
}
