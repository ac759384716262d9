/** gRPC services of @grpc/grpc-js made from generated protobuf descriptors. */
import {
  create,
  type DescMessage,
  type DescMethod,
  type DescService,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf';
import {
  type Client,
  Metadata,
  type MethodDefinition,
  type Server,
  type ServerUnaryCall,
  type ServiceError,
  type sendUnaryData,
  status,
} from '@grpc/grpc-js';

export type Handler<I extends DescMessage, O extends DescMessage> = (
  request: MessageShape<I>,
) => Promise<MessageInitShape<O>>;

/** Handlers by method, as the generated code names methods. Those left out answer `Unimplemented`. */
export type Handlers<S extends DescService> = {
  [M in keyof S['method']]?: Handler<S['method'][M]['input'], S['method'][M]['output']>;
};

/** Thrown by a handler to end its call with a status. */
export class GrpcStatus extends Error {
  override readonly name = 'GrpcStatus';
  constructor(
    readonly code: status,
    message: string,
  ) {
    super(message);
  }
}

function definitionOf(
  method: DescMethod,
): MethodDefinition<MessageShape<DescMessage>, MessageShape<DescMessage>> {
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: false,
    responseStream: false,
    requestSerialize: (message) => Buffer.from(toBinary(method.input, message)),
    requestDeserialize: (bytes) => fromBinary(method.input, bytes),
    responseSerialize: (message) => Buffer.from(toBinary(method.output, message)),
    responseDeserialize: (bytes) => fromBinary(method.output, bytes),
  };
}

export function addService<S extends DescService>(server: Server, service: S, handlers: Handlers<S>): void {
  const definition: Record<string, ReturnType<typeof definitionOf>> = {};
  const implementation: Record<
    string,
    (call: ServerUnaryCall<unknown, unknown>, callback: sendUnaryData<unknown>) => void
  > = {};
  for (const method of service.methods) {
    const handler = (handlers as Record<string, ((request: unknown) => Promise<unknown>) | undefined>)[
      method.localName
    ];
    if (handler === undefined) continue;
    definition[method.name] = definitionOf(method);
    implementation[method.name] = (call, callback) => {
      handler(call.request).then(
        (answer) => callback(null, create(method.output, answer as MessageInitShape<DescMessage>)),
        (error: Error) =>
          callback({
            code: error instanceof GrpcStatus ? error.code : status.UNKNOWN,
            details: error.message,
            metadata: new Metadata(),
          }),
      );
    };
  }
  server.addService(definition, implementation as never);
}

/** One unary call. Rejects with a ServiceError; `timeoutMs` is sent as the call's deadline. */
export function callUnary<I extends DescMessage, O extends DescMessage>(
  client: Client,
  method: DescMethod & { readonly input: I; readonly output: O },
  request: MessageInitShape<I>,
  timeoutMs: number,
): Promise<MessageShape<O>> {
  const { path, requestSerialize, responseDeserialize } = definitionOf(method);
  return new Promise((resolve, reject) => {
    client.makeUnaryRequest(
      path,
      requestSerialize,
      responseDeserialize,
      create(method.input, request),
      new Metadata(),
      { deadline: Date.now() + timeoutMs },
      (error: ServiceError | null, response?: MessageShape<DescMessage>) => {
        if (error !== null) reject(error);
        else resolve(response as MessageShape<O>);
      },
    );
  });
}
