// Netlink messages: building requests and walking replies. Parsers take bytes from outside and never read
// past them; layout as in netlink(7).
#pragma once

#include <linux/netlink.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace privsep {

struct Bytes {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

// One attribute. `type` has NLA_F_NESTED and NLA_F_NET_BYTEORDER removed.
struct Attribute {
  uint16_t type = 0;
  Bytes value;

  // Fixed-size reads give false, and leave *out alone, when the attribute is shorter.
  bool read_u8(uint8_t* out) const { return read(out, sizeof *out); }
  bool read_u32(uint32_t* out) const { return read(out, sizeof *out); }
  bool read_be32(uint32_t* out) const;
  bool read_be64(uint64_t* out) const;
  // Text up to the first NUL or the end, at most `limit` bytes; false when longer.
  bool read_text(std::string* out, size_t limit) const;

 private:
  bool read(void* out, size_t size) const {
    if (value.size < size) return false;
    std::memcpy(out, value.data, size);
    return true;
  }
};

// Walks a row of attributes. After the last next(), malformed() tells whether the row ended cleanly.
class AttributeReader {
 public:
  explicit AttributeReader(Bytes row) : row_(row) {}
  bool next(Attribute* out);
  bool malformed() const { return malformed_; }

 private:
  Bytes row_;
  bool malformed_ = false;
};

// One message of a reply.
struct Message {
  uint16_t type = 0;
  uint16_t flags = 0;
  uint32_t sequence = 0;
  Bytes payload;
};

// Walks the messages of one datagram.
class MessageReader {
 public:
  explicit MessageReader(Bytes datagram) : rest_(datagram) {}
  bool next(Message* out);
  bool malformed() const { return malformed_; }

 private:
  Bytes rest_;
  bool malformed_ = false;
};

// Builds one or more messages in one buffer of at most kLimit bytes. Beyond it nothing is added and
// overflowed() is true; senders check that once.
class MessageBuilder {
 public:
  static constexpr size_t kLimit = 8 * 1024 * 1024;

  void begin(uint16_t type, uint16_t flags, uint32_t sequence);
  void end();
  // To the message begun last.
  void add_flags(uint16_t flags);

  void raw(const void* data, size_t size);
  template <typename T>
  void header(const T& value) {
    raw(&value, sizeof value);
  }

  void attribute(uint16_t type, const void* data, size_t size);
  void u8(uint16_t type, uint8_t value) { attribute(type, &value, sizeof value); }
  void u32(uint16_t type, uint32_t value) { attribute(type, &value, sizeof value); }
  void be32(uint16_t type, uint32_t value);
  void be64(uint16_t type, uint64_t value);
  void text(uint16_t type, const std::string& value) { attribute(type, value.c_str(), value.size() + 1); }

  // A nested attribute; give what begin_nest returned to end_nest.
  size_t begin_nest(uint16_t type);
  void end_nest(size_t start);

  bool overflowed() const { return overflowed_; }
  Bytes bytes() const { return {bytes_.data(), bytes_.size()}; }

 private:
  std::vector<uint8_t> bytes_;
  size_t message_ = 0;
  bool overflowed_ = false;
};

}  // namespace privsep
