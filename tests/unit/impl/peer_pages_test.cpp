// Peers on a stand-in for NIXL: stale pages, late and failed transfers, grants. tests/remote/ has NIXL itself, and
// engines in processes of their own.
#include <gtest/gtest.h>

#include <thread>

#include "tests/nixl_stand_in_rig.hpp"
#include "tests/peer_rig.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

using Mode = NixlStandIn::Mode;
constexpr TimeNs kShort = 1'000'000;
constexpr Pages kPages = 64;

PeerConfig named(const std::string& name, TimeNs timeout = 60 * kNsPerSecond) {
  PeerConfig config;
  config.name = name;
  config.library = nixl_stand_in_library();
  config.timeout = timeout;
  config.bytes_in_flight = 1000;  // several transfers a call
  return config;
}

class Peers : public testing::TestWithParam<Layout> {
 protected:
  Peers() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    nixl().reset();
  }
  ~Peers() override {
    // A late call ends behind its engine.
    for (;;) {
      const std::lock_guard lock(nixl().mutex);
      if (nixl().agents.empty()) break;
    }
    EXPECT_EQ(nixl().misuses, 0);
  }
  static PageForm form() {
    PageForm form = small_form();
    form.shape.layers = 3;
    form.layout = GetParam();
    return form;
  }
};
INSTANTIATE_TEST_SUITE_P(, Peers, testing::Values(Layout::page_first, Layout::layer_first, Layout::page_head),
                         [](const auto& layout) { return std::string(name_of(layout.param)); });

TEST_P(Peers, ReadsAndWritesPagesInAnyOrder) {
  PeerEngine a(named("a"), form(), kPages), b(named("b"), form(), 2 * kPages);
  const PeerId to_b = a.add(b), to_a = b.add(a);
  EXPECT_EQ(a.peers().pages_of(to_b), 2 * kPages);
  Splitmix random(1);
  std::vector<std::uint64_t> number_in(kPages);
  for (int round = 0; round < 200; ++round) {
    const auto slot = static_cast<SlotId>(random.below(kPages));
    number_in[slot] = random.next();
    a.store(slot, number_in[slot]);
    const auto count = 1 + random.below(20);
    std::vector<PeerPage> pages;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto theirs = static_cast<SlotId>((slot + kPages - i) % kPages);
      if (number_in[theirs] == 0) continue;
      const auto own = static_cast<SlotId>((random.below(2) == 0 ? 7 * i : 7 * i + kPages) % (2 * kPages));
      if (std::ranges::any_of(pages, [own](const PeerPage& page) { return page.own == own; })) continue;
      pages.push_back(numbered_page(number_in[theirs], own, theirs));
    }
    std::vector<Cause> causes(pages.size());
    b.peers().read(to_a, pages, causes);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      ASSERT_EQ(causes[i], Cause::none);
      ASSERT_TRUE(b.has(pages[i].own, number_in[pages[i].theirs]));
      ASSERT_FALSE(b.peers().in_use(pages[i].own));
    }
    // And back, by writes into granted slots.
    const PeerPage back = pages.front();
    const auto target = static_cast<SlotId>(random.below(kPages));
    const std::uint64_t number = number_in[back.theirs];
    a.peers().grant(target, to_b);
    EXPECT_TRUE(a.peers().in_use(target));
    ASSERT_EQ(b.write(to_a, number, back.own, target), Cause::none);
    ASSERT_TRUE(a.peers().accept(target, some_space(), numbered_key(number)));
    ASSERT_TRUE(a.has(target, number));
    EXPECT_FALSE(a.peers().in_use(target));
    number_in[target] = number;
  }
  std::vector<std::uint64_t> listed(kPages);
  for (const PeerPage& page : b.peers().list(to_a)) listed[page.theirs] = page.key.words[3];
  EXPECT_EQ(listed, number_in);
  EXPECT_EQ(a.counter("accepted_pages"), 200u);
  EXPECT_EQ(b.counter("written_pages"), 200u);
  EXPECT_EQ(b.counter("stale_pages"), 0u);
}

TEST_P(Peers, AChangedOrWithdrawnPageIsAMissAndIsNotPublishedAgain) {
  PeerEngine a(named("a"), form(), kPages), b(named("b"), form(), kPages);
  const PeerId to_a = b.add(a);
  a.store(1, 11);
  a.store(2, 12);
  a.store(3, 13);
  a.peers().withdraw(2);
  a.pieces(3).back().back() ^= std::byte{1};
  EXPECT_EQ(b.read(to_a, 11, 0, 1), Cause::none);
  EXPECT_EQ(b.read(to_a, 10, 1, 1), Cause::missing);  // the slot has another page
  EXPECT_EQ(b.read(to_a, 12, 2, 2), Cause::missing);
  EXPECT_EQ(b.read(to_a, 13, 3, 3), Cause::missing);
  EXPECT_EQ(b.read(to_a, 13, 4, 9), Cause::missing);  // never published
  EXPECT_EQ(b.counter("stale_pages"), 4u);
  PeerEngine c(named("c"), form(), kPages);
  const PeerId to_b = c.add(b);
  const std::vector<PeerPage> listed = c.peers().list(to_b);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].key, numbered_key(11));
}

// The owner changes a page between the transfer's copies of header and bytes.
TEST_P(Peers, ATornPageIsAMiss) {
  PeerEngine a(named("a"), form(), kPages), b(named("b"), form(), kPages);
  const PeerId to_a = b.add(a);
  a.store(5, 1);
  int copies = 0;
  nixl().before_move = [&] {
    if (++copies == 2) a.store(5, 2);
  };
  EXPECT_EQ(b.read(to_a, 1, 0, 5), Cause::missing);
  EXPECT_EQ(b.read(to_a, 2, 0, 5), Cause::none);
  EXPECT_TRUE(b.has(0, 2));
}

TEST_P(Peers, ALateReadKeepsItsSlotsUntilItHasEnded) {
  PeerEngine a(named("a"), form(), kPages), b(named("b", kShort), form(), kPages);
  const PeerId to_a = b.add(a);
  a.store(5, 1);
  a.store(6, 2);
  nixl().set_mode("a", Mode::hold);
  EXPECT_EQ(b.read(to_a, 1, 0, 5), Cause::unreachable);
  EXPECT_TRUE(b.peers().in_use(0));
  EXPECT_EQ(b.read(to_a, 2, 1, 6), Cause::unreachable);  // not begun: the first one is in progress
  EXPECT_FALSE(b.peers().in_use(1));
  EXPECT_EQ(b.peers().list(to_a).size(), 0u);
  EXPECT_EQ(b.counter("late_pages"), 2u);
  EXPECT_DEATH(b.store(0, 3), "");
  nixl().set_mode("a", Mode::go);
  do {  // on a busy machine this read may be late, too
    while (b.peers().in_use(0)) std::this_thread::yield();
  } while (b.read(to_a, 2, 0, 6) != Cause::none);
  EXPECT_TRUE(b.has(0, 2));
}

TEST_P(Peers, ALateWriteKeepsSlotsOnBothSides) {
  PeerEngine a(named("a"), form(), kPages), b(named("b", kShort), form(), kPages);
  const PeerId to_a = b.add(a), to_b = a.add(b);
  b.store(0, 1);
  a.peers().grant(5, to_b);
  nixl().set_mode("a", Mode::hold);
  EXPECT_EQ(b.write(to_a, 1, 0, 5), Cause::unreachable);
  EXPECT_TRUE(b.peers().in_use(0));
  EXPECT_TRUE(a.peers().in_use(5));
  nixl().set_mode("a", Mode::go);
  while (b.peers().in_use(0)) std::this_thread::yield();
  EXPECT_TRUE(a.peers().accept(5, some_space(), numbered_key(1)));  // it has ended, and well
  EXPECT_FALSE(a.peers().in_use(5));
}

TEST_P(Peers, ASlotOfTwoWritesIsInUseUntilBothHaveEnded) {
  PeerEngine a(named("a"), form(), kPages), b(named("b", kShort), form(), kPages), c(named("c"), form(), kPages);
  const PeerId to_a = b.add(a), to_c = b.add(c);
  b.store(0, 1);
  a.peers().grant(5, a.add(b));
  c.peers().grant(5, c.add(b));
  nixl().set_mode("a", Mode::hold);
  EXPECT_EQ(b.write(to_a, 1, 0, 5), Cause::unreachable);
  while (b.write(to_c, 1, 0, 5) != Cause::none) continue;
  EXPECT_TRUE(b.peers().in_use(0));
  nixl().set_mode("a", Mode::go);
  while (b.peers().in_use(0)) std::this_thread::yield();
}

TEST_P(Peers, ALateListKeepsTheMemoryOfLists) {
  PeerEngine a(named("a"), form(), kPages), b(named("b", kShort), form(), kPages), c(named("c"), form(), kPages);
  const PeerId to_a = b.add(a), to_c = b.add(c);
  c.store(0, 1);
  nixl().set_mode("a", Mode::hold);
  EXPECT_TRUE(b.peers().list(to_a).empty());
  EXPECT_TRUE(b.peers().list(to_c).empty());
  nixl().set_mode("a", Mode::go);
  while (b.peers().list(to_c).empty()) continue;
}

// An agent may still move the bytes of a transfer that has failed.
TEST_P(Peers, AFailedTransferKeepsItsSlotsAndLosesThePeer) {
  PeerEngine a(named("a"), form(), kPages), b(named("b"), form(), kPages), c(named("c"), form(), kPages);
  const PeerId to_a = b.add(a), to_c = b.add(c);
  for (SlotId slot = 0; slot < 8; ++slot) {
    a.store(slot, 100 + slot);
    c.store(slot, 200 + slot);
  }
  nixl().set_mode("a", Mode::fail);
  EXPECT_EQ(b.read(to_a, 100, 0, 0), Cause::unreachable);
  EXPECT_EQ(b.read(to_a, 101, 1, 1), Cause::unreachable);  // not begun
  EXPECT_TRUE(b.peers().in_use(0));
  EXPECT_FALSE(b.peers().in_use(1));
  for (SlotId slot = 1; slot < 8; ++slot) ASSERT_EQ(b.read(to_c, 200 + slot, slot, slot), Cause::none);
  nixl().set_mode("a", Mode::go);
  nixl().land_late();
  for (SlotId slot = 1; slot < 8; ++slot) EXPECT_TRUE(b.has(slot, 200 + slot));
  EXPECT_EQ(b.read(to_a, 101, 9, 1), Cause::unreachable);  // a peer that is lost stays so
  EXPECT_EQ(b.counter("failed_pages"), 3u);
}

TEST_P(Peers, ARefusedTransferLosesThePeer) {
  PeerEngine a(named("a"), form(), kPages), b(named("b"), form(), kPages);
  const PeerId to_a = b.add(a);
  a.store(0, 1);
  nixl().set_mode("a", Mode::refuse);
  EXPECT_EQ(b.read(to_a, 1, 0, 0), Cause::unreachable);
  nixl().set_mode("a", Mode::go);
  EXPECT_EQ(b.read(to_a, 1, 1, 0), Cause::unreachable);
}

TEST_P(Peers, MemoryAndAgentOutliveTheEngineWhileATransferIsLate) {
  PeerEngine a(named("a"), form(), kPages);
  std::weak_ptr<const Arena> memory;
  {
    PeerEngine b(named("b", kShort), form(), kPages);
    memory = b.arena();
    const PeerId to_a = b.add(a);
    a.store(5, 1);
    nixl().set_mode("a", Mode::hold);
    EXPECT_EQ(b.read(to_a, 1, 0, 5), Cause::unreachable);
  }
  EXPECT_FALSE(memory.expired());
  nixl().set_mode("a", Mode::go);
  while (!memory.expired()) std::this_thread::yield();
}

TEST_P(Peers, GrantsOfADeadWriterEnd) {
  PeerEngine a(named("a"), form(), kPages), b(named("b"), form(), kPages), c(named("c"), form(), kPages);
  const PeerId to_b = a.add(b), to_c = a.add(c);
  a.store(1, 1);
  a.peers().grant(1, to_b);
  a.peers().grant(2, to_c);
  a.peers().grant(3, to_b);
  const PeerId to_a = b.add(a);
  EXPECT_TRUE(b.peers().list(to_a).empty());  // a granted slot holds no page
  b.store(0, 2);
  ASSERT_EQ(b.write(to_a, 2, 0, 3), Cause::none);
  EXPECT_EQ(a.peers().end_grants(to_b), (std::vector<SlotId>{1, 3}));
  EXPECT_FALSE(a.peers().in_use(1));
  EXPECT_TRUE(a.peers().in_use(2));
  EXPECT_TRUE(b.peers().list(to_a).empty());
  EXPECT_FALSE(a.peers().accept(2, some_space(), numbered_key(1)));  // nothing was written
  EXPECT_EQ(a.counter("refused_pages"), 1u);
}

TEST_P(Peers, AnAcceptedPageIsTheOneThatWasAgreedOn) {
  PeerEngine a(named("a"), form(), kPages), b(named("b"), form(), kPages);
  const PeerId to_a = b.add(a), to_b = a.add(b);
  b.store(0, 1);
  a.peers().grant(5, to_b);
  ASSERT_EQ(b.write(to_a, 1, 0, 5), Cause::none);
  EXPECT_FALSE(a.peers().accept(5, some_space(), numbered_key(2)));
  EXPECT_TRUE(b.peers().list(to_a).empty());
}

TEST_P(Peers, APageOfAnotherSecretIsNone) {
  const PageSeal one("a secret of sixteen bytes"), other("another one of sixteen");
  PeerEngine a(named("a"), form(), kPages, &one), b(named("b"), form(), kPages, &one);
  PeerEngine c(named("c"), form(), kPages, &other);
  a.store(5, 1);
  EXPECT_EQ(b.read(b.add(a), 1, 0, 5), Cause::none);
  EXPECT_THROW(c.add(a), std::runtime_error);
}

std::string sentence_of(PeerEngine& engine, const std::vector<std::byte>& description) {
  const auto added = engine.peers().add(description);
  const auto* sentence = std::get_if<std::string>(&added);
  return sentence == nullptr ? "" : *sentence;
}

TEST_P(Peers, WhatIsNoPeerIsRefusedWithASentence) {
  PeerEngine a(named("a"), form(), kPages), b(named("b"), form(), kPages);
  const std::vector<std::byte> right = b.peers().description();
  for (std::size_t length = 0; length < right.size(); ++length) {
    EXPECT_NE(sentence_of(a, {right.begin(), right.begin() + static_cast<std::ptrdiff_t>(length)}), "");
    std::vector<std::byte> changed = right;
    changed[length] ^= std::byte{0x10};
    EXPECT_NE(sentence_of(a, changed), "");
  }
  EXPECT_EQ(sentence_of(a, right), "");
  EXPECT_EQ(sentence_of(a, right), "There is a peer with the name b already.");
  EXPECT_EQ(sentence_of(a, a.peers().description()), "The peer has this engine's own name, a.");
  PageForm wide = form();
  wide.shape.page_tokens *= 2;
  PeerEngine c(named("c"), wide, kPages);
  EXPECT_EQ(sentence_of(a, c.peers().description()),
            "The peer c has pages of another form (model, layout, page size or secret).");
  nixl().set_mode("d", Mode::refuse);
  PeerEngine d(named("d"), form(), kPages);
  EXPECT_EQ(sentence_of(a, d.peers().description()), "NIXL refuses the description of the peer.");
}

TEST(PeerMemory, APluginThatDoesNotStartIsOneSentence) {
  nixl().reset();
  nixl().starts = false;
  PeerConfig config = named("a");
  config.transports = "none";
  try {
    const PeerEngine engine(config, small_form(), kPages);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()), "NIXL's plugin UCX can't be used (UCX_TLS=none).");
  }
}

}  // namespace
}  // namespace kvtwin::test
