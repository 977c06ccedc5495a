// The index of the disk tier alone: several copies of a page, the capacity, and which pages survive a power loss.
#include "impl/disk/segment_index.hpp"

#include <gtest/gtest.h>

namespace kvtwin {
namespace {

PageName name(std::uint64_t n) { return {n, n}; }

std::shared_ptr<Segment> add_segment(SegmentIndex& index, FileNumber number, std::uint32_t slots = 8) {
  auto segment = std::make_shared<Segment>(number, nullptr, slots);
  index.add_segment(segment);
  return segment;
}

void write(SegmentIndex& index, std::uint64_t page, const std::shared_ptr<Segment>& segment, std::uint32_t slot) {
  ASSERT_TRUE(index.reserve(name(page)));
  index.written(name(page), {segment, slot});
}

FileNumber segment_of(const SegmentIndex& index, std::uint64_t page) {
  const std::optional<Place> place = index.find(name(page));
  return place ? place->segment->number : 0;
}

// The newest copy is the one that was written last. An older one may be outdated or only partly moved.
TEST(SegmentIndex, of_several_copies_the_youngest_is_read_first) {
  SegmentIndex index(8);
  std::vector<std::shared_ptr<Segment>> segments;
  for (const FileNumber number : {3U, 5U, 9U, 12U}) {
    segments.push_back(add_segment(index, number));
    index.add_found(name(1), {segments.back(), 2});
  }
  for (const FileNumber number : {12U, 9U, 5U, 3U}) {
    EXPECT_EQ(segment_of(index, 1), number);
    EXPECT_EQ(index.drop(name(1), *index.find(name(1))), number != 3);
    index.check_invariants();
  }
  EXPECT_FALSE(index.find(name(1)));
}

TEST(SegmentIndex, of_several_copies_in_a_segment_the_last_is_read_first) {
  SegmentIndex index(8);
  const std::shared_ptr<Segment> segment = add_segment(index, 1);
  for (const std::uint32_t slot : {0U, 4U, 7U}) index.add_found(name(1), {segment, slot});
  for (const std::uint32_t slot : {7U, 4U, 0U}) {
    ASSERT_TRUE(index.find(name(1)));
    EXPECT_EQ(index.find(name(1))->slot, slot);
    index.drop(name(1), *index.find(name(1)));
  }
  EXPECT_FALSE(index.find(name(1)));
}

// The kernel reports a failed write-back only once. So pages covered by a failed sync may be lost, even if a sync that
// began before it ends without an error later.
TEST(SegmentIndex, a_sync_that_began_before_a_failed_one_makes_nothing_durable) {
  SegmentIndex index(8);
  const std::shared_ptr<Segment> segment = add_segment(index, 1);
  write(index, 1, segment, 0);
  write(index, 2, segment, 1);
  const SegmentIndex::Unsynced early = index.unsynced_of(segment);
  EXPECT_EQ(index.lost(segment), 2U);
  write(index, 3, segment, 2);
  index.synced(early);
  EXPECT_TRUE(index.unsynced_of(segment).any);
  EXPECT_FALSE(index.unsynced_of(segment).listed);
  EXPECT_EQ(index.lost(segment), 1U) << "page 3 was never synced";
  index.check_invariants();
  write(index, 4, segment, 3);
  index.synced(index.unsynced_of(segment));
  EXPECT_EQ(index.lost(segment), 0U) << "a later sync counts";
}

TEST(SegmentIndex, a_sync_covers_what_was_written_when_it_began) {
  SegmentIndex index(8);
  const std::shared_ptr<Segment> segment = add_segment(index, 1);
  write(index, 1, segment, 0);
  const SegmentIndex::Unsynced first = index.unsynced_of(segment);
  write(index, 2, segment, 1);
  const SegmentIndex::Unsynced second = index.unsynced_of(segment);
  index.synced(second);
  index.synced(first);  // they may end in any order
  EXPECT_EQ(index.lost(segment), 0U);
  write(index, 3, segment, 2);
  EXPECT_EQ(index.lost(segment), 1U);
  EXPECT_EQ(segment_of(index, 2), 1U);
}

TEST(SegmentIndex, found_pages_and_new_ones_never_exceed_the_capacity_together) {
  SegmentIndex index(4);
  const std::shared_ptr<Segment> old = add_segment(index, 1);
  for (std::uint32_t slot = 0; slot < 6; ++slot) index.add_found(name(slot), {old, slot});
  const std::shared_ptr<Segment> head = add_segment(index, 2);
  for (std::uint32_t slot = 0; slot < 4; ++slot) {
    write(index, 100 + slot, head, slot);
    const SegmentIndex::Totals totals = index.totals();
    EXPECT_EQ(totals.claimed, slot + 1U);
    EXPECT_EQ(totals.claimed + totals.unclaimed, 4U);
    EXPECT_EQ(totals.evicted, 3U + slot);
    index.check_invariants();
  }
  EXPECT_FALSE(index.reserve(name(99)));
}

TEST(SegmentIndex, what_is_reserved_counts_against_the_capacity) {
  SegmentIndex index(2);
  const std::shared_ptr<Segment> segment = add_segment(index, 1);
  index.add_found(name(1), {segment, 0});
  ASSERT_TRUE(index.reserve(name(99)));
  EXPECT_EQ(segment_of(index, 1), 1U) << "there is room for both";
  index.verified(name(1), {segment, 0});
  Place place;
  EXPECT_EQ(index.claim(name(1), place), SegmentIndex::Standing::claimed);
  EXPECT_FALSE(index.reserve(name(99)));
  index.unreserve(name(99));
  EXPECT_TRUE(index.reserve(name(99)));
  index.add_found(name(2), {segment, 1});
  index.verified(name(2), {segment, 1});
  EXPECT_EQ(index.claim(name(2), place), SegmentIndex::Standing::no_room);
}

}  // namespace
}  // namespace kvtwin
