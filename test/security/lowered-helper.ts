/**
 * The helper, with declarations that were weakened before it read them: LOWERED is a JSON object of method
 * names and the numbers (of the enum Capability) of what they declare no longer. Everything else is as in
 * production, the filters and the sets of its threads included.
 */
import { getOption, setExtension } from '@bufbuild/protobuf';
import { declaration } from '../../gen/virtprivsep/privhelper/v1/declaration_pb.js';
import { methodName, services } from '../../privhelper/declarations.js';

const lowered = JSON.parse(process.env['LOWERED'] ?? '{}') as Readonly<Record<string, readonly number[]>>;
for (const method of services.flatMap((service) => service.methods)) {
  const without = lowered[methodName(method)];
  const options = method.proto.options;
  if (without === undefined || options === undefined) continue;
  const declared = getOption(method, declaration);
  declared.capabilities = declared.capabilities.filter((capability) => !without.includes(capability));
  setExtension(options, declaration, declared);
}
await import('../../privhelper/main.js');
