// Conformance tests that hold for every storage back end, behind the queues of a tier. The tests do not know which back
// end they test.
#include <chrono>
#include <filesystem>
#include <iterator>
#include <set>
#include <thread>

#include "policy/index/page_key.hpp"
#include "tests/conformance.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

constexpr Pages kRoom = 1024;

std::vector<PageKey> slice(const std::vector<PageKey>& keys, std::size_t from, std::size_t to) {
  return {keys.begin() + static_cast<std::ptrdiff_t>(from), keys.begin() + static_cast<std::ptrdiff_t>(to)};
}

RigTerms terms_of(const BackendKind& kind, const PageForm& page = kSmallForm) {
  return {.form = kind.form(page), .objects = kind.objects_of(page), .in_place = kind.in_place};
}

// Returns the key of an object of a page of kSmallForm. `object`: any number.
PageKey object_of(const BackendKind& kind, const PageKey& page, std::uint64_t object) {
  const std::uint32_t objects = kind.objects_of(kSmallForm);
  return objects == 1 ? page : storage_object_key(page, static_cast<std::uint32_t>(object % objects));
}

void expect_done(const Completion& completion, Pages pages) {
  EXPECT_EQ(completion.status, Status::done);
  EXPECT_EQ(completion.pages, pages);
}
void expect_short(const Completion& completion, Pages pages, Cause cause) {
  EXPECT_EQ(completion.status, Status::failed);
  EXPECT_EQ(completion.pages, pages);
  EXPECT_EQ(completion.cause, cause) << name_of(completion.cause);
}

// ---- one operation after another

TEST_P(BackendTest, brings_back_what_was_stored) {
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()));
  for (const std::size_t count : {1U, 2U, 17U, 300U}) {
    const std::vector<PageKey> keys = keys_of(count, count);
    expect_done(rig.set(keys), count);
    EXPECT_EQ(rig.look_up(keys), count);
    expect_done(rig.get(keys), count);
    expect_done(rig.remove(keys), count);
    EXPECT_EQ(rig.look_up(keys), 0u);
    expect_short(rig.get(keys), 0, Cause::missing);
    expect_done(rig.set(keys), count);
    expect_done(rig.get(keys), count);
  }
}

TEST_P(BackendTest, pages_may_be_large_or_tiny) {
  for (const PageForm& form :
       {PageForm{{8, 2, 4, 128, 64}, Layout::page_first_direct}, PageForm{{61, 1, 1, 1152, 16}, Layout::layer_first},
        PageForm{{1, 1, 1, 1, 1}, Layout::page_head}}) {
    const std::unique_ptr<StorageMedium> medium = GetParam().medium();
    StoreRig rig(open(*medium, 16, form), terms_of(GetParam(), form));
    const std::vector<PageKey> keys = keys_of(9);
    expect_done(rig.set(keys), 9);
    expect_done(rig.get(keys), 9);
  }
}

TEST_P(BackendTest, what_was_never_stored_is_missing_and_gone) {
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()));
  EXPECT_EQ(rig.look_up(keys_of(4)), 0u);
  expect_short(rig.get(keys_of(4)), 0, Cause::missing);
  expect_done(rig.remove(keys_of(4)), 4);
}

TEST_P(BackendTest, counts_the_pages_before_the_first_that_is_missing) {
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()));
  const std::vector<PageKey> keys = keys_of(8);
  expect_done(rig.set(slice(keys, 0, 3)), 3);
  expect_done(rig.set(slice(keys, 4, 8)), 4);
  EXPECT_EQ(rig.look_up(keys), 3u);
  expect_short(rig.get(keys), 3, Cause::missing);
  expect_done(rig.get(slice(keys, 4, 8)), 4);
  expect_done(rig.set(keys), 8);
  EXPECT_EQ(rig.look_up(keys), 8u);
  expect_done(rig.get(keys), 8);
}

TEST_P(BackendTest, stores_a_page_once) {
  StoreRig rig(open(*medium_, 4, kSmallForm), terms_of(GetParam()));
  const std::vector<PageKey> keys = keys_of(4);
  for (int i = 0; i < 5; ++i) expect_done(rig.set(keys), 4);
  // Several sets of the same page at the same time use the space of one page.
  expect_done(rig.remove(keys), 4);
  std::vector<OperationId> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(rig.begin(StorageVerb::set, keys));
  for (const OperationId id : ids) expect_done(rig.answer(id), 4);
  expect_done(rig.get(keys), 4);
}

TEST_P(SpacesBackendTest, spaces_do_not_mix) {
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()));
  const std::vector<PageKey> keys = keys_of(5);
  expect_done(rig.set(keys), 5);
  EXPECT_EQ(rig.look_up(keys, kOtherSpace), 0u);
  expect_short(rig.get(keys, kOtherSpace), 0, Cause::missing);
  expect_done(rig.set(slice(keys, 0, 2), kOtherSpace), 2);
  expect_done(rig.remove(slice(keys, 1, 5)), 4);
  EXPECT_EQ(rig.look_up(keys), 1u);
  EXPECT_EQ(rig.look_up(keys, kOtherSpace), 2u);
  expect_done(rig.get(slice(keys, 0, 2), kOtherSpace), 2);
}

// Pool 1 has objects of some of the pages, in a store of its own. A prefix is usable where what it needs is there.
TEST_P(BackendTest, windows_and_states_lie_beside_pages) {
  using Lengths = std::vector<Pages>;
  const std::unique_ptr<StorageMedium> medium = GetParam().medium();
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()), open(*medium, kRoom, kSmallForm));
  const std::vector<PageKey> keys = keys_of(12);
  std::vector<PageKey> objects;
  for (const PageKey& key : keys) objects.push_back(pool_page_key(key, 1));
  const auto in_pool = [&](StorageVerb verb, const std::vector<PageKey>& list) {
    return rig.begin(verb, list, kSpace, {}, 1);
  };
  expect_done(rig.set(slice(keys, 0, 10)), 10);
  EXPECT_EQ(rig.usable(keys, {{.pool = 1}}), Lengths{});
  std::vector<OperationId> ids;
  for (const std::size_t page : {1U, 2U, 3U, 6U, 9U, 11U}) {
    ids.push_back(in_pool(StorageVerb::set, {objects[page]}));
    ids.push_back(rig.begin(StorageVerb::set, keys_of(3, 100 + page)));
  }
  for (const OperationId id : ids) EXPECT_EQ(rig.answer(id).status, Status::done);
  EXPECT_EQ(rig.usable(keys, {{.pool = 1}}), (Lengths{2, 3, 4, 7, 10}));
  EXPECT_EQ(rig.usable(keys, {{.pool = 1, .trailing = 2}}), (Lengths{3, 4}));
  EXPECT_EQ(rig.usable(keys, {{.pool = 1, .trailing = 4, .from_start = true}}), Lengths{});
  EXPECT_EQ(rig.answer(in_pool(StorageVerb::set, {objects[0]})).pages, 1U);
  EXPECT_EQ(rig.usable(keys, {{.pool = 1, .trailing = 4, .from_start = true}}), (Lengths{1, 2, 3, 4}));
  EXPECT_EQ(rig.answer(in_pool(StorageVerb::get, slice(objects, 0, 4))).pages, 4U);
  EXPECT_EQ(rig.answer(in_pool(StorageVerb::get, slice(objects, 3, 5))).pages, 1U);
  EXPECT_EQ(rig.answer(in_pool(StorageVerb::remove, {objects[3]})).pages, 1U);
  expect_done(rig.remove({keys[8]}), 1);
  EXPECT_EQ(rig.usable(keys, {{.pool = 1}}), (Lengths{1, 2, 3, 7}));
  // A remove may name objects of both.
  expect_done(rig.remove({objects[6], keys[7], objects[1], keys[0]}), 4);
  EXPECT_EQ(rig.look_up(slice(keys, 1, 12)), 6u);
  expect_done(rig.set({keys[0]}), 1);
  EXPECT_EQ(rig.usable(keys, {{.pool = 1}}), (Lengths{1, 3}));
}

TEST_P(BackendTest, looks_up_long_chains) {
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()));
  const std::vector<PageKey> keys = keys_of(3000);
  expect_done(rig.set(slice(keys, 0, 999)), 999);
  EXPECT_EQ(rig.look_up(keys), 999u);
}

// ---- many at once

TEST_P(BackendTest, a_remove_takes_its_place_among_the_sets) {
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()));
  const std::vector<PageKey> keys = keys_of(30);
  for (int round = 0; round < 10; ++round) {
    rig.begin(StorageVerb::set, keys);
    rig.begin(StorageVerb::remove, slice(keys, 10, 20));
    rig.begin(StorageVerb::set, slice(keys, 15, 18));
    rig.begin(StorageVerb::remove, slice(keys, 16, 17));
    rig.wait_all();
    EXPECT_EQ(rig.look_up(keys), 10u);
    EXPECT_EQ(rig.look_up(slice(keys, 20, 30)), 10u);
    EXPECT_EQ(rig.look_up(slice(keys, 15, 20)), 1u);
    EXPECT_EQ(rig.look_up(slice(keys, 17, 20)), 1u);
    expect_done(rig.remove(keys), 30);
  }
}

TEST_P(BackendTest, answers_many_operations_at_once_in_order) {
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()));
  std::vector<std::vector<PageKey>> chains;
  for (std::uint64_t document = 0; document < 100; ++document) chains.push_back(keys_of(1 + document % 9, document));
  for (const auto& keys : chains) rig.begin(StorageVerb::set, keys);
  rig.wait_all();
  std::vector<OperationId> gets;
  for (const auto& keys : chains) {
    gets.push_back(rig.begin(StorageVerb::get, keys, kSpace, gets.size() % 2 == 0 ? Tier::host : Tier::device));
    rig.begin(StorageVerb::look_up, keys);
    rig.begin(StorageVerb::set, keys);
  }
  for (std::size_t i = 0; i < chains.size(); ++i) expect_done(rig.answer(gets[i]), chains[i].size());
  rig.wait_all();
}

// All three threads use the same few pages at the same time. The result of a get is not determined, but StoreRig checks
// every page that a get counts. At the end, the writes have taken effect in order.
TEST_P(BackendTest, look_ups_gets_and_writes_go_on_at_the_same_time) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::unique_ptr<StorageMedium> medium = GetParam().medium();
    StoreRig rig(open(*medium, kRoom, kSmallForm), terms_of(GetParam()));
    Splitmix random(seed);
    const std::vector<PageKey> keys = keys_of(24);
    std::set<PageKey> there;
    for (int i = 0; i < 300; ++i) {
      const std::size_t from = random.below(keys.size());
      const std::vector<PageKey> some = slice(keys, from, from + 1 + random.below(keys.size() - from));
      const StorageVerb verb = static_cast<StorageVerb>(random.below(4));
      const OperationId id = rig.begin(verb, some);
      if (verb == StorageVerb::set) there.insert(some.begin(), some.end());
      if (verb == StorageVerb::remove) {
        for (const PageKey& key : some) there.erase(key);
      }
      if (verb == StorageVerb::get && random.chance(20)) rig.cancel(id);
    }
    rig.wait_all();
    for (const PageKey& key : keys) EXPECT_EQ(rig.has(key), there.contains(key));
  }
}

// Rounds with many operations at the same time: writes of some pages, and look-ups and gets of other pages.
TEST_P(BackendTest, agrees_with_a_model) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::unique_ptr<StorageMedium> medium = GetParam().medium();
    const Pages capacity = GetParam().bounded ? 20 : 1'000'000;
    StoreRig rig(open(*medium, capacity, kSmallForm), terms_of(GetParam()));
    Splitmix random(seed);
    const std::vector<PageKey> keys = keys_of(48);
    std::set<std::pair<PageKey, PageKey>> there;
    for (int round = 0; round < 40; ++round) {
      // In this round, the first part of the chain is written and the rest is read, or the other way round.
      const std::size_t cut = random.between(1, keys.size() - 1);
      const bool swapped = random.chance(50);
      const auto some = [&](bool written) {
        const bool front = written != swapped;
        const std::size_t begin = front ? 0 : cut, end = front ? cut : keys.size();
        const std::size_t from = random.between(begin, end - 1);
        return slice(keys, from, from + 1 + random.below(std::min<std::size_t>(end - from, 12)));
      };
      std::vector<std::pair<OperationId, Pages>> expected;
      for (std::uint64_t i = random.between(1, 12); i > 0; --i) {
        const PageKey space = random.chance(70) || !GetParam().spaces ? kSpace : kOtherSpace;
        const StorageVerb verb = static_cast<StorageVerb>(random.below(4));
        const bool writes = verb == StorageVerb::set || verb == StorageVerb::remove;
        const std::vector<PageKey> pages = some(writes);
        Pages right = 0;
        for (bool going_on = true; const PageKey& key : pages) {
          const std::pair page{space, key};
          if (verb == StorageVerb::set && going_on && there.size() < capacity) there.insert(page);
          if (verb == StorageVerb::remove) there.erase(page);
          going_on = going_on && (verb == StorageVerb::remove || there.contains(page));
          if (going_on) ++right;
        }
        expected.emplace_back(rig.begin(verb, pages, space, random.chance(50) ? Tier::host : Tier::device), right);
      }
      for (const auto& [id, pages] : expected) EXPECT_EQ(rig.answer(id).pages, pages) << "in round " << round;
    }
  }
}

// ---- cancels and ends

TEST_P(BackendTest, what_is_cancelled_before_it_begins_never_does) {
  RigTerms terms = terms_of(GetParam());
  terms.starts = false;
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms);
  const std::vector<PageKey> first = keys_of(3, 1), second = keys_of(3, 2);
  const OperationId set = rig.begin(StorageVerb::set, first);
  const OperationId cancelled = rig.begin(StorageVerb::set, second);
  const OperationId removed = rig.begin(StorageVerb::remove, first);
  const OperationId get = rig.begin(StorageVerb::get, first);
  for (const OperationId id : {cancelled, removed, get}) rig.cancel(id);
  rig.start();
  expect_done(rig.answer(set), 3);
  for (const OperationId id : {cancelled, removed, get}) {
    EXPECT_EQ(rig.answer(id).status, Status::cancelled);
    EXPECT_EQ(rig.answer(id).pages, 0u);
  }
  EXPECT_EQ(rig.look_up(first), 3u);
  EXPECT_EQ(rig.look_up(second), 0u);
  rig.cancel(get);  // the operation has ended: no effect
  expect_done(rig.get(first), 3);
}

// Stops the back end at each page, while the back end reads or writes the slot, and cancels the operation there.
TEST_P(BackendTest, a_cancel_in_the_middle_keeps_what_was_begun) {
  Gate reached, go;
  std::atomic<int> pages_to_go = 0;
  const auto stop_there = [&] {
    if (--pages_to_go != 0) return;
    reached.open();
    go.pass();
  };
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()));
  rig.memory.before_read = rig.memory.before_write = stop_there;
  for (int page = 1; page <= 12; ++page) {
    const std::vector<PageKey> keys = keys_of(12, static_cast<std::uint64_t>(page));
    for (const StorageVerb verb : {StorageVerb::set, StorageVerb::get}) {
      if (verb == StorageVerb::get) expect_done(rig.set(keys), 12);
      pages_to_go = page;
      const OperationId id = rig.begin(verb, keys), next = rig.begin(verb, keys);
      reached.pass();
      rig.cancel(id);
      go.open();
      const Completion completion = rig.answer(id);
      EXPECT_NE(completion.status, Status::failed);
      if (verb == StorageVerb::set) {
        EXPECT_GE(rig.look_up(keys), completion.pages);
      }
      expect_done(rig.answer(next), 12);
    }
  }
}

TEST_P(BackendTest, finishing_works_off_what_is_there) {
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()));
  const std::vector<PageKey> keys = keys_of(200);
  std::vector<OperationId> ids = {rig.begin(StorageVerb::set, keys)};
  ids.push_back(rig.begin(StorageVerb::remove, slice(keys, 100, 200)));
  ids.push_back(rig.begin(StorageVerb::look_up, keys));
  rig.finish();
  expect_done(rig.answer(ids[0]), 200);
  expect_done(rig.answer(ids[1]), 100);
  rig.wait_all();
}

std::ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

// Returns whether the folder soon has no more entries than `most`: the kernel needs a moment to remove a thread that
// has been joined, and a library's own thread may hold a socket for a moment.
bool settles(const char* folder, std::ptrdiff_t most) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (entries(folder) > most) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_P(BackendTest, leaves_no_thread_and_no_descriptor_behind) {
  std::ptrdiff_t threads = 0, descriptors = 0;
  for (int round = 0; round < 30; ++round) {
    {
      Gate reached;
      std::atomic<int> pages_to_go = round;
      StoreRig rig(open(*medium_, 4 * kRoom, kSmallForm), terms_of(GetParam()));  // room for the pages of all rounds
      rig.memory.before_read = rig.memory.before_write = [&] {
        if (--pages_to_go == 0) reached.open();
      };
      if (round % 5 != 0) {
        for (std::uint64_t document = 0; document < 20; ++document) {
          rig.begin(StorageVerb::set, keys_of(5, document + 100 * static_cast<std::uint64_t>(round)));
          rig.begin(StorageVerb::get, keys_of(5, document));
          rig.begin(StorageVerb::look_up, keys_of(5, document));
        }
        reached.pass();
      }
      if (round % 3 == 0) rig.finish();
    }  // in other rounds, the rig is destroyed while operations are in flight
    if (round == 0) {
      threads = entries("/proc/self/task");
      descriptors = entries("/proc/self/fd");
    }
    ASSERT_TRUE(settles("/proc/self/task", threads)) << "in round " << round;
    ASSERT_TRUE(settles("/proc/self/fd", descriptors)) << "in round " << round;
  }
}

TEST_P(BackendTest, a_rank_that_does_not_store_says_done) {
  RigTerms terms = terms_of(GetParam());
  terms.stores = false;
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms);
  rig.memory.before_read = [] { ADD_FAILURE() << "nothing is taken"; };
  const std::vector<PageKey> keys = keys_of(3);
  expect_done(rig.set(keys), 3);
  EXPECT_EQ(rig.look_up(keys), 0u);
  rig.begin(StorageVerb::set, keys);
  rig.begin(StorageVerb::remove, keys);
  rig.begin(StorageVerb::set, keys);
  rig.wait_all();
}

// ---- a medium with a limit

TEST_P(BoundedBackendTest, a_full_one_refuses_pages_and_goes_on) {
  StoreRig rig(open(*medium_, 10, kSmallForm), terms_of(GetParam()));
  const std::vector<PageKey> keys = keys_of(30);
  expect_short(rig.set(slice(keys, 0, 15)), 10, Cause::full);
  expect_short(rig.set(slice(keys, 20, 22)), 0, Cause::full);
  EXPECT_EQ(rig.look_up(keys), 10u);
  expect_done(rig.get(slice(keys, 0, 10)), 10);
  expect_done(rig.set(slice(keys, 0, 10)), 10);  // these pages are stored already
  expect_short(rig.set(slice(keys, 5, 15)), 5, Cause::full);
  expect_done(rig.remove(slice(keys, 3, 5)), 2);
  expect_done(rig.set(slice(keys, 20, 22)), 2);
  expect_short(rig.set(slice(keys, 3, 5)), 0, Cause::full);
  expect_done(rig.get(slice(keys, 20, 22)), 2);
  EXPECT_EQ(rig.look_up(keys), 3u);
}

TEST_P(BoundedBackendTest, room_is_what_was_removed) {
  StoreRig rig(open(*medium_, 8, kSmallForm), terms_of(GetParam()));
  std::vector<OperationId> ids;
  for (std::uint64_t document = 0; document < 40; ++document) {
    ids.push_back(rig.begin(StorageVerb::set, keys_of(8, document)));
    ids.push_back(rig.begin(StorageVerb::remove, keys_of(8, document)));
  }
  for (const OperationId id : ids) expect_done(rig.answer(id), 8);
}

// ---- damage

struct Damage {
  const char* what;
  std::function<void(std::vector<std::byte>& stored)> change;
};

// `bytes`: of the stored object, without its header.
std::vector<Damage> damages(std::size_t bytes) {
  std::vector<Damage> list;
  const std::size_t payload = kPageHeaderBytes, middle = payload + bytes / 2, last = payload + bytes - 1;
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{9}, std::size_t{15}, std::size_t{20}, std::size_t{50}, std::size_t{84},
        std::size_t{101}, std::size_t{106}, std::size_t{113}, std::size_t{125}, payload, payload + 1, middle, last}) {
    list.push_back({"a flipped bit", [at](auto& stored) { stored.at(at) ^= std::byte{4}; }});
  }
  for (const std::size_t length :
       {std::size_t{1}, payload - 1, payload, payload + 1, last, last + 2, std::size_t{5000}}) {
    list.push_back({"of another length", [length](auto& stored) { stored.resize(length); }});
  }
  list.push_back({"zeros", [](auto& stored) { std::ranges::fill(stored, std::byte{0}); }});
  list.push_back({"a torn payload", [middle](auto& stored) {
                    std::fill(stored.begin() + static_cast<std::ptrdiff_t>(middle), stored.end(), std::byte{7});
                  }});
  return list;
}

// Page 2 of 4 is damaged. Expects one miss of this page, unchanged other pages, and that the page can be stored again.
void expect_missed_once(StoreRig& rig, const std::vector<PageKey>& keys) {
  const Completion completion = rig.get(keys);
  EXPECT_EQ(completion.pages, 2u);
  EXPECT_TRUE(completion.cause == Cause::corrupt || completion.cause == Cause::missing) << name_of(completion.cause);
  expect_done(rig.get({keys[3]}), 1);
  expect_short(rig.get({keys[2]}), 0, Cause::missing);
  EXPECT_EQ(rig.look_up(keys), 2u);
  expect_done(rig.set(keys), 4);
  expect_done(rig.get(keys), 4);
}

// In pages of several objects, the damaged one changes from case to case.
TEST_P(VouchingBackendTest, damaged_pages_are_misses) {
  StoreRig rig(open(*medium_, 64, kSmallForm), terms_of(GetParam()));
  const std::size_t bytes = kSmallForm.bytes() / GetParam().objects_of(kSmallForm);
  std::uint64_t document = 0;
  for (const Damage& damage : damages(bytes)) {
    SCOPED_TRACE(damage.what);
    const std::vector<PageKey> keys = keys_of(4, ++document);
    expect_done(rig.set(keys), 4);
    const PageKey object = object_of(GetParam(), keys[2], document);
    std::vector<std::byte> stored = medium_->stored(kSpace, object);
    ASSERT_EQ(stored.size(), kPageHeaderBytes + bytes);
    damage.change(stored);
    medium_->overwrite(kSpace, object, stored);
    expect_missed_once(rig, keys);
    expect_done(rig.remove(keys), 4);
  }
  rig.finish();
  EXPECT_EQ(rig.counter("corrupt_pages"), damages(bytes).size());
}

// An empty value counts as missing or as damaged, but never as a page.
TEST_P(VouchingBackendTest, an_emptied_page_is_a_miss) {
  StoreRig rig(open(*medium_, 64, kSmallForm), terms_of(GetParam()));
  const std::vector<PageKey> keys = keys_of(4);
  expect_done(rig.set(keys), 4);
  medium_->overwrite(kSpace, object_of(GetParam(), keys[2], 1), {});
  expect_missed_once(rig, keys);
}

TEST_P(VouchingBackendTest, a_page_in_the_place_of_another_is_a_miss) {
  StoreRig rig(open(*medium_, 64, kSmallForm), terms_of(GetParam()));
  const std::vector<PageKey> keys = keys_of(4, 1), others = keys_of(4, 2);
  const PageKey object = object_of(GetParam(), keys[2], 1), next = object_of(GetParam(), keys[2], 2);
  std::uint64_t damaged = 0;
  const auto put = [&](const std::vector<std::byte>& stored) {
    medium_->overwrite(kSpace, object, stored);
    expect_missed_once(rig, keys);
    ++damaged;
  };
  expect_done(rig.set(keys), 4);
  expect_done(rig.set(others), 4);
  put(medium_->stored(kSpace, object_of(GetParam(), others[1], 1)));
  if (next != object) put(medium_->stored(kSpace, next));  // of the same page
  if (GetParam().spaces) {
    expect_done(rig.set(keys, kOtherSpace), 4);
    put(medium_->stored(kOtherSpace, object));
  }
  // A correct header before the payload of another page.
  std::vector<std::byte> mixed = medium_->stored(kSpace, object);
  const std::vector<std::byte> other = medium_->stored(kSpace, object_of(GetParam(), others[2], 1));
  std::copy(other.begin() + kPageHeaderBytes, other.end(), mixed.begin() + kPageHeaderBytes);
  put(mixed);
  expect_done(rig.get(others), 4);
  rig.finish();
  EXPECT_EQ(rig.counter("corrupt_pages"), damaged);
}

// ---- media that persist

TEST_P(PersistentBackendTest, what_was_finished_is_there_again) {
  const std::vector<PageKey> keys = keys_of(50), gone = keys_of(50, 2);
  {
    StoreRig rig(open(*medium_, 200, kSmallForm), terms_of(GetParam()));
    expect_done(rig.set(keys), 50);
    expect_done(rig.set(gone), 50);
    expect_done(rig.remove(gone), 50);
    rig.finish();
  }
  for (int life = 0; life < 3; ++life) {
    StoreRig rig(open(*medium_, 200, kSmallForm), terms_of(GetParam()));
    EXPECT_EQ(rig.look_up(keys), 50u);
    expect_done(rig.get(keys), 50);
    EXPECT_EQ(rig.look_up(gone), 0u);
    rig.finish();
  }
}

// A second run, which knows only objects, removes one object of a page: as an eviction, or another program.
TEST_P(PersistentBackendTest, a_page_that_lost_an_object_is_a_miss) {
  const std::uint32_t objects = GetParam().objects_of(kSmallForm);
  const std::vector<PageKey> keys = keys_of(4);
  const PageForm object_only = object_form(GetParam().form(kSmallForm), objects);
  for (std::uint32_t object = 0; object < objects; ++object) {
    {
      StoreRig rig(open(*medium_, 64, kSmallForm), terms_of(GetParam()));
      expect_done(rig.set(keys), 4);
      rig.finish();
    }
    {
      StoreRig rig(medium_->open(object_only, Pages{64} * objects), {.form = object_only});
      expect_done(rig.remove({object_of(GetParam(), keys[2], object)}), 1);
      rig.finish();
    }
    StoreRig rig(open(*medium_, 64, kSmallForm), terms_of(GetParam()));
    EXPECT_EQ(rig.look_up(keys), 2u);
    expect_short(rig.get(keys), 2, Cause::missing);
    expect_done(rig.get({keys[3]}), 1);
    expect_done(rig.set(keys), 4);
    expect_done(rig.get(keys), 4);
    rig.finish();
    EXPECT_EQ(rig.counter("objects_per_page"), objects);
    EXPECT_EQ(rig.counter("objects_stored"), 4 * objects);
  }
}

// The back end is destroyed during a write. Every page is correct or missing (StoreRig checks this), and can be stored
// again.
TEST_P(PersistentBackendTest, what_was_cut_off_is_right_or_missing) {
  for (int page = 1; page <= 40; page += 3) {
    const std::vector<PageKey> keys = keys_of(40, static_cast<std::uint64_t>(page));
    {
      Gate reached;
      std::atomic<int> pages_to_go = page;
      StoreRig rig(open(*medium_, 4000, kSmallForm), terms_of(GetParam()));
      rig.memory.before_read = [&] {
        if (--pages_to_go == 0) reached.open();
      };
      for (const PageKey& key : keys) rig.begin(StorageVerb::set, {key});
      reached.pass();
    }
    StoreRig rig(open(*medium_, 4000, kSmallForm), terms_of(GetParam()));
    for (const PageKey& key : keys) {
      const bool found = rig.has(key);
      const Completion got = rig.get({key});
      EXPECT_TRUE(got.pages == 1 || got.cause == Cause::missing || got.cause == Cause::corrupt);
      EXPECT_LE(got.pages, found ? 1u : 0u);
    }
    expect_done(rig.set(keys), 40);
    expect_done(rig.get(keys), 40);
    rig.finish();
  }
}

TEST_P(ExclusiveBackendTest, a_second_one_is_refused) {
  const std::vector<PageKey> keys = keys_of(5);
  StoreRig rig(open(*medium_, kRoom, kSmallForm), terms_of(GetParam()));
  expect_done(rig.set(keys), 5);
  EXPECT_THROW(open(*medium_, kRoom, kSmallForm), std::runtime_error);
  expect_done(rig.get(keys), 5);
}

}  // namespace

// A build may leave out all back ends that have a property.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BoundedBackendTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VouchingBackendTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PersistentBackendTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExclusiveBackendTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SpacesBackendTest);

}  // namespace kvtwin::test
