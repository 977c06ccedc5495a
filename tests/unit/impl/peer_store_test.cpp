// The pool in the memory of engines, on a stand-in for NIXL: full sets, peers that fail, pages of the other process.
#include "impl/remote/peer_store.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "impl/remote/remote_backend.hpp"
#include "tests/nixl_stand_in_rig.hpp"
#include "tests/peer_store_medium.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

using Mode = NixlStandIn::Mode;

PeerStoreConfig stand_in() {
  nixl().reset();
  PeerStoreConfig config;
  config.library = nixl_stand_in_library();
  config.timeout = 60 * kNsPerSecond;
  return config;
}

TEST(PeerStore, APageIsFoundWithoutItsWriter) {
  PeerStoreMedium medium(stand_in());
  const std::vector<PageKey> keys = keys_of(200);
  StoreRig rig(medium.open(kSmallForm, 1024), {});
  rig.set(keys);
  EXPECT_EQ(medium.other().look_up(kSpace, keys).pages, 200u) << "by the other process";
  EXPECT_EQ(medium.other().look_up(kOtherSpace, keys).pages, 0u);
}

// A full pool keeps taking pages, and never delivers a wrong one.
TEST(PeerStore, AFullPoolEvicts) {
  PeerStoreMedium medium(stand_in());
  StoreRig rig(medium.open(kSmallForm, 8), {});  // 128 places
  const std::vector<PageKey> keys = keys_of(1000);
  EXPECT_EQ(rig.set(keys).pages, 1000u);
  std::size_t found = 0;
  for (const PageKey& key : keys) {
    if (rig.look_up({key}) == 0) continue;
    ++found;
    EXPECT_EQ(rig.get({key}).pages, 1u);
  }
  EXPECT_GT(found, 64u);
  EXPECT_LE(found, 128u);
}

TEST(PeerStore, PagesOfAFailedPeerAreUnreachableAndTheOthersGoOn) {
  PeerStoreConfig config = stand_in();
  // Each look at the clock is behind all back-off times.
  config.now = [time = std::make_shared<std::atomic<TimeNs>>(0)] { return *time += 1000 * kNsPerSecond; };
  PeerStoreMedium medium(config);
  const std::vector<PageKey> keys = keys_of(100);
  StoreRig rig(medium.open(kSmallForm, 1024), {});
  ASSERT_EQ(rig.set(keys).pages, 100u);
  nixl().set_mode("process0", Mode::fail);
  std::size_t there = 0;
  for (const PageKey& key : keys) {
    const Completion got = rig.get({key});
    there += got.pages;
    EXPECT_EQ(got.cause, got.pages == 1 ? Cause::none : Cause::unreachable);
  }
  EXPECT_GT(there, 20u) << "of the own memory";
  EXPECT_LT(there, 80u);
}

TEST(PeerStore, RefusesWrongUrls) {
  for (const char* url : {"nixl+ucx://", "nixl+ucx://here", "nixl+ucx://engines?port=1"}) {
    RemoteTerms terms;
    terms.url = url;
    terms.pool = PoolMember{};
    EXPECT_TRUE(std::holds_alternative<std::string>(open_remote_backend(terms, kSmallForm))) << url;
  }
  RemoteTerms alone;
  alone.url = "nixl+ucx://engines";
  const auto opened = open_remote_backend(alone, kSmallForm);
  ASSERT_TRUE(std::holds_alternative<std::string>(opened));
  EXPECT_NE(std::get<std::string>(opened).find("cluster.engines"), std::string::npos);
}

}  // namespace
}  // namespace kvtwin::test
