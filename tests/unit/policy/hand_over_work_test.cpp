// The bytes and writes of hand-overs against formulas written out here.
#include <gtest/gtest.h>

#include "policy/transfer/hand_over.hpp"

namespace kvtwin {
namespace {

// 80 layers, K and V, 8 heads of 128 bf16 values, pages of 64 tokens.
KvShape gqa(std::uint32_t heads) { return {80, 2, heads, 256, 64}; }
// DeepSeek's latent: 512 + 64 bf16 values.
constexpr KvShape kMla{61, 1, 1, 1152, 64};

TEST(HandOverWork, equal_engines_write_a_page_of_each_layer_and_plane) {
  const HandOverSide side{gqa(2), 4, Layout::layer_first};
  const HandOverWork work = hand_over_work(side, side, 10, 10, 1, false);
  EXPECT_EQ(work.pages, 10U);
  EXPECT_EQ(work.bytes, 10U * 64 * 80 * 2 * 8 * 256);
  EXPECT_EQ(work.piece_bytes, 64U * 2 * 256);
  EXPECT_EQ(work.writes, 10U * 80 * 2 * 4);
  EXPECT_EQ(work.senders, 4U);
  EXPECT_EQ(work.receivers, 4U);
  EXPECT_EQ(work.bytes, work.writes * work.piece_bytes);
}

TEST(HandOverWork, neighbouring_pages_are_one_write) {
  const HandOverSide side{gqa(2), 4, Layout::layer_first};
  EXPECT_EQ(hand_over_work(side, side, 10, 1, 1, false).writes, 80U * 2 * 4);
}

TEST(HandOverWork, more_ranks_take_each_token_head_by_head) {
  const HandOverSide from{gqa(2), 4, Layout::layer_first}, to{gqa(1), 8, Layout::layer_first};
  const HandOverWork work = hand_over_work(from, to, 3, 3, 1, false);
  EXPECT_EQ(work.bytes, 3U * 64 * 80 * 2 * 8 * 256) << "as many bytes as between equal engines";
  EXPECT_EQ(work.piece_bytes, 256U);
  EXPECT_EQ(work.writes, 3U * 64 * 80 * 2 * 8);
  EXPECT_EQ(hand_over_work(to, from, 3, 3, 1, false).writes, work.writes) << "and back";
}

TEST(HandOverWork, copies_of_a_head_are_written_to_every_rank) {
  const HandOverSide from{gqa(1), 8, Layout::layer_first}, to{gqa(1), 16, Layout::layer_first};
  EXPECT_EQ(hand_over_work(from, to, 1, 1, 1, false).bytes, 2 * hand_over_work(from, from, 1, 1, 1, false).bytes);
}

TEST(HandOverWork, a_latent_crosses_the_network_once) {
  for (const std::uint32_t ranks : {1U, 8U}) {
    const HandOverSide from{kMla, 8, Layout::layer_first}, to{kMla, ranks, Layout::layer_first};
    const HandOverWork work = hand_over_work(from, to, 5, 5, 1, false);
    EXPECT_EQ(work.bytes, 5U * 64 * 61 * 1152);
    EXPECT_EQ(work.senders, 1U);
    EXPECT_EQ(work.receivers, 1U);
    EXPECT_EQ(work.writes, 5U * 61);
  }
}

// 10 pages, 3 windows of a page with 18 layers, and a state of 36 layers.
TEST(HandOverWork, windows_go_the_way_of_the_pages_and_states_to_every_rank) {
  const KvShape window{18, 2, 1, 128, 64}, state{36, 1, 1, 1 << 20, 1};
  const auto add_all = [](HandOverWork work, const HandOverSide& from, const HandOverSide& to) {
    add_beside(work, from, to, 0, false, 3);
    add_beside(work, from, to, 1, true, 1);
    return work;
  };
  HandOverSide four{gqa(2), 4, Layout::layer_first, {window, state}},
      eight{gqa(1), 8, Layout::layer_first, {window, state}};
  const HandOverWork pages = hand_over_work(four, four, 10, 10, 1, false), all = add_all(pages, four, four);
  EXPECT_EQ(all.bytes - pages.bytes, 4 * (3U * 18 * 2 * 128 * 64 + 36 * (1U << 20)));
  EXPECT_EQ(all.writes - pages.writes, 4 * (3U * 18 * 2 + 36));
  EXPECT_EQ(all.pages, 10U);
  const HandOverWork apart = hand_over_work(four, eight, 10, 10, 1, false);
  EXPECT_EQ(add_all(apart, four, eight).writes - apart.writes, 8 * (3U * 18 * 2 * 64 + 36)) << "token by token";
  const HandOverSide latent{kMla, 8, Layout::layer_first, {window, state}};
  const HandOverWork once = hand_over_work(latent, latent, 10, 10, 1, false);
  EXPECT_EQ(add_all(once, latent, latent).bytes - once.bytes, 3U * 18 * 2 * 128 * 64 + 8 * 36 * (1U << 20));
}

// The draft: one layer, 4 heads on two ranks or 2 on four, beside a GQA model or a latent.
TEST(HandOverWork, a_drafts_kv_goes_with_the_pages_to_every_rank_that_has_heads_of_it) {
  HandOverSide from{gqa(2), 4, Layout::layer_first}, to{gqa(1), 8, Layout::layer_first};
  const HandOverWork pages = hand_over_work(from, to, 10, 10, 1, false);
  from.draft = KvShape{1, 2, 2, 64, 64};
  EXPECT_EQ(hand_over_work(from, to, 10, 10, 1, false).bytes, pages.bytes) << "only if both have it";
  to.draft = KvShape{1, 2, 1, 64, 64};
  const HandOverWork all = hand_over_work(from, to, 10, 10, 1, false);
  EXPECT_EQ(all.bytes - pages.bytes, 10U * 64 * 2 * 8 * 64);
  EXPECT_EQ(all.writes - pages.writes, 10U * 64 * 2 * 8);
  EXPECT_EQ(all.pages, 10U);
  EXPECT_EQ(all.piece_bytes, pages.piece_bytes);
  HandOverSide latent{kMla, 8, Layout::layer_first};
  const HandOverWork once = hand_over_work(latent, latent, 10, 10, 1, false);
  latent.draft = KvShape{1, 2, 1, 64, 64};
  const HandOverWork both = hand_over_work(latent, latent, 10, 10, 1, false);
  EXPECT_EQ(both.bytes - once.bytes, 10U * 64 * 2 * 8 * 64);
  EXPECT_EQ(both.receivers, 1U) << "of the latent";
}

TEST(HandOverWork, the_windows_cover_that_of_the_last_full_page) {
  EXPECT_EQ(first_window_page(128, 1000, 64), 13U) << "1000 - 128 is in page 13, and 15 pages are full";
  EXPECT_EQ(first_window_page(128, 1024, 64), 14U);
  EXPECT_EQ(first_window_page(100, 1000, 64), 13U);
  EXPECT_EQ(first_window_page(128, 1000, 256), 2U) << "the window of the third page, which is full";
  EXPECT_EQ(first_window_page(128, 100, 64), 0U);
  EXPECT_EQ(handed_slots(128, 1000, 64), 3U);
  EXPECT_EQ(handed_slots(128, 100, 64), 2U);
  EXPECT_EQ(handed_slots(0, 1000, 64), 1U) << "a state";
}

TEST(HandOverWork, staged_pages_of_one_layout_are_whole) {
  const HandOverSide side{gqa(2), 4, Layout::page_first};
  const HandOverWork work = hand_over_work(side, side, 7, 7, 1, true);
  EXPECT_TRUE(work.staged);
  EXPECT_EQ(work.piece_bytes, 64U * 80 * 2 * 256);
  EXPECT_EQ(work.writes, 7U * 2 * 4);
}

TEST(HandOverWork, page_first_to_layer_first_goes_token_by_token_and_layer_by_layer) {
  const HandOverSide from{gqa(2), 4, Layout::page_first}, to{gqa(2), 4, Layout::layer_first};
  const HandOverWork work = hand_over_work(from, to, 7, 7, 1, true);
  EXPECT_EQ(work.piece_bytes, 2U * 256);
  EXPECT_EQ(work.writes, 7U * 64 * 80 * 2 * 4);
  const HandOverSide direct{gqa(2), 4, Layout::page_first_direct};
  EXPECT_EQ(hand_over_work(direct, to, 7, 7, 1, true).piece_bytes, 64U * 2 * 256) << "a layer of a page is contiguous";
}

TEST(HandOverWork, pages_by_heads_split_without_pieces) {
  const HandOverSide from{gqa(2), 4, Layout::page_head}, to{gqa(1), 8, Layout::page_head};
  const HandOverWork work = hand_over_work(from, to, 7, 7, 1, true);
  EXPECT_EQ(work.piece_bytes, 64U * 80 * 256);
  EXPECT_EQ(work.writes, 7U * 2 * 8);
}

TEST(HandOverWork, layer_groups_write_the_same_bytes) {
  const HandOverSide side{gqa(2), 4, Layout::layer_first};
  const HandOverWork whole = hand_over_work(side, side, 10, 10, 1, false);
  const HandOverWork groups = hand_over_work(side, side, 10, 10, 16, false);
  EXPECT_EQ(groups.layer_groups, 16U);
  EXPECT_EQ(groups.bytes, whole.bytes);
  EXPECT_EQ(groups.writes, whole.writes) << "a write never spans layers in this layout";
}

}  // namespace
}  // namespace kvtwin
