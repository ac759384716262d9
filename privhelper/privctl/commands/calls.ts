/** `privctl explain` and `privctl call`: any method, with its request as JSON. */
import { fromJson, type JsonValue, toBinary, toJson } from '@bufbuild/protobuf';
import { ExplainResponseSchema, InspectService } from '../../../gen/virtprivsep/privhelper/v1/inspect_pb.js';
import type { DeclaredEntry } from '../../server/routes.js';
import { callError } from '../helper.js';
import { CommandError, exitCodes, table } from '../output.js';
import type { Session } from '../session.js';
import { capabilityNames, findMethod, namespaceNames } from './describe.js';

/** The request that the second argument describes; none means an empty one. */
function requestOf({ entry, declared }: DeclaredEntry, text = '{}') {
  let json: JsonValue;
  try {
    json = JSON.parse(text) as JsonValue;
  } catch (error) {
    throw new CommandError(exitCodes.usage, `the request is not JSON: ${(error as Error).message}`);
  }
  try {
    return fromJson(entry.method.input, json);
  } catch (error) {
    const fields = entry.method.input.fields.map(({ jsonName }) => jsonName).join(', ');
    throw new CommandError(
      exitCodes.usage,
      `not a request of ${declared.name}: ${(error as Error).message}`,
      fields === '' ? 'It has no fields.' : `Its fields: ${fields}.`,
    );
  }
}

export async function explain(session: Session): Promise<void> {
  const [name = '', text] = session.args;
  const found = findMethod(name);
  const { entry, declared } = found;
  const request = toBinary(entry.method.input, requestOf(found, text));
  const client = await session.client(InspectService);
  const answer = await client.explain({ method: declared.name, request });
  if (session.json) session.message(ExplainResponseSchema, answer);
  else {
    const { declaration } = declared;
    const raises = capabilityNames(declaration) || 'no capability';
    const enters = namespaceNames(declaration);
    const rows = answer.steps.map(({ check, passed, finding }) => [
      check,
      passed ? 'passes' : 'fails',
      finding,
    ]);
    session.lines([
      `${declared.name} raises ${raises}${enters === '' ? '' : ` and enters: ${enters}`}.`,
      `Changes: ${declaration.changes}`,
      '',
      ...table([{ title: 'CHECK' }, { title: 'RESULT' }, { title: 'FINDING' }], rows),
      '',
      `It would ${answer.allowed ? 'be allowed' : answer.refused ? 'be refused' : 'fail'}. Nothing was done.`,
    ]);
  }
  if (!answer.allowed) throw new CommandError(answer.refused ? exitCodes.refused : exitCodes.failed, '');
}

export async function call(session: Session): Promise<void> {
  const [name = '', text] = session.args;
  const found = findMethod(name);
  const { method } = found.entry;
  const request = requestOf(found, text);
  const { transport } = await session.helper();
  const options = { alwaysEmitImplicit: true };
  try {
    if (method.methodKind === 'unary') {
      const { message } = await transport.unary(method, undefined, undefined, undefined, request);
      const value = toJson(method.output, message, options);
      if (session.json) session.value(value);
      else session.lines([JSON.stringify(value, null, 2)]);
      return;
    }
    // A stream has no end of its own: one line for each message until it is interrupted.
    const one = (async function* () {
      yield request;
    })();
    const { message } = await transport.stream(method, undefined, 0, undefined, one);
    for await (const each of message) session.value(toJson(method.output, each, options));
  } catch (error) {
    throw callError(error);
  }
}
