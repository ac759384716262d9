// Messages of nf_tables: chains, rules with their expressions, sets with their elements.
#include "../src/net_nft_record.h"

#include <cerrno>

#include "../src/net_expression.h"
#include "target.h"

using namespace privsep;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kElements = 64;
  const std::map<std::string, std::string> sets = {{"__set0", "{ 0016 0050 }"}};
  MessageReader reader({data, size});
  Message message;
  while (reader.next(&message)) {
    ChainRecord chain;
    (void)parse_chain(message.payload, &chain);
    SetRecord set;
    (void)parse_set(message.payload, &set);
    std::vector<std::vector<uint8_t>> elements;
    int error = parse_elements(message.payload, kElements, &elements);
    PROMISE(error == 0 || error == EPROTO || error == E2BIG);
    PROMISE(elements.size() <= kElements);
    (void)set_text(elements);
    RuleRecord rule;
    std::string text;
    if (parse_rule(message.payload, &rule))
      (void)rule_text({rule.expressions.data(), rule.expressions.size()}, sets, &text);
    // Twice hexadecimal, a number for each attribute, a name for each expression.
    PROMISE(text.size() <= 16 * size + 64);
  }
  return 0;
}
