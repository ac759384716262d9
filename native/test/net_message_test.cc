// Netlink messages from outside: truncated, overlong and random ones are refused and never read past.
#include "../src/net_message.h"

#include <linux/if_link.h>
#include <linux/rtnetlink.h>

#include <random>

#include "../src/net_expression.h"
#include "../src/net_record.h"
#include "check.h"

using namespace privsep;

namespace {

// In a buffer of its own, so that a sanitizer sees a read past the end.
template <typename Parse>
void parse_copy(const std::vector<uint8_t>& bytes, Parse parse) {
  std::vector<uint8_t> copy(bytes);
  copy.shrink_to_fit();
  parse(Bytes{copy.data(), copy.size()});
}

void parse_everything(const std::vector<uint8_t>& bytes) {
  parse_copy(bytes, [](Bytes it) {
    LinkRecord link;
    parse_link(it, &link);
    AddressRecord address;
    parse_address(it, &address);
    RouteRecord route;
    parse_route(it, &route);
    std::string text;
    rule_text(it, {}, &text);
    MessageReader messages(it);
    Message message;
    while (messages.next(&message)) {
      AttributeReader attributes(message.payload);
      Attribute attribute;
      while (attributes.next(&attribute)) attribute.read_text(&text, 15);
    }
  });
}

std::vector<uint8_t> payload(const MessageBuilder& message) {
  Bytes bytes = message.bytes();
  return {bytes.data, bytes.data + bytes.size};
}

std::vector<uint8_t> a_link() {
  MessageBuilder message;
  ifinfomsg header{};
  header.ifi_index = 7;
  message.header(header);
  message.text(IFLA_IFNAME, "eth0");
  message.u32(IFLA_MTU, 1450);
  size_t info = message.begin_nest(IFLA_LINKINFO);
  message.text(IFLA_INFO_KIND, "tun");
  size_t data = message.begin_nest(IFLA_INFO_DATA);
  message.u32(1, 107);
  message.end_nest(data);
  message.text(IFLA_INFO_SLAVE_KIND, "bridge");
  size_t port = message.begin_nest(IFLA_INFO_SLAVE_DATA);
  message.u8(IFLA_BRPORT_LEARNING, 0);
  message.end_nest(port);
  message.end_nest(info);
  return payload(message);
}

}  // namespace

TEST(a_link_is_parsed) {
  std::vector<uint8_t> bytes = a_link();
  LinkRecord link;
  REQUIRE(parse_link({bytes.data(), bytes.size()}, &link));
  CHECK(link.index == 7 && link.name == "eth0" && link.mtu == 1450 && link.kind == "tun");
  CHECK(link.tun.owner == 107u && link.port_learning == false);
}

TEST(cut_short_anywhere) {
  std::vector<uint8_t> whole = a_link();
  for (size_t size = 0; size < whole.size(); ++size)
    parse_everything({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)});
}

TEST(random_changes) {
  std::mt19937 random(1);
  std::vector<uint8_t> whole = a_link();
  NatTable table = nat_table(MasqueradePlan{{}, {}, {{Protocol::kTcp, 22, 23}}, true, true},
                             {"eth0", "k6t-eth0", *IpAddress::parse("10.0.2.1"), *IpAddress::parse("10.0.2.2"),
                              *IpAddress::parse("10.0.0.1")});
  MessageBuilder rules;
  for (const NatRule& rule : table.rules) put_expressions(rules, rule, 1);
  std::vector<uint8_t> expressions = payload(rules);
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> bytes = i % 2 ? whole : expressions;
    for (unsigned n = random() % 4 + 1; n > 0; --n) bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    bytes.resize(bytes.size() - random() % 8);
    parse_everything(bytes);
  }
}

TEST(a_name_must_fit) {
  MessageBuilder message;
  ifinfomsg header{};
  header.ifi_index = 7;
  message.header(header);
  message.text(IFLA_IFNAME, "sixteen-letters-");
  std::vector<uint8_t> bytes = payload(message);
  LinkRecord link;
  CHECK(!parse_link({bytes.data(), bytes.size()}, &link));
}

TEST(a_builder_has_a_bound) {
  MessageBuilder message;
  std::vector<uint8_t> block(60000);
  message.begin(RTM_NEWLINK, 0, 1);
  for (int i = 0; i < 200; ++i) message.attribute(1, block.data(), block.size());
  message.end();
  CHECK(message.overflowed());
  CHECK(message.bytes().size <= MessageBuilder::kLimit + NLMSG_HDRLEN);
  MessageBuilder nested;
  size_t nest = nested.begin_nest(1);
  nested.attribute(1, block.data(), block.size());
  nested.attribute(1, block.data(), block.size());
  nested.end_nest(nest);
  CHECK(nested.overflowed());
}

TEST(equal_rules_have_equal_texts) {
  NatInput input{"eth0", "k6t-eth0", *IpAddress::parse("10.0.2.1"), *IpAddress::parse("10.0.2.2"),
                 *IpAddress::parse("10.0.0.1")};
  NatTable table = nat_table(MasqueradePlan{{}, {}, {}, true, true}, input);
  for (size_t i = 0; i < table.rules.size(); ++i) {
    CHECK(!rule_text(table.rules[i]).empty());
    for (size_t j = 0; j < i; ++j)
      CHECK(table.rules[i].chain != table.rules[j].chain || rule_text(table.rules[i]) != rule_text(table.rules[j]));
  }
}
