// Acknowledgements, errors and ends of dumps. The first byte of the input chooses the request.
#include "fake_kernel.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  fuzz::FakeKernel kernel(data + 1, size - 1);
  NetlinkSocket& socket = kernel.socket();
  auto fill = [](MessageBuilder& message) { message.u32(1, 1); };
  size_t messages = 0;
  auto each = [&](const Message& message) {
    ++messages;
    AttributeReader reader(message.payload);
    Attribute attribute;
    std::string text;
    while (reader.next(&attribute)) (void)attribute.read_text(&text, 256);
    return reader.malformed() ? EPROTO : 0;
  };
  Status done = ok();
  switch (data[0] % 4) {
    case 0:
      done = socket.request(16, 0, "request", fill);
      break;
    case 1:
      done = socket.query(16, "query", fill, each);
      break;
    case 2:
      done = socket.dump(16, "dump", fill, each);
      break;
    default: {
      MessageBuilder batch;
      uint32_t first = socket.next_sequence();
      batch.begin(16, NLM_F_REQUEST, first);
      batch.end();
      uint32_t last = socket.next_sequence();
      batch.begin(16, NLM_F_REQUEST | NLM_F_ACK, last);
      batch.end();
      done = socket.batch(batch, first, last, "batch");
    }
  }
  // Nothing is taken for done that the other end has not said.
  if (done) PROMISE(size > NLMSG_HDRLEN + sizeof(int32_t));
  PROMISE(done || done.error().code > 0);
  return 0;
}
