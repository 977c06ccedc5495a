// `kvtwin run` of models with windows or recurrent states, whose remote tier is a real store.
#include <gtest/gtest.h>

#include "tests/hybrid_run.hpp"
#include "tests/remote/mooncake_servers.hpp"
#include "tests/remote/nixl_stores.hpp"

namespace kvtwin::test {
namespace {

class HybridStores : public HybridTiers {
 protected:
  void every_kind_in(const std::string& url) {
    std::uint64_t seed = 0;
    for (const HybridKind& kind : kHybridKinds) {
      fill_and_read(kind, "remote",
                    {"tiers.remote.tokens=100000", "tiers.remote.timeout_s=60", "tiers.remote.url=" + url}, ++seed);
    }
  }
};

TEST_F(HybridStores, MooncakeKeepsEveryKind) {
  const MooncakeMaster master;
  const MooncakeNode node(master, 64);
  every_kind_in(master.url());
}

TEST_F(HybridStores, NixlKeepsEveryKindInFiles) {
  every_kind_in("nixl+posix://" + (folder_ / "pages") + "?library=" + remote_packages().string());
}

}  // namespace
}  // namespace kvtwin::test
