// Tests a host that keeps pages only until storage has them, or that is only a buffer (cache.host_mode).
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "stored_rig.hpp"

#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

EngineConfig config_of(HostMode mode, Pages device, Pages host) {
  EngineConfig config = stored_config(device, host);
  config.host_mode = mode;
  config.storage_write_share = 1024;
  return config;
}

// Serves a document of four pages that no storage tier has, up to the write to storage, which stays in flight.
void serve_unwritten(EngineRig& rig, RequestId request, std::uint64_t seed) {
  rig.arrive(request, chain(seed, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  while (!rig.world.transfers.empty()) rig.complete_transfer();
}

// ---- buffer

TEST(HostBuffer, pages_pass_to_storage_and_leave) {
  EngineRig rig(config_of(HostMode::buffer, 6, 4));
  for (RequestId r = 0; r < 5; ++r) {
    rig.arrive(r, chain(r, 4), 17, 1);
    rig.drain();
    expect_stored(rig, chain(r, 4));
  }
  EXPECT_EQ(rig.engine.pages_used_max(Tier::host), 4U);
  rig.arrive(9, chain(1, 4), 17, 1);
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 16U);
  EXPECT_EQ(last(rig).hit[Tier::host], 0U);
  EXPECT_EQ(rig.events.page_count(EventKind::store_done), 20U) << "what came from storage is not written again";
}

TEST(HostBuffer, no_request_hits_a_page_that_is_being_written) {
  for (const HostMode mode : {HostMode::cache, HostMode::until_stored, HostMode::buffer}) {
    EngineRig rig(config_of(mode, 6, 16));
    serve_unwritten(rig, 0, 1);
    ASSERT_EQ(in_flight(rig, kSet), 1U);
    serve_unwritten(rig, 1, 2);  // the first document leaves L1
    rig.arrive(2, chain(1, 4), 17, 1);
    if (in_flight(rig, kLookUp) > 0) rig.complete_stored(kLookUp, 0);
    expect_rest(rig);
    EXPECT_EQ(last(rig).hit[Tier::host], mode == HostMode::buffer ? 0U : 12U) << name_of(mode);
  }
}

TEST(HostBuffer, copies_wait_for_room_in_their_order) {
  EngineRig rig(config_of(HostMode::buffer, 32, 4));
  serve_unwritten(rig, 0, 1);
  serve_unwritten(rig, 1, 2);
  serve_unwritten(rig, 2, 3);
  EXPECT_EQ(rig.events.page_count(EventKind::backup_done), 4U) << "the buffer has room for one document";
  rig.complete_stored(kSet, EngineRig::kAll);
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  rig.complete_transfer();
  EXPECT_EQ(oldest(rig, kSet).pages.front().key, chain(2, 1).front());
  expect_rest(rig);
  for (std::uint64_t seed = 2; seed < 4; ++seed) expect_stored(rig, chain(seed, 4));
}

TEST(HostBuffer, what_leaves_the_device_before_there_is_room_is_not_written) {
  EngineRig rig(config_of(HostMode::buffer, 6, 4));
  for (RequestId r = 0; r < 5; ++r) serve_unwritten(rig, r, r + 1);
  rig.drain();
  EXPECT_GT(rig.events.count(EventKind::backup_dropped, Reason::lost), 0U);
  EXPECT_FALSE(store_of(rig).contains(chain(2, 1).front()));
  rig.arrive(9, chain(2, 4), 17, 1);  // computed again, and written then
  expect_rest(rig);
  expect_stored(rig, chain(2, 4));
}

// The upper part stayed in the queue for ever, and was never written.
TEST(HostBuffer, a_split_page_is_written_if_its_lower_part_has_gone) {
  EngineRig rig(config_of(HostMode::buffer, 11, 4));
  serve_unwritten(rig, 0, 1);
  serve_unwritten(rig, 1, 2);
  rig.arrive(2, chain(2, 2), 9, 1);  // splits the document that waits
  if (in_flight(rig, kLookUp) > 0) rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  serve_unwritten(rig, 3, 5);  // takes the place of the first document
  serve_unwritten(rig, 4, 6);  // and of the lower part
  rig.drain();
  expect_rest(rig);
  ASSERT_FALSE(store_of(rig).contains(chain(2, 4).back())) << "it has left the device";
  expect_stored(rig, chain(2, 2));
}

TEST(HostBuffer, a_split_page_in_the_queue_is_written_once) {
  EngineRig rig(config_of(HostMode::buffer, 32, 4));
  serve_unwritten(rig, 0, 1);
  serve_unwritten(rig, 1, 2);
  rig.arrive(2, branch(2, 2, 7, 4), 17, 1);  // splits the document that waits
  rig.drain();
  expect_rest(rig);
  expect_stored(rig, chain(2, 4));
  expect_stored(rig, branch(2, 2, 7, 4));
  EXPECT_EQ(rig.events.page_count(EventKind::store_done), 4U + 4 + 2);
}

TEST(HostBuffer, a_document_larger_than_the_buffer_is_not_written) {
  EngineRig rig(config_of(HostMode::buffer, 32, 3));
  rig.arrive(0, chain(1, 4), 17, 1);
  expect_rest(rig);
  EXPECT_TRUE(store_of(rig).empty());
  EXPECT_EQ(rig.events.count(EventKind::backup_dropped, Reason::capacity), 1U);
}

// Serves request 0, which decodes for long, while others wait.
EngineRig& occupy(EngineRig& rig) {
  rig.arrive(0, chain(50, 1), 5, 40);
  if (in_flight(rig, kLookUp) > 0) rig.complete_stored(kLookUp, 0);
  return rig;
}

TEST(HostBuffer, what_has_been_read_is_only_its_requests) {
  EngineConfig config = config_of(HostMode::buffer, 64, 16);
  config.max_running = 1;
  EngineRig rig(config);
  put(rig, chain(1, 4));
  occupy(rig);
  for (const RequestId r : {1U, 2U}) {
    rig.arrive(r, chain(1, 4), 17, 1);
    rig.complete_pass();
    rig.complete_stored(kLookUp, 4);
    rig.complete_pass();
    ASSERT_EQ(in_flight(rig, kGet), 1U) << "request " << r << " reads for itself";
    rig.complete_stored(kGet, EngineRig::kAll);
  }
  expect_rest(rig);
  EXPECT_EQ(record_of(rig, 1).hit[Tier::disk], 16U);
  EXPECT_EQ(record_of(rig, 2).hit[Tier::device], 16U) << "the first request brought them to L1";
  EXPECT_EQ(rig.events.count(EventKind::prefetch_wasted, Reason::duplicate), 1U);
}

TEST(HostBuffer, an_abort_frees_what_has_been_read) {
  EngineConfig config = config_of(HostMode::buffer, 64, 16);
  config.max_running = 1;
  EngineRig rig(config);
  put(rig, chain(1, 4));
  occupy(rig);
  rig.arrive(1, chain(1, 4), 17, 1);
  rig.complete_pass();
  rig.complete_stored(kLookUp, 4);
  rig.complete_pass();
  rig.complete_stored(kGet, EngineRig::kAll);
  rig.complete_pass();
  rig.hint(HintKind::abort, 1);
  expect_rest(rig);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_wasted, Reason::aborted), 1U);
}

TEST(HostBuffer, a_load_that_fails_leaves_nothing) {
  EngineRig rig(config_of(HostMode::buffer, 16, 8));
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_stored(kLookUp, 4);
  rig.complete_stored(kGet, EngineRig::kAll);
  rig.complete_transfer(Status::failed);
  expect_rest(rig);
  EXPECT_EQ(rig.events.count(EventKind::load_failed), 1U);
  EXPECT_EQ(last(rig).request, 0U);
}

TEST(HostBuffer, a_hit_is_read_as_a_whole_or_not_at_all) {
  EngineConfig config = config_of(HostMode::buffer, 32, 3);
  config.prefetch_attempts = 1;
  EngineRig rig(config);
  put(rig, chain(1, 4));
  rig.arrive(0, chain(1, 4), 17, 1);
  expect_rest(rig);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_revoked, Reason::capacity), 1U);
  EXPECT_EQ(last(rig).hit[Tier::disk], 0U);
}

// ---- until_stored

TEST(HostUntilStored, a_page_leaves_when_storage_has_it_and_is_written_once) {
  EngineRig rig(config_of(HostMode::until_stored, 32, 16));
  for (RequestId r = 0; r < 3; ++r) {
    rig.arrive(r, chain(1, 4), 17, 1);
    rig.drain();
  }
  expect_rest(rig);
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::shadowed), 4U);
  EXPECT_EQ(rig.events.page_count(EventKind::backup_done), 4U);
  EXPECT_EQ(rig.events.page_count(EventKind::store_done), 4U);
}

TEST(HostUntilStored, a_page_that_only_the_host_has_leaves_too) {
  EngineRig rig(config_of(HostMode::until_stored, 6, 16));
  serve_unwritten(rig, 0, 1);
  serve_unwritten(rig, 1, 2);  // the first document leaves L1
  rig.complete_stored(kSet, EngineRig::kAll);
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::demoted), 3U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::shadowed), 1U);
  expect_rest(rig);
}

TEST(HostUntilStored, a_page_that_was_read_stays_until_it_is_loaded) {
  EngineConfig config = config_of(HostMode::until_stored, 64, 16);
  config.max_running = 1;
  config.storage.push_back({Tier::remote, 1000, false});
  EngineRig rig(config);
  put(rig, chain(1, 4), Tier::remote);
  occupy(rig);
  rig.arrive(1, chain(1, 4), 17, 1);
  rig.complete_pass();
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  rig.complete_stored(kLookUp, 4);
  rig.complete_pass();
  rig.complete_stored(kGet, EngineRig::kAll);
  rig.complete_pass();
  ASSERT_EQ(oldest(rig, kSet).pages.front().key, chain(1, 1).front());
  rig.complete_stored(kSet, EngineRig::kAll);  // to the nearer tier
  rig.complete_pass();
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::demoted), 0U);
  expect_rest(rig);
  EXPECT_EQ(record_of(rig, 1).hit[Tier::remote], 16U);
  EXPECT_GE(rig.events.evicted_pages(Tier::host, Reason::shadowed), 4U);
}

TEST(HostUntilStored, a_page_that_a_tier_lacks_stays_also_after_a_load) {
  EngineRig rig(config_of(HostMode::until_stored, 6, 16));
  serve_unwritten(rig, 0, 1);
  rig.complete_stored(kSet, 0);  // the write fails
  rig.arrive(1, chain(2, 4), 17, 1);
  rig.drain();
  for (int times = 0; times < 2; ++times) {
    const RequestId request = 2 + 2 * static_cast<RequestId>(times);
    rig.arrive(request, chain(1, 3), 13, 1);
    rig.drain();
    rig.arrive(request + 1, chain(3, 4), 17, 1);
    rig.drain();
  }
  expect_rest(rig);
  EXPECT_GT(record_of(rig, 2).hit[Tier::host] + record_of(rig, 4).hit[Tier::host], 0U);
}

// ---- writes that wait for the reserve of the host

Pages pages_in_flight(const EngineRig& rig) {
  Pages pages = 0;
  for (const auto& operation : rig.world.stored) pages += operation.pages.size();
  return pages;
}

// `reserve`: in pages.
EngineConfig reserved_config(Pages device, Pages host, Pages reserve) {
  EngineConfig config = config_of(HostMode::cache, device, host);
  config.host_clean_reserve = static_cast<std::uint32_t>(1024 * reserve / host);
  return config;
}

TEST(HostReserve, pages_are_written_when_the_reserve_is_short_the_oldest_first) {
  EngineRig rig(reserved_config(6, 16, 8));
  serve_unwritten(rig, 0, 1);
  serve_unwritten(rig, 1, 2);
  EXPECT_EQ(in_flight(rig, kSet), 0U) << "half of the host is free";
  serve_unwritten(rig, 2, 3);
  ASSERT_EQ(in_flight(rig, kSet), 1U);
  EXPECT_EQ(oldest(rig, kSet).pages.front().key, chain(1, 1).front());
  EXPECT_EQ(oldest(rig, kSet).pages.size(), 4U) << "the whole node";
  expect_rest(rig);
  EXPECT_EQ(store_of(rig).size(), 4U);
}

// L2 evicts from the leaves up, so what lies below a page that is written is written too.
TEST(HostReserve, a_node_that_was_split_is_written_from_its_upper_part_on_with_what_lies_below) {
  EngineRig rig(reserved_config(6, 16, 8));
  serve_unwritten(rig, 0, 1);
  serve_unwritten(rig, 1, 2);
  rig.arrive(2, branch(1, 2, 7, 4), 17, 1);  // two more pages
  while (in_flight(rig, kLookUp) > 0) rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  while (!rig.world.transfers.empty()) rig.complete_transfer();
  EXPECT_EQ(pages_in_flight(rig), 6U);
  EXPECT_EQ(rig.world.stored[0].pages.front().key, chain(1, 1).front());
  expect_rest(rig);
  expect_stored(rig, chain(1, 4));
  expect_stored(rig, branch(1, 2, 7, 4));
  EXPECT_EQ(store_of(rig).size(), 6U) << "the other document waits";
}

// Sessions whose prompts grow: what arrives lies below pages that have been written.
TEST(HostReserve, however_small_it_is_hardly_a_page_more_is_computed) {
  const auto hits_with = [](std::uint32_t reserve, const char* write_policy) {
    EngineConfig config = config_of(HostMode::cache, 24, 48);
    config.host_clean_reserve = reserve;
    config.write_policy = write_policy;
    config.clean_reserve = 0;
    EngineRig rig(config);
    test::Splitmix random(7);
    std::array<std::pair<std::uint64_t, std::size_t>, 6> sessions{};  // seed and pages of each
    Tokens hits = 0;
    for (RequestId r = 0; r < 400; ++r) {
      auto& [seed, pages] = sessions[random.below(sessions.size())];
      if (pages > 16) pages = 0;
      if (pages == 0) seed = r + 1;
      pages += 1 + random.below(3);
      rig.arrive(r, chain(seed, pages), 4 * pages + 1, 1);
      rig.drain();
      for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) hits += last(rig).hit[tier];
    }
    expect_rest(rig);
    return hits;
  };
  for (const char* write_policy : {"write_through", "write_back"}) {
    const Tokens at_once = hits_with(0, write_policy);
    for (const std::uint32_t reserve : {1U, 100U, 300U, 600U, 1024U}) {
      EXPECT_GE(hits_with(reserve, write_policy) + 4 * 48, at_once) << write_policy << ' ' << reserve;
    }
  }
}

// The reserve is 1/1024: nothing is written before the host needs the room.
TEST(HostReserve, what_the_host_is_to_evict_is_written_first) {
  for (const EvictUnit unit : {EvictUnit::page, EvictUnit::node}) {
    EngineConfig config = reserved_config(6, 16, 0);
    config.host_clean_reserve = 1;
    config.evict_unit = unit;
    EngineRig rig(config);
    for (RequestId r = 0; r < 4; ++r) serve_unwritten(rig, r, r + 1);
    ASSERT_EQ(in_flight(rig, kSet), 0U);
    rig.arrive(4, chain(5, 2), 9, 1);
    if (in_flight(rig, kLookUp) > 0) rig.complete_stored(kLookUp, 0);
    rig.complete_pass();
    const Pages written = pages_in_flight(rig);
    EXPECT_EQ(written, unit == EvictUnit::page ? 2U : 4U) << "as much as room is wanted";
    EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::lost), 0U) << "it is there until it has been written";
    rig.drain();
    const std::vector<PageKey> oldest_chain = chain(1, 4);
    expect_stored(rig, {oldest_chain.end() - static_cast<std::ptrdiff_t>(written), oldest_chain.end()});
    for (RequestId r = 5; r < 9; ++r) {
      rig.arrive(r, chain(r + 10, 4), 17, 1);
      rig.drain();
    }
    expect_rest(rig);
    EXPECT_GT(rig.events.evicted_pages(Tier::host, Reason::lost), 0U);
    EXPECT_LE(rig.events.evicted_pages(Tier::host, Reason::lost), store_of(rig).size()) << "no page is lost";
  }
}

// Two documents that wait for their write are older than the one that storage has: the first is written, and the second
// is passed over until the host needs room again.
TEST(HostReserve, a_written_page_makes_the_room_while_older_ones_wait_for_their_write) {
  for (const EvictUnit unit : {EvictUnit::page, EvictUnit::node}) {
    EngineConfig config = reserved_config(6, 16, 0);
    config.host_clean_reserve = 1;
    config.evict_unit = unit;
    EngineRig rig(config);
    serve_unwritten(rig, 0, 1);
    serve_unwritten(rig, 1, 2);
    put(rig, chain(3, 4));
    rig.arrive(2, chain(3, 4), 17, 1);
    rig.drain();
    serve_unwritten(rig, 3, 4);
    ASSERT_EQ(rig.engine.pages_used_max(Tier::host), 16U);
    ASSERT_EQ(in_flight(rig, kSet), 0U);
    serve_unwritten(rig, 4, 5);
    EXPECT_EQ(rig.events.count(EventKind::backup_dropped), 0U) << "storage has the third document";
    EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::lost), 4U);
    EXPECT_EQ(pages_in_flight(rig), 4U) << "as much as room is wanted";
    rig.drain();
    for (RequestId r = 5; r < 12; ++r) serve_unwritten(rig, r, r + 1);
    expect_rest(rig);
    expect_stored(rig, chain(1, 4));
    expect_stored(rig, chain(2, 4));
  }
}

// Pages that leave the device one by one are joined to one node again. The node keeps their place in the queue.
TEST(HostReserve, what_waits_is_written_after_its_pages_have_left_the_device_one_by_one) {
  EngineConfig config = reserved_config(6, 16, 8);
  config.write_policy = "write_back";
  config.clean_reserve = 1024;
  EngineRig rig(config);
  rig.arrive(0, chain(0, 5), 21, 1);
  rig.drain();
  for (RequestId r = 1; r < 6; ++r) {
    rig.arrive(r, chain(r, 1), 4, 1);
    rig.drain();
  }
  for (RequestId r = 6; r < 9; ++r) {
    rig.arrive(r, chain(r, 2), 8, 1);
    rig.drain();
  }
  expect_rest(rig);
  expect_stored(rig, chain(0, 5));
}

TEST(HostReserve, what_no_tier_takes_is_evicted_unwritten) {
  EngineConfig config = reserved_config(6, 16, 0);
  config.host_clean_reserve = 1;
  config.storage_write_share = 1;  // one page
  config.storage_backlog = StorageBacklog::drop;
  EngineRig rig(config);
  for (RequestId r = 0; r < 8; ++r) {
    rig.arrive(r, chain(r, 4), 17, 1);
    rig.drain();
  }
  expect_rest(rig);
  EXPECT_GT(rig.events.count(EventKind::store_dropped, Reason::backlog), 0U);
  EXPECT_GT(rig.events.evicted_pages(Tier::host, Reason::lost), 0U);
}

TEST(HostReserve, a_copy_that_only_the_host_gives_up_is_written_first) {
  EngineConfig config = reserved_config(32, 8, 0);
  config.host_clean_reserve = 1;
  config.reclaim_shadowed = true;
  EngineRig rig(config);
  for (RequestId r = 0; r < 6; ++r) {
    rig.arrive(r, chain(r, 4), 17, 1);
    rig.drain();
  }
  expect_rest(rig);
  const Pages dropped = rig.events.evicted_pages(Tier::host, Reason::shadowed);
  EXPECT_GT(dropped, 0U);
  EXPECT_GE(store_of(rig).size(), dropped);
}

TEST(HostReserve, a_copy_that_leaves_the_host_with_its_page_loaded_back_no_longer_waits) {
  EngineConfig config = reserved_config(6, 16, 0);
  config.host_clean_reserve = 1;
  config.write_policy = "write_back";
  config.tiering = Tiering::exclusive;
  EngineRig rig(config);
  for (RequestId r = 0; r < 12; ++r) {
    rig.arrive(r, chain(r % 3, 4), 17, 1);
    rig.drain();
  }
  expect_rest(rig);
  EXPECT_GT(rig.events.evicted_pages(Tier::host, Reason::shadowed), 0U);
  EXPECT_EQ(rig.events.count(EventKind::store_queued), 0U) << "the host has room for all";
}

TEST(HostReserve, with_until_stored_a_page_leaves_the_host_after_its_late_write) {
  EngineConfig config = reserved_config(32, 16, 8);
  config.host_mode = HostMode::until_stored;
  EngineRig rig(config);
  for (RequestId r = 0; r < 6; ++r) {
    rig.arrive(r, chain(r, 4), 17, 1);
    rig.drain();
  }
  expect_rest(rig);
  EXPECT_EQ(store_of(rig).size(), 16U) << "the last two documents wait on the host";
  EXPECT_EQ(rig.events.evicted_pages(Tier::host, Reason::shadowed), 16U);
}

}  // namespace
}  // namespace kvtwin
