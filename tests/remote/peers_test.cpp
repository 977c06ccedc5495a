// Engines in processes of their own that read and write each other's pages by NIXL's plugin UCX: by the kernel's copies
// (UCX's choice on one machine) and by TCP. All pages that arrive are compared byte by byte. Engines are stopped and
// killed in the middle of transfers; the tests wait for states, never for a fixed time.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/remote/environment.hpp"
#include "tests/remote/peer_processes.hpp"

namespace kvtwin::test {
namespace {

constexpr Pages kPages = 3000;
constexpr Bytes kPageBytes = 4096;
const std::string kAll = " " + std::to_string(kPages) + " ";  // all slots, as arguments of a command

std::string text(PeerId peer) { return std::to_string(peer); }

class NixlPeers : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<PeerProcess> engine(const std::string& name, int timeout_ms = 60'000) {
    return std::make_unique<PeerProcess>(name, remote_packages().string(), GetParam(), kPages, kPageBytes, timeout_ms);
  }
  static PeerId add(PeerProcess& engine, const PeerProcess& other) {
    return engine.count("add " + hex_of(other.description()));
  }
  // `a` writes all its pages into slots of `b`, again and again. Returns b's number for a.
  static PeerId begin_writing(PeerProcess& a, PeerProcess& b) {
    a.command("store 0" + kAll + "1000");
    const PeerId to_b = add(a, b), from_a = add(b, a);
    b.command("grant " + text(from_a) + " 0" + kAll);
    a.send("write_until_lost " + text(to_b) + " 2" + kAll + "1000");
    EXPECT_EQ(a.answer(), "writing");
    return from_a;
  }
  static std::string all_right() { return std::to_string(kPages) + " right, 0 missing, 0 unreachable, 0 wrong"; }
  bool one_sided() const { return std::string(GetParam()).empty(); }
};
INSTANTIATE_TEST_SUITE_P(, NixlPeers, testing::Values("", "tcp,self"),
                         [](const auto& transports) { return *transports.param == 0 ? "auto" : "tcp"; });

TEST_P(NixlPeers, ReadEachOthersPagesInAnyOrder) {
  auto a = engine("a"), b = engine("b");
  a->command("store 0" + kAll + "1000");
  const PeerId to_a = add(*b, *a), to_b = add(*a, *b);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(b->command("read " + text(to_a) + " " + text(round) + kAll + "1000"), all_right());
  }
  b->command("store 0" + kAll + "90000");
  EXPECT_EQ(a->command("read " + text(to_b) + " 7" + kAll + "90000"), all_right());
}

// A prefill engine hands pages over to two decode engines.
TEST_P(NixlPeers, WriteIntoGrantedSlotsOfTwoOthers) {
  auto a = engine("a"), b = engine("b"), c = engine("c");
  a->command("store 0" + kAll + "1000");
  for (PeerProcess* receiver : {b.get(), c.get()}) {
    const PeerId from_a = add(*receiver, *a), to = add(*a, *receiver);
    receiver->command("grant " + text(from_a) + " 0" + kAll);
    EXPECT_EQ(a->count("write " + text(to) + " 3" + kAll + "1000"), kPages);
    EXPECT_EQ(receiver->count("accept 0" + kAll + "1000"), kPages);
  }
  const PeerId c_to_b = add(*c, *b);  // accepted pages can be read
  EXPECT_EQ(c->command("read " + text(c_to_b) + " 5" + kAll + "1000"), all_right());
}

TEST_P(NixlPeers, AnOwnerThatOverwritesItsPagesNeverCausesAWrongOne) {
  auto a = engine("a"), b = engine("b");
  a->command("store 0" + kAll + "1000");
  const PeerId to_a = add(*b, *a);
  a->command("churn" + kAll + "1000000");
  // Four generations of pages take turns; a read asks for the first.
  bool delivered = false, missed = false;
  for (int round = 0; !delivered || !missed; ++round) {
    const std::string reads = b->command("read " + text(to_a) + " " + text(round) + kAll + "0");
    ASSERT_TRUE(reads.ends_with(" 0 unreachable, 0 wrong")) << reads;
    delivered = delivered || !reads.starts_with("0 right");
    missed = missed || reads.find(" 0 missing") == std::string::npos;
  }
  a->command("rest");
}

TEST_P(NixlPeers, AStoppedOwnerHindersNobody) {
  constexpr int kTimeoutMs = 300;
  auto a = engine("a"), b = engine("b", one_sided() ? 60'000 : kTimeoutMs), c = engine("c");
  a->command("store 0" + kAll + "1000");
  c->command("store 0" + kAll + "50000");
  const PeerId to_a = add(*b, *a), to_c = add(*b, *c);
  const std::string read_a = "read " + text(to_a) + " 1" + kAll + "1000";
  while (b->command(read_a) != all_right()) continue;
  a->stop();
  if (one_sided()) {
    EXPECT_EQ(b->command(read_a), all_right());  // proves that the owner does nothing
  } else {
    b->send("read_until_lost " + text(to_a) + " 2" + kAll + "1000");
    const std::string reads = b->answer();
    EXPECT_TRUE(reads.ends_with(" unreachable, 0 wrong")) << reads;
    EXPECT_GT(b->count("in_use" + kAll), 0u);
    while (!b->command("read " + text(to_c) + " 3" + kAll + "50000").ends_with(" 0 unreachable, 0 wrong")) continue;
  }
  a->go_on();
  b->command("settle" + kAll);
  while (b->command(read_a) != all_right()) continue;
}

TEST_P(NixlPeers, AnEngineEndsWhileItsPeersAreStoppedOrDead) {
  auto a = engine("a"), b = engine("b", 300), c = engine("c"), d = engine("d");
  a->command("store 0" + kAll + "1000");
  for (PeerProcess* reader : {b.get(), c.get(), d.get()}) {
    const std::string read_a = "read " + text(add(*reader, *a)) + " 1" + kAll + "1000";
    while (reader->command(read_a) != all_right()) continue;
  }
  a->stop();
  EXPECT_TRUE(c->end());
  if (!one_sided()) {
    b->send("read_until_lost 0 2" + kAll + "1000");
    while (b->answer() == "reading") continue;
    EXPECT_GT(b->count("in_use" + kAll), 0u);  // its transfer is in progress
  }
  EXPECT_TRUE(b->end());
  a->kill();
  d->command("read 0 1" + kAll + "1000");
  EXPECT_TRUE(d->end());
}

TEST_P(NixlPeers, AnOwnerThatIsKilledIsLost) {
  auto a = engine("a"), b = engine("b"), c = engine("c");
  a->command("store 0" + kAll + "1000");
  c->command("store 0" + kAll + "50000");
  const PeerId to_a = add(*b, *a), to_c = add(*b, *c);
  b->send("read_until_lost " + text(to_a) + " 2" + kAll + "1000");
  ASSERT_EQ(b->answer(), "reading");
  ASSERT_EQ(b->answer(), "reading");
  a->kill();
  const std::string reads = b->answer();
  EXPECT_TRUE(reads.ends_with(" unreachable, 0 wrong")) << reads;
  // The slots of the failed transfer stay in use. All others go on.
  const std::uint64_t in_use = b->count("in_use" + kAll);
  EXPECT_GT(in_use, 0u);
  EXPECT_EQ(b->command("read " + text(to_a) + " 3" + kAll + "1000"),
            "0 right, 0 missing, " + std::to_string(kPages - in_use) + " unreachable, 0 wrong");
  EXPECT_EQ(b->command("read " + text(to_c) + " 3" + kAll + "50000"),
            std::to_string(kPages - in_use) + " right, 0 missing, 0 unreachable, 0 wrong");
}

TEST_P(NixlPeers, AWriterThatIsKilledLeavesNoGrant) {
  auto a = engine("a"), b = engine("b");
  const PeerId from_a = begin_writing(*a, *b);
  ASSERT_EQ(a->answer(), "writing");
  a->kill();
  EXPECT_EQ(b->count("in_use" + kAll), kPages);
  EXPECT_EQ(b->count("end_grants " + text(from_a)), kPages);
  EXPECT_EQ(b->count("in_use" + kAll), 0u);
  b->command("store 0" + kAll + "70000");
  auto c = engine("c");
  EXPECT_EQ(c->command("read " + text(add(*c, *b)) + " 1" + kAll + "70000"), all_right());
}

TEST_P(NixlPeers, AWriterThatIsStoppedKeepsItsGrantsAndGoesOn) {
  auto a = engine("a"), b = engine("b");
  begin_writing(*a, *b);
  a->stop();
  EXPECT_EQ(b->count("in_use" + kAll), kPages);
  a->go_on();
  ASSERT_EQ(a->answer(), "writing");
  a->kill();
  EXPECT_EQ(b->count("accept 0" + kAll + "1000"), kPages);  // each slot was written with the same page again
}

TEST_P(NixlPeers, AReceiverThatIsKilledOrStoppedIsUnreachable) {
  auto a = engine("a", 300), b = engine("b");
  a->command("store 0" + kAll + "1000");
  const PeerId to_b = add(*a, *b), from_a = add(*b, *a);
  b->command("grant " + text(from_a) + " 0" + kAll);
  const std::string write = "write " + text(to_b) + " 1" + kAll + "1000";
  while (a->count(write) != kPages) a->command("settle" + kAll);
  b->stop();
  if (!one_sided()) {
    while (a->count(write) == kPages) continue;  // the first fit into sockets
    EXPECT_GT(a->count("in_use" + kAll), 0u);
    b->go_on();
    do a->command("settle" + kAll);
    while (a->count(write) != kPages);
  }
  b->kill();
  EXPECT_EQ(a->count(write), 0u);
}

}  // namespace
}  // namespace kvtwin::test
