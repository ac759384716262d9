import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { fromBinary, toBinary } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { parseDomain } from '../../agent/domains/domain-json.js';
import { parseJson, stringifyJson } from '../../agent/json/lossless.js';
import { commands } from '../../agent/launcher/commands.js';
import { domainMismatch, domainOfEvent } from '../../agent/notify/events.js';
import { VMIRequestSchema } from '../../gen/kubevirt/cmd/v1/cmd_pb.js';
import { DomainEventRequestSchema } from '../../gen/kubevirt/notify/v1/notify_pb.js';

interface Call {
  readonly file: string;
  readonly side: 'client' | 'server';
  readonly method: string;
  readonly requestProtoBase64: string;
  readonly responseProtoBase64: string | null;
}

const maxBytes = 4 * 1024 * 1024;
const packed = readFileSync(new URL('recorded/run1.json.gz', import.meta.url));
const calls: Call[] = JSON.parse(gunzipSync(packed).toString('utf8'));
const bytes = (base64: string | null) => new Uint8Array(Buffer.from(base64 ?? '', 'base64'));

describe('calls between an unmodified virt-handler and virt-launcher', () => {
  const commandCalls = calls.filter(({ method }) => method.startsWith('/kubevirt.cmd.v1.Cmd/'));
  it.each(commandCalls)(
    'WIRE-004 $file: the request means the same here',
    ({ method, requestProtoBase64 }) => {
      const command = Object.values(commands).find((c) => method.endsWith(`/${c.method.name}`));
      const schema = command?.method.input ?? VMIRequestSchema;
      const request = fromBinary(schema, bytes(requestProtoBase64));
      // Nothing is lost in the message, known or unknown.
      expect(fromBinary(schema, toBinary(schema, request))).toEqual(request);
      if (!('vmi' in request) || request.vmi === undefined) return;
      // The VMI goes through the agent untouched, digit for digit.
      const json = Buffer.from((request.vmi as { vmiJson: Uint8Array }).vmiJson).toString('utf8');
      expect(JSON.parse(stringifyJson(parseJson(json, maxBytes)))).toEqual(JSON.parse(json));
    },
  );

  const answered = commandCalls.filter(({ responseProtoBase64 }) => responseProtoBase64);
  it.each(answered)('WIRE-005 $file: the answer can be read', ({ method, responseProtoBase64 }) => {
    const command = Object.values(commands).find((c) => method.endsWith(`/${c.method.name}`));
    if (command === undefined) throw new Error(`no command for ${method}`);
    const answer = fromBinary(command.method.output, bytes(responseProtoBase64));
    const { decode } = command as unknown as { decode: (message: unknown) => unknown };
    expect(() => decode(answer)).not.toThrow();
  });

  const events = calls.filter(({ method }) => method.endsWith('HandleDomainEvent'));
  it('WIRE-019 every domain event is read and belongs to its VMI', () => {
    expect(events).toHaveLength(13);
    const statuses = events.map(({ requestProtoBase64 }) => {
      const { domainJSON } = fromBinary(DomainEventRequestSchema, bytes(requestProtoBase64));
      const domain = domainOfEvent(domainJSON);
      const { namespace, name } = domain.ObjectMeta;
      const uid = domain.Spec.Metadata.KubeVirt.UID;
      expect(domainMismatch(domain, { namespace, name, uid })).toBeUndefined();
      expect(parseDomain(Buffer.from(domainJSON).toString('utf8'))).toEqual(domain);
      return domain.Status.Status;
    });
    expect(statuses).toContain('Running');
    expect(statuses.at(-1)).toBe('NoState');
  });
});
