// A pool whose nodes fail as planned: pages of a node that is down, and of one that has lost them.
#include "impl/storage/failing_nodes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "policy/index/page_key.hpp"
#include "tests/conformance/impl/memory_backend.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

constexpr PageKey kPlace{{1, 2, 3, 4}};
PageKey page_key(std::uint64_t number) { return PageKey{{number, number * number, 7, 7}}; }

// Executes one verb for some pages, and collects the causes. A page has the low byte of its key in every byte.
class ListWork final : public PageWork {
 public:
  ListWork(StorageVerb verb, std::span<const PageKey> keys) : PageWork(kSmallForm), verb_(verb), keys_(keys) {}
  bool next(PageTask& task) override {
    if (begun_ == keys_.size()) return false;
    task = {verb_, kPlace, keys_[begun_], begun_, Tier::host, kNoSlot};
    ++begun_;
    return true;
  }
  void end(const PageTask& task, Cause cause) override { causes[task.ticket] = cause; }
  void take_bare(const PageTask& task, std::span<std::byte> payload) override {
    std::ranges::fill(payload, static_cast<std::byte>(task.key.words[0]));
  }
  Cause give_bare(const PageTask& task, std::span<const std::byte> payload) override {
    const auto same = [&](std::byte b) { return b == static_cast<std::byte>(task.key.words[0]); };
    EXPECT_TRUE(std::ranges::all_of(payload, same));
    return Cause::none;
  }
  std::map<std::uint64_t, Cause> causes;

 private:
  const StorageVerb verb_;
  const std::span<const PageKey> keys_;
  std::size_t begun_ = 0;
};

TEST(FailingNodes, PagesAreUnreachableThenMissingThenStoredAgain) {
  PageMap map;
  TimeNs now = 0;
  const auto pool =
      make_failing_nodes(std::make_unique<MemoryBackend>(map, kSmallForm, 1000), 3, {{1, {100, 200}}, {1, {400, 500}}});
  pool->start([&now] { return now; });
  std::vector<PageKey> keys;
  for (std::uint64_t i = 1; i <= 60; ++i) keys.push_back(page_key(i));
  const auto fails = [&](const PageKey& key) { return pool_node_of(kPlace, key, 3) == 1; };
  const auto first = static_cast<Pages>(std::ranges::find_if(keys, fails) - keys.begin());
  ASSERT_LT(first, 60U);
  // Returns whether each page of the node ends with `cause`, and each other page with `none`.
  const auto all_end = [&](StorageVerb verb, Cause cause) {
    ListWork work(verb, keys);
    verb == StorageVerb::get ? pool->read(work) : pool->write(work);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (work.causes.at(i) != (fails(keys[i]) ? cause : Cause::none)) return false;
    }
    return true;
  };
  const auto look_up = [&] { return pool->look_up(kPlace, keys); };

  EXPECT_TRUE(all_end(StorageVerb::set, Cause::none));
  EXPECT_EQ(look_up().pages, 60U);
  now = 100;
  EXPECT_EQ(look_up().pages, first);
  EXPECT_EQ(look_up().cause, Cause::unreachable);
  EXPECT_TRUE(all_end(StorageVerb::get, Cause::unreachable));
  EXPECT_TRUE(all_end(StorageVerb::set, Cause::unreachable));
  now = 200;
  EXPECT_EQ(look_up().pages, first);
  EXPECT_EQ(look_up().cause, Cause::missing);
  EXPECT_TRUE(all_end(StorageVerb::get, Cause::missing));
  EXPECT_TRUE(all_end(StorageVerb::set, Cause::none));
  EXPECT_TRUE(all_end(StorageVerb::get, Cause::none));
  EXPECT_EQ(look_up().pages, 60U);
  now = 500;  // down again in between, and nothing was stored since
  EXPECT_TRUE(all_end(StorageVerb::get, Cause::missing));
  pool->finish();
  std::map<std::string, std::uint64_t> counts;
  for (const auto& [name, count] : pool->counters()) counts[name] = count;
  EXPECT_EQ(counts.at("planned_lost"), 2U) << "of the look-ups at 200, which found the pages before";
  EXPECT_GT(counts.at("planned_unreachable"), 0U);
}

TEST(FailingNodes, AnotherNodeIsNotConcerned) {
  PageMap map;
  const auto pool = make_failing_nodes(std::make_unique<MemoryBackend>(map, kSmallForm, 1000), 1, {{5, {0, 1000}}});
  pool->start([] { return TimeNs{10}; });
  const std::vector<PageKey> keys{page_key(1), page_key(2)};
  ListWork set(StorageVerb::set, keys), get(StorageVerb::get, keys);
  pool->write(set);
  pool->read(get);
  EXPECT_EQ(get.causes.at(0), Cause::none);
  EXPECT_EQ(get.causes.at(1), Cause::none);
}

}  // namespace
}  // namespace kvtwin::test
