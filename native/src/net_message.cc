#include "net_message.h"

#include <arpa/inet.h>
#include <endian.h>

#include <algorithm>

namespace privsep {

bool Attribute::read_be32(uint32_t* out) const {
  uint32_t wire = 0;
  if (!read_u32(&wire)) return false;
  *out = ntohl(wire);
  return true;
}

bool Attribute::read_be64(uint64_t* out) const {
  uint64_t wire = 0;
  if (!read(&wire, sizeof wire)) return false;
  *out = be64toh(wire);
  return true;
}

bool Attribute::read_text(std::string* out, size_t limit) const {
  size_t size = strnlen(reinterpret_cast<const char*>(value.data), value.size);
  if (size > limit) return false;
  out->assign(reinterpret_cast<const char*>(value.data), size);
  return true;
}

bool AttributeReader::next(Attribute* out) {
  if (row_.size == 0) return false;
  nlattr header;
  if (row_.size < sizeof header) {
    malformed_ = true;
    return false;
  }
  std::memcpy(&header, row_.data, sizeof header);
  if (header.nla_len < sizeof header || header.nla_len > row_.size) {
    malformed_ = true;
    return false;
  }
  out->type = header.nla_type & NLA_TYPE_MASK;
  out->value = {row_.data + NLA_HDRLEN, header.nla_len - static_cast<size_t>(NLA_HDRLEN)};
  size_t step = std::min<size_t>(NLA_ALIGN(header.nla_len), row_.size);
  row_ = {row_.data + step, row_.size - step};
  return true;
}

bool MessageReader::next(Message* out) {
  if (rest_.size == 0) return false;
  nlmsghdr header;
  if (rest_.size < sizeof header) {
    malformed_ = true;
    return false;
  }
  std::memcpy(&header, rest_.data, sizeof header);
  if (header.nlmsg_len < sizeof header || header.nlmsg_len > rest_.size) {
    malformed_ = true;
    return false;
  }
  out->type = header.nlmsg_type;
  out->flags = header.nlmsg_flags;
  out->sequence = header.nlmsg_seq;
  out->payload = {rest_.data + NLMSG_HDRLEN, header.nlmsg_len - static_cast<size_t>(NLMSG_HDRLEN)};
  size_t step = std::min<size_t>(NLMSG_ALIGN(header.nlmsg_len), rest_.size);
  rest_ = {rest_.data + step, rest_.size - step};
  return true;
}

void MessageBuilder::begin(uint16_t type, uint16_t flags, uint32_t sequence) {
  message_ = bytes_.size();
  nlmsghdr header{};
  header.nlmsg_type = type;
  header.nlmsg_flags = flags;
  header.nlmsg_seq = sequence;
  raw(&header, sizeof header);
}

void MessageBuilder::end() {
  if (overflowed_) return;
  uint32_t length = static_cast<uint32_t>(bytes_.size() - message_);
  std::memcpy(bytes_.data() + message_, &length, sizeof length);
}

void MessageBuilder::add_flags(uint16_t flags) {
  if (overflowed_) return;
  nlmsghdr header;
  std::memcpy(&header, bytes_.data() + message_, sizeof header);
  header.nlmsg_flags |= flags;
  std::memcpy(bytes_.data() + message_, &header, sizeof header);
}

void MessageBuilder::raw(const void* data, size_t size) {
  if (overflowed_ || size > kLimit - bytes_.size()) {
    overflowed_ = true;
    return;
  }
  const auto* from = static_cast<const uint8_t*>(data);
  bytes_.insert(bytes_.end(), from, from + size);
  bytes_.resize(NLA_ALIGN(bytes_.size()));
}

void MessageBuilder::attribute(uint16_t type, const void* data, size_t size) {
  if (size > UINT16_MAX - NLA_HDRLEN) {
    overflowed_ = true;
    return;
  }
  nlattr header{static_cast<uint16_t>(NLA_HDRLEN + size), type};
  raw(&header, sizeof header);
  raw(data, size);
}

void MessageBuilder::be32(uint16_t type, uint32_t value) {
  uint32_t wire = htonl(value);
  attribute(type, &wire, sizeof wire);
}

void MessageBuilder::be64(uint16_t type, uint64_t value) {
  uint64_t wire = htobe64(value);
  attribute(type, &wire, sizeof wire);
}

size_t MessageBuilder::begin_nest(uint16_t type) {
  size_t start = bytes_.size();
  nlattr header{NLA_HDRLEN, static_cast<uint16_t>(type | NLA_F_NESTED)};
  raw(&header, sizeof header);
  return start;
}

void MessageBuilder::end_nest(size_t start) {
  if (overflowed_) return;
  size_t size = bytes_.size() - start;
  if (size > UINT16_MAX) {
    overflowed_ = true;
    return;
  }
  uint16_t length = static_cast<uint16_t>(size);
  std::memcpy(bytes_.data() + start, &length, sizeof length);
}

}  // namespace privsep
