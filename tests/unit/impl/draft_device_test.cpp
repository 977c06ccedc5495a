// A device with a draft model's pool beside the target's: both KVs move and are checked, a wrong byte of either is
// found, and a draft that stays on the device leaves out pages that came back without its KV.
#include <gtest/gtest.h>

#include <memory>

#include "impl/device/jobs.hpp"
#include "tests/splitmix.hpp"
#include "tests/unit/impl/real_rig.hpp"

namespace kvtwin::test {
namespace {

using Flip = DeviceConfig::Flip;

HostDeviceConfig drafted_device(bool stays = false, Flip flip = Flip::none, Layout layout = Layout::page_first) {
  HostDeviceConfig target = small_device();
  target.host_layout = layout;
  HostDeviceConfig draft = target;
  draft.kind = KvKind::draft;
  draft.shape = {1, 2, 3, 4, 4};
  draft.flip = flip;
  draft.stays = stays;
  if (stays) draft.host_pages = 0;
  target.beside.push_back(draft);
  return target;
}

// Computes four pages, backs them up, loads them into other slots, and reads them there.
const Verification& goes_and_comes_back(RealRig& rig) {
  const std::vector<PageKey> keys = some_keys(4);
  rig.then([&rig, keys] { rig.compute(keys, {0, 1, 2, 3}); });
  rig.then([&rig, keys] { rig.back_up(keys, {0, 1, 2, 3}, {4, 6, 5, 7}); });
  rig.then([&rig, keys] { rig.read(keys, {8, 9, 10, 11}, 12, {rig.load(keys, {4, 6, 5, 7}, {8, 9, 10, 11})}); });
  return rig.run();
}

TEST(DraftDevice, both_models_kv_goes_and_comes_back) {
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE(name_of(layout));
    RealRig rig(drafted_device(false, Flip::none, layout));
    const Verification& seen = goes_and_comes_back(rig);
    EXPECT_EQ(seen.wrong_reads, 0U);
    EXPECT_EQ(seen.draft_pages_read, 4U);
    EXPECT_EQ(seen.pages_read, 8U);
    EXPECT_EQ(seen.draft_bytes_read, 4 * drafted_device().beside.front().shape.page_bytes());
    EXPECT_EQ(seen.draft_pages_audited, 13U) << "eight pages and a token on the device, four pages on the host";
    EXPECT_EQ(seen.draft_pages_left_out, 0U);
  }
}

TEST(DraftDevice, a_wrong_byte_of_the_draft_is_found) {
  for (const Flip flip : {Flip::device, Flip::host}) {
    RealRig rig(drafted_device(false, flip));
    const Verification& seen = goes_and_comes_back(rig);
    EXPECT_TRUE(seen.flipped);
    EXPECT_GT(seen.wrong_reads, 0U);
    ASSERT_FALSE(seen.wrong.empty());
    EXPECT_EQ(seen.wrong.front().found.find("KV of the draft model, "), 0U) << seen.wrong.front().found;
    const std::vector<PageKey> keys = some_keys(4);
    EXPECT_NE(std::ranges::find(keys, seen.wrong.front().key), keys.end()) << "the page's own key is named";
  }
}

TEST(DraftDevice, a_draft_that_stays_leaves_out_what_came_back) {
  RealRig rig(drafted_device(true));
  EXPECT_EQ(rig.world().notes().size(), 0U);
  const Verification& seen = goes_and_comes_back(rig);
  EXPECT_EQ(seen.wrong_reads, 0U);
  EXPECT_EQ(seen.draft_pages_left_out, 4U);
  EXPECT_EQ(seen.draft_pages_read, 0U);
  EXPECT_EQ(seen.pages_read, 4U) << "of the target";
}

// The pages before and behind a page that came back are read.
TEST(DraftDevice, only_the_pages_that_came_back_are_left_out) {
  RealRig rig(drafted_device(true));
  const std::vector<PageKey> keys = some_keys(5);
  const std::vector<PageKey> middle{keys[2]};
  rig.then([&] { rig.compute(keys, {0, 1, 2, 3, 4}); });
  rig.then([&] { rig.back_up(middle, {2}, {0}); });
  rig.then([&] { rig.read(keys, {0, 1, 9, 3, 4}, 12, {rig.load(middle, {0}, {9})}); });
  rig.then([&] { rig.compute({keys[0]}, {9}); });  // the slot has the draft's KV again
  rig.then([&] { rig.read({keys[0]}, {9}, 13); });
  const Verification& seen = rig.run();
  EXPECT_EQ(seen.wrong_reads, 0U);
  EXPECT_EQ(seen.draft_pages_left_out, 1U);
  EXPECT_EQ(seen.draft_pages_read, 5U);
}

// A burst of 3 steps yields 7 tokens, which the next pass reads.
TEST(DraftDevice, a_step_yields_several_tokens) {
  RealRig rig(drafted_device());
  const std::vector<PageKey> keys = some_keys(3);
  rig.then([&] { rig.compute({keys[0]}, {0}); });
  rig.then([&] { rig.decode({{{0, 1, 2}, keys, 4, 7}}, {}, 3, 2); });
  rig.then([&] { rig.prefill({{{0, 1, 2}, keys, 11, 1}}); });
  rig.then([&] { rig.read(keys, {0, 1, 2}, 3); });
  const Verification& seen = rig.run();
  EXPECT_EQ(seen.wrong_reads, 0U);
  EXPECT_GT(seen.draft_pages_read, 0U);
}

// A cancelled burst has written the tokens that the policy counts (Scheduler::yield_of), no more and no fewer: a state
// is that behind the last of them.
TEST(DraftDevice, after_each_step_the_tokens_that_the_policy_counts_are_written) {
  Splitmix random(7);
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t yield = random.between(1024, 1024 * 9), remainder = random.below(1024);
    const Tokens left = random.between(1, 60), left_out = random.below(4);
    const std::uint64_t most = (left * 1024 - remainder + yield - 1) / yield;  // Scheduler::steps_left
    const std::uint64_t steps = random.between(1, std::max<std::uint64_t>(1, most));
    const auto counted = [&](std::uint64_t k) { return std::min<Tokens>((remainder + k * yield) / 1024, left); };
    PassJob job;
    job.steps = steps;
    job.sequences.push_back({0, 100, counted(steps), 0, 1, {yield, remainder}});
    job.beside.push_back(job);  // a draft that leaves the first tokens out
    PassJob::Sequence& part = job.beside[0].sequences[0];
    part.left_out = left_out;
    part.fresh -= std::min(part.fresh, left_out);
    Tokens written = 0, of_part = 0;
    for (std::uint64_t k = 0; k < steps; ++k) {
      const PassJob one = job.at_step(k);
      ASSERT_EQ(one.sequences[0].context, 100 + written);
      written += one.sequences[0].fresh;
      of_part += one.beside[0].sequences[0].fresh;
      ASSERT_EQ(written, counted(k + 1)) << "after step " << k << " of " << steps << ", yield " << yield;
      ASSERT_EQ(of_part, written - std::min(written, left_out));
    }
  }
}

}  // namespace
}  // namespace kvtwin::test
