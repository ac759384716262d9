/**
 * A web server in the node's network, for guests to boot from and to report to. Prints one JSON line when
 * it listens and one for every request: `{"from","path"}`.
 *
 * peer ADDRESS PORT FILES, FILES a JSON object of path -> text. A path that is not there is 404.
 */
import { createServer } from 'node:http';

const [address, port, files] = process.argv.slice(2);
const texts = JSON.parse(files ?? '{}') as Record<string, string>;
const print = (line: unknown) => process.stdout.write(`${JSON.stringify(line)}\n`);

createServer((request, response) => {
  const path = (request.url ?? '/').slice(0, 1000);
  print({ from: request.socket.remoteAddress ?? '', path });
  const text = texts[path.split('?')[0] ?? ''];
  response.writeHead(text === undefined ? 404 : 200, { 'content-type': 'text/plain' }).end(text ?? '');
}).listen(Number(port), address, () => print({ listening: true }));
