// What another engine writes into the device pools, as a decode engine finds it: pages, windows and states. A copy
// within the own pools takes the place of the other engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "impl/device/host_device.hpp"
#include "impl/device/kv_pools.hpp"
#include "policy/index/page_key.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin::test {
namespace {

HostDeviceConfig small_hybrid() {
  HostDeviceConfig device;
  device.shape = {2, 2, 2, 5, 4};
  device.device_pages = device.host_pages = 16;
  HostDeviceConfig pool = device;
  pool.kind = KvKind::windows;
  pool.pool = 1;
  pool.shape = {1, 2, 2, 4, 4};
  device.beside.push_back(pool);
  pool.kind = KvKind::states;
  pool.pool = 2;
  pool.shape = {3, 2, 1, 40, 1};
  device.beside.push_back(pool);
  return device;
}

class GivenParts final : public SequenceParts {
 public:
  explicit GivenParts(std::vector<SequencePart> parts) : parts_(std::move(parts)) {}
  bool empty() const { return parts_.empty(); }
  void get(std::size_t, std::vector<SequencePart>& parts) const override { parts = parts_; }

 private:
  const std::vector<SequencePart> parts_;
};

class HandedDevice : public testing::Test {
 protected:
  explicit HandedDevice(const HostDeviceConfig& config = small_hybrid()) : device_(make_host_device(config)) {
    clock_.start();
    device_->start(queue_, clock_);
  }
  static SequencePart window(Pages first, std::vector<SlotId> slots) {
    SequencePart part;
    part.first = first;
    part.slots = std::move(slots);
    return part;
  }
  static SequencePart state(SlotId from, SlotId running) {
    SequencePart part;
    part.from = from;
    part.running = running;
    return part;
  }
  // One sequence: page keys[i] in slots[i]. Waits for the end of the pass.
  void pass(const std::vector<PageKey>& keys, const std::vector<SlotId>& slots, Tokens context, Tokens fresh,
            std::vector<SequencePart> parts) {
    const SequenceWork work{1, context, fresh, slots, keys};
    const GivenParts given(std::move(parts));
    ForwardOperation operation;
    operation.shape.prefill_tokens = fresh;
    operation.shape.prefill_sequences = 1;
    operation.sequences = std::span(&work, 1);
    if (!given.empty()) operation.parts = &given;
    const OperationId id{++ids_};
    device_->submit(id, operation);
    std::vector<Finished> finished;
    while (finished.empty()) {
      queue_.wait(std::nullopt);
      queue_.take(finished);
    }
    EXPECT_EQ(finished.front().completion.status, Status::done);
    device_->retire(id);
  }
  // As a write of another engine. `pool`: of Device::pools().
  void write(std::size_t pool, SlotId from, SlotId to) {
    const DevicePool of = device_->pools().at(pool);
    const auto block = [&](SlotId slot, std::uint32_t layer, std::uint32_t plane) {
      const std::size_t at =
          byte_offset(Layout::layer_first, of.shape, of.pages, {.page = slot, .plane = plane, .layer = layer});
      return of.bytes.subspan(at, of.shape.row_bytes() * of.shape.page_tokens);
    };
    for (std::uint32_t layer = 0; layer < of.shape.layers; ++layer) {
      for (std::uint32_t plane = 0; plane < of.shape.planes; ++plane) {
        std::ranges::copy(block(from, layer, plane), block(to, layer, plane).begin());
      }
    }
  }
  // The prompt of 7 tokens: its KV is in slots that no one reads any more.
  void compute_a_prompt() { pass(keys_, {0, 1}, 0, 7, {window(0, {2, 3}), state(kNoSlot, 4)}); }
  // Room for the prompt: its pages, windows and state.
  void expect_a_prompt() {
    const std::vector<SlotId> slots{8, 9, 10, 11, 12};
    device_->expect_pages(slots, std::array<Pages, 2>{2, 1});
  }
  // `left_out`: the kind that is not written, if any.
  void hand_over(std::size_t left_out = 3) {
    if (left_out != 0) {
      write(0, 0, 8);
      write(0, 1, 9);
    }
    if (left_out != 1) {
      write(1, 2, 10);
      write(1, 3, 11);
    }
    if (left_out != 2) write(2, 4, 12);
  }

  const std::vector<PageKey> keys_ = chain(std::vector<std::uint64_t>{1, 2});
  CompletionQueue queue_;
  RunClock clock_;
  const std::unique_ptr<Device> device_;
  std::uint64_t ids_ = 0;
};

TEST_F(HandedDevice, APassContinuesFromWhatWasWritten) {
  compute_a_prompt();
  expect_a_prompt();
  hand_over();
  pass(keys_, {8, 9}, 7, 1, {window(0, {10, 11}), state(12, 13)});  // continues from a copy of the state
  const Verification seen = device_->finish();
  EXPECT_EQ(seen.wrong_reads, 0U);
  EXPECT_EQ(seen.states_copied, 1U);
  EXPECT_EQ(seen.windows.read, 2U);
  EXPECT_EQ(seen.states.read, 1U);
  // Two slots of each prompt; the states behind 7 tokens (twice, and the copy became that behind 8), and 8.
  EXPECT_EQ(seen.windows.audited, 4U);
  EXPECT_EQ(seen.states.audited, 3U);
}

class LackingDevice : public HandedDevice, public testing::WithParamInterface<std::size_t> {};

TEST_P(LackingDevice, WhatWasNotWrittenIsFoundAndNamed) {
  const std::string kinds[] = {"", "KV of a sliding window, ", "a state, "};
  compute_a_prompt();
  expect_a_prompt();
  hand_over(GetParam());
  pass(keys_, {8, 9}, 7, 1, {window(0, {10, 11}), state(12, 13)});
  const Verification seen = device_->finish();
  EXPECT_GT(seen.wrong_reads, 0U);
  ASSERT_FALSE(seen.wrong.empty());
  const std::string begin = kinds[GetParam()] + "read by a pass of request 1";
  EXPECT_EQ(seen.wrong.front().found.substr(0, begin.size()), begin) << seen.wrong.front().found;
  EXPECT_NE(seen.wrong.front().found.find("handed over by another engine"), std::string::npos)
      << seen.wrong.front().found;
}
INSTANTIATE_TEST_SUITE_P(, LackingDevice, testing::Values(0, 1, 2));

// A slot that another engine may have written has no known content any more: the check at the end leaves it out.
TEST_F(HandedDevice, SlotsThatWereOnlyPromisedHaveNoContent) {
  compute_a_prompt();
  device_->expect_pages(std::vector<SlotId>{0, 1, 2, 3, 4}, std::array<Pages, 2>{2, 1});
  write(0, 5, 0);
  write(1, 5, 2);
  write(2, 5, 4);
  const Verification seen = device_->finish();
  EXPECT_EQ(seen.wrong_reads, 0U);
  EXPECT_EQ(seen.pages_audited, 0U);
}

HostDeviceConfig with_draft(bool handed) {
  HostDeviceConfig device = small_hybrid();
  device.beside.clear();
  HostDeviceConfig draft = device;
  draft.kind = KvKind::draft;
  draft.shape = {1, 2, 3, 4, 4};
  draft.handed = handed;
  draft.stays = !handed;
  if (draft.stays) draft.host_pages = 0;
  device.beside.push_back(draft);
  return device;
}

class DraftedDevice : public HandedDevice {
 protected:
  explicit DraftedDevice(bool handed) : HandedDevice(with_draft(handed)) {}
  // The prompt of 7 tokens comes, and a pass decodes 5 tokens behind it: one in its last page.
  Verification decode_behind_a_prompt(bool write_draft) {
    pass(keys_, {0, 1}, 0, 7, {});
    device_->expect_pages(std::vector<SlotId>{8, 9}, {});
    for (std::size_t pool = 0; pool < device_->pools().size(); ++pool) {
      if (pool == 1 && !write_draft) continue;
      write(pool, 0, 8);
      write(pool, 1, 9);
    }
    const std::vector<PageKey> keys = chain(std::vector<std::uint64_t>{1, 2, 3});
    pass(keys, {8, 9, 10}, 7, 5, {});
    pass(keys, {8, 9, 10}, 11, 1, {});
    return device_->finish();
  }
};
struct BothDrafted : DraftedDevice {
  BothDrafted() : DraftedDevice(true) {}
};
struct OnlyThisDrafted : DraftedDevice {
  OnlyThisDrafted() : DraftedDevice(false) {}
};

TEST_F(BothDrafted, TheDraftReadsTheKvThatCameWithThePages) {
  const Verification seen = decode_behind_a_prompt(true);
  EXPECT_EQ(seen.wrong_reads, 0U);
  EXPECT_EQ(seen.draft_pages_read, 2U + 3U);
  EXPECT_EQ(seen.draft_pages_left_out, 0U);
}

TEST_F(BothDrafted, ADraftsKvThatDidNotComeIsFound) {
  const Verification seen = decode_behind_a_prompt(false);
  ASSERT_FALSE(seen.wrong.empty());
  EXPECT_NE(seen.wrong.front().found.find("KV of the draft model, "), std::string::npos) << seen.wrong.front().found;
  EXPECT_NE(seen.wrong.front().found.find("handed over by another engine"), std::string::npos);
}

// The pages of the prompt lack the draft's KV, also what is decoded into the last of them.
TEST_F(OnlyThisDrafted, TheDraftLeavesOutThePagesThatCameWithoutItsKv) {
  EXPECT_EQ(device_->pools().size(), 1U);
  const Verification seen = decode_behind_a_prompt(false);
  EXPECT_EQ(seen.wrong_reads, 0U);
  EXPECT_EQ(seen.draft_pages_left_out, 2U + 2U);
  EXPECT_EQ(seen.draft_pages_read, 1U) << "the third page, in the second pass";
}

}  // namespace
}  // namespace kvtwin::test
