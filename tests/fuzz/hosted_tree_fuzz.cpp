// Any sequence of calls on a HostedTree, against the slow model. Input: the first byte chooses the policy and the
// sizes, and the other bytes choose the calls.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "policy/hosted/hosted_tree.hpp"
#include "tests/hosted_model.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvtwin;
  if (size < 2) return 0;
  const auto names = eviction_names();
  HostedSetup setup;
  setup.eviction = names[data[0] % names.size()];
  setup.device_pages = 1 + data[1] % 16;
  setup.host_pages = data[1] >> 4;
  setup.whole_nodes = data[1] % 2 == 0;
  setup.split_refreshes = data[1] % 3 == 0;
  HostedTree tree(setup);
  test::HostedModel model(setup);
  std::vector<PageKey> keys;
  TimeNs now = 0;
  for (std::size_t at = 2; at < size;) {
    const auto draw = [&](std::uint64_t bound) {
      std::uint64_t value = at < size ? data[at++] : 0;
      if (bound > 256 && at < size) value |= std::uint64_t{data[at++]} << 8;
      return value % bound;
    };
    const Call call = test::draw_call(draw, tree, keys, now);
    Answer answer;
    const char* error = tree.call(call, answer);
    const std::string wrong = model.follow(call, error, answer);
    if (!wrong.empty() || tree.tree().pages(Tier::device) != model.pages(Tier::device) ||
        tree.tree().pages(Tier::host) != model.pages(Tier::host)) {
      std::fprintf(stderr, "%s\n", wrong.c_str());
      std::abort();
    }
  }
  tree.tree().check_invariants();
  return 0;
}
