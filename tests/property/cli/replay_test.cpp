// The journal of any run replays to the same decisions, and any damage to the bytes of a journal is found.
#include <gtest/gtest.h>

#include <string>

#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

Settings draw(Splitmix& random, const Folder& folder) {
  static constexpr const char* kPages[] = {"1", "16", "64", "100"};
  Conversations c;
  c.requests = random.between(20, 120);
  c.gap_ms = random.between(5, 200);
  c.output = random.between(1, 200);
  return conversations(c, random.next()).save(folder) +
         Settings{std::string("cache.page_tokens=") + kPages[random.below(4)],
                  "tiers.device.tokens=" + std::to_string(random.between(9'000, 40'000)),
                  "tiers.host.tokens=" + std::to_string(random.chance(20) ? 0 : random.between(9'000, 90'000)),
                  std::string("cache.eviction=") + (random.chance(50) ? "lru" : "fifo"),
                  std::string("cache.evict_unit=") + (random.chance(50) ? "page" : "node"),
                  std::string("scheduler.order=") + (random.chance(50) ? "fcfs" : "longest_prefix"),
                  "scheduler.max_running=" + std::to_string(random.between(1, 60)),
                  "scheduler.max_waiting=" + std::to_string(random.chance(50) ? 0 : random.between(1, 40)),
                  "parallel.tp=" + std::to_string(1U << random.below(3))};
}

TEST(ReplayProperty, EveryRunIsDecidedAgainAlikeAndEveryDamageIsSeen) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Splitmix random(seed << 32);
    const Folder folder;
    const Json report = simulate_to(folder, "run", draw(random, folder), true, worlds()[seed % worlds().size()]);
    const Outcome outcome = run({"replay", folder / "run", "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.json().at("decisions"), report.at("decisions"));

    const Taken journal(folder / "run/journal.kvj");
    for (int i = 0; i < 3; ++i) {
      const std::size_t size = random.below(journal.bytes.size());
      write_bytes(folder / "cut.kvj", std::span(journal.bytes).first(size));
      const Outcome cut = run({"replay", folder / "cut.kvj"});
      ASSERT_EQ(cut.exit_code, 2) << "cut at " << size << ": " << cut.out;

      std::vector<std::byte> bytes = journal.bytes;
      const std::size_t at = journal.ends[0] + random.below(bytes.size() - journal.ends[0]);
      bytes[at] ^= static_cast<std::byte>(1 + random.below(255));
      write_bytes(folder / "hurt.kvj", bytes);
      const Outcome hurt = run({"replay", folder / "hurt.kvj", "--json"});
      ASSERT_EQ(hurt.exit_code, 3) << "hurt at " << at << ": " << hurt.out;
      const std::size_t byte = Json::parse(hurt.out).at("record").at("byte").get<std::size_t>();
      EXPECT_TRUE(byte <= at && at < byte + 1'000'000) << "hurt at " << at << ", named " << byte;
    }
  }
}

}  // namespace
}  // namespace kvtwin::test
