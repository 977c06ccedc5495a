// HostedTree against a slow model: random calls, right and wrong ones, with every eviction policy; and journals of
// them.
#include "policy/hosted/hosted_tree.hpp"

#include <gtest/gtest.h>

#include "policy/hosted/call_journal.hpp"
#include "tests/hosted_model.hpp"
#include "tests/journal_test_support.hpp"

namespace kvtwin {
namespace {

HostedSetup setup_of(std::string_view eviction, std::uint64_t seed) {
  HostedSetup setup;
  setup.eviction = eviction;
  setup.device_pages = 6 + seed % 20;
  setup.host_pages = seed % 3 == 0 ? 0 : 12;
  setup.page_tokens = 1 + seed % 4;
  setup.whole_nodes = seed % 2 == 0;
  setup.split_refreshes = seed % 5 < 2;
  setup.hits_by_count = seed % 7 < 3;
  return setup;
}

class EachPolicy : public testing::TestWithParam<std::string_view> {};
std::string name_of_case(const testing::TestParamInfo<std::string_view>& policy) {
  std::string name = "p_" + std::string(policy.param);
  std::ranges::replace(name, '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(HostedTree, EachPolicy, testing::ValuesIn(eviction_names()), name_of_case);

TEST_P(EachPolicy, AnswersAsTheSlowModel) {
  const test::ThrowingChecks checks;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    test::Splitmix random(seed * 1000 + 7);
    const HostedSetup setup = setup_of(GetParam(), seed);
    HostedTree tree(setup);
    test::HostedModel model(setup);
    std::vector<PageKey> keys;
    TimeNs now = 0;
    for (int step = 0; step < 700; ++step) {
      const Call call = test::draw_call([&](std::uint64_t bound) { return random.below(bound); }, tree, keys, now);
      Answer answer;
      const char* error = tree.call(call, answer);
      ASSERT_EQ(model.follow(call, error, answer), "") << "seed " << seed << ", step " << step;
      ASSERT_EQ(tree.tree().nodes(), model.nodes()) << name_of(call.verb) << ", seed " << seed << ", step " << step;
      ASSERT_EQ(tree.tree().pages(Tier::device), model.pages(Tier::device)) << name_of(call.verb);
      ASSERT_EQ(tree.tree().pages(Tier::host), model.pages(Tier::host)) << name_of(call.verb);
      if (step % 8 == 0) tree.tree().check_invariants();
    }
  }
}

// A journal gives every call back, and the calls give the same answers on another tree, whatever its policy: all but
// those of `share` and `victim`.
TEST_P(EachPolicy, JournalsAreMadeAgain) {
  const test::ThrowingChecks checks;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    test::Splitmix random(seed + 99);
    const HostedSetup setup = setup_of(GetParam(), seed);
    HostedTree tree(setup);
    test::ByteVector bytes;
    CallJournalWriter writer(bytes, "a host");
    writer.tree(setup);
    std::vector<PageKey> keys;
    TimeNs now = 0;
    for (int step = 0; step < 500; ++step) {
      const Call call = test::draw_call([&](std::uint64_t bound) { return random.below(bound); }, tree, keys, now);
      Answer answer;
      if (tree.call(call, answer) == nullptr) writer.append(call, answer, tree.mark());
    }
    writer.finish();

    CallJournalReader reader(bytes.bytes);
    CallRecord record;
    ASSERT_EQ(reader.header(), JournalStatus::record);
    EXPECT_EQ(reader.text(), "a host");
    ASSERT_EQ(reader.next(record), JournalStatus::record);
    ASSERT_TRUE(record.tree.has_value());
    HostedTree same(*record.tree);
    HostedSetup with_fifo = *record.tree;
    with_fifo.eviction = "fifo";
    HostedTree other(with_fifo);
    JournalStatus status = JournalStatus::record;
    while ((status = reader.next(record)) == JournalStatus::record) {
      Answer again, others;
      ASSERT_EQ(same.call(record.call, again), nullptr);
      ASSERT_EQ(other.call(record.call, others), nullptr);
      ASSERT_EQ(again, record.answer) << name_of(record.call.verb);
      ASSERT_EQ(same.mark(), record.after);
      if (record.call.verb != CallVerb::victim && record.call.verb != CallVerb::share) {
        ASSERT_EQ(others, record.answer) << name_of(record.call.verb);
      }
    }
    EXPECT_EQ(status, JournalStatus::end);
  }
}

}  // namespace
}  // namespace kvtwin
